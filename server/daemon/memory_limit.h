// How much memory this process may use: going over a cgroup's limit is death by SIGKILL, not an
// error, so the budget is checked against it before the first page is touched.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"

namespace cairn::daemon {

struct MemoryLimit {
  uint64_t bytes = 0;  // the smallest limit that binds
  std::string source;  // which: "cgroup v2 /system.slice/cairn.service (memory.max)", "MemTotal"
  uint64_t available_bytes = 0;  // MemAvailable now
};

// Looks at the process's own cgroup (v1 and v2) and every ancestor that is visible, and at
// /proc/meminfo. `root` stands for "/" so that tests can lay out captured trees. UNAVAILABLE when
// /proc/meminfo cannot be read.
StatusOr<MemoryLimit> ReadMemoryLimit(const std::string& root = "/");

// The budget when none is configured: half of what binds, and of what is available now; less where that
// would leave the daemon too little.
uint64_t DefaultBudget(const MemoryLimit& limit);

// RESOURCE_EXHAUSTED with the arithmetic when `budget` and the daemon's own needs exceed the limit.
Status CheckBudget(uint64_t budget, const MemoryLimit& limit);

}  // namespace cairn::daemon
