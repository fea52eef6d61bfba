// Two faults that strike at about the same time, some times in one life: a table of faults that can be
// begun and ended by name, so that a new one is a row.
//
// What this world cannot express is not in it: the catalog (there is none; its loss is tested with
// whole processes), the keeper's descriptors (a slab is a number here), power loss and torn files
// (storage publishes whole checkpoints), and a storage restored from an older copy.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "tests/sim/simulator.h"

namespace cairn::engine::sim {

struct World;

class PairOfFaults {
 public:
  PairOfFaults(World* world, const FaultPair& pair);

  // Strikes or ends what is due before this event of the life.
  void Before(int event);

 private:
  void Plan(size_t fault, int strikes, int ends);

  struct Due {
    int event = 0;
    std::function<void()> happens;
  };
  World& world_;
  std::vector<Due> due_;  // the next one last
};

}  // namespace cairn::engine::sim
