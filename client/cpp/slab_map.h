// The slabs that this session writes into. They stay mapped, so that saving again costs neither a
// mapping nor page faults.
//
// A slab is mapped from the first create that grants it until the daemon retires it. It is then
// unmapped as soon as no copy uses it any more, and the next call tells the daemon. Thread-safe.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/fd.h"
#include "common/keys.h"
#include "common/mutex.h"
#include "common/status.h"

namespace cairn::client {

// What is mapped and what no longer is. Outlives the map: a copy may end after its session.
struct UnmapBook {
  Mutex mu;
  std::map<SlabId, int> live ABSL_GUARDED_BY(mu);  // mappings of it that exist in this process
  std::vector<int64_t> unmapped ABSL_GUARDED_BY(mu);
};

// One mapped slab, shared by the map and the copies that write into it. Not inherited by forked
// children (MADV_DONTFORK) and left out of core files.
class MappedSlab {
 public:
  MappedSlab(SlabId id, Mapping mapping, std::shared_ptr<UnmapBook> book);
  ~MappedSlab();
  MappedSlab(const MappedSlab&) = delete;
  MappedSlab& operator=(const MappedSlab&) = delete;

  char* data() const { return mapping_.data(); }
  uint64_t bytes() const { return mapping_.length(); }
  SlabId id() const { return id_; }

  // Page tables of a new mapping are empty, and filling them one fault at a time costs several times
  // the copy. True for the first caller for a large slab: its copy fills them as it goes.
  bool TakeUnpopulated() { return unpopulated_.exchange(false, std::memory_order_relaxed); }

  // [offset, offset + length), of whole pages, at further addresses. Whoever has it keeps this object.
  StatusOr<Mapping> Again(uint64_t offset, uint64_t length) const {
    return mapping_.Again(offset, length);
  }
  // One of these that is not used any more, with its page tables filled, for the next user: at least that long; or an
  // invalid one. The longest is kept.
  Mapping TakeSpare(uint64_t offset, uint64_t length);
  void KeepSpare(uint64_t offset, Mapping spare);

 private:
  const SlabId id_;
  const pid_t pid_;
  Mapping mapping_;
  const std::shared_ptr<UnmapBook> book_;
  std::atomic<bool> unpopulated_;
  Mutex mu_;
  uint64_t spare_offset_ ABSL_GUARDED_BY(mu_) = 0;
  Mapping spare_ ABSL_GUARDED_BY(mu_);
};

class SlabMap {
 public:
  // nullptr: not mapped; its descriptor comes over the fd channel.
  std::shared_ptr<MappedSlab> Find(SlabId slab);
  // Maps the slab read-write; replaces a mapping of the same slab.
  StatusOr<std::shared_ptr<MappedSlab>> Map(SlabId slab, uint64_t bytes, const UniqueFd& fd);

  void Retire(SlabId slab);
  // Slabs unmapped since the last call of this, to tell the daemon. The caller hands them to
  // ReturnUnmapped when it could not tell the daemon.
  std::vector<int64_t> TakeUnmapped();
  void ReturnUnmapped(const std::vector<int64_t>& slabs);

 private:
  const std::shared_ptr<UnmapBook> book_ = std::make_shared<UnmapBook>();
  Mutex mu_;  // before book_->mu
  std::map<SlabId, std::shared_ptr<MappedSlab>> mapped_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::client
