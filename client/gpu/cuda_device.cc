// One file: one class, a method for each of the driver's calls.
#include "client/gpu/cuda_device.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <utility>
#include <vector>

#include "client/cpp/huge_memory.h"
#include "client/gpu/checksum_launch.h"
#include "client/gpu/driver.h"
#include "client/gpu/kernels.h"
#include "common/keys.h"
#include "common/mutex.h"

namespace cairn::gpu {
namespace {

using driver::Calls;
using driver::ToStatus;

// Of one call of Register: from driver 580 on, one of half a TiB and more fails.
constexpr uint64_t kMaxRegisterBytes = uint64_t{1} << 39;
// The ranges of one launch are shared out among this many groups of threads: a few times what a device runs at once.
// A group gets no less than this, so that what it costs to begin one stays small beside its work.
constexpr uint64_t kGroups = 2048, kMinShareBytes = 64 << 10;

driver::CUstream Raw(StreamId stream) {
  return reinterpret_cast<driver::CUstream>(static_cast<uintptr_t>(stream));
}
driver::CUevent Raw(EventId event) {
  return reinterpret_cast<driver::CUevent>(static_cast<uintptr_t>(event));
}

class CudaDevice : public Device {
 public:
  CudaDevice(const Calls& calls, int number, driver::CUcontext context)
      : calls_(calls), number_(number), context_(context) {
    char name[256] = {};
    if (calls_.DeviceGetName(name, sizeof name - 1, number_) == 0) name_ = name;
    if (calls_.DeviceGetAttribute(&numa_node_, driver::kNumaNodeAttribute, number_) != 0) {
      numa_node_ = -1;
    }
    int can = 0;
    read_only_ =
        calls_.DeviceGetAttribute(&can, driver::kReadOnlyRegisterAttribute, number_) == 0 &&
        can == 1;
    LoadKernels();
  }

  ~CudaDevice() override {
    if (getpid() != process_) return;  // the context is the parent's
    {
      const Current current(*this);
      if (module_ != nullptr) calls_.ModuleUnload(module_);
    }
    calls_.PrimaryCtxRelease(number_);
  }

  std::string Name() const override { return name_; }
  int NumaNode() const override { return numa_node_; }

  bool IsHost() const override { return false; }
  DeviceUse Use() const override {
    const MutexLock lock(&mutex_);
    return {allocations_.size(), pinned_.size(), registrations_, streams_, events_};
  }

  StatusOr<DeviceMemory> Memory() override {
    size_t free = 0, total = 0;
    CAIRN_RETURN_IF_ERROR(
        Call([&] { return calls_.MemGetInfo(&free, &total); }, "asking for the device's memory"));
    return DeviceMemory{free, total};
  }

  StatusOr<DevicePtr> Allocate(uint64_t bytes) override {
    driver::CUdeviceptr at = 0;
    CAIRN_RETURN_IF_ERROR(Call([&] { return calls_.MemAlloc(&at, bytes); },
                               absl::StrCat("allocating ", bytes, " bytes on the device")));
    Remember(at, {});
    return at;
  }

  StatusOr<DevicePtr> AllocateShared(uint64_t bytes) override {
    const driver::CUallocation want = Wanted();
    CAIRN_ASSIGN_OR_RETURN(const uint64_t whole, Whole(bytes));
    driver::CUhandle handle = 0;
    CAIRN_RETURN_IF_ERROR(Call([&] { return calls_.MemCreate(&handle, whole, &want, 0); },
                               absl::StrCat("allocating ", bytes, " bytes on the device")));
    return MapHandle(handle, whole);
  }

  StatusOr<UniqueFd> Export(DevicePtr shared) override {
    driver::CUhandle handle = 0;
    {
      const MutexLock lock(&mutex_);
      const auto found = allocations_.find(shared);
      if (found == allocations_.end() || found->second.bytes == 0) {
        return absl::NotFoundError("this is no device memory that can be exported");
      }
      handle = found->second.handle;
    }
    int fd = -1;
    CAIRN_RETURN_IF_ERROR(Call(
        [&] { return calls_.MemExportToShareableHandle(&fd, handle, Wanted().handle_types, 0); },
        "exporting device memory"));
    return UniqueFd(fd);
  }

  StatusOr<DevicePtr> Import(UniqueFd exported, uint64_t bytes) override {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t whole, Whole(bytes));
    driver::CUhandle handle = 0;
    // The driver takes the descriptor's number in place of a pointer. For one that is no device memory it says "unknown
    // error", and goes on.
    void* number = reinterpret_cast<void*>(static_cast<intptr_t>(exported.get()));
    const Status imported = Call(
        [&] { return calls_.MemImportFromShareableHandle(&handle, number, Wanted().handle_types); },
        "importing device memory");
    if (absl::IsInternal(imported)) return absl::InvalidArgumentError(imported.message());
    CAIRN_RETURN_IF_ERROR(imported);
    StatusOr<DevicePtr> mapped = MapHandle(handle, whole);
    // More than the memory has is "not supported".
    if (!absl::IsUnimplemented(mapped.status())) return mapped;
    return absl::InvalidArgumentError(mapped.status().message());
  }

  Status Free(DevicePtr memory) override {
    Allocation what;
    {
      const MutexLock lock(&mutex_);
      const auto found = allocations_.find(memory);
      if (found == allocations_.end()) {
        return absl::NotFoundError("no device memory was allocated there");
      }
      what = found->second;
      allocations_.erase(found);
    }
    if (what.bytes == 0) {
      return Call([&] { return calls_.MemFree(memory); }, "freeing device memory");
    }
    // Unlike cuMemFree, unmapping waits for nothing.
    const Status idle =
        Call([&] { return calls_.CtxSynchronize(); }, "waiting for work on device memory");
    const Status unmapped = Unmap(memory, what);
    return idle.ok() ? unmapped : idle;
  }

  // Memory of its own that is registered. The calling thread clears its pages, beside others, and huge ones are
  // registered in half the time; the driver's own allocation takes 0.6 s/GiB, one caller after the other.
  StatusOr<void*> AllocatePinned(uint64_t bytes) override {
    CAIRN_ASSIGN_OR_RETURN(client::HugeMemory memory, client::HugeMemory::Make(bytes));
    char* const at = memory.data();
    for (uint64_t page = 0; page < bytes; page += kPageBytes) {
      static_cast<volatile char*>(at)[page] = 0;
    }
    CAIRN_RETURN_IF_ERROR(Call([&] { return calls_.MemHostRegister(at, bytes, kPortable); },
                               absl::StrCat("pinning ", bytes, " bytes of memory")));
    const MutexLock lock(&mutex_);
    pinned_[at] = std::move(memory);
    return at;
  }

  Status FreePinned(void* memory) override {
    client::HugeMemory owned;
    {
      const MutexLock lock(&mutex_);
      const auto found = pinned_.find(memory);
      if (found == pinned_.end()) return absl::NotFoundError("no pinned memory begins there");
      owned = std::move(found->second);
      pinned_.erase(found);
    }
    const Status freed =
        Call([&] { return calls_.MemHostUnregister(memory); }, "freeing pinned memory");
    if (freed.ok()) return freed;
    // The device may still use it.
    const MutexLock lock(&mutex_);
    pinned_[memory] = std::move(owned);
    return freed;
  }

  Status Register(void* at, uint64_t bytes, Access access) override {
    if (bytes >= kMaxRegisterBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "registering ", bytes, " bytes at once: the driver takes less than ", kMaxRegisterBytes));
    }
    if (access == Access::kRead && !read_only_) {
      return absl::UnimplementedError("this device cannot register memory for reading only");
    }
    const unsigned flags = kPortable | (access == Access::kRead ? kReadOnly : 0);
    CAIRN_RETURN_IF_ERROR(Call([&] { return calls_.MemHostRegister(at, bytes, flags); },
                               absl::StrCat("registering ", bytes, " bytes of host memory")));
    ++registrations_;
    return absl::OkStatus();
  }

  Status Unregister(void* at) override {
    Status ended = Call([&] { return calls_.MemHostUnregister(at); }, "unregistering host memory");
    // The driver says "invalid value" for an address inside a registration.
    if (absl::IsInvalidArgument(ended)) return absl::NotFoundError(ended.message());
    if (ended.ok()) --registrations_;
    return ended;
  }

  StatusOr<StreamId> NewStream() override {
    driver::CUstream stream = nullptr;
    CAIRN_RETURN_IF_ERROR(
        Call([&] { return calls_.StreamCreate(&stream, kApartFromDefault); }, "making a stream"));
    ++streams_;
    return StreamId{reinterpret_cast<uintptr_t>(stream)};
  }

  Status EndStream(StreamId stream) override {
    CAIRN_RETURN_IF_ERROR(
        Call([&] { return calls_.StreamDestroy(Raw(stream)); }, "ending a stream"));
    --streams_;
    return absl::OkStatus();
  }

  StatusOr<EventId> NewEvent() override {
    driver::CUevent event = nullptr;
    CAIRN_RETURN_IF_ERROR(
        Call([&] { return calls_.EventCreate(&event, kWithoutTime | kSleepWhileWaiting); },
             "making an event"));
    ++events_;
    return EventId{reinterpret_cast<uintptr_t>(event)};
  }

  Status EndEvent(EventId event) override {
    CAIRN_RETURN_IF_ERROR(Call([&] { return calls_.EventDestroy(Raw(event)); }, "ending an event"));
    --events_;
    return absl::OkStatus();
  }

  Status Record(EventId event, StreamId stream) override {
    return Call([&] { return calls_.EventRecord(Raw(event), Raw(stream)); }, "recording an event");
  }

  Status Wait(StreamId stream, EventId event) override {
    return Call([&] { return calls_.StreamWaitEvent(Raw(stream), Raw(event), 0); },
                "waiting for an event");
  }

  StatusOr<bool> Happened(EventId event) override {
    driver::CUresult result = 0;
    const Status asked = Call(
        [&] {
          result = calls_.EventQuery(Raw(event));
          return result == driver::kNotReady ? 0 : result;
        },
        "asking for an event");
    if (!asked.ok()) return asked;
    return result == 0;
  }

  Status Synchronize(EventId event) override {
    return Call([&] { return calls_.EventSynchronize(Raw(event)); }, "work on the device");
  }

  Status Synchronize(StreamId stream) override {
    return Call([&] { return calls_.StreamSynchronize(Raw(stream)); }, "work on the device");
  }

  Status Copy(absl::Span<const CopyIn> pieces, StreamId stream) override {
    if (Batched(pieces.size(), stream)) {
      std::vector<driver::CUdeviceptr> from, to;
      std::vector<size_t> sizes;
      for (const CopyIn& piece : pieces) {
        if (piece.bytes == 0) continue;
        from.push_back(reinterpret_cast<uintptr_t>(piece.from));
        to.push_back(piece.to);
        sizes.push_back(piece.bytes);
      }
      return Batch(from, to, sizes, stream);
    }
    for (const CopyIn& piece : pieces) {
      if (piece.bytes == 0) continue;
      CAIRN_RETURN_IF_ERROR(Call(
          [&] { return calls_.MemcpyHtoDAsync(piece.to, piece.from, piece.bytes, Raw(stream)); },
          absl::StrCat("copying ", piece.bytes, " bytes to the device")));
    }
    return absl::OkStatus();
  }

  Status Copy(absl::Span<const CopyOut> pieces, StreamId stream) override {
    if (Batched(pieces.size(), stream)) {
      std::vector<driver::CUdeviceptr> from, to;
      std::vector<size_t> sizes;
      for (const CopyOut& piece : pieces) {
        if (piece.bytes == 0) continue;
        from.push_back(piece.from);
        to.push_back(reinterpret_cast<uintptr_t>(piece.to));
        sizes.push_back(piece.bytes);
      }
      return Batch(from, to, sizes, stream);
    }
    for (const CopyOut& piece : pieces) {
      if (piece.bytes == 0) continue;
      CAIRN_RETURN_IF_ERROR(Call(
          [&] { return calls_.MemcpyDtoHAsync(piece.to, piece.from, piece.bytes, Raw(stream)); },
          absl::StrCat("copying ", piece.bytes, " bytes from the device")));
    }
    return absl::OkStatus();
  }

  Status CopyRows(const void* from, DevicePtr to, const Rows& rows, StreamId stream) override {
    if (rows.width == 0 || rows.count == 0) return absl::OkStatus();
    driver::CUrows copy;
    copy.from_host = from;
    copy.from_pitch = rows.from_pitch;
    copy.to_device = to;
    copy.to_pitch = rows.to_pitch;
    copy.width = rows.width;
    copy.height = rows.count;
    return Call([&] { return calls_.Memcpy2DAsync(&copy, Raw(stream)); },
                absl::StrCat("copying ", rows.count, " rows of ", rows.width, " bytes"));
  }

  Status Checksum(Sum kind, absl::Span<const Range> ranges, DevicePtr sums,
                  StreamId stream) override {
    if (!kernels_.ok()) return kernels_;
    if (ranges.empty()) return absl::OkStatus();
    const uint64_t sums_bytes = ranges.size() * sizeof(uint32_t);
    CAIRN_RETURN_IF_ERROR(
        Call([&] { return calls_.MemsetD8Async(sums, 0, sums_bytes, Raw(stream)); },
             "clearing the checksums"));
    for (size_t first = 0; first < ranges.size(); first += kRangesOfALaunch) {
      CAIRN_RETURN_IF_ERROR(LaunchChecksum(kind, ranges.subspan(first, kRangesOfALaunch),
                                           sums + first * sizeof(uint32_t), stream));
    }
    return absl::OkStatus();
  }

 private:
  // Flags of the driver's calls.
  static constexpr unsigned kPortable = 1;          // CU_MEMHOSTREGISTER_PORTABLE: for all contexts
  static constexpr unsigned kReadOnly = 8;          // CU_MEMHOSTREGISTER_READ_ONLY
  static constexpr unsigned kApartFromDefault = 1;  // CU_STREAM_NON_BLOCKING
  static constexpr unsigned kSleepWhileWaiting = 1, kWithoutTime = 2;  // CU_EVENT_…

  struct Allocation {  // of cuMemAlloc, or, with bytes, one that is mapped
    driver::CUhandle handle = 0;
    uint64_t bytes = 0;
  };

  // Makes the device's context this thread's, and gives back the one that was: the caller may use another device.
  class Current {
   public:
    explicit Current(const CudaDevice& device) : calls_(device.calls_) {
      result = calls_.CtxPushCurrent(device.context_);
    }
    ~Current() {
      driver::CUcontext popped = nullptr;
      if (result == 0) calls_.CtxPopCurrent(&popped);
    }
    driver::CUresult result = 0;

   private:
    const Calls& calls_;
  };

  template <typename What>
  Status Call(What what, const std::string& words) const {
    if (getpid() != process_) {
      return absl::FailedPreconditionError(
          absl::StrCat(words, ": this process was forked after the device was opened"));
    }
    const Current current(*this);
    if (current.result != 0) return ToStatus(calls_, current.result, words);
    return ToStatus(calls_, what(), words);
  }

  void LoadKernels() {
    if (Kernels().empty()) {
      kernels_ = absl::UnimplementedError("Cairn was built without the CUDA toolkit");
      return;
    }
    kernels_ = Call([&] { return calls_.ModuleLoadData(&module_, Kernels().data()); },
                    "loading Cairn's kernels");
    if (kernels_.ok()) {
      kernels_ =
          Call([&] { return calls_.ModuleGetFunction(&checksum_, module_, "cairn_checksum"); },
               "finding Cairn's kernels");
    }
    // Whatever it was, the device can do all the rest.
    if (!kernels_.ok()) kernels_ = absl::UnimplementedError(kernels_.message());
  }

  driver::CUallocation Wanted() const {
    driver::CUallocation want;
    want.location.id = number_;
    return want;
  }

  // `bytes` in whole pieces of what can be shared.
  StatusOr<uint64_t> Whole(uint64_t bytes) const {
    const driver::CUallocation want = Wanted();
    size_t piece = 0;
    CAIRN_RETURN_IF_ERROR(
        Call([&] { return calls_.MemGetAllocationGranularity(&piece, &want, /*minimum=*/0); },
             "asking for the size of shared device memory"));
    return (std::max<uint64_t>(bytes, 1) + piece - 1) / piece * piece;
  }

  StatusOr<DevicePtr> MapHandle(driver::CUhandle handle, uint64_t bytes) {
    driver::CUdeviceptr at = 0;
    driver::CUaccess access;
    access.location.id = number_;
    Status mapped = Call([&] { return calls_.MemAddressReserve(&at, bytes, 0, 0, 0); },
                         "reserving addresses for device memory");
    if (!mapped.ok()) {
      (void)Call([&] { return calls_.MemRelease(handle); }, "");
      return mapped;
    }
    mapped = Call([&] { return calls_.MemMap(at, bytes, 0, handle, 0); }, "mapping device memory");
    if (!mapped.ok()) {
      (void)Call([&] { return calls_.MemAddressFree(at, bytes); }, "");
      (void)Call([&] { return calls_.MemRelease(handle); }, "");
      return mapped;
    }
    const Allocation made{handle, bytes};
    mapped = Call([&] { return calls_.MemSetAccess(at, bytes, &access, 1); },
                  "opening device memory to its device");
    if (!mapped.ok()) {
      (void)Unmap(at, made);
      return mapped;
    }
    Remember(at, made);
    return at;
  }

  Status Unmap(driver::CUdeviceptr at, const Allocation& what) {
    Status first = Call([&] { return calls_.MemUnmap(at, what.bytes); }, "unmapping device memory");
    const Status addresses = Call([&] { return calls_.MemAddressFree(at, what.bytes); },
                                  "giving back addresses of device memory");
    const Status released =
        Call([&] { return calls_.MemRelease(what.handle); }, "freeing device memory");
    if (!first.ok()) return first;
    return addresses.ok() ? released : addresses;
  }

  Status LaunchChecksum(Sum kind, absl::Span<const Range> ranges, DevicePtr sums, StreamId stream) {
    ChecksumLaunch launch;
    uint64_t all = 0, longest = 0;
    for (size_t i = 0; i < ranges.size(); ++i) {
      launch.ranges[i] = {ranges[i].data, ranges[i].bytes};
      all += ranges[i].bytes;
      longest = std::max(longest, ranges[i].bytes);
    }
    // A power of two, because then a range mostly has a power of two groups, which the kernel begins faster.
    launch.share = std::bit_ceil(std::max(kMinShareBytes, all / kGroups));
    launch.sums = sums;
    launch.kind = kind == Sum::kCrc32c ? 0 : 1;
    const uint64_t groups = std::max<uint64_t>(1, (longest + launch.share - 1) / launch.share);
    void* arguments[] = {&launch};
    return Call(
        [&] {
          return calls_.LaunchKernel(checksum_, static_cast<unsigned>(groups),
                                     static_cast<unsigned>(ranges.size()), 1, kChecksumThreads, 1,
                                     1, 0, Raw(stream), arguments, nullptr);
        },
        "starting a checksum");
  }

  bool Batched(size_t pieces, StreamId stream) const {
    // The default stream takes no batches.
    return pieces > 1 && stream != kDefaultStream && calls_.MemcpyBatchAsync != nullptr;
  }

  Status Batch(std::vector<driver::CUdeviceptr>& from, std::vector<driver::CUdeviceptr>& to,
               std::vector<size_t>& sizes, StreamId stream) {
    if (sizes.empty()) return absl::OkStatus();
    driver::CUcopyAttributes attributes;
    size_t first = 0;  // these attributes are for all pieces from the first on
    return Call(
        [&] {
          return calls_.MemcpyBatchAsync(to.data(), from.data(), sizes.data(), sizes.size(),
                                         &attributes, &first, 1, Raw(stream));
        },
        absl::StrCat("copying ", sizes.size(), " pieces"));
  }

  void Remember(driver::CUdeviceptr at, Allocation what) {
    const MutexLock lock(&mutex_);
    allocations_[at] = what;
  }

  const Calls& calls_;
  const int number_;
  const driver::CUcontext context_;
  const pid_t process_ = getpid();
  std::string name_ = "a CUDA device";
  int numa_node_ = -1;
  bool read_only_ = false;
  Status kernels_;  // why there are none
  driver::CUmodule module_ = nullptr;
  driver::CUfunction checksum_ = nullptr;
  mutable Mutex mutex_;
  std::map<driver::CUdeviceptr, Allocation> allocations_ ABSL_GUARDED_BY(mutex_);
  std::map<void*, client::HugeMemory> pinned_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> registrations_{0};
  std::atomic<uint64_t> streams_{0};
  std::atomic<uint64_t> events_{0};
};

}  // namespace

Status CudaAvailable() { return driver::Find().status(); }

StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int number) {
  CAIRN_ASSIGN_OR_RETURN(const Calls* calls, driver::Find());
  int devices = 0;
  CAIRN_RETURN_IF_ERROR(
      ToStatus(*calls, calls->DeviceGetCount(&devices), "asking for the number of devices"));
  if (number < 0 || number >= devices) {
    return absl::InvalidArgumentError(
        absl::StrCat("device: ", number, ", but the driver shows ", devices, " (from 0)"));
  }
  driver::CUcontext context = nullptr;
  CAIRN_RETURN_IF_ERROR(ToStatus(*calls, calls->PrimaryCtxRetain(&context, number),
                                 absl::StrCat("opening CUDA device ", number)));
  return std::make_unique<CudaDevice>(*calls, number, context);
}

}  // namespace cairn::gpu
