// A cairnd of a test's own, in a folder of its own: the real keeper and daemon as processes, to be
// killed, stopped and started again from outside.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/cpp/session.h"
#include "common/status.h"

namespace cairn::testing {

struct DaemonOptions {
  uint64_t budget_bytes = 256 << 20;
  bool storage = true;
  std::string persist = "on-demand";  // newest, every, on-demand
  std::string failpoints;             // server/node/failpoint.h
  std::vector<std::string> flags;     // more of cairnd's own
};

class Daemon {
 public:
  // The daemon ends with the thread that started it: start it from one that lives as long as the
  // test.
  //
  // Makes the folder, below `base` where it is given, but starts nothing yet.
  static StatusOr<std::unique_ptr<Daemon>> Prepare(const DaemonOptions& options,
                                                   std::string base = "");
  // The same, and starts; returns when the daemon serves.
  static StatusOr<std::unique_ptr<Daemon>> Start(const DaemonOptions& options = {});
  ~Daemon();  // kills what runs, removes the folder

  const std::string& folder() const { return folder_; }
  std::string socket() const { return folder_ + "/cairn.sock"; }
  std::string storage() const { return folder_ + "/storage"; }

  // Options to connect as writer `writer` of `world_size`.
  client::ConnectOptions Client(const std::string& job, Attempt attempt = 1, Writer writer = 0,
                                int32_t world_size = 1) const;
  // NodeStatus as JSON.
  StatusOr<std::string> StatusJson() const;
  Status WaitServing(absl::Duration timeout = absl::Seconds(30)) const;

  pid_t keeper_pid() const { return keeper_; }
  StatusOr<pid_t> daemon_pid() const;
  // SIGKILLs the daemon, not the keeper; returns when it is gone. The keeper starts another by
  // itself.
  Status KillDaemon();
  // SIGTERM to the keeper, then waits; its exit code. DEADLINE_EXCEEDED when it does not end.
  StatusOr<int> Stop(absl::Duration timeout = absl::Seconds(60));
  // SIGKILLs keeper and daemon: all memory is gone, the files stay.
  Status KillEverything();
  // After Stop or KillEverything: a new one in the same folder.
  Status StartAgain();
  // Starts without waiting until it serves.
  Status Exec();

  std::string LogTail() const;

 private:
  Daemon(const DaemonOptions& options, std::string folder);

  const DaemonOptions options_;
  const std::string folder_;
  pid_t keeper_ = -1;
};

}  // namespace cairn::testing
