#include "client/cpp/slab_map.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace cairn::client {
namespace {
constexpr uint64_t kPopulateFrom = 32 << 20;
}  // namespace

MappedSlab::MappedSlab(SlabId id, Mapping mapping, std::shared_ptr<UnmapBook> book)
    : id_(id),
      pid_(getpid()),
      mapping_(std::move(mapping)),
      book_(std::move(book)),
      unpopulated_(mapping_.length() >= kPopulateFrom) {
  MutexLock lock(&book_->mu);
  ++book_->live[id_];
}

MappedSlab::~MappedSlab() {
  if (pid_ != getpid()) {
    // A forked child does not have this mapping, and may have another at that address.
    new Mapping(std::move(mapping_));
    new Mapping(std::move(spare_));
    return;
  }
  mapping_.Reset();
  spare_.Reset();
  MutexLock lock(&book_->mu);
  const auto live = book_->live.find(id_);
  if (--live->second > 0) return;
  book_->live.erase(live);
  book_->unmapped.push_back(static_cast<int64_t>(id_));
}

Mapping MappedSlab::TakeSpare(uint64_t offset, uint64_t length) {
  MutexLock lock(&mu_);
  if (spare_offset_ != offset || spare_.length() < length) return Mapping();
  return std::move(spare_);
}

void MappedSlab::KeepSpare(uint64_t offset, Mapping spare) {
  Mapping shorter = std::move(spare);  // unmapped after the lock is gone
  MutexLock lock(&mu_);
  if (shorter.length() < spare_.length()) return;
  std::swap(spare_, shorter);
  spare_offset_ = offset;
}

std::shared_ptr<MappedSlab> SlabMap::Find(SlabId slab) {
  MutexLock lock(&mu_);
  const auto found = mapped_.find(slab);
  return found == mapped_.end() ? nullptr : found->second;
}

StatusOr<std::shared_ptr<MappedSlab>> SlabMap::Map(SlabId slab, uint64_t bytes,
                                                   const UniqueFd& fd) {
  CAIRN_ASSIGN_OR_RETURN(
      Mapping mapping, Mapping::MapSealed(fd.get(), 0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED));
  if (madvise(mapping.data(), mapping.length(), MADV_DONTFORK) != 0) {
    return ErrnoStatus(errno, "madvise(MADV_DONTFORK)");
  }
  auto fresh = std::make_shared<MappedSlab>(slab, std::move(mapping), book_);
  std::shared_ptr<MappedSlab> replaced = fresh;  // unmapped after the lock is gone
  MutexLock lock(&mu_);
  std::swap(mapped_[slab], replaced);
  return fresh;
}

void SlabMap::Retire(SlabId slab) {
  std::shared_ptr<MappedSlab> last;  // unmapped after the lock is gone
  MutexLock lock(&mu_);
  const auto found = mapped_.find(slab);
  if (found != mapped_.end()) {
    last = std::move(found->second);
    mapped_.erase(found);
    return;
  }
  // The slab was never mapped here: its descriptor was lost with a connection.
  MutexLock book_lock(&book_->mu);
  if (!book_->live.contains(slab)) book_->unmapped.push_back(static_cast<int64_t>(slab));
}

std::vector<int64_t> SlabMap::TakeUnmapped() {
  MutexLock lock(&book_->mu);
  return std::exchange(book_->unmapped, {});
}

void SlabMap::ReturnUnmapped(const std::vector<int64_t>& slabs) {
  MutexLock lock(&book_->mu);
  for (int64_t slab : slabs) {
    // The slab was granted again meanwhile and is mapped.
    if (!book_->live.contains(static_cast<SlabId>(slab))) book_->unmapped.push_back(slab);
  }
}

}  // namespace cairn::client
