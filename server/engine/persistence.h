// What goes to storage, when, and what happens when storage says no.
//
// PERSISTED is what the expected storage has (storage_root.h). While it is away nothing is: what was
// becomes unconfirmed, which no file is due of, nobody is told that it is persisted, and memory is not
// given up for. A scan makes it persisted again, or finds it missing: it was deleted, and is not
// written again unless a user asks. It is written again when some of its files are missing, or when another directory
// took the place of the root.
//
// A checkpoint whose files could not be written backs off alone: the others of its job go on. An
// error that a new try cannot mend (something of the user's stands in its place, a right is missing)
// parks it until somebody asks to persist it, or for persist_retry_parked; whoever waits for it
// hears the error. Only an error of storage as a whole (away, full) holds the job back.
//
// In a ring what is said of a checkpoint is true of its parts: a node writes its own, of one that is
// complete here or with the others, and those of a silent member for which it acts. "Written" is a state of
// a part, "published" one of the checkpoint: a node that has written, and finds that others have not yet,
// looks again, at once when it hears that all are there. Among several that are due all nodes write the
// target first (Job::verdict), so that they do not each write another one and none becomes whole.
//
// Changes Checkpoint::files, Job::files and Job::asked. Says fact::Persisted, FilesDeleted, PersistAsked.
//
// Invariants:
//   1. At most max_persists are under way, one of a job, and each pins the slabs it reads.
//   2. Job::files.persisted and .unconfirmed hold exactly the checkpoints that are so; none is both.
//   3. Nothing is persisted while storage is not here.
//   4. A checkpoint that is owed is either ready in its job or waits in later_ for its next try.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/engine/mode.h"
#include "server/engine/parts.h"
#include "server/engine/standing.h"

namespace cairn::engine {

class Persistence : public StepWatcher {
 public:
  Persistence(const Options& options, const Mode& mode, Outbox* out, Jobs* jobs, Ledger* ledger,
              Parts* parts, Standing* standing);
  ~Persistence() override;
  // Reads the job's storage.
  void set_look(std::function<void(Job*)> call) { look_ = std::move(call); }
  // Whether this node writes a part of a silent member, which it holds a replica of.
  void set_acts_for(std::function<bool(const Part&)> call) { acts_for_ = std::move(call); }

  // --- what is due
  // The checkpoint became complete, or the policy or the line changed.
  void ScheduleByPolicy(Checkpoint* checkpoint);
  // The same of what is the target or the newest now: the target, the policy or the newest has changed.
  void ScheduleNext(Job* job);
  // Told of what the members together say: the checkpoint has become complete, or stands in storage; the job
  // may have another target.
  void CompletedElsewhere(Checkpoint* checkpoint);
  void VerdictHeard(Job* job);
  // The checkpoint that this node is writing, or has written its parts of while the others' are awaited: the
  // target that it reports. nullopt: none.
  std::optional<CheckpointId> WorksOn(const Job& job) const;
  // A file is due. With `asked`, whatever the policy says and without waiting for the next try; the
  // fact is said.
  void Owe(Checkpoint* checkpoint);
  void Ask(Checkpoint* checkpoint);
  // As Ask, of every member: each writes what it has of it.
  void AskEverybody(Checkpoint* checkpoint);
  // Another member was asked for these.
  void Learn(Job* job, const std::set<CheckpointId>& asked);
  void Unowe(Checkpoint* checkpoint);
  // A step waits for memory. The latest of a job without writers owes a file whatever the policy:
  // once it is in storage, its memory can go. Where there is no storage, or it refuses the file for good,
  // it may go once the job has been without writers for finished_keep_seconds.
  void OweFinished();
  // The daemon is stopping: the newest complete step of each job is due now.
  void OweNewest();
  // An operator takes the node out of service: the newest complete step of each job, or of one, and what is pinned are
  // asked of all members. What completes meanwhile follows by itself.
  void SecureWhatLeaves();
  void SecureWhatLeaves(Job* job);
  // Whether what OweNewest asks for is done. Under another policy a step that completes while the
  // daemon drains is owed as well.
  bool Drained();

  // --- doing it
  // Starts what may start.
  void Run();
  // Before it is read from, a part's memory is taken hold of; of some parts with each event, and soon again
  // while there is more. What left memory meanwhile ends so: the engine brings the events.
  std::vector<event::Persisted> Prepare();
  bool more_to_prepare() const { return !preparing_.empty(); }
  struct Ended {
    bool known = false;                // it was under way
    bool persisted = false;            // and all of it is in storage now
    bool removed = false;              // `rm` came while it was being written: its files go too
    Checkpoint* checkpoint = nullptr;  // nullptr: evicted or removed meanwhile
  };
  Ended End(const event::Persisted& event);
  size_t under_way() const { return under_way_.size(); }
  // The checkpoint was published from elsewhere than this node's memory, just now.
  void Published(Checkpoint* checkpoint);
  MonotonicNanos next() const;  // when to Run again, at the latest

  // --- told by retention and the scan
  // Storage has it whole. The fact is said when that is news of a checkpoint that is complete here.
  // Told before Parts::CompleteStored of one that is not.
  void FoundStored(Checkpoint* checkpoint, const Location& location);
  // It stands there published, and parts or files of it are missing: `damage` names one, if it is known.
  void FoundHalfGone(Job* job, const CheckpointId& id, const std::string& damage);
  void SayPersisted(const Checkpoint& checkpoint);
  // A scan begins, and all that it has found is told: what was persisted before it and was not found in it
  // is gone. So many checkpoints at a time, from the one `after` that on; true: that was all.
  void LookBegins(Job* job);
  bool Looked(Job* job, CheckpointId* after, int* budget);
  // Nothing of the job stands in storage, so neither do records of origins.
  void OriginsAreGone(Job* job);
  // Of the job's checkpoints: what Mode says has changed. With `same` the storage is the very
  // directory that was there before, so that what it had counts at once; scans follow all the same.
  void StorageLeft(Job* job);
  void StorageCame(Job* job, bool same);
  void DeleteBegins(Checkpoint* checkpoint);
  void DeleteFailed(Checkpoint* checkpoint);
  void Deleted(Checkpoint* checkpoint);  // its files are gone
  // Known or not. What a scan that is under way tells of them is older.
  void FilesAreGone(const CheckpointKey& key);

  // Where the attempt comes from, to be written before anything of it is. Once is enough: it costs a read and a sync. A
  // scan that does not find it owes it again. nullopt: it stands there, or is not known, or the attempt did not begin
  // here: then those write it where it did.
  static std::optional<LineRecord> OriginToWrite(const Job& job, Attempt attempt);

  void CheckpointCompleted(Checkpoint* checkpoint) override { ScheduleByPolicy(checkpoint); }
  void CheckpointGoes(Checkpoint* checkpoint) override;

  void Restore(const Restored& restored);
  static void Snapshot(const Job& job, std::vector<Fact>* facts);
  void Snapshot(const Checkpoint& checkpoint, std::vector<Fact>* facts) const;
  std::string CheckInvariants(std::map<SlabId, uint32_t>* pins) const;

 private:
  bool Secure(Checkpoint* checkpoint);  // false: it has been asked for, or need not be
  // The job is over, and memory is to be let go by the files of its newest step.
  void LookAtLast(Job* job);
  bool KeptToTheEnd(const Job& job) const;
  // Its memory may go for good: nothing will take it.
  void GiveUp(Checkpoint* newest, MonotonicNanos finished);
  std::string CheckOwed(const Job& job) const;
  bool StepBusy(const Checkpoint& checkpoint) const;
  Checkpoint* Next(const Job& job) const;
  bool Writes(const Part& part) const;
  bool HasToWrite(const Checkpoint& checkpoint) const;
  // It is complete, and what this node has to write of it is in memory.
  bool CanWrite(const Checkpoint& checkpoint) const;
  // The job's target, while there is something to write of it; nullptr: none, or it is written and published.
  Checkpoint* TargetOf(const Job& job) const;
  // Newer ones wait until the target is published.
  bool TargetComesFirst(const Job& job, const Checkpoint& target) const;
  void LookNow(Checkpoint* checkpoint);
  void Written(Checkpoint* checkpoint);
  void Start(Checkpoint* checkpoint);
  void Failed(Checkpoint* checkpoint, Job* job, const event::Persisted& event);
  void Succeeded(Checkpoint* checkpoint, const Location& location);
  // The checkpoint took their place; other attempts' files stand aside.
  void OlderRevisionsWent(const Checkpoint& checkpoint);
  void Owe(Checkpoint* checkpoint, bool asked);
  // Adds it to Job::asked, whose kMostRecordAsked highest stay. False: it is there, or too low. NoteAsked journals it, too.
  static bool RememberAsked(Job* job, const CheckpointId& id);
  bool NoteAsked(Job* job, const CheckpointId& id);
  // Job::files.owed, and the jobs that have some.
  void AddToOwed(Checkpoint* checkpoint);
  void RequestLater(Checkpoint* checkpoint);
  void TakeFromOwed(Checkpoint* checkpoint);
  void AddToReady(Checkpoint* checkpoint);
  // Those whose next try is due are ready.
  void TakeDue();
  void HoldBack(Job* job, const Status& why);
  void BecomePersisted(Checkpoint* checkpoint, const Location& location);
  void BecomeUnconfirmed(Checkpoint* checkpoint);
  // A scan found nothing of it.
  void Gone(Checkpoint* checkpoint);
  // What memory has of it is written again.
  void Lost(Checkpoint* checkpoint, absl::string_view why);
  // It is not in storage, as `why` says. False: nothing of it is left, or it is shown as broken.
  bool NotInStorage(Checkpoint* checkpoint, absl::string_view why);
  void NoLongerPersisted(Checkpoint* checkpoint);

  const Options& options_;
  const Mode& mode_;
  Outbox& out_;
  Jobs& jobs_;
  Ledger& ledger_;
  Parts& parts_;
  Standing& standing_;
  std::function<bool(const Part&)> acts_for_;
  std::function<void(Job*)> look_;

  struct UnderWay {
    std::vector<SlabId> pinned;
    bool with_origin = false;
    action::Persist persist;  // while it is being prepared, up to …
    Writer next = 0;          // … this writer's part
  };
  bool TakeHold(UnderWay* under_way, const Checkpoint& checkpoint, int* budget);
  std::map<CheckpointKey, UnderWay> under_way_;
  std::set<CheckpointKey> preparing_;                         // of them
  std::set<std::string> ready_jobs_;                          // with a checkpoint that is ready
  std::set<std::pair<MonotonicNanos, CheckpointKey>> later_;  // by Files::again
};

}  // namespace cairn::engine
