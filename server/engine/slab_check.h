// Compares what the ledger counts of slabs with all that lies in them and uses them (Engine::CheckInvariants).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/engine/ledger.h"
#include "server/engine/parts.h"

namespace cairn::engine {

class SlabCheck {
 public:
  explicit SlabCheck(const Ledger& ledger) : ledger_(ledger) {}

  // Each extent of somebody's: "" when it lies within its slab and apart from all others.
  std::string Place(const ExtentRef& extent, Parts::Words what);
  // How many actions under way use each slab.
  std::map<SlabId, uint32_t> pins;
  // After all extents and pins: "" when each that a slab counts is somebody's.
  std::string CheckCounts() const;

 private:
  struct InSlab {
    size_t count = 0;                                   // with those of no bytes
    std::vector<std::pair<uint64_t, uint64_t>> placed;  // offsets, ascending, and lengths
  };
  const Ledger& ledger_;
  absl::flat_hash_map<SlabId, InSlab> slabs_;
};

}  // namespace cairn::engine
