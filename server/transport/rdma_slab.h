// The slabs of the RDMA transport: registered with the device, in pieces that it can take.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/facts/extent.h"
#include "server/transport/rdma_options.h"
#include "server/transport/slab_table.h"
#include "server/transport/verbs.h"

namespace cairn::transport {

// Bytes [offset, offset+length) of a slab, and the key by which they are read or written.
struct RdmaPiece {
  uint64_t offset = 0;
  uint64_t length = 0;
  uint32_t key = 0;
};

// Thread-safe.
class RdmaSlab {
 public:
  // `device` outlives it.
  RdmaSlab(VerbsDevice* device, SharedFd description, uint64_t bytes,
           const RdmaSlabOptions& options = {});

  uint64_t bytes() const { return bytes_; }
  bool detached() const { return detached_; }
  // Registers it, unless it is; CANCELLED once it is detached. The first call takes as long as it takes to fault
  // in and lock all of it. A slab that has lost pages since is registered anew, and one that is not believed: the
  // device would go on reading the pages that it had, and would write into pages that are nobody's.
  // ABORTED when that was done `most_anew` times lately: it may be registered again after a while.
  Status Register() ABSL_LOCKS_EXCLUDED(registering_, mu_);
  // Whether Register would have nothing to do. It never waits.
  bool Registered() const ABSL_LOCKS_EXCLUDED(mu_);
  // What the device has of it is not believed any more: a page may have been taken away and written since. Not for
  // a slab that was registered a moment ago, so that nobody can make this busy.
  void Distrust() ABSL_LOCKS_EXCLUDED(mu_);
  // By offset, for the owner's end of reads and the reader's; empty while it is not registered.
  std::vector<RdmaPiece> remote_pieces() const { return Pieces(&VerbsRegion::remote_key); }
  std::vector<RdmaPiece> local_pieces() const { return Pieces(&VerbsRegion::local_key); }
  // Of the bytes as whoever maps the slab sees them. That is where a read's bytes are looked for: the device
  // also says that it has written where the page was taken away.
  StatusOr<uint32_t> Crc(uint64_t offset, uint64_t length) const ABSL_LOCKS_EXCLUDED(reading_);

  // Register and Crc fail from now on.
  void BeginDetach() { detached_ = true; }
  // Deregisters. No read into it is under way.
  void Detach() ABSL_LOCKS_EXCLUDED(registering_, mu_, reading_);

 private:
  struct Piece {
    uint64_t offset = 0, length = 0;
    std::unique_ptr<VerbsRegion> region;
  };
  int64_t Blocks() const;  // that the file has
  std::vector<RdmaPiece> Pieces(uint32_t (VerbsRegion::*key)() const) const
      ABSL_LOCKS_EXCLUDED(mu_);

  // Notes that it is to be registered anew. ABORTED: too often.
  Status CountAnew() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  VerbsDevice* const device_;
  const SharedFd description_;
  const uint64_t bytes_;
  const RdmaSlabOptions options_;
  std::atomic<bool> detached_ = false;
  Mutex registering_;            // held while the device is at work
  mutable SharedMutex reading_;  // held shared while bytes are read
  mutable Mutex mu_;             // a leaf, never held for long
  std::vector<Piece> pieces_ ABSL_GUARDED_BY(mu_);
  int64_t blocks_ ABSL_GUARDED_BY(mu_) = 0;  // when it was registered, as the time
  MonotonicNanos registered_at_ ABSL_GUARDED_BY(mu_) = 0;
  bool believed_ ABSL_GUARDED_BY(mu_) = true;
  std::deque<MonotonicNanos> anew_ ABSL_GUARDED_BY(mu_);  // when it was registered anew, lately
};

// Thread-safe.
class RdmaSlabs : public SlabTable<RdmaSlab> {
 public:
  // `device` outlives it.
  explicit RdmaSlabs(VerbsDevice* device, const RdmaSlabOptions& options = {})
      : device_(device), options_(options) {}
  // As Transport::Attach. Nothing is registered yet.
  Status Attach(SlabId slab, SharedFd description, uint64_t bytes);

 private:
  VerbsDevice* const device_;
  const RdmaSlabOptions options_;
};

}  // namespace cairn::transport
