// Lanes carry bytes from host memory to a device: a stream of the device's, and a few slots of pinned memory. The lanes
// are kept from one stream of weights to the next.
//
// A GPU has one engine for this direction, and copies that follow one another in one stream leave it the shortest pauses:
// there all lanes have one stream. The host device's streams are threads, and each lane has its own.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "client/gpu/device.h"
#include "client/gpu/owned.h"
#include "common/keys.h"
#include "common/mutex.h"
#include "common/status.h"

namespace cairn::gpu {

struct Slot {
  PinnedBlock memory;  // kBlockBytes
  Event copied;        // recorded when the device has been asked for all that lies in it
};

// Used by one thread at a time.
class Lane {
 public:
  // On `shared`, or on a stream of its own.
  static StatusOr<std::unique_ptr<Lane>> Make(Device* device, size_t slots,
                                              std::optional<StreamId> shared);

  StreamId stream() const { return stream_; }
  // For work that takes no slot: its user records it after that.
  EventId reached() const { return reached_.get(); }
  // A slot that the device has read; waits for that. A slot gets its memory when it is first used, by the thread that
  // uses it, and so on that thread's NUMA node. With less memory than for all slots the lane goes on with fewer.
  StatusOr<Slot*> Next();

 private:
  Lane(Device* device, size_t slots) : device_(device), wanted_(slots) {}

  Device* const device_;
  size_t wanted_;
  Stream own_;
  StreamId stream_{};
  Event reached_;
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t next_ = 0;
};

// Thread-safe. Must not outlive the device; lanes come back before it ends.
class LanePool {
 public:
  LanePool(Device* device, size_t lanes, size_t slots)
      : device_(device), most_(lanes), slots_(slots) {}

  // Up to `wanted` lanes, at least one. RESOURCE_EXHAUSTED when other streams have them all.
  StatusOr<std::vector<std::unique_ptr<Lane>>> Take(size_t wanted);
  // The device has done all that they were asked for.
  void Return(std::vector<std::unique_ptr<Lane>> lanes);

 private:
  Device* const device_;
  const size_t most_, slots_;
  Mutex mutex_;
  Stream shared_ ABSL_GUARDED_BY(mutex_);  // before the lanes that are on it
  std::vector<std::unique_ptr<Lane>> idle_ ABSL_GUARDED_BY(mutex_);
  size_t out_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The calling thread runs on this NUMA node's processors from now on; -1, or a machine that does not tell: as before.
void RunOnNode(int node);

}  // namespace cairn::gpu
