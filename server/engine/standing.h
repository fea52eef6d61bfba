// What follows from everything else, and is never set by hand: the line of each job, in which order
// its checkpoints are given up when memory is short, and what the recorder and those who wait must
// hear. Editing a checkpoint or a job touches it (owned.h); what was touched settles here before any
// answer is read, and at the latest at the end of the event.
//
// Changes Checkpoint::standing and Job::standing.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/jobs.h"
#include "server/engine/model.h"

namespace cairn::engine {

// Whose checkpoints are looked at; of everybody where nothing is said.
struct Whose {
  const Job* only = nullptr;
  const Job* except = nullptr;
  std::optional<uint32_t> uid = std::nullopt;
};

class Standing {
 public:
  Standing(const Options& options, const Outbox* out, Jobs* jobs, Changes* changes)
      : options_(options), out_(*out), jobs_(*jobs), changes_(*changes) {}

  // Time has passed: what was heard of the ring may be too old to count. Once at the beginning of an event.
  void PassTime();
  // Nothing to do between two Applies, so that several threads may ask at once then.
  void Settle() const {
    if (!changes_.Empty()) const_cast<Standing*>(this)->SettleChanges();
  }

  // --- the line
  LineHead Head(const Job& job) const;
  Checkpoint* Newest(const Job& job) const;
  Checkpoint* NewestPersisted(const Job& job) const;
  Checkpoint* At(const Job& job, Step step) const;
  Checkpoint* AtBelow(const Job& job, Step step, Attempt below) const;  // as Line::AtBelow
  Checkpoint* Next(const Job& job, Step after) const;
  bool OnLine(const Checkpoint& checkpoint) const;
  bool Abandoned(const Checkpoint& checkpoint) const;
  // Abandoned, and for good: the attempt that left it has something to show.
  bool LeftBehind(const Checkpoint& checkpoint) const;
  Lineage LineageBelow(const Job& job, Step first_step) const;  // as Line::LineageBelow
  Lineage LineageOf(const Checkpoint& checkpoint) const;
  Lineage Resolved(const Job& job, Attempt attempt) const;  // as ResolveLineage

  // --- what could be evicted
  // The first of a class. Hard: one of whose memory some comes back by itself. Soft: one that is
  // mapped by sessions. Those with a lease on some object go last: the rest of them gains less.
  Checkpoint* FirstEvictable(EvictClass evict_class, bool soft, const Whose& whose) const;
  Checkpoint* FirstEvictable() const;  // of any class; nullptr: nothing can be given up
  Checkpoint* FirstEvictable(uint32_t uid) const;
  // Those of one job, in the order in which they go.
  const std::set<std::pair<EvictClass, CheckpointId>>& EvictableOf(const Job& job) const;
  // Of the checkpoints that could be evicted, those that have only their records in memory.
  size_t only_records() const;
  Checkpoint* FirstOfOnlyRecords() const;
  Checkpoint* FirstOfOnlyRecords(uint32_t uid) const;
  // What giving all of them up would gain: everybody's, one user's.
  Gain gain() const;
  Gain gain_of(uint32_t uid) const;
  // Grows whenever what could be evicted changes.
  uint64_t version() const;

  // Jobs that have come to be over, or of which another step is the newest since they are.
  std::set<std::string> TakeFinished() { return std::exchange(finished_, {}); }

  // --- who must hear
  // Jobs whose waits may have been reached, or never can be.
  std::set<std::string> TakeWaitsToCheck();
  // Something that is not derived here, and that waits depend on, has changed.
  void CheckWaits(const Job& job) { waits_to_check_.insert(job.name); }
  // Of so many parts and checkpoints; the rest stays.
  std::vector<action::Record> TakeToRecord(size_t most);
  bool more_to_record() const { return !to_record_.empty(); }
  // The job has been forgotten, for nobody has anything of it.
  void Forgot(const std::string& job) { to_record_[job].forgotten = true; }
  // In a ring: what of a job its home must hear of.
  struct ToReport {
    std::set<PartKey> parts;
    std::set<CheckpointId> checkpoints;  // in storage now, or no longer
  };
  void ReportChanges() { reports_ = true; }
  // Hears of each job that was touched.
  void set_touched(std::function<void(const std::string&)> touched) {
    touched_ = std::move(touched);
  }
  std::map<std::string, ToReport> TakeToReport();
  bool more_to_report() const { return !to_report_.empty(); }

  // It is about to go: its place on the line and in the indexes goes now.
  void Forget(Checkpoint* checkpoint);
  void Forget(Part* part);

  std::string CheckInvariants() const;

 private:
  // As the line knows them.
  static std::map<Attempt, Line::Origin> OriginsOf(const JobAttempts& attempts);
  static std::map<Attempt, Lineage> DecisionsOf(const JobAttempts& attempts);

  void SettleChanges();
  void SettleLine(Checkpoint* checkpoint);
  void SettleAttempts(Job* job);  // the line learns which attempts there are
  void SettleJob(Job* job);
  void SettleRing(Job* job);
  RingSays HeardOf(Job* job);
  std::optional<CheckpointId> NewestLeft(const Job& job, int asked) const;
  static void TouchHeld(Job* job, const RingSays& before, const RingSays& now);
  void SettleHeld(Part* part);
  void JudgeAllAnew(const Job& job) const;
  EvictClass ClassOf(const Checkpoint& checkpoint) const;
  void SettleClass(Checkpoint* checkpoint);
  static void SettleSums(Checkpoint* checkpoint);
  static void DropSums(Checkpoint* checkpoint);
  LinePlace PlaceOf(const Checkpoint& checkpoint) const;
  void SettleShown(Checkpoint* checkpoint);
  void SettleShown(Part* part);
  void Unindex(Checkpoint* checkpoint);
  void Affect(Job* job, const Line::Affected& affected);
  std::string CheckJob(const Job& job) const;
  std::string CheckLine(const Job& job) const;

  const Options& options_;
  const Outbox& out_;
  Jobs& jobs_;
  Changes& changes_;

  bool settling_ = false;
  std::set<std::pair<MonotonicNanos, std::string>> stale_at_;  // jobs, by JobStanding::stale_at
  using Evictable =
      std::map<std::pair<EvictClass, uint64_t>, Checkpoint*>;  // by class and sequence
  struct CouldGo {
    Evictable evictable;
    Evictable only_records;  // of them, those without slabs of objects
    Gain gain;

    void Add(Checkpoint* checkpoint);
    void Drop(Checkpoint* checkpoint);
  };
  CouldGo could_go_;
  std::map<uint32_t, CouldGo> could_go_of_;
  uint64_t version_ = 0;
  std::set<std::string> waits_to_check_, finished_;
  struct ToRecord {
    bool attempts = false;
    bool forgotten = false;
    std::set<PartKey> parts;
    std::map<CheckpointKey, Writer> whole;  // all parts from this one on
    std::set<CheckpointKey> checkpoints;
    std::set<CheckpointKey> left;
    bool Empty() const {
      return !attempts && !forgotten && parts.empty() && whole.empty() && checkpoints.empty() &&
             left.empty();
    }
  };
  static void TakeWhole(const Job& job, ToRecord* from, size_t most, action::Record* record);
  std::map<std::string, ToRecord> to_record_;
  bool reports_ = false;
  std::function<void(const std::string&)> touched_;
  std::map<std::string, ToReport> to_report_;
};

}  // namespace cairn::engine
