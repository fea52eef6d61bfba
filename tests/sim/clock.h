// The world's time. Nothing in a simulated life reads a real clock.
#pragma once

#include <cstdint>
#include <limits>

#include "common/clock.h"

namespace cairn::engine::sim {

constexpr MonotonicNanos kNoTime = std::numeric_limits<MonotonicNanos>::max();
constexpr MonotonicNanos kMilli = kNanosPerMilli, kSecond = kNanosPerSecond;

// How long the engine may take over a call that carries no deadline. It covers the engine's own
// patience with storage or with memory for a manifest, and the world's slowest completion.
constexpr MonotonicNanos kPatience = 11 * kSecond;

// Unix time when the world begins: any clock may be set back by some days.
constexpr int64_t kDayMs = 24 * 3600 * 1000;
constexpr int64_t kBeginningUnixMs = 10 * kDayMs;

struct Clock {
  MonotonicNanos now = kSecond;
  // True unix time, which storage's own clock shows. A node's may be another.
  int64_t UnixMs() const { return kBeginningUnixMs + now / kMilli; }
};

}  // namespace cairn::engine::sim
