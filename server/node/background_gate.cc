#include "server/node/background_gate.h"

#include <algorithm>
#include <chrono>

namespace cairn::node {

void BackgroundGate::SetWriting(uint64_t bytes) {
  const uint64_t before = writing_.load(std::memory_order_relaxed);
  if (before == bytes) return;
  MutexLock lock(&mu_);
  Advance();
  writing_.store(bytes, std::memory_order_relaxed);
  if (bytes > before) created_ = at_;
  if (bytes == 0) opened_.NotifyAll();
}

void BackgroundGate::Pass() {
  if (writing_.load(std::memory_order_relaxed) == 0) return;
  MutexLock lock(&mu_);
  const MonotonicNanos begin = clock_.Now();
  for (;;) {
    Advance();
    const MonotonicNanos left = std::min(Shut(), begin + options_.longest_shut - at_);
    if (left <= 0) break;
    (void)opened_.WaitUntil(&mu_,
                            std::chrono::steady_clock::now() + std::chrono::nanoseconds(left));
  }
  waited_ns_.fetch_add(at_ - begin, std::memory_order_relaxed);
}

MonotonicNanos BackgroundGate::ShutFor() {
  MutexLock lock(&mu_);
  Advance();
  return Shut();
}

MonotonicNanos BackgroundGate::Shut() const {
  if (spent_ || writing_.load(std::memory_order_relaxed) == 0) return 0;
  return std::max<MonotonicNanos>(std::min(left_, created_ + options_.longest_step - at_), 0);
}

void BackgroundGate::Advance() {
  const MonotonicNanos now = clock_.Now(), enough = options_.longest_shut / 2;
  for (;;) {
    if (left_ == 0) spent_ = true;
    if (left_ >= enough) spent_ = false;
    if (at_ >= now) return;
    const MonotonicNanos shut = std::min(Shut(), now - at_);
    const MonotonicNanos open = spent_ ? std::min(enough - left_, now - at_) : now - at_;
    left_ = shut > 0 ? left_ - shut : std::min(left_ + open, options_.longest_shut);
    at_ += shut > 0 ? shut : open;
  }
}

}  // namespace cairn::node
