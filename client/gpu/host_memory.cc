#include "client/gpu/host_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "client/cpp/huge_memory.h"

namespace cairn::gpu {
namespace {

constexpr uint64_t kMaxHostRegisterBytes = uint64_t{1} << 39;  // as of the driver, from 580 on

uintptr_t Address(const void* at) { return reinterpret_cast<uintptr_t>(at); }

}  // namespace

StatusOr<bool> IsMapped(const void* at, uint64_t bytes, bool writable) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"),
                                                             std::fclose);
  if (maps == nullptr) return ErrnoStatus(errno, "opening /proc/self/maps");
  uintptr_t wanted = Address(at);
  const uintptr_t end = wanted + bytes;
  char line[4096];
  while (wanted < end && std::fgets(line, sizeof line, maps.get()) != nullptr) {
    uintptr_t from = 0, to = 0;
    char rights[5] = {};
    if (std::sscanf(line, "%lx-%lx %4s", &from, &to, rights) != 3) continue;
    if (to <= wanted) continue;
    if (from > wanted || rights[0] != 'r' || (writable && rights[1] != 'w')) return false;
    wanted = to;
  }
  return wanted >= end;
}

Status RegistrationTable::Add(void* at, uint64_t bytes, Access access) {
  if (bytes == 0) return absl::InvalidArgumentError("registering 0 bytes");
  if (bytes >= kMaxHostRegisterBytes) {
    return absl::InvalidArgumentError(absl::StrCat("registering ", bytes,
                                                   " bytes at once: less than ",
                                                   kMaxHostRegisterBytes, " are possible"));
  }
  if (access == Access::kRead && !read_only_) {
    return absl::UnimplementedError("this device cannot register memory for reading only");
  }
  CAIRN_ASSIGN_OR_RETURN(const bool mapped, IsMapped(at, bytes, access == Access::kReadWrite));
  if (!mapped) {
    return absl::InvalidArgumentError(
        absl::StrCat("registering ", bytes, " bytes of host memory: they are not all mapped",
                     access == Access::kReadWrite ? " for reading and writing" : " for reading"));
  }
  const MutexLock lock(&mutex_);
  const auto after = bytes_by_start_.lower_bound(Address(at) + bytes);
  if (after != bytes_by_start_.begin()) {
    const auto& [start, length] = *std::prev(after);
    if (start + length > Address(at)) {
      return absl::AlreadyExistsError(
          absl::StrCat("registering ", bytes, " bytes of host memory: some are registered"));
    }
  }
  bytes_by_start_[Address(at)] = bytes;
  return absl::OkStatus();
}

Status RegistrationTable::Remove(void* at) {
  const MutexLock lock(&mutex_);
  const auto found = bytes_by_start_.find(Address(at));
  if (found == bytes_by_start_.end()) {
    return absl::NotFoundError("no registered host memory begins there");
  }
  const uint64_t bytes = found->second;
  bytes_by_start_.erase(found);
  CAIRN_ASSIGN_OR_RETURN(const bool mapped, IsMapped(at, bytes, /*writable=*/false));
  if (mapped) return absl::OkStatus();
  return absl::FailedPreconditionError("it was unmapped before it was unregistered");
}

uint64_t RegistrationTable::count() const {
  const MutexLock lock(&mutex_);
  return bytes_by_start_.size();
}

StatusOr<bool> RegistrationTable::Covers(const void* at, uint64_t bytes) const {
  const uintptr_t from = Address(at), to = from + bytes;
  const MutexLock lock(&mutex_);
  const auto after = bytes_by_start_.lower_bound(to);
  if (after == bytes_by_start_.begin()) return false;
  const auto& [start, length] = *std::prev(after);
  if (start + length <= from) return false;
  if (start <= from && to <= start + length) return true;
  return absl::InvalidArgumentError("the host memory reaches beyond what was registered at once");
}

StatusOr<DevicePtr> AllocationTable::Allocate(uint64_t bytes, bool shared) {
  if (bytes == 0) return absl::InvalidArgumentError("allocating 0 bytes on the device");
  const MutexLock lock(&mutex_);
  if (bytes > limit_ - used_) {
    return absl::ResourceExhaustedError(absl::StrCat("allocating ", bytes, " bytes on the device: ",
                                                     limit_ - used_, " of ", limit_, " are free"));
  }
  if (shared) {
    CAIRN_ASSIGN_OR_RETURN(UniqueFd fd, MakeMemfd("cairn-device", bytes, 0600));
    return AddShared(std::move(fd), bytes, bytes);
  }
  CAIRN_ASSIGN_OR_RETURN(client::HugeMemory memory, client::HugeMemory::Make(bytes));
  char* const data = memory.data();
  return Add(data,
             {std::make_shared<const client::HugeMemory>(std::move(memory)), bytes, {}, bytes});
}

StatusOr<DevicePtr> AllocationTable::Import(UniqueFd exported, uint64_t bytes) {
  if (bytes == 0) return absl::InvalidArgumentError("importing 0 bytes");
  struct stat about {};
  if (fstat(exported.get(), &about) != 0 || !S_ISREG(about.st_mode) ||
      static_cast<uint64_t>(about.st_size) < bytes) {
    return absl::InvalidArgumentError("importing device memory: the descriptor has none, or less");
  }
  const MutexLock lock(&mutex_);
  return AddShared(std::move(exported), bytes, 0);
}

StatusOr<DevicePtr> AllocationTable::AddShared(UniqueFd fd, uint64_t bytes, uint64_t counted) {
  CAIRN_ASSIGN_OR_RETURN(
      Mapping mapping, Mapping::MapSealed(fd.get(), 0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED));
  char* const data = mapping.data();
  return Add(data,
             {std::make_shared<const Mapping>(std::move(mapping)), bytes, std::move(fd), counted});
}

DevicePtr AllocationTable::Add(char* data, Allocation allocation) {
  used_ += allocation.counted;
  const DevicePtr at = Address(data);
  allocations_[at] = std::move(allocation);
  return at;
}

StatusOr<UniqueFd> AllocationTable::Export(DevicePtr shared) const {
  const MutexLock lock(&mutex_);
  const auto found = allocations_.find(shared);
  if (found == allocations_.end() || !found->second.fd.valid()) {
    return absl::NotFoundError("this is no device memory that can be exported");
  }
  return found->second.fd.Dup();
}

Status AllocationTable::Free(DevicePtr memory) {
  const MutexLock lock(&mutex_);
  const auto found = allocations_.find(memory);
  if (found == allocations_.end()) {
    return absl::NotFoundError("no device memory was allocated there");
  }
  used_ -= found->second.counted;
  allocations_.erase(found);
  return absl::OkStatus();
}

uint64_t AllocationTable::count() const {
  const MutexLock lock(&mutex_);
  return allocations_.size();
}

DeviceMemory AllocationTable::memory() const {
  const MutexLock lock(&mutex_);
  return {limit_ - used_, limit_};
}

StatusOr<AllocationTable::Held> AllocationTable::Hold(DevicePtr at, uint64_t bytes) const {
  const MutexLock lock(&mutex_);
  const auto after = allocations_.upper_bound(at);
  if (after != allocations_.begin()) {
    const auto& [start, allocation] = *std::prev(after);
    const uint64_t length = allocation.bytes;
    if (at - start <= length && bytes <= length - (at - start)) return allocation.memory;
  }
  return absl::InvalidArgumentError("the device memory is not of one allocation");
}

}  // namespace cairn::gpu
