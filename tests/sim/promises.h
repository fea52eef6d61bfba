// What clients asked to be kept, and what was acknowledged to them: the truth that answers are
// compared with, whichever node gives them.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "common/keys.h"
#include "tests/sim/bytes.h"

namespace cairn::engine::sim {

struct PartPromise {
  std::map<std::string, ObjectBytes> objects;  // by name
  int32_t world_size = 0;
  std::string digest;
  bool committed = false;     // its fact was journaled
  bool acknowledged = false;  // its writer was told so
};

struct Promises {
  std::map<PartKey, PartPromise> parts;
  std::map<CheckpointKey, int32_t> complete;  // those that were ever complete, and their world size
  std::set<CheckpointKey> refused;            // a create of theirs got no memory

  const PartPromise* Find(const PartKey& part) const;  // nullptr: nobody saved it
  bool EverComplete(const CheckpointKey& key) const { return complete.contains(key); }
  std::string DigestOf(const CheckpointKey& key, int32_t world_size) const;
};

}  // namespace cairn::engine::sim
