#include "server/transport/rdma_slab.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"

namespace cairn::transport {
namespace {

// Of one registration, however much the device takes: a slab is mapped in such pieces while it is registered.
constexpr uint64_t kSlabPieceBytes = uint64_t{1} << 30;
// Bytes read back at once fit the processor's cache.
constexpr uint64_t kCheckedBytes = 256 << 10;

Status Detached() { return absl::CancelledError("the slab was detached"); }

}  // namespace

RdmaSlab::RdmaSlab(VerbsDevice* device, SharedFd description, uint64_t bytes,
                   const RdmaSlabOptions& options)
    : device_(device), description_(std::move(description)), bytes_(bytes), options_(options) {}

int64_t RdmaSlab::Blocks() const {
  struct stat is = {};
  return fstat(description_->get(), &is) == 0 ? int64_t{is.st_blocks} : 0;
}

bool RdmaSlab::Registered() const {
  MutexLock lock(&mu_);
  return !detached_ && !pieces_.empty() && believed_ && Blocks() >= blocks_;
}

void RdmaSlab::Distrust() {
  MutexLock lock(&mu_);
  if (RealClock()->Now() - registered_at_ >= options_.believed) believed_ = false;
}

Status RdmaSlab::CountAnew() {
  const MonotonicNanos now = RealClock()->Now();
  while (!anew_.empty() && now - anew_.front() >= options_.anew_within) anew_.pop_front();
  if (anew_.size() >= static_cast<size_t>(options_.most_anew)) {
    return absl::AbortedError(
        absl::StrCat("a slab was registered anew ", anew_.size(), " times within ",
                     options_.anew_within / kNanosPerMilli,
                     " ms, for its pages are taken away or its bytes are doubted again and again"));
  }
  anew_.push_back(now);
  return absl::OkStatus();
}

Status RdmaSlab::Register() {
  MutexLock registering(&registering_);
  if (detached_) return Detached();
  if (Registered()) return absl::OkStatus();
  std::vector<Piece> pieces;
  {
    MutexLock lock(&mu_);
    if (!pieces_.empty()) CAIRN_RETURN_IF_ERROR(CountAnew());
    pieces.swap(pieces_);
  }
  pieces.clear();  // before the next: what is locked twice counts twice
  // A power of two, so that pieces begin at pages.
  uint64_t most = kSlabPieceBytes;
  while (most > kPageBytes && most > device_->info().limits.region_bytes) most /= 2;
  for (uint64_t offset = 0; offset < bytes_; offset += most) {
    if (detached_) return Detached();  // which waits for no more than a piece
    const uint64_t length = std::min(most, bytes_ - offset);
    CAIRN_ASSIGN_OR_RETURN(auto region, device_->Register(description_->get(), offset, length));
    pieces.push_back({offset, length, std::move(region)});
  }
  MutexLock lock(&mu_);
  pieces_ = std::move(pieces);
  blocks_ = Blocks();
  registered_at_ = RealClock()->Now();
  believed_ = true;
  return absl::OkStatus();
}

std::vector<RdmaPiece> RdmaSlab::Pieces(uint32_t (VerbsRegion::*key)() const) const {
  MutexLock lock(&mu_);
  std::vector<RdmaPiece> pieces;
  for (const Piece& piece : pieces_) {
    pieces.push_back({piece.offset, piece.length, ((*piece.region).*key)()});
  }
  return pieces;
}

StatusOr<uint32_t> RdmaSlab::Crc(uint64_t offset, uint64_t length) const {
  thread_local std::vector<char> bytes(kCheckedBytes);
  uint32_t crc = 0;
  while (length > 0) {
    const uint64_t part = std::min(length, kCheckedBytes);
    {
      ReaderLock lock(&reading_);
      if (detached_) return Detached();
      CAIRN_RETURN_IF_ERROR(PreadAll(description_->get(), bytes.data(), part, offset));
    }
    crc = Crc32c(crc, bytes.data(), part);
    offset += part;
    length -= part;
  }
  return crc;
}

void RdmaSlab::Detach() {
  BeginDetach();
  { WriterLock lock(&reading_); }  // whoever read has ended, and nobody begins
  MutexLock registering(&registering_);
  std::vector<Piece> pieces;  // which go once `mu_` is free again
  MutexLock lock(&mu_);
  pieces.swap(pieces_);
}

Status RdmaSlabs::Attach(SlabId slab, SharedFd description, uint64_t bytes) {
  CAIRN_RETURN_IF_ERROR(CheckHasBytes(description->get(), bytes));
  return Add(slab, std::make_shared<RdmaSlab>(device_, std::move(description), bytes, options_));
}

}  // namespace cairn::transport
