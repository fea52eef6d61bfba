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
#include "server/engine/ring.h"
#include "server/engine/snapshot_cursor.h"
#include "server/facts/facts.h"

namespace cairn::engine {

class Gathered;

// What a new daemon finds.
struct Recovered {
  std::vector<Fact> facts;                              // of the journal, in order
  std::vector<std::pair<SlabId, uint64_t>> held_slabs;  // at the keeper: id, bytes
  std::vector<SessionId> live_sessions;                 // whose process lives
  // Of the committed parts, those whose records in memory verified.
  std::map<PartKey, std::shared_ptr<const PartTable>> tables;
  std::string safe_mode;  // not empty: why nothing is admitted
  // Who this node is in its ring, as the facts tell, or of a new life; nullopt: it is in none.
  std::optional<MemberId> member;
};

class Engine {
 public:
  explicit Engine(const Options& options);
  ~Engine();

  // Once, first: from nothing (`recovered` empty) or from a dead daemon's facts. Starts the pool.
  // fact::PartCommitted names the extents of the parts' records: the node reads those before.
  Outcome Start(MonotonicNanos now, int64_t unix_ms, Recovered recovered);
  Outcome Apply(MonotonicNanos now, Event event) noexcept;

  // Of what clients write into memory now: created, and not sealed.
  uint64_t WritingBytes() const;

  // How many bytes of the journal's half are used, and how many it has (0: any number), as Apply is to
  // know it from now on.
  void SetJournalRoom(uint64_t used, uint64_t capacity);
  // What is to be done about the journal before the event, so that it need not be refused: a snapshot
  // without what has ended; and if that brings too little, another without a batch of the oldest state.
  enum class JournalHelp : uint8_t { kNone, kSnapshot, kLetGo };
  JournalHelp JournalHelpFor(const Event& event) const;

  // The answer to a question that needs nothing but what is known: it changes nothing, so any number
  // of threads may ask while no Apply runs. nullopt: Apply has the answer, or a reason to wait or
  // refuse.
  std::optional<ObjectInfo> Peek(const event::StatObject& event) const;

  // The whole state as facts: Start with them rebuilds it.
  std::vector<Fact> Snapshot() const;
  // The same in pieces of about `most` facts, with any Applies in between: pieces and the facts of those,
  // in this order, are the state (snapshot.h). The last one was taken when the cursor is done.
  std::vector<Fact> SnapshotPiece(SnapshotCursor* cursor,
                                  size_t most = SnapshotCursor::kPiece) const;

  // For the recorder: what there is of those that the action names. What is gone by now is left out,
  // or told to be gone.
  struct Description {
    struct Part {
      PartKey key;
      int32_t world_size = 0;
      std::string digest;
      uint64_t bytes = 0;
      uint64_t objects = 0;
      bool resident = false;
      bool persisted = false;
      bool broken = false;
      bool own = true;  // of this node's writers: who has another's part tells only that it has it
    };
    std::optional<fact::Job> job;
    std::vector<fact::AttemptBegun> attempts;
    // What was decided about the job's line, and where its attempts come from as far as that is known:
    // the newest kDescribedRecords of each, with the attempts.
    struct LineRecordSaid {
      LineRecord record;
      int64_t unix_ms = 0;
      int64_t version = 0;  // grows when a `resume` is said anew, or an origin gets known
    };
    std::vector<LineRecordSaid> line;
    std::string forgotten;  // this job: nobody has anything of it any more; empty: it is known
    struct Left {
      CheckpointKey key;
      bool whole = false;  // nothing of it is known here any more
    };
    std::vector<Left> left;  // what has left this node's memory; `parts` has what is still here
    std::vector<Part> parts;
    std::vector<CheckpointInfo> complete;
    std::vector<CheckpointKey> gone;  // evicted for good, deleted, or removed
    std::vector<CheckpointKey>
        vanished;  // in a ring: let go by everybody; who was lost then may bring it back
    // The rows of the job, its attempts and checkpoints are this node's to write: it is alone, or the
    // job's home. Then `gone` is what is gone for everybody.
    bool writes_checkpoints = true;
    // The job was read from storage in this daemon's life. Else what is not known may be there all the
    // same.
    bool scanned = false;
    bool settled = false;  // in a ring: the home's word of the job is final
  };
  static constexpr size_t kDescribedRecords = 16;
  Description Describe(const action::Record& record) const;
  // The same of all that there is of these checkpoints, and of the job.
  Description Describe(const std::string& job, const std::vector<CheckpointKey>& checkpoints) const;
  // Those that Describe knows of: the jobs, and at most `limit` of a job's checkpoints after `after`, in
  // order.
  std::vector<std::string> JobNames() const;
  std::vector<CheckpointKey> CheckpointsOf(const CheckpointKey& after, int limit) const;

  // What this node's verdicts of the job rest on, where it is or was asked to be the home; else nullptr.
  // For tests and the simulator.
  const Gathered* GatheredOf(const std::string& job) const;
  // Whether the part is here, and homes are told that it is gone (copies.h). For the simulator.
  bool MakesWay(const PartKey& part) const;

  // Invariants that hold between any two Applies; the first that does not, in words. For tests and
  // the simulator: each component has its own, beside its data.
  std::string CheckInvariants() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::engine
