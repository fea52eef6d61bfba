// Checkpoints, parts and objects coming and going; when a checkpoint is complete. Other components
// keep something about them: they are told as `StepWatcher`s.
//
// Changes Job::steps, Checkpoint::content, Part::content, Object::content. Says
// fact::ObjectCreated, ObjectSealed, ObjectDropped.
//
// Invariants:
//   1. Extents lie within their slabs, and no two live ones overlap.
//   2. A committed part's objects are all sealed.
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

#include "server/engine/attempts.h"
#include "server/engine/footprints.h"
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
  Parts(Outbox* out, Jobs* jobs, Attempts* attempts, Leases* leases, Ledger* ledger,
        Footprints* footprints, Changes* changes, Standing* standing, Sessions* sessions);
  void Watch(StepWatcher* watcher) { watchers_.push_back(watcher); }

  // --- finding
  Checkpoint* Find(const CheckpointKey& key) const;
  Part* Find(const PartKey& key) const;
  Object* Find(const PartKey& key, const std::string& name) const;
  static Part* PartOf(const Checkpoint& checkpoint, Writer writer);
  static Object* ObjectOf(const Part& part, const std::string& name);
  const std::set<PartKey>& WrittenBy(SessionId session) const;  // and not committed
  uint64_t writing_bytes() const { return writing_bytes_; }     // created, not sealed

  // --- coming
  Checkpoint* FindOrMake(Job* job, const CheckpointKey& key, int32_t world_size);
  Part* FindOrMake(Checkpoint* checkpoint, Writer writer);
  void WriteBy(Part* part, const Session& session);                     // the session writes it
  void ForgetWriter(SessionId session) { written_by_.erase(session); }  // it has ended
  // An object being written, in `extent` of `slab`. Says the fact.
  Object* Create(Part* part, const event::ObjectSpec& spec, SlabRecord* slab, uint64_t offset,
                 uint64_t length, uint64_t granted, SessionId session, int64_t call);
  // The session's call has created so many objects: a repeat of it is told from a second create.
  void Created(Part* part, const Session& session, int64_t call, size_t objects);

  // --- sealed and committed
  // All or nothing: the first seal that does not hold fails the call, and nothing has changed.
  static Status CheckSeals(const Part* part, const PartKey& key,
                           const std::vector<event::Seal>& seals);
  void Seal(Part* part, const std::vector<event::Seal>& seals);
  // Its manifest is in its slab; the fact is said. The objects' entries are the manifest's from now
  // on.
  void Commit(Part* part, std::shared_ptr<const Manifest> manifest, const std::string& digest);
  // A part as its manifest tells it; none of it is in memory yet.
  void AddStored(Checkpoint* checkpoint, std::shared_ptr<const Manifest> manifest,
                 const std::string& digest);
  // The checkpoint is whole in storage, and here what is not is known from there.
  void CompleteStored(Checkpoint* checkpoint, const std::string& digest);
  // The digest of one that is whole in storage, while part of it is not known here.
  void SetStoredDigest(Checkpoint* checkpoint, const std::string& digest) {
    checkpoint->content.Edit().digest = digest;
  }

  // --- going
  void Free(Object* object);                      // its memory; the object is no longer resident
  void Break(Object* object, const Status& why);  // its bytes did not verify: its memory goes
  void Erase(Part* part);
  void Erase(Checkpoint* checkpoint);
  void EraseIfEmpty(Checkpoint* checkpoint);

  void Restore(const Restored& restored, const Recovered& recovered, Manifests* manifests);
  void RestoreFootprints();  // once the ledger has decided the slabs' states
  void RestoreComplete();
  void Snapshot(const Part& part, std::vector<Fact>* facts) const;

  // Takes an extent and what lies in it; returns what is wrong with that.
  using Placer = std::function<std::string(const ExtentRef&, const std::string&)>;
  std::string CheckInvariants(const Checkpoint& checkpoint, const Placer& place) const;
  std::string CheckSums() const;

 private:
  Object* New(Part* part, ObjectEntry entry);
  void Place(Object* object, SlabRecord* slab, uint64_t offset, uint64_t length);
  void Drop(Object* object);  // altogether
  void BecomeComplete(Checkpoint* checkpoint);
  void LogLacking(Checkpoint* checkpoint);
  void NoLongerWritten(Part* part);
  void UseEntriesOf(Part* part);  // of its manifest
  using Dropper = std::function<void(const std::string& name)>;
  void RestoreCommitted(const fact::ManifestCommitted& committed,
                        std::shared_ptr<const Manifest> manifest,
                        const std::map<std::string, Restored::Object>& objects,
                        Manifests* manifests, const Dropper& drop);
  void RestoreOpen(const PartKey& key, const std::map<std::string, Restored::Object>& objects,
                   const std::string& lost, const Dropper& drop);
  void RestoreObject(Part* part, const Restored::Object& object);
  std::string CheckPart(const Part& part, const Placer& place) const;

  Outbox& out_;
  Jobs& jobs_;
  Sessions& sessions_;
  Attempts& attempts_;
  Leases& leases_;
  Ledger& ledger_;
  Footprints& footprints_;
  Changes& changes_;
  Standing& standing_;

  std::vector<StepWatcher*> watchers_;
  uint64_t next_sequence_ = 1;
  uint64_t writing_bytes_ = 0;
  std::map<SessionId, std::set<PartKey>> written_by_;
};

}  // namespace cairn::engine
