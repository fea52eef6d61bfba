// Which files are deleted, by policy; and what people decide: rm, pin.
//
// Changes Job::tombstones, Job::pins, Job::said_pins and Checkpoint::pinned. Says fact::StepRemoved, Pinned.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "server/engine/callers.h"
#include "server/engine/describing.h"
#include "server/engine/eviction.h"
#include "server/engine/persistence.h"

namespace cairn::engine {

class Scanning;

class Retention : public Waitlist {
 public:
  Retention(const Options& options, Outbox* out, Callers* callers, Jobs* jobs, Sessions* sessions,
            Parts* parts, Persistence* persistence, Eviction* eviction, Standing* standing,
            Describing* describing, JournalRoom* journal);
  ~Retention() override;
  void set_scanning(Scanning* scanning) { scanning_ = scanning; }
  // Whether this node is the job's home: in a ring that one alone deletes files by policy. Two that take
  // themselves for it decide from the same storage, and can only keep more.
  void set_is_home(std::function<bool(const Job&)> call) { is_home_ = std::move(call); }

  void Forgets(const Job& job);                               // the job is about to go
  void AddJournal(std::map<uint32_t, uint64_t>* held) const;  // what removed steps cost their users

  // Deletes what PlanDeletions says goes.
  void ApplyKeepPolicy(Job* job);
  // OK, or that the step was removed and this attempt does not bring it back.
  static Status CheckRemoved(const Job& job, Step step, Attempt attempt);
  // Storage shows that these were removed, perhaps by another node: they go from memory, too.
  void Learn(Job* job, const RemovedSteps& stored);
  // Another member's pins, and those that it took back.
  void Learn(Job* job, const std::map<CheckpointId, JobRecord::Pin>& pins);
  // A persist ended of which `rm` waits to hear: with `removed` its files are deleted now.
  void PersistEnded(const CheckpointKey& key, bool removed);
  // Storage shows files that `rm` decided about: the daemon died before they were gone.
  void DeleteLeftover(const Job& job, const CheckpointKey& key);

  // Jobs whose deletions failed are read anew: another node may have decided for the files, or they
  // may be gone all the same. What is still to go is then deleted.
  void TryAgainDue();
  // Files of the job are being deleted, or are to be, once storage lets them be.
  // Its files are being deleted, whether memory knows of it or not.
  bool IsDeleting(const CheckpointKey& key) const;
  bool Deletes(const std::string& job) const {
    return refused_.contains(job) || deleting_.contains(job);
  }
  MonotonicNanos next() const { return due_.empty() ? kNever : due_.begin()->first; }

  void On(const event::Remove& event);
  void On(const event::Pin& event);
  void On(const event::FilesDeleted& event);

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;

  void Restore(const Restored& restored);  // before there are checkpoints
  void Snapshot(const Job& job, std::vector<Fact>* facts) const;

 private:
  Status CheckRemove(const event::Remove& event, const Job& job,
                     const Checkpoint* checkpoint) const;
  void RemoveStep(const event::Remove& event, Job* job, Step step,
                  const AttemptRanges::Range& attempts);
  void Remember(Job* job, Step step, const AttemptRanges::Range& attempts);
  void SetPin(Job* job, const CheckpointId& id, const JobRecord::Pin& pin);
  void Charge(Job* job, size_t ranges);  // so many there are now
  void SendDelete(const Job& job, const CheckpointKey& key, bool tombstone);
  void AnswerRemovals(const CheckpointKey& key, const Status& status);
  bool Waits(const Job& job) const;  // nothing is deleted that nobody asks for
  void HoldBack(const std::string& job);
  void Forget(const std::string& job);

  const Options& options_;
  Outbox& out_;
  Callers& callers_;
  Jobs& jobs_;
  Sessions& sessions_;
  Parts& parts_;
  Persistence& persistence_;
  Eviction& eviction_;
  Standing& standing_;
  Describing& describing_;
  JournalRoom& journal_;
  Scanning* scanning_ = nullptr;
  std::function<bool(const Job&)> is_home_;

  std::map<CheckpointKey, std::set<RequestId>> removals_;  // who waits for its files to go

  // Jobs of which a deletion failed; one that does not fail again for a while is forgotten.
  struct Refused {
    MonotonicNanos wait = 0;  // the last pause
    MonotonicNanos at = 0;    // when it ends, or the job is forgotten
    bool waits = false;
  };
  std::map<std::string, std::map<CheckpointId, int>>
      deleting_;  // how often each is under way, by job
  std::map<std::string, Refused> refused_;
  std::set<std::pair<MonotonicNanos, std::string>> due_;  // each of them, by `at`
};

}  // namespace cairn::engine
