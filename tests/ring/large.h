// A ring of any size of the shipped engines, with one job that has a writer on each node: how long it takes
// until a node that was replaced by an empty one is made good, and where the copies lie. Nothing strikes but
// what is asked for, and a node's link has a rate, each way, for all that goes over it.
//
// What members say to each other arrives as in any life of the simulator, also the exchange that each has
// with each other once a second; it takes no room on the links. What they say is not compared with what is
// so: that is for the smaller rings.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "tests/ring/losses.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {

struct LargeRing {
  int nodes = 30;
  int replicas = 1;
  uint64_t part_bytes = 1 << 30;  // of each node's writer, for a step
  int steps = 1;
  double mbit = 800;        // of a node's link, each way, with the headers
  double gone_s = 0;        // from the death of a node to the start of the one in its place
  double deadline_s = 600;  // simulated, for each of what follows
  int64_t lost_after_seconds = 30;
  uint64_t seed = 1;
};

class LargeLife {
 public:
  explicit LargeLife(const LargeRing& ring);

  // Starts all members and trains until the last step has all its replicas.
  void Begin();
  // The node dies and is replaced. Returns the seconds from the start of the one in its place until it says
  // that the last step has all its replicas, and that is so.
  double Replace(Rank rank);
  // These die at once, and nobody takes their places for so long.
  void Lose(const std::set<Rank>& ranks, double seconds);
  // What the node says of `latest`: the step; kNoStep: it cannot be had.
  Step Latest(Rank rank);

  // Of the last step, by writer: who holds its part in memory.
  Holders HoldersNow() const;
  // What went wrong first; empty: nothing.
  const std::string& failure() { return world_.report.result().failure; }
  double now_s() const { return static_cast<double>(world_.clock.now) / 1e9; }
  int64_t events() { return world_.report.result().events; }
  int64_t exchanges() const { return world_.net.exchanges(); }

 private:
  bool Protected() const;  // with all its copies, wherever anybody says so
  // Until the node says it, or the deadline.
  void AwaitSaid(SimNode* node);
  void AwaitSaved();
  bool Advance(MonotonicNanos by) { return world_.AdvanceTo(world_.clock.now + by); }
  CheckpointKey Last() const;

  const LargeRing ring_;
  const Given given_;
  World world_;
};

}  // namespace cairn::engine::ringsim
