#include "server/keeper/restart_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cairn::keeper {
namespace {

constexpr MonotonicNanos kDeathWindow = 60 * kNanosPerSecond;
constexpr MonotonicNanos kFirstBackoff = 100 * kNanosPerMilli;
constexpr MonotonicNanos kLongestBackoff = 5 * kNanosPerSecond;

// None for the first, then doubling.
MonotonicNanos Backoff(size_t failures) {
  if (failures <= 1) return 0;
  MonotonicNanos backoff = kFirstBackoff;
  for (size_t i = 2; i < failures && backoff < kLongestBackoff; ++i) backoff *= 2;
  return std::min(backoff, kLongestBackoff);
}

}  // namespace

void RestartPolicy::Died(MonotonicNanos now, const std::string& how) {
  ++deaths_;
  recent_.push_back(now);
  while (recent_.front() <= now - kDeathWindow) recent_.pop_front();
  start_at_ = now + Backoff(recent_.size());
  if (static_cast<int>(recent_.size()) >= options_.deaths_before_safe_mode) {
    EnterSafeMode(now, absl::StrCat("the daemon died ", recent_.size(),
                                    " times within a minute, last with ", how));
  } else if (!safe_mode_.empty()) {
    EnterSafeMode(now, absl::StrCat("the daemon died in safe mode with ", how));
  }
}

void RestartPolicy::NotStarted(MonotonicNanos now) {
  ++failed_starts_;
  start_at_ = now + Backoff(static_cast<size_t>(failed_starts_) + 1);
}

void RestartPolicy::EnterSafeMode(MonotonicNanos now, const std::string& why) {
  if (safe_mode_.empty() && now - safe_mode_left_ >= options_.longest_safe_mode) {
    next_length_ = options_.first_safe_mode;
  }
  safe_until_ = start_at_ + next_length_;
  safe_mode_ = absl::StrCat(why, "; safe mode lasts ", next_length_ / kNanosPerSecond, " s");
  next_length_ = std::min(2 * next_length_, options_.longest_safe_mode);
}

void RestartPolicy::Replace(MonotonicNanos now) {
  start_at_ = replaced_at_ == 0 ? now : std::max(now, replaced_at_ + kNanosPerSecond);
  replaced_at_ = now;
}

void RestartPolicy::LeaveSafeMode(MonotonicNanos now) {
  recent_.clear();
  safe_mode_.clear();
  safe_mode_left_ = now;
  start_at_ = now;
}

void RestartPolicy::Forget(MonotonicNanos now) {
  LeaveSafeMode(now);
  next_length_ = options_.first_safe_mode;
}

}  // namespace cairn::keeper
