// Memory for creates. One verdict per step and node: the first create of a step asks for all that
// the node's writers are expected to save; admitted, the step gets what it needs; refused, it holds
// nothing.
//
// No wait here is without end: a step that holds something waits only for memory that comes by the
// engine's own doing, and every create has a deadline at which its whole step is refused.
//
// Changes Checkpoint::verdict.
//
// Invariants:
//   1. The reservations of all steps add up to reserved_bytes_; reserving_ holds those that have one.
//   2. Every create that a step waits for is parked here, in the order of arrival.
//   3. made_for_ has the slabs in the making that needs of these creates were given.
//   4. Of a step only this node's own writers count: Verdict::committed are their parts.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/engine/eviction.h"
#include "server/engine/needs.h"

namespace cairn::engine {

// Gives an admitted create its objects, in slabs that are ready and reserved for it.
class Granter {
 public:
  virtual ~Granter() = default;
  virtual void Grant(const event::Create& event, Checkpoint* checkpoint,
                     const std::vector<Need>& needs) = 0;
  // What a create that waited is answered when another one was granted meanwhile that is the same call,
  // or took its names; nullopt: it is to be granted.
  virtual std::optional<StatusOr<Body>> InsteadOfGrant(const event::Create& event) = 0;
};

class Admission : public Waitlist, public StepWatcher {
 public:
  Admission(const Options& options, Outbox* out, Callers* callers, Jobs* jobs, Ledger* ledger,
            const Sessions* sessions, Leases* leases, Attempts* attempts, Parts* parts,
            Standing* standing, Eviction* eviction, JournalRoom* journal);
  ~Admission() override;
  void set_granter(Granter* granter) { granter_ = granter; }
  // How many persists and verifications are under way, whose memory comes back by itself.
  void set_under_io(std::function<size_t()> under_io) { under_io_ = std::move(under_io); }
  // Memory that replicas for other members will want.
  void set_room_for_replicas(std::function<uint64_t()> room) {
    room_for_replicas_ = std::move(room);
  }

  // --- creates
  // Gives up steps of the user that keep more of the journal than he may have beside this create.
  void MakeJournalRoom(uint32_t uid, uint64_t bytes) {
    eviction_.MakeJournalRoom(uid, journal_, bytes);
  }
  // Parks the create, or answers that too many wait. It is served when the event is over.
  void Ask(const event::Create& event, Checkpoint* checkpoint, int32_t local_writers);
  // Creates that wait, in order of arrival: grants, refuses, or goes on waiting.
  // `claimed`: budget that commits wait for, and no create may have.
  void Serve(uint64_t claimed);
  // What the job could have that no admitted step was promised, nor its user's share.
  uint64_t Unpromised(const Job& job) const;
  // True when anything differs from what the last Serve saw: serving may do more.
  bool Due(uint64_t manifests_version);
  bool waiting() const { return !creates_.empty(); }
  // Called when a step waits for memory that a finished job may hold.
  void set_short_of_memory(std::function<void()> call) { short_of_memory_ = std::move(call); }

  // --- what ends waiting
  // Answers the creates of this part that wait.
  void Cancel(const PartKey& part, const Status& why);
  void CancelAll(const Status& why);
  // A newer attempt has just begun, here or as storage tells: creates of older ones hear that they
  // are superseded, and what was reserved for them is given back.
  void Fence(Job* job);
  void Release(Checkpoint* checkpoint);  // what is set aside for it and not used
  // The same of steps whose other writers will not come any more.
  void ReleaseGivenUp();
  // No live session of this node writes the attempt any more.
  void ReleaseAttempt(const Job& job, Attempt attempt);
  // A slab that was asked for is there. Only the create that it is for is looked at.
  void Made(SlabId slab);
  // It could not be made.
  void NotMade(SlabId slab, const Status& why);
  // Steps in which this session waits for its first memory.
  std::set<CheckpointKey> AskedBy(SessionId session) const;

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;
  void PartCommitted(Part* part) override;
  void PartGoes(Part* part) override;
  void CheckpointCompleted(Checkpoint* checkpoint) override;
  void CheckpointGoes(Checkpoint* checkpoint) override;

  void Restore();
  std::string CheckInvariants() const;
  uint64_t journal_bytes() const { return journal_bytes_; }  // set aside

 private:
  struct Waiting {
    CheckpointKey checkpoint;
    std::vector<Need> needs;
    uint64_t order = 0;
    uint64_t journal_bytes = 0;  // that it may cost the journal, in the name of …
    uint32_t uid = 0;
    Writer writer = 0;
    uint64_t creates = 0;  // Parts::creates() when its names were checked
    uint64_t taken = 0;    // of what was set aside for its part in the journal
    int failed_makes = 0;
    size_t unassigned = 0;  // needs without a slab
    size_t unready = 0;     // needs whose slab is not there yet, these among them
  };
  // The need that a slab in the making is for.
  struct MadeFor {
    RequestId request = 0;
    size_t need = 0;
  };

  uint64_t Estimate(const Job& job, const event::Create& event, const std::vector<Need>& needs,
                    int32_t local_writers) const;
  // What those of the job's writers that are connected here saved last.
  uint64_t LastOfThoseHere(const Job& job) const;
  bool TryAdmit(Checkpoint* checkpoint);
  // So much would be there, in all and for its user, but for standing mappings that were not given up in time.
  bool ConsumersKeep(const Job& job, uint64_t wanted, uint64_t of_user) const;
  // Asks other jobs' sessions, with `uid` that user's, to unmap so much of what could be given up.
  void AskToUnmap(const Job& job, uint64_t lacking, std::optional<uint32_t> uid);
  void Reserve(Checkpoint* checkpoint, uint64_t bytes);
  void ReserveMore(Checkpoint* checkpoint, uint64_t wanted);
  void ServeOne(RequestId request, uint64_t* claimed);
  SlabRecord* TakeReady(const Job& job, SessionId session, uint64_t bytes);
  uint64_t LackOfReplicas(SessionId session, uint64_t claimed) const;
  SlabRecord* TakeBesideReplicas(Job* job, SessionId session, Writer writer, uint64_t need,
                                 uint64_t claimed);
  // Finds or makes a slab for each need; the bytes of those that have none.
  uint64_t Assign(RequestId request, bool affordable, uint64_t claimed);
  void Grant(RequestId request);
  void Consume(Checkpoint* checkpoint, uint64_t bytes);
  void Unreserve(Waiting* waiting);
  // The step holds nothing any more, and every writer of it hears the same.
  void Refuse(Checkpoint* checkpoint, Status why);
  void LogRefusal(const Checkpoint& checkpoint, const Status& why);
  void ReplaceGrants(const std::vector<Part*>& parts, const Status& why);
  Status Full(const Job& job, uint64_t wanted, absl::string_view what) const;

  // What deciding about waiting creates rests on; unchanged, it would decide the same.
  struct Inputs {
    uint64_t ledger = 0;     // what became available or was given back
    uint64_t evictable = 0;  // what could be
    uint64_t reserved = 0;
    uint64_t queue = 0;      // creates that came or left
    uint64_t manifests = 0;  // that wait for space, and space that came free
    size_t under_io = 0;
    bool operator==(const Inputs&) const = default;
  };
  Inputs Now() const;
  std::string CheckNeeds() const;

  const Options& options_;
  Outbox& out_;
  Callers& callers_;
  Jobs& jobs_;
  Ledger& ledger_;
  const Sessions& sessions_;
  Leases& leases_;
  Attempts& attempts_;
  Parts& parts_;
  Standing& standing_;
  Eviction& eviction_;
  JournalRoom& journal_;
  Granter* granter_ = nullptr;
  std::function<size_t()> under_io_;
  std::function<uint64_t()> room_for_replicas_;
  std::function<void()> short_of_memory_;

  std::map<uint64_t, RequestId> order_;  // of arrival
  absl::flat_hash_map<RequestId, Waiting> creates_;
  absl::flat_hash_map<SlabId, MadeFor> made_for_;
  uint64_t next_order_ = 1;
  MonotonicNanos refusals_since_ = 0;
  int refusals_logged_ = 0;
  uint64_t reserved_bytes_ = 0;
  uint64_t journal_bytes_ = 0;
  std::set<CheckpointKey> reserving_;  // those that something is set aside for
  uint64_t queue_version_ = 0;
  uint64_t manifests_version_ = 0;
  Inputs served_;
};

}  // namespace cairn::engine
