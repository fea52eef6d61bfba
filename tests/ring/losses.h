// Of nodes that are lost at once: whether every part is still in some node's memory. By drawing, from where
// the copies lie; and exactly, for copies that lie along the ring.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "server/engine/ring.h"
#include "tests/sim/random.h"

namespace cairn::engine::ringsim {

// The ranks that hold each part.
using Holders = std::vector<std::set<Rank>>;

// So many different ones of the ranks below `nodes`, each set of them as likely as any other.
std::set<Rank> DrawLost(int nodes, int lost, sim::Rng* rng);
bool AllHeld(const Holders& holders, const std::set<Rank>& lost);
// The share of so many draws after which every part is held.
double ShareHeld(const Holders& holders, int nodes, int lost, int64_t draws, sim::Rng* rng);

// The probability of that where each node's part lies with it and with the `replicas` nodes after it.
//
// A part is lost when its owner and all its replicas are: replicas + 1 nodes in a row. So all are held when no
// run of lost nodes, around the ring, is longer than `replicas`. The m = nodes − lost that are left cut the ring
// into m gaps, each of 0 to `replicas` lost ones. There are [x^lost] (1 + x + … + x^replicas)^m ways to fill the
// gaps after a given one that is left, which may be at any of `nodes` places, and each loss is so counted m times.
// With one replica that is nodes/m · C(m, lost) of C(nodes, lost).
double ProbabilityHeld(int nodes, int lost, int replicas);

// How far a share of so many draws may be from its probability: four standard deviations, and one draw.
double SamplingError(double probability, int64_t draws);

}  // namespace cairn::engine::ringsim
