// Work in the background goes piece by piece through this gate, which is shut while a client writes a step into
// memory: a training step waits for that, and for nothing that is copied to storage or to other members. Copying
// has half of the time at least, however long and often clients write.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/clock.h"
#include "common/mutex.h"

namespace cairn::node {

// Thread-safe.
class BackgroundGate {
 public:
  struct Options {
    // It may be shut for so long at a stretch. What was used of it comes back while the gate is open, as fast.
    MonotonicNanos longest_shut = 500 * kNanosPerMilli;
    // A step that is not written to its end in this time, from its last create on, shuts nothing any more.
    MonotonicNanos longest_step = 10 * kNanosPerSecond;
  };
  explicit BackgroundGate(Clock* clock) : BackgroundGate(clock, Options()) {}
  BackgroundGate(Clock* clock, const Options& options)
      : clock_(*clock), options_(options), left_(options.longest_shut) {}

  // So many bytes are lent to clients for writing now. Costs next to nothing while that is as before.
  void SetWriting(uint64_t bytes);
  // Returns when the next piece may be copied, after `longest_shut` at the latest.
  void Pass();
  // How long the gate stays shut from now on, unless the clients are done before; 0: it is open.
  MonotonicNanos ShutFor();

  int64_t waited_ms() const { return waited_ns_.load(std::memory_order_relaxed) / kNanosPerMilli; }

 private:
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // to now
  MonotonicNanos Shut() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock& clock_;
  const Options options_;
  std::atomic<uint64_t> writing_ = 0;
  std::atomic<MonotonicNanos> waited_ns_ = 0;  // of all threads
  Mutex mu_;
  CondVar opened_;
  MonotonicNanos created_ ABSL_GUARDED_BY(mu_) = 0;  // when something was lent last
  MonotonicNanos at_ ABSL_GUARDED_BY(mu_) = 0;       // the time of which the next ones tell
  MonotonicNanos left_ ABSL_GUARDED_BY(mu_);         // so long it may be shut
  bool spent_ ABSL_GUARDED_BY(mu_) = false;  // all of that was used: open until half of it is back
};

}  // namespace cairn::node
