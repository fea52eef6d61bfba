// The factor on every bound that a test sets, from CAIRN_PATIENCE: 1 without it, more on a slow machine and under
// a sanitizer. Everything in C++ that bounds a test asks here; Python asks tests/patience.py.
//
// A bound says when a test gives up on a state that it awaits, so a larger factor loosens nothing. What a test
// requires of the product (a time-out that must not come sooner, say) is not multiplied.
#pragma once

#include <absl/time/time.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>

namespace cairn::testing {

inline double PatienceFactor() {
  static const double factor = [] {
    const char* set = std::getenv("CAIRN_PATIENCE");
    const double value = set == nullptr ? 1 : std::atof(set);
    return value < 1 ? 1 : value;
  }();
  return factor;
}

template <typename Rep, typename Period>
std::chrono::duration<Rep, Period> Patient(std::chrono::duration<Rep, Period> bound) {
  return std::chrono::duration_cast<std::chrono::duration<Rep, Period>>(bound * PatienceFactor());
}
inline absl::Duration Patient(absl::Duration bound) { return bound * PatienceFactor(); }
// Nanoseconds (MonotonicNanos) or any other unit.
inline int64_t Patient(int64_t bound) {
  return static_cast<int64_t>(static_cast<double>(bound) * PatienceFactor());
}

}  // namespace cairn::testing
