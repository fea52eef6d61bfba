// The engine decides: lifecycle, admission, retention, leases, what to persist, which slab serves
// whom. A pure state machine: no I/O, no threads, no clock and no randomness of its own. The node
// calls Apply under its lock, appends the facts to the journal, then carries out the actions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "server/engine/actions.h"
#include "server/engine/events.h"
#include "server/engine/options.h"
#include "server/facts/facts.h"

namespace cairn::engine {

// What a new daemon finds.
struct Recovered {
  std::vector<Fact> facts;                              // of the journal, in order
  std::vector<std::pair<SlabId, uint64_t>> held_slabs;  // at the keeper: id, bytes
  std::vector<SessionId> live_sessions;                 // whose process lives
  // Those committed manifests whose bytes in memory verified.
  std::map<PartKey, std::shared_ptr<const Manifest>> manifests;
  std::string safe_mode;  // not empty: why nothing is admitted
};

class Engine {
 public:
  explicit Engine(const Options& options);
  ~Engine();

  // Once, first: from nothing (`recovered` empty) or from a dead daemon's facts. Starts the pool.
  // fact::ManifestCommitted names the extents of committed manifests: the node reads those before.
  Outcome Start(MonotonicNanos now, int64_t unix_ms, Recovered recovered);
  Outcome Apply(MonotonicNanos now, Event event);

  // The answer to a question that needs nothing but what is known: it changes nothing, so any number
  // of threads may ask while no Apply runs. nullopt: Apply has the answer, or a reason to wait or
  // refuse.
  std::optional<ObjectInfo> Peek(const event::StatObject& event) const;

  // The whole state as facts: Start with them rebuilds it.
  std::vector<Fact> Snapshot() const;

  // For the recorder, after action::Record.
  struct Description {
    struct Part {
      fact::ManifestCommitted committed;
      uint64_t bytes = 0;
      uint64_t objects = 0;
      bool resident = false;
      bool persisted = false;
      bool broken = false;
      bool removed = false;
    };
    std::optional<fact::Job> job;
    std::vector<fact::AttemptBegun> attempts;
    std::vector<Part> parts;
    std::vector<CheckpointInfo> complete;
    std::vector<CheckpointKey> gone;  // of those asked about: evicted for good, deleted, or removed
  };
  Description Describe(const std::string& job, const std::vector<CheckpointKey>& checkpoints) const;

  // Invariants that hold between any two Applies; the first that does not, in words. For tests and
  // the simulator: each component has its own, beside its data.
  std::string CheckInvariants() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::engine
