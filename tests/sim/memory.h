// A node's slabs as its keeper and its cache see them: what lies in them and who sees it. They
// outlive the daemon.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/keys.h"
#include "server/facts/facts.h"
#include "server/facts/part_record.h"
#include "tests/sim/bytes.h"
#include "tests/sim/clock.h"

namespace cairn::engine::sim {

// Who sees a slab: the id of a process, or a negative number that stands for what may be left of
// one (a duplicate of a descriptor, a forked child).
using Holder = int;

struct Region {
  ObjectBytes bytes;
  MonotonicNanos flipped = kNoTime;  // when a bit of it flipped
  std::string record = {};           // the bytes themselves, where they are a part's record
};

struct SimSlab {
  uint64_t bytes = 0;
  std::map<uint64_t, Region> regions;                     // by offset
  std::set<Holder> maps;                                  // mapped for writing
  std::map<LeaseId, Holder> locks;                        // readers' descriptions
  std::set<Holder> by_path;                               // opened by path: no lock tells
  std::optional<std::pair<uint32_t, std::string>> owner;  // uid and job, for life (promise 6)

  bool Seen() const { return !maps.empty() || !locks.empty() || !by_path.empty(); }
  void Write(uint64_t offset, Region region);
  // Forgets the holders that are only what is left of a process.
  void DropGhosts();
};

class Memory {
 public:
  std::map<SlabId, SimSlab> slabs;
  std::set<SlabId> making;
  int64_t flips = 0, manifest_flips = 0;

  uint64_t TotalBytes() const;
  Region* At(const ExtentRef& extent);
  const Region* At(const ExtentRef& extent) const;
  bool Locked(SlabId slab, LeaseId lease) const;
  // Nobody sees it; false for one that is gone.
  bool Unseen(SlabId slab) const;
  // "" when the bytes there are those; what is wrong otherwise. A flipped bit is not the engine's
  // mistake and does not count.
  std::string WrongBytes(const ExtentRef& extent, const ObjectBytes& wanted) const;
  // The part's record, whatever bit of it has flipped; nullptr: it is not there.
  std::shared_ptr<const PartTable> RecordOf(const fact::PartCommitted& committed) const;
};

}  // namespace cairn::engine::sim
