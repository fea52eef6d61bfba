#include "server/engine/slab_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cairn::engine {

std::string SlabCheck::Place(const ExtentRef& extent, Parts::Words what) {
  const SlabRecord* slab = ledger_.Find(extent.slab);
  if (slab == nullptr) {
    return absl::StrCat(what(), " lies in slab ", extent.slab, ", which is not there");
  }
  if (extent.offset + extent.length > slab->bytes) {
    return absl::StrCat(what(), " reaches beyond its slab");
  }
  InSlab& in_slab = slabs_[extent.slab];
  ++in_slab.count;
  if (extent.length == 0) return "";
  auto& placed = in_slab.placed;
  const auto at =
      std::lower_bound(placed.begin(), placed.end(), std::pair(extent.offset, uint64_t{0}));
  if (at != placed.end() && at->first == extent.offset) {
    return absl::StrCat(what(), " overlaps another");
  }
  if (at != placed.begin() && std::prev(at)->first + std::prev(at)->second > extent.offset) {
    return absl::StrCat(what(), " overlaps the one before it");
  }
  if (at != placed.end() && extent.offset + extent.length > at->first) {
    return absl::StrCat(what(), " overlaps the one after it");
  }
  placed.insert(at, {extent.offset, extent.length});
  return "";
}

std::string SlabCheck::CheckCounts() const {
  for (const auto& [id, slab] : ledger_.slabs()) {
    const auto in_slab = slabs_.find(id);
    if (slab.extents != (in_slab == slabs_.end() ? 0 : in_slab->second.count)) {
      return absl::StrCat("slab ", id, ": extents are miscounted");
    }
    const auto at = pins.find(id);
    const uint32_t under_way = at == pins.end() ? 0 : at->second;
    if (slab.pins != under_way) {
      return absl::StrCat("slab ", id, ": ", slab.pins, " pins, ", under_way,
                          " actions under way that use it");
    }
  }
  return "";
}

}  // namespace cairn::engine
