#include "client/cli/context.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <ostream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/cli/format.h"
#include "client/cli/render.h"
#include "common/fd.h"

namespace cairn::cli {
namespace {

// libcairn waits for a daemon that is being restarted. The keeper holds the socket meanwhile, so a
// socket that refuses has no daemon to wait for, and the command says so at once instead of at the
// deadline.
Status SomeoneListens(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket: \"", path, "\" has ", path.size(),
                                                   " bytes, a socket path has 1 to ",
                                                   sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return ErrnoStatus(errno, "socket");
  if (connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  if (error == EAGAIN) return absl::OkStatus();  // its queue is full: alive and busy
  if (error == EACCES || error == EPERM) return ErrnoStatus(error, absl::StrCat("socket: ", path));
  return absl::UnavailableError(
      absl::StrCat("socket: no daemon listens at ", path, " (", strerror(error), ")"));
}

client::ConnectOptions BaseOptions(const Settings& settings, const std::string& job) {
  client::ConnectOptions options;
  options.socket = settings.socket;
  options.job = job;
  options.timeout = settings.timeout;
  options.client = absl::StrCat("cairn command line, pid ", getpid());
  return options;
}

// Who connects from a program may insist; `put` has no such option, and waits for the others' end.
void CutFenceOfConnect(std::string* message) {
  const size_t from = message->find(", or insist with `fence`");
  if (from == std::string::npos) return;
  const std::string end = "is saved";
  const size_t to = message->find(end, from);
  message->erase(from, to == std::string::npos ? to : to + end.size() - from);
}

}  // namespace

Status Context::CheckDaemonListens() const { return SomeoneListens(settings.socket); }

double Context::SecondsSince(MonotonicNanos started) const {
  return absl::ToDoubleSeconds(absl::Nanoseconds(clock->Now() - started));
}

StatusOr<std::shared_ptr<client::Session>> Context::Connect(const std::string& job) {
  CAIRN_RETURN_IF_ERROR(CheckDaemonListens());
  return connect(BaseOptions(settings, job));
}

StatusOr<std::shared_ptr<client::Session>> Context::ConnectWriter(const std::string& job,
                                                                  Attempt attempt) {
  CAIRN_RETURN_IF_ERROR(CheckDaemonListens());
  client::ConnectOptions options = BaseOptions(settings, job);
  options.attempt = attempt;
  options.writer = 0;
  options.world_size = 1;
  return connect(options);
}

StatusOr<Target> ParseTarget(const std::string& text, TargetNeeds needs) {
  absl::string_view rest = text;
  absl::ConsumePrefix(&rest, "cairn://");
  Target target;
  const size_t slash = rest.find('/');
  if (slash == absl::string_view::npos || slash + 1 == rest.size()) {
    target.job = std::string(rest.substr(0, slash));
    CAIRN_RETURN_IF_ERROR(ValidateJob(target.job));
    if (needs != TargetNeeds::kJob) {
      return absl::InvalidArgumentError(
          absl::StrCat("path: \"", text, "\" names a job; ",
                       needs == TargetNeeds::kName ? "JOB/STEP/NAME" : "JOB/STEP", " is needed"));
    }
    return target;
  }
  // JOB/STEP/ is JOB/STEP; a name never ends with a slash, so JOB/STEP/NAME/ is refused below.
  if (rest.find('/', slash + 1) == rest.size() - 1) rest.remove_suffix(1);
  CAIRN_ASSIGN_OR_RETURN(CairnPath path, ParseCairnPath(absl::StrCat("cairn://", rest), ""));
  target.job = path.job;
  target.has_step = true;
  target.checkpoint.job = path.job;
  target.checkpoint.step = path.latest ? kNoStep : path.step;
  target.name = path.name;
  if (needs == TargetNeeds::kName && target.name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("path: \"", text, "\" names a step; JOB/STEP/NAME is needed"));
  }
  if (needs == TargetNeeds::kStep && !target.name.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("path: \"", text, "\" names an object; JOB/STEP is needed"));
  }
  return target;
}

void PathArguments::AddTo(CLI::App* command, const std::string& path_help) {
  command->add_option("PATH", path, path_help)->required();
  command->add_option("--attempt", attempt, "this attempt's instead of the line's");
  command->add_option("--revision", revision, "this revision instead of the newest");
}

StatusOr<Target> PathArguments::Parse(TargetNeeds needs) const {
  CAIRN_ASSIGN_OR_RETURN(Target target, ParseTarget(path, needs));
  target.checkpoint.attempt = attempt;
  target.checkpoint.revision = revision;
  return target;
}

StatusOr<nlohmann::ordered_json> AskStatus(client::Session* session) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, session->StatusJson());
  auto status = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (status.is_discarded() || !status.is_object()) {
    return absl::InternalError("status: the daemon's answer is not a JSON object");
  }
  return status;
}

StatusOr<nlohmann::ordered_json> AskIndex(client::Session* session, const std::string& job,
                                          int limit, absl::Duration timeout) {
  CAIRN_ASSIGN_OR_RETURN(const std::string text, session->IndexJson(job, limit, timeout));
  auto index = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (index.is_discarded() || !index.is_object()) {
    return absl::InternalError("index: the daemon's answer is not a JSON object");
  }
  return index;
}

Status WriteAll(int fd, const char* data, uint64_t length, const std::string& where) {
  while (length > 0) {
    const ssize_t written = write(fd, data, length);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EPIPE) {
      return absl::CancelledError(absl::StrCat(where, ": its reader left"));
    }
    if (written < 0) return ErrnoStatus(errno, where);
    data += written;
    length -= static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

std::string InWords(const Status& status) {
  std::string message(status.message());
  if (message.empty()) message = absl::StatusCodeToString(status.code());
  if (const std::string cure = SafeModeCure(message); !cure.empty()) {
    absl::StrAppend(&message, "; ", cure);
  }
  CutFenceOfConnect(&message);
  return Printable(
      absl::StrReplaceAll(message, {{"; force removes it", "; --yes removes it"},
                                    {"the step with fence,", "the step with --fence,"}}));
}

StatusOr<absl::Duration> ParseInterval(const std::string& name, const std::string& text) {
  const StatusOr<absl::Duration> parsed = ParseTimeout(text);
  if (parsed.ok()) return std::clamp(*parsed, absl::Milliseconds(100), absl::Hours(24));
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": \"", text, "\" is not a time above 0 such as 5 or 500ms"));
}

Status ShowAgain(Context* context, absl::Duration interval, const std::function<Status()>& show) {
  const Console& console = context->console;
  bool first = true;
  do {
    if (console.out_terminal) {
      // What is scrolled back to is not ours.
      *console.out << "\x1b[H\x1b[2J";
    } else if (!first && !context->settings.json) {
      *console.out << "\n";
    }
    const Status status = show();
    if (!status.ok() && (first || !absl::IsUnavailable(status))) return status;
    if (!status.ok()) *console.err << "cairn: " << InWords(status) << "\n";
    console.out->flush();
    first = false;
  } while (console.out->good() && console.pause(interval));
  return absl::OkStatus();
}

StatusOr<absl::Duration> ParseTimeout(const std::string& text) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout: \"", text, "\" is not a duration such as 30, 500ms, 2m or 1h30m"));
  }
  if (duration <= absl::ZeroDuration() || !(seconds == seconds)) {
    return absl::InvalidArgumentError(absl::StrCat("timeout: ", text, " is not above 0"));
  }
  return duration;
}

}  // namespace cairn::cli
