// A GPU as Cairn uses one: memory on the device, host memory that it reads and writes directly, copies and checksums
// in the order of a stream. Two back ends: cuda_device.h (the CUDA driver, found at run time) and host_device.h (this
// process's memory and threads). tests/gpu holds the contract as one suite that both pass, and every decorator.
//
// Thread-safe. Work on one stream happens in the order in which it was asked for; work on two has no order but what
// Record and Wait give it. What waits says so. owned.h has owners for what is made here.
//
// Errors of every call, besides its own:
//   FAILED_PRECONDITION  this process was forked after the device was opened: a device cannot be used in both
//   INTERNAL             the device failed; nothing on it works any more in this process
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "common/fd.h"
#include "common/status.h"

namespace cairn::gpu {

// An address of device memory; may be added to, within one allocation.
using DevicePtr = uint64_t;

enum class StreamId : uintptr_t {};
enum class EventId : uintptr_t {};

// The stream that work goes to that names none. A caller's own stream (torch.cuda.Stream.cuda_stream) is a StreamId
// too.
inline constexpr StreamId kDefaultStream{0};

// Device memory begins at a multiple of this.
inline constexpr uint64_t kDeviceAlignment = 256;

// What a device may do with registered host memory.
enum class Access : uint8_t { kReadWrite, kRead };

struct CopyIn {
  const void* from = nullptr;
  DevicePtr to = 0;
  uint64_t bytes = 0;
};

struct CopyOut {
  DevicePtr from = 0;
  void* to = nullptr;
  uint64_t bytes = 0;
};

// `count` rows of `width` bytes; where one row begins, after the one before.
struct Rows {
  uint64_t width = 0;
  uint64_t count = 0;
  uint64_t from_pitch = 0;
  uint64_t to_pitch = 0;
};

struct Range {
  DevicePtr data = 0;
  uint64_t bytes = 0;
};

enum class Sum : uint8_t { kCrc32c, kZipCrc32 };

// What a Device has made that has not been given back.
struct DeviceUse {
  uint64_t allocations = 0;
  uint64_t pinned = 0;
  uint64_t registrations = 0;
  uint64_t streams = 0;
  uint64_t events = 0;
  bool operator==(const DeviceUse&) const = default;
};

struct DeviceMemory {
  uint64_t free = 0;
  uint64_t total = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string Name() const = 0;
  // The NUMA node whose memory and processors are nearest; -1 where the machine does not tell.
  virtual int NumaNode() const = 0;
  // Its work is done by this machine's own processors, in its own memory.
  virtual bool IsHost() const = 0;
  virtual DeviceUse Use() const = 0;
  virtual StatusOr<DeviceMemory> Memory() = 0;

  // --- device memory. RESOURCE_EXHAUSTED when there is not enough; the device goes on.
  virtual StatusOr<DevicePtr> Allocate(uint64_t bytes) = 0;
  // The same, for other processes too: they Import the descriptor that Export gives.
  virtual StatusOr<DevicePtr> AllocateShared(uint64_t bytes) = 0;
  virtual StatusOr<UniqueFd> Export(DevicePtr shared) = 0;
  // INVALID_ARGUMENT when the descriptor is of no such memory, or has fewer bytes.
  virtual StatusOr<DevicePtr> Import(UniqueFd exported, uint64_t bytes) = 0;
  // Of all three. Waits for work that uses it. NOT_FOUND when it is not the beginning of an allocation.
  virtual Status Free(DevicePtr memory) = 0;

  // --- host memory
  virtual StatusOr<void*> AllocatePinned(uint64_t bytes) = 0;
  virtual Status FreePinned(void* memory) = 0;
  // Makes mapped pages as fast as pinned ones: the device holds them until Unregister, and reads and writes *these*
  // pages whatever becomes of the mapping; a hole that is punched in the file is not seen. kRead is for mappings that
  // are read-only; a mapping may also be registered writable and protected afterwards.
  //   INVALID_ARGUMENT    not mapped, not writable, shorter than this; or half a TiB and more at once
  //   ALREADY_EXISTS      overlaps what is registered
  //   UNIMPLEMENTED       this device cannot register for reading only
  //   RESOURCE_EXHAUSTED  the pages cannot be held
  virtual Status Register(void* at, uint64_t bytes, Access access) = 0;
  // By where it began; work that uses it must have ended. NOT_FOUND when nothing registered begins there.
  virtual Status Unregister(void* at) = 0;

  // --- order
  virtual StatusOr<StreamId> NewStream() = 0;
  // Its work goes on to the end; may wait for that.
  virtual Status EndStream(StreamId stream) = 0;
  virtual StatusOr<EventId> NewEvent() = 0;
  virtual Status EndEvent(EventId event) = 0;
  // The event has happened when all that the stream was asked for before this has.
  virtual Status Record(EventId event, StreamId stream) = 0;
  // What the stream is asked for from now on waits for the event, as last recorded.
  virtual Status Wait(StreamId stream, EventId event) = 0;
  virtual StatusOr<bool> Happened(EventId event) = 0;
  // These two wait. What failed on the device is told here.
  virtual Status Synchronize(EventId event) = 0;
  virtual Status Synchronize(StreamId stream) = 0;

  // --- work. INVALID_ARGUMENT when a range is not of one allocation, or of host memory reaches beyond one
  // registration: who registers in chunks, copies in chunks. Host memory that is not registered may be copied, slowly,
  // and this call then waits.
  virtual Status Copy(absl::Span<const CopyIn> pieces, StreamId stream) = 0;
  virtual Status Copy(absl::Span<const CopyOut> pieces, StreamId stream) = 0;
  virtual Status CopyRows(const void* from, DevicePtr to, const Rows& rows, StreamId stream) = 0;
  // The checksum of each range, in order, into the array of uint32_t at `sums`, which is device memory too. An empty
  // range's is 0. UNIMPLEMENTED, with the reason, where the device cannot: check on the host. A GPU takes any addresses
  // for ranges; reading what is not mapped there makes the device fail.
  virtual Status Checksum(Sum kind, absl::Span<const Range> ranges, DevicePtr sums,
                          StreamId stream) = 0;
};

}  // namespace cairn::gpu
