// Time arrives through the constructor, so that tests and the simulator can set it.
#pragma once

#include <cstdint>

namespace cairn {

// Nanoseconds on a monotonic clock; only differences mean anything.
using MonotonicNanos = int64_t;
inline constexpr MonotonicNanos kNanosPerMilli = 1'000'000;
inline constexpr MonotonicNanos kNanosPerSecond = 1'000'000'000;

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual MonotonicNanos Now() const = 0;
  // Milliseconds since the Unix epoch: for manifests and people, never for deadlines.
  virtual int64_t UnixMillis() const = 0;
};

// CLOCK_MONOTONIC and CLOCK_REALTIME; never destroyed.
Clock* RealClock();

}  // namespace cairn
