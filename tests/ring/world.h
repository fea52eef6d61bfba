// The world of one simulated ring: its members, what lies between them, the storage they share, the jobs
// that train on them, what strikes; time and chance.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/ring/catalog.h"
#include "tests/ring/checks.h"
#include "tests/ring/faults.h"
#include "tests/ring/net.h"
#include "tests/ring/node.h"
#include "tests/ring/schedule.h"
#include "tests/ring/simulator.h"
#include "tests/ring/trainers.h"
#include "tests/sim/clock.h"
#include "tests/sim/random.h"
#include "tests/sim/report.h"
#include "tests/world/storage.h"

namespace cairn::engine::ringsim {

using sim::kMilli;
using sim::kSecond;

// What is drawn once for a life.
struct Shape {
  int nodes = 3;
  int replicas = 1;
  int64_t lost_after_seconds = 10;
  bool storage = true;
  uint64_t rate = 200 << 20;  // bytes per second between two nodes, and to storage
  MonotonicNanos active = 0;  // how long things strike; then all is whole again
  bool clocks_apart = false;  // by years
  bool roomy = true;          // budgets and quotas hold all that is to be kept
  bool links = false;  // `rate` is that of a node's link, each way, for all that goes over it
  int64_t most_events = 400'000;  // of a life; more is an endless series
  bool checked = true;            // all that members say is compared with what is so
  bool catalog = false;           // the members stand in the catalog, and there are spares
  int spares = 0;
  MonotonicNanos takeover_after = 0;
};

// A world of which nothing is drawn.
struct Given {
  Shape shape;
  std::vector<JobShape> jobs;
};

struct World {
  // `given`: nullptr draws all of it.
  explicit World(const RingSimOptions& its_options, const Given* given = nullptr);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  SimulatorResult Run();

  bool ok() const { return report.ok(); }
  void Fail(const std::string& what);

  // --- time
  void In(MonotonicNanos delay, std::function<void()> what) {
    schedule.At(clock.now + delay, std::move(what));
  }
  MonotonicNanos Millis(uint64_t low, uint64_t high) {
    return static_cast<MonotonicNanos>(rng.Between(low, high)) * kMilli;
  }
  MonotonicNanos TransferTime(uint64_t bytes) const {
    return static_cast<MonotonicNanos>(static_cast<double>(bytes) /
                                       static_cast<double>(shape.rate) * 1e9);
  }
  // When what begins to go from one to the other now has come.
  MonotonicNanos ReadTime(uint64_t bytes, SimNode* from, SimNode* to);

  // --- members
  // Who stands at that rank's address; nullptr: nobody. Of a rank of the catalog: its newest life.
  SimNode* At(Rank rank) const;
  // Whom this node reaches when it dials that rank; nullptr: nobody who has it.
  SimNode* Dial(const SimNode& node, Rank rank) const;
  // Whose memory the ring can read, as far as links allow; some may be dead, or nullptr.
  const std::vector<SimNode*>& Serving() const;
  // An empty node begins its life there, in place of whoever was.
  SimNode* Replace(Rank rank);
  // One that claims the rank at another address.
  SimNode* AddClaimant(Rank rank);
  // Those that stand at their addresses and whose machine lives.
  std::vector<SimNode*> Members() const;
  // And the spares, and lives that have lost their rank.
  std::vector<SimNode*> Living() const;
  // What a node of the catalog runs with, but for its seat.
  Options OptionsOfMachine();

  const RingSimOptions options;
  sim::Rng rng;
  sim::Clock clock;
  sim::Report report;
  Shape shape;
  Schedule schedule;
  world::Storage storage;
  Net net;
  std::vector<std::unique_ptr<SimNode>> nodes;  // all that ever were, by id
  Truth truth;
  std::unique_ptr<Catalog> catalog;  // null: the members stand in a list
  std::vector<std::unique_ptr<Job>> jobs;
  Faults faults;
  bool ending = false;                // nothing strikes any more
  bool AdvanceTo(MonotonicNanos to);  // false: something failed
  uint32_t last_content = 0;

 private:
  SimNode* AddNode(Rank rank);
  void Converge();

  void DrawCatalog();
  void MakeMembers();

  std::map<Rank, Options> node_options_;
  uint64_t most_bytes_ = 0;   // that one node may hold of one step
  std::vector<SimNode*> at_;  // by rank
};

}  // namespace cairn::engine::ringsim
