#include "common/clock.h"

#include <ctime>

namespace cairn {
namespace {

int64_t ReadClock(clockid_t id, int64_t units_per_second) {
  timespec now = {};
  clock_gettime(id, &now);
  return now.tv_sec * units_per_second + now.tv_nsec / (kNanosPerSecond / units_per_second);
}

class SystemClock final : public Clock {
 public:
  MonotonicNanos Now() const override { return ReadClock(CLOCK_MONOTONIC, kNanosPerSecond); }
  int64_t UnixMillis() const override { return ReadClock(CLOCK_REALTIME, 1000); }
};

}  // namespace

Clock* RealClock() {
  static SystemClock* const clock = new SystemClock;
  return clock;
}

}  // namespace cairn
