// The slabs of a back end, by number.
#pragma once

#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/facts/extent.h"

namespace cairn::transport {

// INVALID_ARGUMENT when the file has fewer than `bytes` bytes, or `bytes` is 0.
Status CheckHasBytes(int description, uint64_t bytes);
// OUT_OF_RANGE when the extent is empty or reaches beyond a slab of `bytes`.
Status CheckLiesIn(const ExtentRef& extent, uint64_t bytes);

// `Slab` has bytes(). Thread-safe.
template <typename Slab>
class SlabTable {
 public:
  // ALREADY_EXISTS when there is one of that number.
  Status Add(SlabId id, std::shared_ptr<Slab> slab) {
    MutexLock lock(&mu_);
    if (slabs_.try_emplace(id, std::move(slab)).second) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat("slab ", id, " is attached"));
  }
  // The slab, which is not found any more; null when there was none.
  std::shared_ptr<Slab> Remove(SlabId id) {
    MutexLock lock(&mu_);
    auto removed = slabs_.extract(id);
    return removed.empty() ? nullptr : std::move(removed.mapped());
  }
  // NOT_FOUND, or OUT_OF_RANGE as CheckLiesIn.
  StatusOr<std::shared_ptr<Slab>> Find(const ExtentRef& extent) const {
    MutexLock lock(&mu_);
    const auto at = slabs_.find(extent.slab);
    if (at == slabs_.end()) {
      return absl::NotFoundError(absl::StrCat("slab ", extent.slab, " is not attached"));
    }
    CAIRN_RETURN_IF_ERROR(CheckLiesIn(extent, at->second->bytes()));
    return at->second;
  }

 private:
  mutable Mutex mu_;
  absl::flat_hash_map<SlabId, std::shared_ptr<Slab>> slabs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::transport
