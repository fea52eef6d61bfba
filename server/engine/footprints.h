// Which slabs a checkpoint's objects lie in, and how much of that memory could be had if it were
// given up. The ledger says when a slab's holders change.
//
// Changes Checkpoint::memory. Invariant: it is the sum over the slabs of the checkpoint's resident
// objects, and each of these slabs names the part as its user.
#pragma once

#include <string>

#include "server/engine/ledger.h"
#include "server/engine/model.h"

namespace cairn::engine {

class Footprints : public SlabWatcher {
 public:
  explicit Footprints(Ledger* ledger) : ledger_(*ledger) {}

  // So many more extents of the part's lie in the slab, or fewer.
  void Add(Part* part, SlabRecord* slab, uint32_t extents);
  void Drop(Part* part, SlabRecord* slab, uint32_t extents);
  // Whose objects lie in the slab: one part's, for a slab serves one create at a time. nullptr: nobody's.
  Part* PartIn(SlabId slab) const;
  void SlabChanged(SlabRecord* slab) override;

  std::string CheckInvariants(const Checkpoint& checkpoint) const;

 private:
  // Whose extents lie in a slab, and what was last added to the checkpoint's sums.
  struct User {
    Part* part = nullptr;
    bool locked = false, mapped = false, for_peers = false;
  };

  Ledger& ledger_;
  absl::flat_hash_map<SlabId, User> users_;
};

}  // namespace cairn::engine
