// The world of one simulated life: nodes, the storage they share, the clients that talk to them,
// time and chance. It decides what happens next.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/sim/clients.h"
#include "tests/sim/clock.h"
#include "tests/sim/node.h"
#include "tests/sim/pairs.h"
#include "tests/sim/promises.h"
#include "tests/sim/random.h"
#include "tests/sim/report.h"
#include "tests/sim/simulator.h"
#include "tests/sim/storage.h"

namespace cairn::engine::sim {

// A life on another node whose origin is recorded; it publishes its steps later.
struct OtherLife {
  std::string job;
  Attempt attempt = 0;
  Step first = 0, last = 0;
  Lineage lineage;
};

struct World {
  explicit World(const SimulatorOptions& options);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // The whole life, from the first daemon's start to its end.
  SimulatorResult Run();

  bool ok() const { return report.ok(); }

  // Draws nothing where there is only one.
  Node& SomeNode();

  // --- moments to come
  // Mostly within 20 ms, now and then up to 3 s.
  MonotonicNanos Soon();
  MonotonicNanos Within(uint64_t us) {
    return clock.now + static_cast<MonotonicNanos>(rng.Between(1, us) * 1000);
  }
  MonotonicNanos WithinSeconds(uint64_t seconds) {
    return clock.now + static_cast<MonotonicNanos>(rng.Between(1, seconds)) * kSecond;
  }

  // --- the course of time
  // The next completion or timer of any node, if it comes by `to`; false when there is none.
  bool DeliverNext(MonotonicNanos to);
  // All that comes by `to`. False when the life has failed, an endless series of timers included.
  bool AdvanceTo(MonotonicNanos to);
  // A moment passes, with what is due in it.
  void PassMoment();

  const SimulatorOptions options;
  Rng rng;
  Clock clock;
  Report report;
  Promises promises;
  Storage storage;
  Clients clients;
  std::vector<std::unique_ptr<Node>> nodes;  // by id
  bool ending = false;                       // the end of the life: no more faults
  int crashes_left = 0;                      // of daemons
  uint64_t next_content = 1;
  std::optional<OtherLife> other_life;

 private:
  void AddNode();
  void DoSomething();

  std::unique_ptr<PairOfFaults> pair_;
};

}  // namespace cairn::engine::sim
