// A job whose files end the daemon that reads them is not read again by itself.
//
// The rule:
//  1. A job that was being read when a daemon died is a *suspect*. That is weak evidence: any death blames
//     whoever was read just then. (A daemon killed by SIGKILL has died, for the kernel's OOM killer
//     does that; one that handed over or stopped in order has not.)
//  2. A suspect is read alone, once in each daemon's life for each kind of call: while that is under way
//     no other begins, for Options::alone_for at most. So the next death names one job.
//  3. A suspect is *set aside* when another daemon dies while that job alone is read, or a third one while it
//     is read beside others. Then every call of storage about it is refused, without a look at
//     the disk: for an hour, and twice as long after each further death, up to a day. Afterwards it is a
//     suspect.
//     (Writing a part takes minutes: it counts as if others were read beside it.)
//  4. A call that ends takes back what such a call was suspected of, and a suspect that is suspected of
//     nothing any more is a job like every other. UNAVAILABLE is no end: nothing was read.
//
// So a job that ends every daemon has ended two, three where that takes longer than `alone_for`; and the
// others that were read beside it then are cleared by their next call. What hangs delays the others by
// twice `alone_for` at most.
//
// A death is blamed on what a call does until it returns. What is done in memory afterwards with what
// it has read is not covered.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/storage/black_box.h"

namespace cairn::storage {

// Thread-safe.
class Suspects {
 public:
  struct Options {
    std::chrono::milliseconds alone_for{5000};
  };

  // Learns from what the last daemon left in `box`. Null: the keeper is too old to hold one; nobody is
  // suspected then. `clock` outlives it.
  Suspects(std::unique_ptr<BlackBox> box, Clock* clock, const Options& options);
  Suspects(std::unique_ptr<BlackBox> box, Clock* clock) : Suspects(std::move(box), clock, {}) {}

  // What it has learnt, in words, for the log: once.
  const std::vector<std::string>& learnt() const { return learnt_; }

  // From now on this daemon's end is no death.
  void EndInOrder();

  // Each job that is set aside now, and why.
  std::map<std::string, std::string> SetAside() const;

  // A call of storage that is under way.
  class Call {
   public:
    Call(Call&& other) noexcept : of_(std::exchange(other.of_, nullptr)), id_(other.id_) {}
    Call& operator=(Call&&) = delete;
    ~Call() { End(/*well=*/false); }
    // `well`: it has done what was suspected of ending daemons.
    void End(bool well);

   private:
    friend class Suspects;
    Call(Suspects* of, uint64_t id) : of_(of), id_(id) {}
    Suspects* of_;
    const uint64_t id_;
  };
  // Waits while somebody is to be alone, twice `alone_for` at most. UNAVAILABLE: the job is set aside.
  StatusOr<Call> Begin(const std::string& job, Use use);

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Known {
    Suspect suspect;
    uint32_t been_alone = 0;  // bits: in which calls of this life, or tried to
    MonotonicNanos aside_until = 0;
    std::string why;  // it is set aside
  };
  struct Running {
    std::string job;
    Use use;
    int slot = BlackBox::kNoSlot;
  };

  void Learn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Blame(Known* known, bool alone, MonotonicNanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Put() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool WaitToBeAlone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WaitForThoseAlone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndCall(uint64_t id, bool well);

  Clock* const clock_;
  const Options options_;
  std::vector<std::string> learnt_;  // constant after construction

  mutable Mutex mu_;
  CondVar changed_;
  const std::unique_ptr<BlackBox> box_ ABSL_PT_GUARDED_BY(mu_);
  std::map<std::string, Known> known_ ABSL_GUARDED_BY(mu_);  // suspects, by job
  std::map<uint64_t, Running> running_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t alone_ ABSL_GUARDED_BY(mu_) = 0;  // which of running_ is; 0: none
  Time alone_until_ ABSL_GUARDED_BY(mu_);
  int want_to_be_alone_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::storage
