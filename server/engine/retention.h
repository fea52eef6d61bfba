// Which files are deleted, by policy; and what people decide: rm, pin.
//
// Changes Job::tombstones, Job::pins and Checkpoint::pinned. Says fact::StepRemoved, Pinned.
#pragma once

#include <map>
#include <set>

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
            Describing* describing);
  void set_scanning(Scanning* scanning) { scanning_ = scanning; }

  // Files go only by an explicit keep_last: all but the newest so many on the line, those of
  // keep_every, the newest complete one, and what is pinned. What the line has left goes when the life
  // that left it has keep_last persisted steps of its own and is old enough (keep_abandoned_seconds).
  // Nothing goes while it is not known where some attempt comes from.
  void ApplyKeepPolicy(Job* job);
  // OK, or that the step was removed and this attempt does not bring it back.
  static Status CheckRemoved(const Job& job, Step step, Attempt attempt);
  // Storage shows that these were removed, perhaps by another node: they go from memory, too.
  void Learn(Job* job, const RemovedSteps& stored);
  // A persist ended of which `rm` waits to hear: with `removed` its files are deleted now.
  void PersistEnded(const CheckpointKey& key, bool removed);
  // Storage shows files that `rm` decided about: the daemon died before they were gone.
  void DeleteLeftover(const Job& job, const CheckpointKey& key);

  void On(const event::Remove& event);
  void On(const event::Pin& event);
  void On(const event::FilesDeleted& event);

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;

  void Restore(const Restored& restored);  // before there are checkpoints
  void Snapshot(const Job& job, std::vector<Fact>* facts) const;

 private:
  std::set<CheckpointId> ComeFromByYoung(const Job& job) const;
  int64_t PersistedOf(const Job& job, Attempt attempt) const;  // on the line
  bool MayDeleteAbandoned(const Job& job) const;
  bool MayDelete(const Checkpoint& checkpoint, bool abandoned_too, int64_t* kept) const;
  Status CheckRemove(const event::Remove& event, const Job& job,
                     const Checkpoint* checkpoint) const;
  void RemoveStep(const event::Remove& event, Job* job, Step step,
                  const AttemptRanges::Range& attempts);
  void Remember(Job* job, Step step, const AttemptRanges::Range& attempts);
  bool LookFirst(Job* job);
  void SendDelete(const Job& job, const CheckpointKey& key, bool tombstone);
  void AnswerRemovals(const CheckpointKey& key, const Status& status);

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
  Scanning* scanning_ = nullptr;

  std::map<CheckpointKey, std::set<RequestId>> removals_;  // who waits for its files to go
};

}  // namespace cairn::engine
