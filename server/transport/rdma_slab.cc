#include "server/transport/rdma_slab.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "server/transport/slabs.h"

namespace cairn::transport {
namespace {

// Of one registration, however much the device takes: a slab is mapped in such pieces while it is registered.
constexpr uint64_t kPieceBytes = uint64_t{1} << 30;
// Bytes read back at once fit the processor's cache.
constexpr uint64_t kCheckedBytes = 256 << 10;

Status Detached() { return absl::CancelledError("the slab was detached"); }

}  // namespace

RdmaSlab::RdmaSlab(VerbsDevice* device, UniqueFd description, uint64_t bytes)
    : device_(device), description_(std::move(description)), bytes_(bytes) {}

int64_t RdmaSlab::Blocks() const {
  struct stat is = {};
  return fstat(description_.get(), &is) == 0 ? int64_t{is.st_blocks} : 0;
}

bool RdmaSlab::RegisteredLocked() const {
  return !detached_ && !pieces_.empty() && Blocks() >= blocks_;
}

// (The analysis does not follow a lock that may not have been taken.)
bool RdmaSlab::Registered() const {
  if (!mu_.TryLock()) return false;
  const bool registered = RegisteredLocked();
  mu_.Unlock();
  return registered;
}

Status RdmaSlab::Register() {
  MutexLock lock(&mu_);
  if (detached_) return Detached();
  if (RegisteredLocked()) return absl::OkStatus();
  pieces_.clear();
  // A power of two, so that pieces begin at pages.
  uint64_t most = kPieceBytes;
  while (most > kPageBytes && most > device_->info().limits.region_bytes) most /= 2;
  std::vector<Piece> pieces;
  for (uint64_t offset = 0; offset < bytes_; offset += most) {
    const uint64_t length = std::min(most, bytes_ - offset);
    CAIRN_ASSIGN_OR_RETURN(auto region, device_->Register(description_.get(), offset, length));
    pieces.push_back({offset, length, std::move(region)});
  }
  blocks_ = Blocks();
  pieces_ = std::move(pieces);
  return absl::OkStatus();
}

std::vector<RdmaPiece> RdmaSlab::remote_pieces() const {
  MutexLock lock(&mu_);
  std::vector<RdmaPiece> pieces;
  for (const Piece& piece : pieces_) {
    pieces.push_back({piece.offset, piece.length, piece.region->remote_key()});
  }
  return pieces;
}

std::vector<RdmaPiece> RdmaSlab::local_pieces() const {
  MutexLock lock(&mu_);
  std::vector<RdmaPiece> pieces;
  for (const Piece& piece : pieces_) {
    pieces.push_back({piece.offset, piece.length, piece.region->local_key()});
  }
  return pieces;
}

StatusOr<uint32_t> RdmaSlab::Crc(uint64_t offset, uint64_t length) const {
  thread_local std::vector<char> bytes(kCheckedBytes);
  uint32_t crc = 0;
  while (length > 0) {
    const uint64_t part = std::min(length, kCheckedBytes);
    {
      MutexLock lock(&mu_);
      if (detached_) return Detached();
      CAIRN_RETURN_IF_ERROR(PreadAll(description_.get(), bytes.data(), part, offset));
    }
    crc = Crc32c(crc, bytes.data(), part);
    offset += part;
    length -= part;
  }
  return crc;
}

void RdmaSlab::Detach() {
  BeginDetach();
  MutexLock lock(&mu_);
  pieces_.clear();
}

Status RdmaSlabs::Attach(SlabId slab, UniqueFd description, uint64_t bytes) {
  CAIRN_RETURN_IF_ERROR(CheckHasBytes(description.get(), bytes));
  auto attached = std::make_shared<RdmaSlab>(device_, std::move(description), bytes);
  MutexLock lock(&mu_);
  if (!slabs_.try_emplace(slab, std::move(attached)).second) return AlreadyAttached(slab);
  return absl::OkStatus();
}

std::shared_ptr<RdmaSlab> RdmaSlabs::Remove(SlabId slab) {
  MutexLock lock(&mu_);
  auto removed = slabs_.extract(slab);
  return removed.empty() ? nullptr : std::move(removed.mapped());
}

StatusOr<std::shared_ptr<RdmaSlab>> RdmaSlabs::Find(const ExtentRef& extent) const {
  MutexLock lock(&mu_);
  const auto at = slabs_.find(extent.slab);
  if (at == slabs_.end()) return NotAttached(extent.slab);
  CAIRN_RETURN_IF_ERROR(CheckLiesIn(extent, at->second->bytes()));
  return at->second;
}

}  // namespace cairn::transport
