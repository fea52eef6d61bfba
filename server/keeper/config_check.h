// Asks the binary on disk whether it takes the options as they stand now: a child process that
// prints the next daemon's arguments, or says what is wrong. Its output goes into memfds, so that
// nobody has to read while it runs.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "common/clock.h"
#include "common/fd.h"
#include "common/status.h"

namespace cairn::keeper {

class ConfigCheck {
 public:
  // `oom_score`: as ShieldFromOom returned it. The caller reaps the child, and calls Kill at `deadline`.
  Status Start(const std::vector<std::string>& command, const std::string& oom_score,
               MonotonicNanos deadline);

  pid_t pid() const { return pid_; }  // 0: none runs
  MonotonicNanos deadline() const { return deadline_; }
  void Kill();  // its deadline is over; it ends when the kernel lets it

  // Once the child has ended: the arguments that it printed, each ended by a NUL byte.
  // INVALID_ARGUMENT with its words when it exited with another code than 0.
  StatusOr<std::vector<std::string>> Finish(const siginfo_t& end);

 private:
  pid_t pid_ = 0;
  MonotonicNanos deadline_ = 0;
  UniqueFd output_, errors_;
};

// What the keeper itself was started with stays: the sockets are bound, the journal is there. Of the
// arguments that begin with one of `fixed`, `arguments` gets those that hold `now`.
void KeepFixed(const std::vector<std::string>& fixed, const std::vector<std::string>& now,
               std::vector<std::string>* arguments);

}  // namespace cairn::keeper
