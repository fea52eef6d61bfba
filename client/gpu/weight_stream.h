// Streams a step's tensors into a device: read ∥ copy ∥ the caller, block by block, every block checked.
//
//   Streamer streamer(device);                                    // once per process and device
//   auto stream = streamer.Start(sources, plan, {});
//   for (;;) {
//     auto tensors = (*stream)->Next();                            // those of one bucket
//     if (!tensors.ok() || tensors->empty()) break;
//     …
//   }
//
// Reading threads, one per lane (lanes.h), bring block after block into pinned slots and ask the device to copy what is
// wanted of it to where it belongs. When all blocks of a bucket are under way, the device takes the checksums of what
// arrived; Next compares them, has bad blocks read again, and hands out the tensors that are whole. A block is checked on
// the device where at least half of it is wanted, in few runs; else on the host, before anything of it is copied, and of
// mapped memory once per process. A device that is the host itself takes bytes straight from mapped memory.
//
// The slabs that a stream reads from are mapped and registered meanwhile (standing_slabs.h), and for later streams the
// device copies straight from them. These slabs may be written anew at any time, so a block counts only when it matches
// *after* it was copied; one that does not is read again through a slot.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/weights_plan.h"
#include "client/gpu/device.h"
#include "client/gpu/lanes.h"
#include "client/gpu/owned.h"
#include "client/gpu/source.h"
#include "client/gpu/standing_slabs.h"
#include "client/gpu/verified_blocks.h"

namespace cairn::gpu {

struct StreamerOptions {
  // Pinned memory is at most lanes × slots × kBlockBytes: 128 MiB.
  size_t lanes = 16;  // of all streams together
  size_t slots = 2;   // of each lane
  // Of one registration of a standing mapping: a multiple of kBlockBytes.
  uint64_t standing_chunk_bytes = uint64_t{64} << 20;
};

struct StreamOptions {
  // Where a tensor's bytes go, asked in the thread that calls Start and Next; the memory is the caller's, of this
  // device, and has room for `bytes`. Null: memory of the device's own, which comes with the tensor.
  std::function<StatusOr<DevicePtr>(const client::WantedTensor& tensor)> place;
  // What the device was asked for on this stream before `place` returns comes before the copies: memory that the
  // caller's own allocator gives out may still be in use there.
  std::optional<StreamId> caller;
  // Tensors lie in buffers of the stream's own and are the caller's until the next call of Next. Without `place`.
  bool views = false;
  uint64_t bucket_bytes = 0;  // 64 to 256 MiB, from what the device has free
  size_t ahead = 2;           // buckets under way before the caller takes them
  size_t threads = 0;         // one per lane; as many as processors, up to 8
  // kAuto: on the device, if it has processors of its own and takes checksums; else on the host, while bytes pass.
  // kNone: nothing is compared with its checksum.
  enum class Check : uint8_t { kAuto, kDevice, kHost, kNone } check = Check::kAuto;
  // kDirect: without standing mappings.
  enum class Way : uint8_t { kAuto, kDirect, kRing } way = Way::kAuto;
};

struct StreamStats {
  uint64_t bytes = 0;   // wanted ones that have been copied
  uint64_t blocks = 0;  // read
  uint64_t checked_on_device = 0;
  uint64_t checked_on_host = 0;
  uint64_t checked_before = 0;  // by this process
  uint64_t direct = 0;          // copied from where they are mapped, without a slot
  uint64_t standing = 0;        // copied from a standing mapping, without a slot
  uint64_t ring = 0;            // through a slot
  uint64_t read_again = 0;      // blocks that did not match at first
  uint64_t buckets = 0;         // handed out
  uint64_t threads = 0;
  std::string host_because;  // why the device checks nothing; empty when it does
  // Why a slab could not be mapped for good or registered; empty: none was refused.
  std::string standing_because;
  // The ways that blocks took: "standing", "direct", "ring", the most used first, with ", " between.
  std::string way;
};

class Streamer;

// Used by one thread at a time.
class WeightStream {
 public:
  struct Tensor {
    const client::WantedTensor* wanted = nullptr;  // lives as long as the stream
    DevicePtr data = 0;
    DeviceBlock owned;  // without `place` and `views`, and of a view that is larger than a buffer
    // What a view lies in: its memory stays, its content until the next call of Next.
    std::shared_ptr<const void> buffer;
  };

  // Stops it: waits for the copies that are under way, not for those that are not.
  virtual ~WeightStream() = default;
  // The tensors that are whole with the next bucket, in the plan's order; empty: there are no more. After an error it
  // answers that error.
  //   DATA_LOSS           a block matches its checksum in no copy; names tensor and block
  //   RESOURCE_EXHAUSTED  the device has no memory for a tensor
  //   what reading the source said; what `place` said
  virtual StatusOr<std::vector<Tensor>> Next() = 0;
  // From any thread: a Next that waits, and each after it, answers CANCELLED.
  virtual void Stop() = 0;
  virtual StreamStats stats() const = 0;
};

// A device, and what streams of weights to it share. Thread-safe; outlived by nothing that it made.
class Streamer {
 public:
  explicit Streamer(std::unique_ptr<Device> device, const StreamerOptions& options = {});

  Device* device() { return device_.get(); }
  LanePool* lanes() { return &lanes_; }
  VerifiedBlocks* verified() { return &verified_; }
  StandingSlabs* standing() { return &standing_; }
  // OK when the device takes checksums; else why not. Tried once.
  Status checks();

  // `sources` are the plan's objects, in its order; null where it wants nothing. INVALID_ARGUMENT when a source is shorter than the plan says, or
  // bucket_bytes is below kDeviceAlignment; RESOURCE_EXHAUSTED as LanePool::Take, and without memory for a bucket.
  StatusOr<std::unique_ptr<WeightStream>> Start(std::vector<std::shared_ptr<Source>> sources,
                                                client::Plan plan, StreamOptions options);

 private:
  const std::unique_ptr<Device> device_;
  LanePool lanes_;  // after the device that it uses
  VerifiedBlocks verified_;
  StandingSlabs standing_;
  Mutex mutex_;
  std::optional<Status> checks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn::gpu
