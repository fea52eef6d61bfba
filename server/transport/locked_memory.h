// Memory that a device reads and writes is locked: it is never swapped, and counts against a limit of the
// process. Beyond it the kernel says "out of memory", and nothing says of what; this says it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace cairn::transport {

struct LockedMemory {
  std::optional<uint64_t> limit;  // bytes (RLIMIT_MEMLOCK); nullopt: none
  bool unlimited = false;         // the process may lock what it likes (CAP_IPC_LOCK)
  uint64_t locked = 0;            // bytes that it has locked for devices (VmPin)
};

// Of this process.
LockedMemory ThisProcessesLockedMemory();

// FAILED_PRECONDITION, with the arithmetic and the remedy, where a process may not lock `bytes` for each of
// `devices`: the same bytes count once for each device.
Status MayLock(const LockedMemory& memory, uint64_t bytes, int devices);

// What to say of a registration that failed with `error` (errno): RESOURCE_EXHAUSTED for ENOMEM.
Status WhyNotRegistered(int error, absl::string_view device, uint64_t bytes);

}  // namespace cairn::transport
