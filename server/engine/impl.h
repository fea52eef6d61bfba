// The engine's one class, split over sources by reason to change:
//
//   engine.cc       entry, dispatch, parked callers, timers
//   sessions.cc     hello, leases, what ends with a session
//   attempts.cc     owners, policies, attempts, fencing, who is which writer
//   line.cc         checkpoints coming and going, completeness, the line
//   saving.cc       create: validation, repeats, granting
//   sealing.cc      seal, commit, abort, manifests
//   admission.cc    one verdict per step and node; creates that wait for memory; the pool
//   retention.cc    what to evict and which files to delete; rm, pin
//   persistence.cc  what goes to storage and when; drain
//   scanning.cc     a job's storage, read once
//   opening.cc      resolving names, opening, verifying
//   finding.cc      latest, stat, ls, wait
//   status.cc       status, and what the recorder asks for
//   recovery.cc     facts in, facts out
//   invariants.cc   what must hold between two Applies
//
// Nothing here iterates over a hash map where the order could decide something: equal events give
// equal answers, which is what replaying a seed rests on.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/line.h"
#include "server/engine/engine.h"
#include "server/engine/ledger.h"
#include "server/engine/model.h"

namespace cairn::engine {

class Engine::Impl {
 public:
  explicit Impl(const Options& options);

  Outcome Start(MonotonicNanos now, int64_t unix_ms, Recovered recovered);
  Outcome Apply(MonotonicNanos now, Event event);
  std::optional<ObjectInfo> Peek(const event::StatObject& event) const;
  std::vector<Fact> Snapshot() const;
  Description Describe(const std::string& job, const std::vector<CheckpointKey>& checkpoints) const;
  std::string CheckInvariants() const;

 private:
  using Body = reply::Body;

  // --- engine.cc ---
  void Dispatch(const Event& event);
  Outcome Finish();
  void Answer(RequestId request, StatusOr<Body> body, Attempt superseded_by = 0);
  void Log(int severity, std::string message);
  uint64_t NextId();
  int64_t UnixMillis() const { return start_unix_ms_ + (now_ - start_now_) / kNanosPerMilli; }
  void Count(const char* counter, int64_t by = 1) { counters_[counter] += by; }
  // The parked caller, or nullptr after answering that too many wait or that its time is up.
  Parked* Park(ParkedKind kind, const Caller& caller, const std::string& job,
               MonotonicNanos deadline, Event event);
  std::unique_ptr<Parked> Unpark(RequestId request);
  void AnswerParked(RequestId request, StatusOr<Body> body, Attempt superseded_by = 0);
  void ExpireParked();
  void Expired(const Parked& parked);
  void EmitWake();
  void On(const event::Tick&) {}
  void On(const event::JournalFull& event);

  // --- sessions.cc ---
  void On(const event::Hello& event);
  void On(const event::SessionEnded& event);
  void On(const event::LocateChunk& event);
  void On(const event::Release& event);
  void On(const event::Renew& event);
  void On(const event::LendFailed& event);
  void On(const event::SlabProbed& event);
  Session* FindSession(SessionId session) const;
  // The caller's session, or nullptr after answering why not.
  Session* SessionOf(const Caller& caller);
  void EndSession(SessionId session);
  Lease* NewLease(Session* session, SlabRecord* slab, LeaseMode mode, const PartKey& part,
                  const std::string& name, const ExtentRef& extent, uint64_t length);
  void ReleaseLease(Lease* lease);
  void ForgetLease(LeaseId lease);
  void Unmapped(Session* session, const std::vector<SlabId>& slabs);
  void UnmapWriter(SlabRecord* slab);
  void ExpireLeases();
  // Adds the pids of those who may still see the slab; `readers_only`: not of who maps it for
  // writing.
  void HoldersOf(const SlabRecord& slab, bool readers_only, std::set<int32_t>* pids) const;

  // --- attempts.cc ---
  void On(const event::ChooseAttempt& event);
  void On(const event::ResumeFrom& event);
  void On(const event::SetPolicy& event);
  Job* FindJob(const std::string& job) const;
  Job* GetJob(const std::string& job);
  void MaybeForgetJob(Job* job);
  Status CheckAccess(const Job& job, const Caller& caller) const;
  static Status CheckPolicy(const JobPolicy& policy);
  void TakeOwnership(Job* job, const Caller& caller);
  void EmitJob(const Job& job);
  // Whether `attempt` may go on, or begin: superseded_by is set when not.
  Status CheckFence(const Job& job, Attempt attempt, Attempt* superseded_by) const;
  // A lone writer fences no one alive.
  Status CheckLone(const Job& job, Attempt attempt, const Session& session) const;
  Status CheckProcess(const Job& job, const PartKey& part, const Session& session) const;
  Status CheckWorld(const Job& job, const PartKey& part, int32_t world_size) const;
  // Begins the attempt if it has not, and registers writer, process and world size. All checks
  // passed.
  void EnterAttempt(Job* job, const PartKey& part, int32_t world_size, Session* session);
  void FenceOlder(Job* job);

  // --- line.cc ---
  Checkpoint* FindCheckpoint(const CheckpointKey& key) const;
  Checkpoint* GetCheckpoint(Job* job, const CheckpointKey& key, int32_t world_size);
  Part* FindPart(const PartKey& key) const;
  Part* GetPart(Checkpoint* checkpoint, Writer writer);
  void EraseCheckpoint(Checkpoint* checkpoint);
  void ErasePart(Part* part);
  void MaybeEraseCheckpoint(Checkpoint* checkpoint);  // when nothing is left of it
  Object* NewObject(Part* part, ObjectEntry entry);
  void PlaceObject(Object* object, SlabRecord* slab, uint64_t offset, uint64_t length);
  void FreeExtent(Object* object);  // with the fact; the object is no longer resident
  void DropObject(Object* object);  // altogether
  void FreeManifest(Part* part);
  void FreeManifestExtent(const ExtentRef& extent);
  void PartCommitted(Part* part);
  void BecameComplete(Checkpoint* checkpoint);
  // --- settle.cc ---
  // Says that something changed that the line, the evict class, the recorder or those who wait for
  // the checkpoint depend on.
  void Touch(Checkpoint* checkpoint);
  void TouchJob(Job* job);  // its writers, or which attempt is the newest
  void Settle() const { const_cast<Impl*>(this)->SettleTouched(); }
  void SettleTouched();
  void SettleJob(Job* job);
  void Show(Checkpoint* checkpoint);
  void Unsettle(Checkpoint* checkpoint);  // it is about to go
  void CheckWaits();

  void RefreshLine(Checkpoint* checkpoint);
  void RebuildLine(Job* job);
  std::vector<AttemptLine> AttemptLines(const Job& job) const;
  // The line ends here, whatever is settled above: the newest attempt counts from its first create.
  static Step LineBound(const Job& job);
  // Where an attempt whose first step is `step` comes from.
  Step ComesFromLine(const Job& job, Step step) const;
  Checkpoint* NewestOnLine(const Job& job) const;
  bool OnLine(const Checkpoint& checkpoint) const;
  bool Abandoned(const Checkpoint& checkpoint) const;
  Checkpoint* LineAt(const Job& job, Step step) const;

  // --- saving.cc ---
  void On(const event::Create& event);
  void HandleCreate(const event::Create& event, Session* session);
  Status CheckCreate(const event::Create& event, const Job& job, const Session& session,
                     Attempt* superseded_by) const;
  Status CheckNames(const event::Create& event, const Checkpoint& checkpoint) const;
  Status CheckRefused(const Job& job, const CheckpointKey& key) const;
  Status CheckRevision(const Job& job, const PartKey& part) const;
  // Of a part that is not there: whether it was, and held objects.
  Status CheckDropped(const Job& job, const PartKey& part) const;
  void RememberDropped(const PartKey& part, const std::string& object);
  void DropOlderRevisions(Job* job, const PartKey& part);
  // True when the call was answered before: it is answered again.
  bool RepeatedCreate(const event::Create& event, Part* part, Session* session);
  static std::vector<Need> PlanNeeds(const event::Create& event);
  void Grant(Parked* parked);
  reply::Create GrantReply(const event::Create& event, Part* part, Session* session, bool repeat);
  Lease* WriterLease(Session* session, SlabRecord* slab, std::vector<Lend>* lend);

  // --- sealing.cc ---
  void On(const event::SealObjects& event);
  void On(const event::Commit& event);
  void On(const event::Abort& event);
  void On(const event::ManifestWritten& event);
  Status CheckSeals(const Part* part, const PartKey& key,
                    const std::vector<event::Seal>& seals) const;
  void ApplySeals(Part* part, const std::vector<event::Seal>& seals);
  // Checks shared by seal, commit and abort; answers and returns false when one fails.
  bool MayWrite(const Caller& caller, const PartKey& part, Session** session, Job** job);
  void WriteManifest(Part* part);
  void RetryManifests();
  void AnswerCommitters(Part* part, const StatusOr<Body>& body);
  SlabRecord* FindManifestRoom(uint64_t bytes, uint64_t* offset);
  void KeepManifestRoom();
  Manifest ManifestOf(const Part& part) const;

  // --- admission.cc ---
  void Admit(Parked* parked, Checkpoint* checkpoint);
  bool TryAdmit(Checkpoint* checkpoint);
  uint64_t Estimate(const Job& job, const event::Create& event, const std::vector<Need>& needs,
                    int32_t local_writers) const;
  uint64_t Available(const Job& job) const;
  void ReleaseReservation(Checkpoint* checkpoint);
  void RefuseStep(Checkpoint* checkpoint, Status why);
  void RetractGrants(const std::vector<Part*>& parts, const Status& why);
  Status FullStatus(const Job& job, uint64_t wanted, absl::string_view what) const;
  struct MemoryState {
    uint64_t ledger = 0, evictable = 0, reserved = 0, creates = 0;
    size_t under_io = 0, manifests = 0;
    bool operator==(const MemoryState&) const = default;
  };
  MemoryState MemoryNow() const;
  void ServeWaiting();
  void Serve(Parked* parked, uint64_t* claimed);
  void ReleaseNeeds(Parked* parked);
  // Room in the budget, and what is certainly about to be.
  uint64_t Coming() const;
  // Destroys and evicts until `wanted` bytes of room are coming, or nothing more can be given up;
  // then asks sessions to unmap. True when enough is coming.
  bool FreeMemory(const Job* job, SessionId session, uint64_t wanted);
  bool EvictOne(EvictClass evict_class, bool soft, const Job* only, const Job* except);
  bool Recycle(Job* job, SessionId session, uint64_t need);
  SlabRecord* MakeSlab(uint64_t bytes, bool urgent, bool reserved);
  // Makes, in the background and within the room, what this writer's next save will want.
  void Provision(Job* job, SessionId session, Writer writer, int times);
  void Consume(Checkpoint* checkpoint, uint64_t bytes);
  // What a committed step was made of is what the next one is expected to need.
  void RememberSaves(const Checkpoint& checkpoint);
  void On(const event::SlabMade& event);
  void On(const event::SlabDestroyed& event);

  // --- retention.cc ---
  void On(const event::Remove& event);
  void On(const event::Pin& event);
  void On(const event::FilesDeleted& event);
  EvictClass ClassOf(const Checkpoint& checkpoint) const;
  void Classify(Checkpoint* checkpoint);
  void Unindex(Checkpoint* checkpoint);
  void Account(SlabRecord* slab);
  void UseSlab(Checkpoint* checkpoint, SlabRecord* slab);
  void LeaveSlab(Checkpoint* checkpoint, SlabRecord* slab);
  void Evict(Checkpoint* checkpoint);
  void DropMemory(Checkpoint* checkpoint);
  void ApplyKeepPolicy(Job* job);
  void DeleteFiles(Checkpoint* checkpoint, bool tombstone);
  void AnswerRemovals(const CheckpointKey& key, const Status& status);

  // --- persistence.cc ---
  void On(const event::PersistNow& event);
  void On(const event::Persisted& event);
  void On(const event::Drain& event);
  void ScheduleByPolicy(Checkpoint* checkpoint);
  void Owe(Checkpoint* checkpoint, bool asked);
  void Unowe(Checkpoint* checkpoint);
  void OweFinished();
  void RunPersists();
  bool StepBusy(const Job& job, const Checkpoint& checkpoint) const;
  void StartPersist(Checkpoint* checkpoint);
  void CheckDrained();
  bool DrainWants(const Job& job) const;
  MonotonicNanos NextPersist() const;
  void VerifyAll(Checkpoint* checkpoint);

  // --- scanning.cc ---
  void On(const event::JobScanned& event);
  // Parks the event until the job's storage has been read; false: no need to. What can do without
  // storage waits a little for it at most.
  bool ScanFirst(const Caller& caller, Job* job, MonotonicNanos deadline, const Event& event,
                 bool can_do_without = false);
  void StartScan(Job* job);
  void MergeStored(Job* job, const StoredCheckpoint& stored);
  void CompleteFromStorage(Checkpoint* checkpoint, const StoredCheckpoint& stored);
  void RestoreManifest(Part* part, const Manifest& manifest, const std::string& digest);
  bool ScanKnown(const Job& job) const;

  // --- opening.cc ---
  void On(const event::Open& event);
  void On(const event::Verified& event);
  // The checkpoint meant, for reading: complete and obtainable, else why not.
  StatusOr<Checkpoint*> Resolve(const Job& job, const CheckpointRef& ref) const;
  void AnswerOpen(const Caller& caller, Checkpoint* checkpoint, Object* object, OpenMode mode);
  void AnswerStored(const Caller& caller, Checkpoint* checkpoint, Object* object);
  uint64_t StartVerify(Object* object);
  void ObjectBroke(Object* object, const Status& why);

  // --- finding.cc ---
  void On(const event::Latest& event);
  void On(const event::StatCheckpoint& event);
  void On(const event::StatObject& event);
  void On(const event::List& event);
  void On(const event::Wait& event);
  // OK with a body: reached. An error: never. nullopt: not yet.
  std::optional<StatusOr<Body>> EvaluateWait(const event::Wait& wait) const;
  void NotifyWaits(Job* job);
  // The job, readable by the caller, or nullptr after parking or answering.
  Job* Readable(const Caller& caller, const std::string& job, MonotonicNanos deadline,
                const Event& event, bool scan);
  Checkpoint* ForShow(const Job& job, const CheckpointRef& ref) const;
  reply::Latest LatestOf(const Checkpoint& checkpoint) const;
  CheckpointInfo InfoOf(const Checkpoint& checkpoint) const;
  ObjectInfo InfoOf(const Object& object, bool with_crcs) const;
  Status NothingYet(const Job& job) const;

  // --- status.cc ---
  void On(const event::Status& event);

  // --- recovery.cc ---
  struct Restored;
  void RestoreJobs(const Restored& restored);
  void RestoreSessions(const Restored& restored, const Recovered& recovered);
  void RestoreSlabs(const Restored& restored, const Recovered& recovered);
  void RestoreParts(const Restored& restored, const Recovered& recovered);
  void RestoreLeases(const Restored& restored);
  void ResumeAll(const Restored& restored);

  // Constant after construction.
  const Options options_;
  const uint64_t manifest_slab_bytes_;

  Outcome out_;
  Ledger ledger_;
  MonotonicNanos now_ = 0, start_now_ = 0;
  int64_t start_unix_ms_ = 0;
  uint64_t next_id_ = 1, ids_reserved_ = 1;
  std::string safe_mode_;
  bool journal_full_ = false;
  bool draining_ = false, drained_ = false;
  MonotonicNanos drain_deadline_ = 0;
  bool giving_up_scan_ = false;  // the event under way has waited for storage long enough
  MemoryState served_;           // the state of memory that waiting creates have seen
  std::vector<Checkpoint*> touched_;
  std::vector<Job*> touched_jobs_;
  bool settling_ = false;
  std::set<std::string> waits_to_check_;
  uint64_t evictable_version_ = 0;
  uint64_t next_sequence_ = 1;
  MonotonicNanos woken_for_ = kNever;

  std::map<std::string, std::unique_ptr<Job>> jobs_;
  std::set<std::string> maybe_forget_;  // jobs that may be none, looked at when the event is done
  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  absl::flat_hash_map<LeaseId, std::unique_ptr<Lease>> leases_;
  std::set<std::pair<MonotonicNanos, LeaseId>> lease_expiry_;
  absl::flat_hash_map<RequestId, std::unique_ptr<Parked>> parked_;
  std::set<std::pair<MonotonicNanos, RequestId>> deadlines_;
  std::map<uint64_t, RequestId> waiting_creates_;  // in order of arrival
  absl::flat_hash_map<RequestId, uint64_t> create_order_;
  std::map<CheckpointKey, std::set<RequestId>> removals_;

  std::map<std::pair<EvictClass, uint64_t>, Checkpoint*> evictable_;
  uint64_t evictable_total_ = 0, evictable_mapped_total_ = 0;
  uint64_t reserved_total_ = 0;  // by admitted steps, not yet used
  uint64_t writing_bytes_ = 0;   // created, not sealed

  // Where manifests lie: offset → length in each of the ledger's slabs that is kept for them.
  struct ManifestSlab {
    std::map<uint64_t, uint64_t> extents;
    uint64_t used = 0;
  };
  std::map<SlabId, ManifestSlab> manifest_slabs_;
  std::set<SlabId> manifest_slabs_coming_;
  std::set<PartKey> manifests_waiting_;                 // for such a slab
  std::multimap<PartKey, ExtentRef> orphan_manifests_;  // being written for a part that is gone

  std::map<uint64_t, Verification> verifications_;
  std::map<CheckpointKey, std::vector<SlabId>> persists_;  // under way, with what they pin
  std::set<std::string> owing_jobs_;
  MonotonicNanos provision_at_ = 0;  // not before: making slabs failed
  std::map<std::string, std::set<CheckpointKey>> to_record_;
  std::map<std::string, int64_t> counters_;
};

}  // namespace cairn::engine
