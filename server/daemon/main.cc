// cairnd: parses its options, then is the keeper, which runs this same binary as the daemon.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "server/daemon/catalog_opener.h"
#include "server/daemon/daemon.h"
#include "server/daemon/memory_limit.h"
#include "server/daemon/options.h"
#include "server/daemon/peer_files.h"
#include "server/keeper/keeper.h"
#include "server/keeper/link.h"
#include "server/keeper/process.h"

namespace cairn::daemon {
namespace {

constexpr int kBadOptions = 2;

// The budget is settled once, before the keeper holds memory: a restarted daemon would find less
// available, because the keeper still holds what the last one had.
Status SettleBudget(ParsedOptions* parsed) {
  CAIRN_ASSIGN_OR_RETURN(const MemoryLimit limit, ReadMemoryLimit());
  uint64_t& budget = parsed->options.node.engine.budget_bytes;
  if (budget == 0 && parsed->settled_budget != 0) {
    budget = parsed->settled_budget;
    parsed->origins["memory.budget"] = "as at the keeper's start";
  } else if (budget == 0) {
    budget = DefaultBudget(limit);
    parsed->origins["memory.budget"] = "half of what " + limit.source + " and MemAvailable leave";
  }
  CAIRN_RETURN_IF_ERROR(CheckBudget(budget, limit));
  return parsed->options.Validate();
}

void StartLogging(const Options& options, const char* program) {
  FLAGS_logtostderr = options.log_dir.empty();
  FLAGS_log_dir = options.log_dir;
  FLAGS_minloglevel = options.log_level == "error"     ? google::GLOG_ERROR
                      : options.log_level == "warning" ? google::GLOG_WARNING
                                                       : google::GLOG_INFO;
  keeper::KeepLogFromBlocking();
  google::InitGoogleLogging(program);
}

std::vector<std::string> DaemonArguments(const ParsedOptions& parsed) {
  std::vector<std::string> arguments = {"--daemon"};
  for (std::string& flag : AsFlags(parsed)) arguments.push_back(std::move(flag));
  return arguments;
}

// What a keeper asks before it replaces its daemon: the next daemon's arguments on standard output.
Status PrintArguments(const ParsedOptions& parsed) {
  if (!keeper::Link::Speaks(parsed.keeper_version)) {
    return absl::UnimplementedError(absl::StrCat("this binary does not speak version ",
                                                 parsed.keeper_version,
                                                 " of the keeper's protocol: it needs a keeper of "
                                                 "its own, and the end of the one that runs"));
  }
  for (const std::string& argument : DaemonArguments(parsed)) {
    std::fwrite(argument.c_str(), 1, argument.size() + 1, stdout);
  }
  return std::fflush(stdout) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "standard output");
}

// The options are read as they were at the start, from the same places.
std::vector<std::string> CheckCommand(const std::string& self, const ParsedOptions& parsed,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {
      self, "--check-config", "--print-arguments",
      absl::StrCat("--keeper-version=", keeper::kVersion),
      absl::StrCat("--settled-budget=", parsed.options.node.engine.budget_bytes)};
  command.insert(command.end(), arguments.begin(), arguments.end());
  if (!parsed.config_path.empty()) command.push_back("--config=" + parsed.config_path);
  return command;
}

int KeeperRole(const ParsedOptions& parsed, const std::vector<std::string>& arguments) {
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) {
    LOG(ERROR) << ErrnoStatus(errno, "/proc/self/exe");
    return 1;
  }
  keeper::Options keeper;
  keeper.socket_path = parsed.options.socket;
  keeper.socket_origin = parsed.origins.at("socket");
  keeper.socket_mode = parsed.options.socket_mode;
  keeper.journal_bytes = parsed.options.node.journal.bytes;
  keeper.daemon_command = DaemonArguments(parsed);
  keeper.daemon_command.insert(keeper.daemon_command.begin(), self);
  keeper.check_command = CheckCommand(self, parsed, arguments);
  keeper.fixed_arguments = KeepersFlags();
  // The flags hold every option: a file that changes must not keep a daemon from restarting. It is
  // read again at SIGHUP.
  unsetenv("CAIRND_CONFIG");
  return keeper::Run(keeper);
}

int DaemonRole(const Options& options, const std::vector<std::string>& environment) {
  keeper::HeedFaultSignals();
  int keeper_fd = -1;
  for (absl::string_view variable : environment) {
    if (absl::ConsumePrefix(&variable, "CAIRN_KEEPER_FD=") &&
        !absl::SimpleAtoi(variable, &keeper_fd)) {
      keeper_fd = -1;
    }
  }
  return RunDaemon(options, keeper_fd);
}

// Started with one of the standard descriptors closed, the first file that is opened would have its
// number, and be written what is meant for it: the journal, say.
void OpenStandardDescriptors() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
  // The next program needs them, too.
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    fcntl(standard, F_SETFD, 0);
}

// What cannot work is said at the start, not to each client: keeper and daemon need some sixty for
// themselves, and then one for each connection, slab and session.
Status CheckDescriptors() {
  constexpr rlim_t kLeast = 256;
  RaiseDescriptorLimit();
  struct rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kLeast) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("descriptors: the limit (RLIMIT_NOFILE) is ", limit.rlim_cur, ", at least ",
                   kLeast, " are needed; one for each client and each slab"));
}

int Main(int argc, char** argv) {
  OpenStandardDescriptors();
  keeper::IgnoreStraySignals();
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.push_back(*variable);
  }
  StatusOr<ParsedOptions> parsed = ParseOptions(arguments, environment);
  if (!parsed.ok()) {
    std::fprintf(stderr, "cairnd: %s\n", std::string(parsed.status().message()).c_str());
    return kBadOptions;
  }
  if (!parsed->message.empty()) {
    std::fputs(parsed->message.c_str(), stdout);
    return 0;
  }
  if (!parsed->daemon_role) {
    Status settled = CheckDescriptors();
    if (settled.ok()) settled = SettleBudget(&*parsed);
    if (settled.ok() && parsed->check_config) settled = CheckPeerFiles(parsed->options);
    if (settled.ok() && parsed->check_config) settled = CheckPasswordFile(parsed->options);
    if (settled.ok() && parsed->print_arguments) settled = PrintArguments(*parsed);
    if (!settled.ok()) {
      std::fprintf(stderr, "cairnd: %s\n", std::string(settled.message()).c_str());
      return kBadOptions;
    }
    if (parsed->print_config) std::fputs(PrintConfig(*parsed).c_str(), stdout);
    if (parsed->print_config || parsed->check_config) return 0;
  }
  StartLogging(parsed->options, argv[0]);
  return parsed->daemon_role ? DaemonRole(parsed->options, environment)
                             : KeeperRole(*parsed, arguments);
}

}  // namespace
}  // namespace cairn::daemon

int main(int argc, char** argv) { return cairn::daemon::Main(argc, argv); }
