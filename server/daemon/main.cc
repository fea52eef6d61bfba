// cairnd: parses its options, then is the keeper, which runs this same binary as the daemon.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "server/daemon/daemon.h"
#include "server/daemon/memory_limit.h"
#include "server/daemon/options.h"
#include "server/keeper/keeper.h"

namespace cairn::daemon {
namespace {

constexpr int kBadOptions = 2;

// The budget is settled once, before the keeper holds memory: a restarted daemon would find less
// available, because the keeper still holds what the last one had.
Status SettleBudget(ParsedOptions* parsed) {
  CAIRN_ASSIGN_OR_RETURN(const MemoryLimit limit, ReadMemoryLimit());
  uint64_t& budget = parsed->options.node.engine.budget_bytes;
  if (budget == 0) {
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
  google::InitGoogleLogging(program);
}

int KeeperRole(const ParsedOptions& parsed) {
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) {
    LOG(ERROR) << ErrnoStatus(errno, "/proc/self/exe");
    return 1;
  }
  keeper::Options keeper;
  keeper.socket_path = parsed.options.socket;
  keeper.socket_mode = parsed.options.socket_mode;
  keeper.journal_bytes = parsed.options.node.journal.bytes;
  keeper.daemon_command = {self, "--daemon"};
  for (std::string& flag : AsFlags(parsed)) keeper.daemon_command.push_back(std::move(flag));
  // The flags hold every option: a file that changes later must not keep a daemon from restarting.
  unsetenv("CAIRND_CONFIG");
  return keeper::Run(keeper);
}

int DaemonRole(const Options& options, const std::vector<std::string>& environment) {
  int keeper_fd = -1;
  for (absl::string_view variable : environment) {
    if (absl::ConsumePrefix(&variable, "CAIRN_KEEPER_FD=") &&
        !absl::SimpleAtoi(variable, &keeper_fd)) {
      keeper_fd = -1;
    }
  }
  return RunDaemon(options, keeper_fd);
}

int Main(int argc, char** argv) {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.push_back(*variable);
  }
  StatusOr<ParsedOptions> parsed =
      ParseOptions(std::vector<std::string>(argv + 1, argv + argc), environment);
  if (!parsed.ok()) {
    std::fprintf(stderr, "cairnd: %s\n", std::string(parsed.status().message()).c_str());
    return kBadOptions;
  }
  if (!parsed->message.empty()) {
    std::fputs(parsed->message.c_str(), stdout);
    return 0;
  }
  if (!parsed->daemon_role) {
    const Status settled = SettleBudget(&*parsed);
    if (!settled.ok()) {
      std::fprintf(stderr, "cairnd: %s\n", std::string(settled.message()).c_str());
      return kBadOptions;
    }
    if (parsed->print_config) std::fputs(PrintConfig(*parsed).c_str(), stdout);
    if (parsed->print_config || parsed->check_config) return 0;
  }
  StartLogging(parsed->options, argv[0]);
  return parsed->daemon_role ? DaemonRole(parsed->options, environment) : KeeperRole(*parsed);
}

}  // namespace
}  // namespace cairn::daemon

int main(int argc, char** argv) { return cairn::daemon::Main(argc, argv); }
