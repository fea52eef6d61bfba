// What every command works with. Everything outside the process arrives through Context, so that
// tests run whole commands against a session of their own.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cpp/session.h"
#include "common/clock.h"
#include "common/status.h"

namespace CLI {
class App;
}

namespace cairn::cli {

// A terminal's size; 0: it is none, or does not say.
struct Screen {
  int columns = 0;
  int lines = 0;
};

struct Console {
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  int in_fd = 0;              // what `put -` reads
  int out_fd = 1;             // where `get PATH -` puts the bytes
  bool out_terminal = false;  // `out` is a terminal: the bytes of objects are not written to it
  bool err_terminal = false;  // progress is shown
  // Asks a yes/no question; empty when there is nobody to answer.
  std::function<bool(const std::string& question)> ask;
  // The terminal that `out` is; absent: it is none.
  std::function<Screen()> screen;
  // Waits between two pages of `status --watch` and `top`; false: nobody reads them any more.
  std::function<bool(absl::Duration)> pause;
  // Whoever read `out` has gone: what could not be written then is no error.
  std::function<bool()> reader_left;
};

// Options that stand before or after any command.
struct Settings {
  std::string socket = client::ConnectOptions{}.socket;
  std::string storage;  // root to read when no daemon answers; empty: none
  absl::Duration timeout = client::ConnectOptions{}.timeout;
  bool json = false;
  bool wide = false;  // tables with every column
};

struct Context {
  Console console;
  const Clock* clock = nullptr;
  std::function<StatusOr<std::shared_ptr<client::Session>>(const client::ConnectOptions&)> connect;

  Settings settings;
  std::function<Status()> action;  // what the parsed command line asks for

  // A session that finds, reads and manages. UNAVAILABLE at once, naming the socket, when nothing
  // listens.
  StatusOr<std::shared_ptr<client::Session>> Connect(const std::string& job = "");
  // The same as lone writer 0 of 1.
  StatusOr<std::shared_ptr<client::Session>> ConnectWriter(const std::string& job, Attempt attempt);
  Status CheckDaemonListens() const;
  double SecondsSince(MonotonicNanos started) const;
};

// JOB, JOB/STEP or JOB/STEP/NAME, with or without cairn:// before it; STEP is a number or "latest".
struct Target {
  std::string job;
  bool has_step = false;
  client::CheckpointRef checkpoint;  // of has_step
  std::string name;                  // empty: the whole step
};
enum class TargetNeeds { kJob, kStep, kName };
// INVALID_ARGUMENT names what is missing or too much for `needs`. kJob takes a job, a step or a name.
StatusOr<Target> ParseTarget(const std::string& text, TargetNeeds needs);

// PATH with --attempt and --revision, for commands about one checkpoint or object.
struct PathArguments {
  std::string path;
  Attempt attempt = 0;
  Revision revision = -1;

  void AddTo(CLI::App* command, const std::string& path_help);
  StatusOr<Target> Parse(TargetNeeds needs) const;
};

// "30", "30s", "2m", "500ms", "1h30m"; not negative.
StatusOr<absl::Duration> ParseTimeout(const std::string& text);

// How long lies between two pages: 100 ms to a day. `name` stands in the error.
StatusOr<absl::Duration> ParseInterval(const std::string& name, const std::string& text);

// Calls `show` again and again; on a terminal each page takes the place of the one before. It ends when a
// signal comes or its reader leaves. A daemon that goes away after the first page is said on the page.
Status ShowAgain(Context* context, absl::Duration interval, const std::function<Status()>& show);

// An error as people read it here: what the daemon calls `force` is an option of the command line, `fence`
// of a connection is none, and a refusal of safe mode has a cure.
std::string InWords(const Status& status);

// NodeStatus of proto/cairn.thrift, as JSON.
StatusOr<nlohmann::ordered_json> AskStatus(client::Session* session);
// As Session::IndexJson, parsed.
StatusOr<nlohmann::ordered_json> AskIndex(client::Session* session, const std::string& job,
                                          int limit, absl::Duration timeout);

// All of `data` to `fd`. CANCELLED when it is a pipe and its reader left. `where` names it in errors.
Status WriteAll(int fd, const char* data, uint64_t length, const std::string& where);

// Each registers one family of subcommands on `app`. The one that is parsed sets context->action.
void AddStatusCommands(CLI::App* app, Context* context);   // status, peers, version
void AddTopCommand(CLI::App* app, Context* context);       // top
void AddFindCommands(CLI::App* app, Context* context);     // ls, stat, latest, wait
void AddPutCommand(CLI::App* app, Context* context);       // put
void AddGetCommand(CLI::App* app, Context* context);       // get
void AddRemoveCommand(CLI::App* app, Context* context);    // rm
void AddManageCommands(CLI::App* app, Context* context);   // persist, use, pin, unpin, policy
void AddStorageCommands(CLI::App* app, Context* context);  // storage init
void AddClusterCommands(CLI::App* app, Context* context);  // cluster init
void AddRingCommands(CLI::App* app, Context* context);     // ring, ring resize, drain
void AddWeightsCommands(CLI::App* app, Context* context);  // weights ls, check, get

// Parses and carries out one command line (without the program's name); returns the exit code.
// Errors go to console.err as "cairn: …".
int Run(const std::vector<std::string>& arguments, Context* context);

}  // namespace cairn::cli
