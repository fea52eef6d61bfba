// The engine decides: lifecycle, admission, retention, leases, what to persist, which slab serves
// whom. A pure state machine: no I/O, no threads, no clock and no randomness of its own. The node
// calls Apply under its lock, appends the facts to the journal, then carries out the actions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "server/engine/actions.h"
#include "server/engine/events.h"
#include "server/engine/options.h"
#include "server/facts/facts.h"
// clang-format off
namespace cairn::engine {  // values in tables, one line each

// What a new daemon finds.
struct Recovered {
  std::vector<Fact> facts;                                       // of the journal, in order
  std::vector<std::pair<SlabId, uint64_t>> held_slabs;           // at the keeper: id, bytes
  std::vector<SessionId> live_sessions;                          // whose process lives
  std::vector<std::pair<PartKey, std::string>> manifests;        // bytes of the committed manifests that verified
  std::string safe_mode;                                         // not empty: why nothing is admitted
};

class Engine {
 public:
  explicit Engine(const Options& options);
  ~Engine();

  // Once, first: from nothing (`recovered` empty) or from a dead daemon's facts. Starts the pool.
  // Extents of committed manifests are named by fact::ManifestCommitted, so the node reads them before.
  Outcome Start(MonotonicNanos now, int64_t unix_ms, Recovered recovered);
  Outcome Apply(MonotonicNanos now, Event event);

  // The answer to a question that needs nothing but what is there: it changes nothing, so any number of
  // threads may ask while no Apply runs. nullopt: Apply has the answer, or a reason to wait or refuse.
  std::optional<ObjectInfo> Peek(const event::StatObject& event) const;

  // The whole state as facts: Start with them rebuilds it.
  std::vector<Fact> Snapshot() const;

  // For the recorder, after action::Record.
  struct Description {
    std::optional<fact::Job> job;
    std::vector<fact::AttemptBegun> attempts;
    struct Part { fact::ManifestCommitted committed; uint64_t bytes = 0, objects = 0; bool resident = false,
                  persisted = false, broken = false, removed = false; };
    std::vector<Part> parts;
    std::vector<CheckpointInfo> complete;
    std::vector<CheckpointKey> gone;  // of those asked about: evicted for good, deleted, or removed
  };
  Description Describe(const std::string& job, const std::vector<CheckpointKey>& checkpoints) const;

  // Invariants that hold between any two Applies; the first that does not, in words. For tests and the
  // simulator: budget never exceeded, no two live objects overlap, every pin has an action under way, …
  std::string CheckInvariants() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::engine
