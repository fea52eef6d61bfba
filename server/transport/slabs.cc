#include "server/transport/slabs.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

namespace cairn::transport {

bool AttachedSlab::Write(absl::Span<const PlacedBytes> pieces, bool wait, Status* status) {
  if (wait) {
    mu_.Lock();
  } else if (!mu_.TryLock()) {
    return false;
  }
  *status = WriteLocked(pieces);
  mu_.Unlock();
  return true;
}

Status AttachedSlab::WriteLocked(absl::Span<const PlacedBytes> pieces) {
  if (detached_) return absl::CancelledError("the slab that is read into was detached");
  for (const PlacedBytes& piece : pieces) {
    CAIRN_RETURN_IF_ERROR(
        PwriteAll(description_->get(), piece.bytes.data(), piece.bytes.size(), piece.offset));
  }
  return absl::OkStatus();
}

void AttachedSlab::Detach() {
  MutexLock lock(&mu_);
  detached_ = true;
}

Status CheckHasBytes(int description, uint64_t bytes) {
  struct stat is = {};
  if (fstat(description, &is) != 0) return ErrnoStatus(errno, "slab");
  if (bytes == 0 || static_cast<uint64_t>(is.st_size) < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes: ", bytes, " of a slab of ", is.st_size, " bytes"));
  }
  return absl::OkStatus();
}

Status CheckLiesIn(const ExtentRef& extent, uint64_t bytes) {
  if (extent.length == 0 || extent.length > bytes || extent.offset > bytes - extent.length) {
    return absl::OutOfRangeError(absl::StrCat("extent: ", extent.length, " bytes at ",
                                              extent.offset, " of slab ", extent.slab,
                                              ", which has ", bytes));
  }
  return absl::OkStatus();
}

Status Slabs::Attach(SlabId slab, SharedFd description, uint64_t bytes) {
  CAIRN_RETURN_IF_ERROR(CheckHasBytes(description->get(), bytes));
  return Add(slab, std::make_shared<AttachedSlab>(std::move(description), bytes));
}

}  // namespace cairn::transport
