// Saves what lies in a device's memory: each byte is copied once, from the device to where it belongs, or through a few
// slots of pinned memory where that is not registered with the device (standing_slabs.h). Checksums are of what lies on the
// device, taken there while the copies go on; where it takes none, the host takes them of what arrived.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/device_reader.h"
#include "client/gpu/device.h"
#include "client/gpu/owned.h"
#include "client/gpu/standing_slabs.h"
#include "common/mutex.h"

namespace cairn::gpu {

struct SaveStats {
  uint64_t bytes = 0;
  uint64_t pieces = 0;
  uint64_t summed_on_device = 0;  // pieces whose checksums the device took
  uint64_t direct = 0;            // pieces that passed through no slot
  std::string host_because;       // why it took none of the last save; empty when it did
  std::string slots_because;      // why slabs are not registered; empty when none was refused
};

struct SaverOptions {
  uint64_t registered_at_once = uint64_t{64} << 20;  // a multiple of kBlockBytes
};

// One per device and process; saves come one after the other. Thread-safe. Must not outlive the device.
class DeviceSaver {
 public:
  explicit DeviceSaver(Device* device, const SaverOptions& options = {});
  ~DeviceSaver();

  // What a save reads through, once the device has done what it was asked for on `caller` before the read. Must not
  // outlive this.
  //   INTERNAL             the device failed
  //   FAILED_PRECONDITION  this process was forked after the device was opened
  //   RESOURCE_EXHAUSTED   no pinned memory, not even for one slot
  //   INVALID_ARGUMENT     what is to be saved is no memory of this device
  std::unique_ptr<client::DeviceReader> After(StreamId caller);

  SaveStats stats() const;
  StandingSlabs* slabs() { return &slabs_; }

 private:
  using Piece = client::DeviceReader::Piece;
  class Reader;
  class Sums;
  // Pinned memory of kBlockBytes, with what the device was asked to copy there.
  struct Slot {
    PinnedBlock memory;
    Event copied;
    struct Part {
      Piece* piece = nullptr;
      uint64_t offset = 0;
    };
    std::vector<Part> parts;
    uint64_t used = 0;

    char* data() const { return static_cast<char*>(memory.get()); }
  };

  using Room = client::DeviceReader::Room;
  // A piece that is copied straight to where it belongs.
  struct Direct {
    Piece* piece = nullptr;
    std::shared_ptr<StandingSlab> slab;
    StandingSlab::Use use;  // before the slab goes
  };

  Status Read(StreamId caller, absl::Span<const Room> rooms, absl::Span<Piece> pieces);
  Status MakeOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status Begin(StreamId caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Splits the pieces.
  void FindDirect(absl::Span<const Room> rooms, absl::Span<Piece> pieces,
                  std::vector<Direct>* direct, std::vector<Piece*>* others);
  Status CopyAll(const std::vector<Direct>& direct, const std::vector<Piece*>& others, bool sum)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status CopyBySlots(const std::vector<Piece*>& pieces, bool sum)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status Send(Slot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Status Empty(Slot* slot, bool sum) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Device* const device_;
  StandingSlabs slabs_;  // after the device that it uses
  mutable Mutex mutex_;
  Stream copies_ ABSL_GUARDED_BY(mutex_);
  Stream sums_ ABSL_GUARDED_BY(mutex_);
  Event reached_ ABSL_GUARDED_BY(mutex_);
  std::deque<Slot> slots_ ABSL_GUARDED_BY(mutex_);
  SaveStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn::gpu
