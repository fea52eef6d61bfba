// What the host device knows of memory: its own allocations, and which mappings of this process are registered.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "client/gpu/device.h"
#include "common/fd.h"
#include "common/mutex.h"

namespace cairn::gpu {

// Whether [at, at + bytes) is mapped in this process, all of it, readable, and with `writable` writable too.
StatusOr<bool> IsMapped(const void* at, uint64_t bytes, bool writable);

// The mappings that are registered, by the driver's rules. Thread-safe.
class RegistrationTable {
 public:
  explicit RegistrationTable(bool read_only) : read_only_(read_only) {}

  // As Device::Register.
  Status Add(void* at, uint64_t bytes, Access access);
  Status Remove(void* at);
  uint64_t count() const;

  // True when all of [at, at + bytes) lies in one registration, false when none of it is registered; INVALID_ARGUMENT
  // for a range that begins, ends or goes on in another.
  StatusOr<bool> Covers(const void* at, uint64_t bytes) const;

 private:
  const bool read_only_;
  mutable Mutex mutex_;
  std::map<uintptr_t, uint64_t> bytes_by_start_ ABSL_GUARDED_BY(mutex_);
};

// Device memory: huge pages of this process, or a mapped memfd where it is for others, too. Thread-safe.
class AllocationTable {
 public:
  explicit AllocationTable(uint64_t limit) : limit_(limit) {}

  StatusOr<DevicePtr> Allocate(uint64_t bytes, bool shared);
  StatusOr<UniqueFd> Export(DevicePtr shared) const;
  StatusOr<DevicePtr> Import(UniqueFd exported, uint64_t bytes);
  // Gives the memory up; it stays until the last holder lets go.
  Status Free(DevicePtr memory);
  uint64_t count() const;
  DeviceMemory memory() const;

  // Keeps the memory that [at, at + bytes) lies in. INVALID_ARGUMENT when that is not one allocation.
  using Held = std::shared_ptr<const void>;
  StatusOr<Held> Hold(DevicePtr at, uint64_t bytes) const;

 private:
  struct Allocation {
    Held memory;
    uint64_t bytes = 0;
    UniqueFd fd;  // of shared memory
    uint64_t counted = 0;
  };

  StatusOr<DevicePtr> AddShared(UniqueFd fd, uint64_t bytes, uint64_t counted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  DevicePtr Add(char* data, Allocation allocation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t limit_;
  mutable Mutex mutex_;
  std::map<DevicePtr, Allocation> allocations_ ABSL_GUARDED_BY(mutex_);
  uint64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cairn::gpu
