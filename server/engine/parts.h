// Checkpoints, parts and objects coming and going; when a checkpoint is complete. Other components
// keep something about them: they are told as `StepWatcher`s.
//
// Changes Job::steps, Checkpoint::content, Part::content, Object::content. Says
// fact::ObjectCreated, ObjectSealed, ObjectDropped, PartLeftSlab, PartDropped.
//
// Invariants:
//   1. Extents lie within their slabs, and no two live ones overlap. A slab holds objects of one part.
//   2. A part has objects that are being written, or a table of those it was committed with.
//   3. complete = the parts of all writers are committed.
//   4. Counts and sums are those of the parts.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "server/engine/attempts.h"
#include "server/engine/footprints.h"
#include "server/engine/journal_room.h"
#include "server/engine/leases.h"
#include "server/engine/restored.h"

namespace cairn::engine {

// Told in the order of registration (engine.cc).
class StepWatcher {
 public:
  virtual ~StepWatcher() = default;
  virtual void PartCommitted(Part*) {}
  virtual void CheckpointCompleted(Checkpoint*) {}
  // It is still whole, and goes when all have been told.
  virtual void PartGoes(Part*) {}
  // Its objects are gone.
  virtual void PartEmptied(Part*) {}
  // All of it is as its manifest tells; none of it is in memory yet.
  virtual void PartStored(Part*) {}
  // As PartGoes; its parts go afterwards.
  virtual void CheckpointGoes(Checkpoint*) {}
};

class Parts {
 public:
  Parts(const Options& options, Outbox* out, Jobs* jobs, Attempts* attempts, Leases* leases,
        Ledger* ledger, Footprints* footprints, Changes* changes, Standing* standing,
        Sessions* sessions, JournalRoom* journal);
  void Watch(StepWatcher* watcher) { watchers_.push_back(watcher); }

  // --- finding
  Checkpoint* Find(const CheckpointKey& key) const;
  Part* Find(const PartKey& key) const;
  ObjectRef Find(const PartKey& key, absl::string_view name) const;
  static Part* PartOf(const Checkpoint& checkpoint, Writer writer);
  static Object* WrittenIn(const Part& part, absl::string_view name);  // and not committed
  const std::set<PartKey>& WrittenBy(SessionId session) const;         // and not committed
  uint64_t writing_bytes() const { return writing_bytes_; }            // created, not sealed

  // --- coming
  Checkpoint* FindOrMake(Job* job, const CheckpointKey& key, int32_t world_size);
  Part* FindOrMake(Checkpoint* checkpoint, Writer writer);
  void WriteBy(Part* part, const Session& session);                     // the session writes it
  void ForgetWriter(SessionId session) { written_by_.erase(session); }  // it has ended
  // An object being written, in `slab`. Says the fact. Took follows, once for all that lie there.
  Object* Create(Part* part, const event::ObjectSpec& spec, const SlabRecord& slab, uint64_t offset,
                 uint64_t length, uint64_t granted, SessionId session, int64_t call);
  void Took(Part* part, SlabRecord* slab, uint32_t objects);
  // The session's call has created so many objects: a repeat of it is told from a second create.
  void Created(Part* part, const Session& session, int64_t call, size_t objects);

  // That were granted, and parts that came with their names: what a parked create has checked may not hold any more.
  uint64_t creates() const { return creates_; }
  // `part`: that it is of, if that is there.
  static uint64_t JournalCostOf(const event::Create& event, const Part* part) {
    return JournalRoom::CostOf(event, part == nullptr || part->content->objects.empty());
  }
  // Sets aside in the journal what creates of the part that are to come may cost it …
  void SetAside(Part* part, uint64_t journal_bytes);
  // … and gives back what is set aside for one that has come.
  void TakeSetAside(Part* part, uint64_t journal_bytes);

  // --- sealed and committed
  // All or nothing: the first seal that does not hold fails the call, and nothing has changed.
  static Status CheckSeals(Part* part, const PartKey& key, const std::vector<event::Seal>& seals);
  // `say`: no; a commit that brings the seals brings them again if the daemon dies before it is done.
  void Seal(Part* part, const std::vector<event::Seal>& seals, bool say = true);
  // What the part holds from now on, whatever becomes of its commit; all is sealed.
  static std::shared_ptr<const PartTable> TableOf(const Part& part, Manifest head);
  static std::vector<SlabId> SlabsOf(const Part& part);
  // Its record is in its slab; the fact is said.
  void Commit(Part* part, std::shared_ptr<const PartTable> table, const std::string& digest);
  // A part that storage has; none of it is in memory.
  void AddStored(Checkpoint* checkpoint, const StoredPart& stored);
  // A part that came from another member: committed there, verified, and in memory where the table says.
  Part* AddFetched(Checkpoint* checkpoint, std::shared_ptr<const PartTable> table,
                   const std::string& digest);
  void TakeTable(Part* part, std::shared_ptr<const PartTable> table);
  void DropTable(Part* part);  // of one that only storage has, of a complete checkpoint
  void DropTables(Checkpoint* checkpoint);  // of all such parts
  // The checkpoint is whole in storage, and here what is not is known from there.
  void CompleteStored(Checkpoint* checkpoint, const std::string& digest);
  // The digest of one that is whole in storage, while part of it is not known here.
  void SetStoredDigest(Checkpoint* checkpoint, const std::string& digest) {
    checkpoint->content.Edit().digest = digest;
  }

  static uint64_t CostOfKept(const Part& part);  // what of the journal its memory costs
  void SettleKept(Part* part);

  // --- going
  // What nobody holds of a committed part leaves memory. False: some of it is held.
  bool Free(Part* part);
  // The part goes, and with it what made its checkpoint complete here. What is in storage stays known.
  void Release(Part* part, Manifests* manifests);
  void Break(const ObjectRef& object, const Status& why);  // its bytes did not verify: they go
  void Erase(Part* part);
  void Erase(Checkpoint* checkpoint);
  // Some of it leaves this node's memory: the checkpoint is not complete here any more, though it may be on others.
  void NoLongerWhole(Checkpoint* checkpoint);
  // Of one that is in no storage that this node knows: where other members have it, it stays known.
  void EraseHere(Checkpoint* checkpoint);
  // It is gone for everybody but those who hold memory of it: its parts are erased one by one, beginning in
  // this event. Of one that nobody writes, and that is in memory only.
  void Condemn(Checkpoint* checkpoint);
  // Who comes back to such a step finds nothing of it.
  void EraseCondemned(const CheckpointKey& key);
  void EraseIfEmpty(Checkpoint* checkpoint);
  // Storage does not have it any more. Alone, what is left in memory is of no use; in a ring the rest may be
  // with other members, and the parts that are whole here stay. False: nothing does, and it is gone.
  bool LeaveStorage(Checkpoint* checkpoint);

  void Restore(const Restored& restored, const Recovered& recovered, Manifests* manifests);
  void RestoreFootprints();  // once the ledger has decided the slabs' states
  void RestoreKept();
  void RestoreComplete();
  // Of a part that is being written first its objects, one by one: the next by name, or nullptr.
  static const Object* OpenAfter(const Part& part, const std::string& name);
  static void Snapshot(const Object& object, std::vector<Fact>* facts);
  void Snapshot(const Part& part, std::vector<Fact>* facts) const;

  // Takes an extent and, for who is told of it, what lies in it; returns what is wrong with that.
  using Words = absl::FunctionRef<std::string()>;
  using Placer = std::function<std::string(const ExtentRef&, Words)>;
  std::string CheckInvariants(const Checkpoint& checkpoint, const Placer& place) const;
  std::string CheckSums(uint64_t journal) const;  // set aside for creates that wait

 private:
  // A complete checkpoint of more parts than these has an index of its names.
  static constexpr size_t kFewParts = 8;

  Object* New(Part* part, ObjectEntry entry);
  void Place(Object* object, const SlabRecord& slab, uint64_t offset, uint64_t length);
  void Leave(Part* part, SlabId slab, uint32_t objects);  // they are no longer in memory there
  Part* AddCommitted(Checkpoint* checkpoint, const Manifest& head, const std::string& digest,
                     uint64_t objects, uint64_t bytes);
  void SaySeal(Part* part, Object* object);
  void ReleaseJournal(Part* part);
  void ForgetNames(Part* part);
  void IndexNames(Checkpoint* checkpoint);  // or drops the index, if it needs none
  static void NoteDigest(StepContent* step, Writer writer, absl::string_view digest);
  static std::string DigestOf(const Checkpoint& checkpoint);
  void BecomeComplete(Checkpoint* checkpoint);
  void LogLacking(Checkpoint* checkpoint);
  void NoLongerWritten(Part* part);
  void RestoreCommitted(const Restored::Committed& committed,
                        std::shared_ptr<const PartTable> table, Manifests* manifests,
                        std::map<PartKey, std::string>* dropped);
  std::set<SlabId> SurvivingSlabs(const fact::PartCommitted& fact, Part* part);
  void RestoreOpen(const PartKey& key, const std::map<std::string, Restored::Object>& objects,
                   const std::string& lost, std::map<PartKey, std::string>* dropped);
  void RestoreObject(Part* part, const Restored::Object& object);
  std::string CheckPart(const Part& part, const Placer& place) const;
  std::string CheckOpen(const Part& part, const Placer& place) const;
  std::string CheckCommitted(const Part& part, const Placer& place) const;

  const Options& options_;
  Outbox& out_;
  Jobs& jobs_;
  Sessions& sessions_;
  Attempts& attempts_;
  Leases& leases_;
  Ledger& ledger_;
  Footprints& footprints_;
  Changes& changes_;
  Standing& standing_;
  JournalRoom& journal_;

  std::vector<StepWatcher*> watchers_;
  uint64_t next_sequence_ = 1;
  uint64_t writing_bytes_ = 0;
  uint64_t creates_ = 0;
  std::map<SessionId, std::set<PartKey>> written_by_;
};

}  // namespace cairn::engine
