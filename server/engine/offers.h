// What this node wants its backups to keep: of each job its own parts of the protected checkpoint, of the
// target, and of the newest one it has committed while no target is left to secure. A list begins at the
// commit, not when the checkpoint is complete, so that bytes are under way while other ranks still write.
//
// A backup's have-list is answered entry by entry: what is wanted it keeps; what was removed, was left by
// the line, or is superseded by a named protected checkpoint it may let go. What this node does not know
// about it says nothing of: absence is never a reason to free.
//
// Changes Checkpoint::copied.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/engine/fetches.h"
#include "server/engine/retention.h"

namespace cairn::engine {

class Offers : public StepWatcher, public RingWatcher {
 public:
  Offers(Outbox* out, const Members* members, Jobs* jobs, Parts* parts, Standing* standing);

  // A backup holds parts of a job of which this node knows nothing: it may have lost them itself.
  void set_unknown_job(std::function<void(const std::string&)> ask) { unknown_ = std::move(ask); }

  // A backup has said something else of what it refuses: who waits for copies hears of it, and what this node works on
  // is another checkpoint, perhaps.
  void set_refusals_changed(std::function<void(Job*)> changed) {
    refusals_changed_ = std::move(changed);
  }
  // A backup has no room for parts, and holds others of jobs that are over: their newest steps may make room.
  void set_finish(std::function<void()> judge, std::function<void(Checkpoint*)> let_go) {
    judge_finished_ = std::move(judge);
    let_go_ = std::move(let_go);
  }
  // Whether something of the checkpoint is coming back to this node.
  void set_restoring(std::function<bool(const CheckpointKey&)> restoring) {
    restoring_ = std::move(restoring);
  }

  void On(const MemberId& from, const peer::HaveList& list);
  // The member may read it from now on, or could until now.
  void Given(Rank reader, const PartKey& part);
  // Its verdict, policy or line has changed.
  void Changed(const std::string& job) { due_.insert(job); }
  // Says the lists that have changed; all of them with `again`.
  void Run(bool again);

  void PartCommitted(Part* part) override { due_.insert(part->key.checkpoint.job); }
  void CheckpointGoes(Checkpoint* checkpoint) override { due_.insert(checkpoint->key.job); }
  void MemberCame(Rank rank) override;
  void MemberLost(Rank rank) override;

  // This node says who keeps the part, and writes it to storage: its own, or one of a lost member for which it acts.
  bool Answers(const Part& part) const;
  // What nobody could say meanwhile is no reason to take a backup for stalled.
  void TimerWasLate();
  uint64_t HeldBy(Rank backup) const;  // bytes of this node's parts
  // It answers, and for ring.lost_after_seconds nothing has come to it of what it asked to read, or it has taken no
  // want-list, as one that cannot go over to the ring's present epoch: another member is a backup in its place.
  bool Stalled(Rank backup) const;
  // Why a backup refuses the job's parts; empty: none does.
  std::string Refusal(const std::string& job) const;
  // The lowest checkpoint that is being secured: some backup does not hold all of it yet.
  std::optional<CheckpointId> WorkingOn(const Job& job) const;

 private:
  // A home counts what it heard 3 s ago, and hears of a copy within a second.
  static constexpr MonotonicNanos kNotHeardOf = 5 * kNanosPerSecond;
  struct Wanted {
    std::vector<peer::Want> wants;
    std::vector<CheckpointKey> checkpoints;  // that they are of: three at most
    int replicas = 0;
  };
  struct Backup {
    uint64_t version = 0;
    std::vector<peer::Want> told;
    MonotonicNanos told_at = 0;
    std::map<PartKey, peer::Have> haves;
    MonotonicNanos heard_at = 0;  // when it last said them
    uint64_t took = 0;            // the version of the newest list that it has taken, as it says
    MonotonicNanos took_at = 0;   // when that was last another one
    std::map<PartKey, uint64_t> most;  // bytes of what it was told that it ever had
    MonotonicNanos came_at = 0;        // when there last was more, or nothing was to come
    bool tried = false;                // since then it was given what it was told
    bool stalled = false;
  };
  // Whose copies count, and are waited for.
  std::vector<Rank> Backups(const std::string& job, int replicas) const;
  // Those that stall or refuse stay among them, or they could never take anything again.
  std::vector<Rank> ToldTo(const std::string& job, int replicas) const;
  void Refused(Rank rank, const std::string& job);
  void ForgetRefusals(const std::function<bool(Rank, MonotonicNanos)>& which);
  void LookForStalls();
  bool PassesOver(const Backup& backup) const;
  void TellAll();
  void Tell(bool again);
  void SetStalled(Rank rank, Backup* backup, bool stalled);
  // What it had said before.
  std::map<PartKey, peer::Have> SetHaves(Rank rank, std::map<PartKey, peer::Have> haves);
  Wanted WantedOf(const Job& job) const;
  // One of a member that is lost, for which this node is the first to stand in.
  bool ActsFor(const Part& part) const;
  bool IsHeld(Rank backup, const Part& part) const;
  bool HeldEverywhere(const Checkpoint& checkpoint, int replicas) const;
  std::optional<CheckpointId> NewestSecured(const Job& job, int replicas) const;
  void NoteCopied(Job* job, int replicas);
  void Age();
  void AddParts(const Checkpoint& checkpoint, bool target, Wanted* wanted) const;
  void MakeRoomAt(Rank rank);
  std::optional<peer::Fate> FateOfLast(const Job& job, const Checkpoint* checkpoint) const;
  std::string RefusalOf(const Checkpoint& checkpoint, int replicas) const;
  // nullopt: it stays.
  std::optional<peer::Release> FateOf(const peer::Have& have) const;
  // The holder is no backup, as where one came back for which it had stood in, and all backups hold the part.
  bool IsSurplus(Rank holder, const peer::Have& have) const;

  Outbox& out_;
  const Members& members_;
  Jobs& jobs_;
  Parts& parts_;
  Standing& standing_;

  std::function<void(const std::string&)> unknown_;
  std::function<void(Job*)> refusals_changed_;
  std::function<void()> judge_finished_;
  std::function<void(Checkpoint*)> let_go_;
  std::function<bool(const CheckpointKey&)> restoring_;
  std::set<std::string> due_;
  std::map<std::string, Wanted> jobs_wanted_;
  std::map<std::string, std::map<CheckpointId, Copied>>
      copied_;  // of each job those that are marked
  // Of each job those that members could read, and when last.
  std::map<std::string, std::map<CheckpointId, MonotonicNanos>> given_;
  // When a member last refused the job's parts. For ring.lost_after_seconds from then the next one is the backup in its
  // place, so that a backup that is full now and then does not make copies move to and fro.
  std::map<std::string, std::map<Rank, MonotonicNanos>> refused_;
  std::map<Rank, Backup> backups_;
  // Invariants: those of `backups_`, which are all members, that are stalled, and that say to have anything.
  std::set<Rank> stalled_, have_something_;
  std::set<Rank> due_members_;  // to be told what is wanted of them
};

}  // namespace cairn::engine
