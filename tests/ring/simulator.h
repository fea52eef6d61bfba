// The seeded simulator of whole rings: 3 to 9 nodes, each the shipped cairn::engine::Engine with a model of
// what stands below and around it, one thread, injected time. Everything that happens is drawn from one
// 64-bit seed, so that a seed replays exactly. tests/sim simulates one node, and that one deeply; here a
// node is simple (its disk, its clients and its kernel make no mistakes) and what lies between nodes is
// not.
//
//   World     time, chance, what is due next (world.h)
//   Net       links between members, their outboxes, what is cut, lost, late or said twice (net.h)
//   SimNode   a daemon with its executor, and what outlives it (node.h)
//   Storage   what all nodes share, if there is any (tests/world)
//   Catalog   who has which rank, in the lives whose members stand in a database (catalog.h)
//   Job       the ranks of a training job, life after life (trainers.h)
//   Faults    what strikes, and that it ends (faults.h)
//   Truth     where copies really are, as nobody in the ring can know it, and what must hold (checks.h)
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tests/sim/simulator.h"

namespace cairn::engine::ringsim {

using sim::SimulatorResult;

// A lie planted in the world, to show that the checks object.
enum class Lie : uint8_t {
  kNone,
  kFetchChangesBytes,  // a fetch says that all verified, and one object has other bytes
  kReplicaLost,        // a replica that is said to be held is not there
  kStorageForgets,     // storage says that a part was written and keeps nothing
  kGrantIgnored,       // the owner writes over what it has granted, while it is read
  kProbesAreDeaf,      // who dials a rank's owner hears nobody
};

struct RingSimOptions {
  uint64_t seed = 1;
  bool trace = false;
  bool converge = true;  // the end of a life expects that all nodes agree
  Lie lie = Lie::kNone;
  // Whether the members stand in the catalog; else the seed says so.
  std::optional<bool> catalog = {};
};

SimulatorResult Simulate(const RingSimOptions& options);

}  // namespace cairn::engine::ringsim
