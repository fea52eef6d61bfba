// Compares the ledger's counts with all extents and pins of its slabs (Engine::CheckInvariants).
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

  // To be called for each extent: "" when it lies within its slab and apart from all others, else the problem.
  std::string Place(const ExtentRef& extent, Parts::Words what);
  // To be counted up by each action under way that uses a slab.
  std::map<SlabId, uint32_t> pins;
  // After all extents and pins: "" when the ledger counts as many, else the problem.
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
