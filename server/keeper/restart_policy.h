// When the next daemon starts after a death, and whether in safe mode. Decides by the times that it
// is told; no clock of its own.
#pragma once

#include <deque>
#include <string>

#include "common/clock.h"

namespace cairn::keeper {

struct RestartOptions {
  int deaths_before_safe_mode = 3;  // within a minute
  // How long safe mode lasts: the first time, then twice as long each time, up to the longest. After
  // that long without it the next one is a first one again.
  MonotonicNanos first_safe_mode = 60 * kNanosPerSecond;
  MonotonicNanos longest_safe_mode = 3600 * kNanosPerSecond;
};

class RestartPolicy {
 public:
  RestartPolicy(const RestartOptions& options, MonotonicNanos now)
      : options_(options), start_at_(now), next_length_(options.first_safe_mode) {}

  // `how`: "exit code 3", "signal 9 (Killed)".
  void Died(MonotonicNanos now, const std::string& how);
  // No daemon could be started at all.
  void NotStarted(MonotonicNanos now);
  void Started() { failed_starts_ = 0; }
  // The daemon wants the next one in its place: at once, but at most one a second.
  void Replace(MonotonicNanos now);
  // Safe mode is over; the next daemon starts at once, as if none had died.
  void LeaveSafeMode(MonotonicNanos now);
  // The next daemon is of another binary or has other options: the deaths before say nothing of it.
  void Forget(MonotonicNanos now);
  void StartNow(MonotonicNanos now) { start_at_ = now; }

  MonotonicNanos start_at() const { return start_at_; }        // the next daemon
  const std::string& safe_mode() const { return safe_mode_; }  // why; empty: not in safe mode
  MonotonicNanos safe_until() const { return safe_until_; }    // while in safe mode
  int deaths() const { return deaths_; }                       // ever

 private:
  void EnterSafeMode(MonotonicNanos now, const std::string& why);

  const RestartOptions options_;
  int deaths_ = 0;
  int failed_starts_ = 0;              // since the last daemon
  std::deque<MonotonicNanos> recent_;  // deaths of the last minute
  MonotonicNanos start_at_;
  MonotonicNanos replaced_at_ = 0;  // when one was last wanted
  std::string safe_mode_;
  MonotonicNanos safe_until_ = 0;
  MonotonicNanos safe_mode_left_ = 0;  // when safe mode last ended
  MonotonicNanos next_length_;
};

}  // namespace cairn::keeper
