#include "server/transport/locked_memory.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/fd.h"

namespace cairn::transport {
namespace {

constexpr uint64_t kMib = 1 << 20;

bool HasIpcLock() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> sets = {};
  if (syscall(SYS_capget, &header, sets.data()) != 0) return false;
  return (sets[0].effective & (1U << CAP_IPC_LOCK)) != 0;
}

// "VmPin:      1024 kB"
uint64_t PinnedBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    absl::string_view text = line;
    uint64_t kib = 0;
    if (absl::ConsumePrefix(&text, "VmPin:") && absl::ConsumeSuffix(&text, " kB") &&
        absl::SimpleAtoi(text, &kib)) {
      return kib << 10;
    }
  }
  return 0;
}

std::string Mib(uint64_t bytes) { return absl::StrCat((bytes + kMib - 1) / kMib, " MiB"); }

constexpr char kRemedy[] =
    "raise it (`ulimit -l unlimited`, LimitMEMLOCK=infinity, docker --ulimit memlock=-1), or give "
    "the daemon "
    "CAP_IPC_LOCK";

}  // namespace

LockedMemory ThisProcessesLockedMemory() {
  LockedMemory memory;
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    memory.limit = limit.rlim_cur;
  }
  memory.unlimited = HasIpcLock();
  memory.locked = PinnedBytes();
  return memory;
}

Status MayLock(const LockedMemory& memory, uint64_t bytes, int devices) {
  if (memory.unlimited || !memory.limit.has_value()) return absl::OkStatus();
  const uint64_t needed = bytes * static_cast<uint64_t>(devices);
  if (needed <= *memory.limit) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "locked memory: RDMA needs ", Mib(bytes), " for each of ", devices, " devices, ", Mib(needed),
      ", and the limit of this process is ", Mib(*memory.limit), ": ", kRemedy));
}

Status WhyNotRegistered(int error, absl::string_view device, uint64_t bytes) {
  if (error != ENOMEM) {
    return ErrnoStatus(error, absl::StrCat(device, ": registering ", Mib(bytes)));
  }
  const LockedMemory memory = ThisProcessesLockedMemory();
  if (memory.unlimited || !memory.limit.has_value()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        device, ": registering ", Mib(bytes), " beside ", Mib(memory.locked),
        " that are registered: no memory, or no more registrations, of the device or the kernel"));
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      device, ": registering ", Mib(bytes), " beside ", Mib(memory.locked),
      " that are registered: the limit of locked memory is ", Mib(*memory.limit), "; ", kRemedy));
}

}  // namespace cairn::transport
