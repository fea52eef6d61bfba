// The slabs that a transport may read from and into.
#pragma once

#include <memory>

#include "absl/types/span.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/facts/extent.h"
#include "server/transport/slab_table.h"

namespace cairn::transport {

// Bytes, and where in a slab they go.
struct PlacedBytes {
  absl::Span<const char> bytes;
  uint64_t offset = 0;
};

class AttachedSlab {
 public:
  AttachedSlab(SharedFd description, uint64_t bytes)
      : description_(std::move(description)), bytes_(bytes) {}

  uint64_t bytes() const { return bytes_; }
  int fd() const { return description_->get(); }
  // Writes the pieces; *status is CANCELLED once the slab is detached. With `wait` false it returns false
  // and writes nothing while another thread writes: the kernel lets one thread at a time write a file,
  // and whoever waits in there could have received meanwhile.
  // (The analysis does not follow a lock that is taken in one of two ways.)
  bool Write(absl::Span<const PlacedBytes> pieces, bool wait,
             Status* status) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // On return no Write is under way, and none begins.
  void Detach() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  Status WriteLocked(absl::Span<const PlacedBytes> pieces) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SharedFd description_;
  const uint64_t bytes_;
  Mutex mu_;  // held while bytes are written
  bool detached_ ABSL_GUARDED_BY(mu_) = false;
};

// Thread-safe.
class Slabs : public SlabTable<AttachedSlab> {
 public:
  // As Transport::Attach.
  Status Attach(SlabId slab, SharedFd description, uint64_t bytes);
};

}  // namespace cairn::transport
