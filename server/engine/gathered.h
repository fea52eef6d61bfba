// The reports of one job, where they meet, and what they come to: at each moment exactly what View says of
// them (view.h; a test compares after each of thousands of random changes), for the price of what changed.
//
// A part that is reported costs O(log) of what there is, and its names. What costs more, and when: a first
// part of a checkpoint, as many steps as its attempt has writers; a member that falls silent, is heard again
// or is replaced, what it has reported; a new head whose lineage is open, another number of replicas asked
// for, or a record with other removals, as many steps as the job has checkpoints here.
//
// It knows no clock: who is silent, and when the reports are final, it is told.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "server/engine/job_record.h"
#include "server/engine/line.h"
#include "server/engine/report.h"
#include "server/engine/tally.h"
#include "server/engine/view.h"

namespace cairn::engine {

class Gathered {
 public:
  Gathered(std::string job, const RingShape& ring);
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

  // False when the delta builds on a report that is not the one that is here: a whole one is to be asked
  // for. What changes nothing is true, too: a report that is not newer, of an older incarnation, or of
  // another instance of the same one. A newer incarnation's replaces all of its rank.
  bool Apply(const MemberId& from, const ReportDelta& delta);
  // This life of the rank is the one that answers now: what an older one had in memory is gone.
  void Seen(const MemberId& who);
  // Whether a member is not heard; what it reported does not count meanwhile.
  void Silent(Rank rank, bool silent);
  void SetRecord(const JobRecord& record);
  // See Gathering::final.
  void SetFinal(bool final);

  const JobVerdict& Verdict() const { return verdict_; }
  // The checkpoints of which the verdict says something else than at the last call, or nothing any more. To
  // be taken: they gather until then.
  std::set<CheckpointId> TakeChanged() { return std::exchange(changed_, {}); }
  // What it rests on, for View.
  const Gathering& gathering() const { return gathering_; }
  const JobRecord& record() const { return record_; }
  // The number of the rank's report that is here; 0: none, so that only a whole one is of use.
  uint64_t NumberOf(Rank rank) const;

 private:
  // One attempt, as far as the reports that count tell of it.
  struct Life {
    std::set<Rank> said_by;  // whose reports have it
    // Which reports mention a writer.
    absl::flat_hash_map<WorldWriter, absl::InlinedVector<Rank, 1>> writers;
    std::set<CheckpointId> lacking;  // tallies that lack writers
    int tallies = 0;
    int visible = 0;  // of them in the verdict
    int had = 0;      // and of these that can be had

    bool empty() const { return said_by.empty() && writers.empty() && tallies == 0; }
  };

  bool Hears(Rank rank) const { return !gathering_.silent.contains(rank); }

  // One by one what is said and no longer said; `heard` is the report that is being changed.
  void Change(Rank rank, const ReportDelta& delta);
  void ChangeParts(Rank rank, const ReportDelta& delta);
  void ChangeWriters(Rank rank, const ReportDelta& delta);
  void ChangeRest(Rank rank, const ReportDelta& delta);
  void CountReport(Rank rank, const JobReport& report, bool counts);
  void CountPart(Rank rank, const PartId& id, const PartReport& part, bool counts);
  void CountWriter(Rank rank, const WriterKey& id, bool counts);
  void CountAttempt(Rank rank, Attempt attempt, bool counts);
  void CountPublished(const CheckpointId& id, bool counts);
  void CountTarget(const std::optional<CheckpointId>& target, bool counts);
  void CountSaving(Rank rank, const std::vector<SavingReport>& saving, bool counts);
  void ForgetRank(Rank rank);

  // What an incomplete checkpoint may still hope for from this writer of its attempt, before and after
  // something was said of the writer.
  void CountHopes(Attempt attempt, const WorldWriter& writer, int sign);
  Outlook OutlookOf(const CheckpointId& id, const WorldWriter& writer) const;
  void WeighHopes(const CheckpointId& id, Tally* tally);  // anew

  Life* LifeOf(Attempt attempt) { return &lives_[attempt]; }
  void DropIfEmpty(Attempt attempt);

  // Everything derived, once for each change from outside.
  void Settle();
  void SettleCheckpoints(std::vector<CheckpointId>* come, std::vector<CheckpointId>* gone);
  bool SettleOrigin(Attempt attempt);  // whether it says something else now
  void SettleLine(const std::vector<CheckpointId>& come, const std::vector<CheckpointId>& gone);
  void NoteAffected(const Line::Affected& affected);
  void SettleSatisfied();
  void SettleHopes();
  void SettleTarget();
  void SayHopeless(const CheckpointId& id);
  void SetCheckpoint(const CheckpointId& id, std::optional<CheckpointVerdict> verdict);
  int Asked() const;

  const RingShape ring_;
  Gathering gathering_;
  std::map<Rank, MemberId> present_;  // the newest life of each rank that was seen
  JobRecord record_;

  // By checkpoint and by attempt, of the reports that count. What the record removed is tallied, too, but
  // not shown.
  std::map<CheckpointId, Tally> tallies_;
  std::map<CheckpointId, int> published_;
  std::map<CheckpointId, int> named_;  // as their targets, by so many members
  std::map<Attempt, Life> lives_;

  std::map<Attempt, Line::Origin> origins_;
  Line line_;
  std::set<Attempt> shown_;           // attempts that have something that can be had
  std::set<CheckpointId> satisfied_;  // on the line
  Prospects prospects_;

  // What is to be settled.
  std::set<CheckpointId> touched_;
  std::set<Attempt> origins_touched_;
  bool decisions_touched_ = false;
  std::set<CheckpointId> placed_;  // whose place on the line may have changed
  bool all_placed_ = false;

  JobVerdict verdict_;
  std::set<CheckpointId> changed_;
};

}  // namespace cairn::engine
