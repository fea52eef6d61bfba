// Which slabs a checkpoint's objects lie in, and how much of that memory could be had if it were
// given up. The ledger says when a slab's holders change.
//
// Changes Checkpoint::memory. Invariant: it is the sum over the slabs of the checkpoint's resident
// objects, and each of these slabs names the checkpoint as its user.
#pragma once

#include <string>

#include "server/engine/ledger.h"
#include "server/engine/model.h"

namespace cairn::engine {

class Footprints : public SlabWatcher {
 public:
  explicit Footprints(Ledger* ledger) : ledger_(*ledger) {}

  // So many more extents of the checkpoint's lie in the slab, or fewer.
  void Add(Checkpoint* checkpoint, SlabRecord* slab, uint32_t extents);
  void Drop(Checkpoint* checkpoint, SlabRecord* slab, uint32_t extents);
  void SlabChanged(SlabRecord* slab) override;

  std::string CheckInvariants(const Checkpoint& checkpoint) const;

 private:
  // Whose extents lie in a slab, and what was last added to that checkpoint's sums.
  struct User {
    Checkpoint* checkpoint = nullptr;
    bool locked = false, mapped = false;
  };

  Ledger& ledger_;
  absl::flat_hash_map<SlabId, User> users_;
};

}  // namespace cairn::engine
