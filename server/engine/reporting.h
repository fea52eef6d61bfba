// What this node tells of each job to where its reports meet (report.h): its parts, its writers, which
// attempts it knows. Deltas leave with the event that changed something; the whole goes to a home that is
// new or asks, and every few seconds.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/engine/copies.h"
#include "server/engine/fetches.h"
#include "server/engine/offers.h"
#include "server/engine/standing.h"

namespace cairn::engine {

class Reporting : public RingWatcher {
 public:
  // `to_self`: this node is the collector; the member is itself.
  using ToSelf = std::function<void(const ReportDelta&)>;

  // What else than replicas is being secured: what is written to storage.
  void set_writing(std::function<std::optional<CheckpointId>(const Job&)> writing) {
    writing_ = std::move(writing);
  }

  // Which processes save in the newest attempt.
  void set_saving(std::function<std::vector<SavingReport>(const Job&)> saving) {
    saving_ = std::move(saving);
  }

  Reporting(Outbox* out, const Members* members, Jobs* jobs, Parts* parts, Standing* standing,
            const Offers* offers, const Copies* copies);
  ~Reporting() override;
  // Numbers of reports go on rising when the daemon is started again: each of its lives begins above the last.
  // No number is given twice, also not to a job that was forgotten meanwhile.
  void Start() { last_number_ = out_.NextId() << 32; }
  void set_to_self(ToSelf to_self) { to_self_ = std::move(to_self); }

  // Says what has changed since it last ran; with `again` all of it.
  void Run(bool again);
  // A collector wants the whole of it, and from now on what changes.
  void WholeTo(Rank collector, const std::string& job, uint64_t question = 0);

  void MemberCame(Rank) override { homes_may_have_moved_ = true; }
  void MemberWent(Rank) override { homes_may_have_moved_ = true; }

 private:
  struct Told {
    JobReport report;
    uint64_t number = 0;
    Rank home = kNoRank;
    std::map<Rank, MonotonicNanos> askers;  // besides the home, and until when
  };
  // Takes the changes of one job into its report; the delta that says them, nullopt: nothing changed.
  std::optional<ReportDelta> Update(const std::string& name, const Standing::ToReport& changed,
                                    Told* told);
  bool Counts(const Part* part) const;
  PartReport ReportOf(const Part& part, const PartReport* known) const;
  void UpdateJob(const Job& job, JobReport* report) const;
  uint64_t NextNumber() { return ++last_number_; }
  void Send(Rank to, const ReportDelta& delta);
  void SendWhole(Rank to, const std::string& name, const Told& told, uint64_t answers = 0);

  Outbox& out_;
  const Members& members_;
  Jobs& jobs_;
  Parts& parts_;
  Standing& standing_;
  const Offers& offers_;
  const Copies& copies_;
  ToSelf to_self_;
  std::function<std::optional<CheckpointId>(const Job&)> writing_;
  std::function<std::vector<SavingReport>(const Job&)> saving_;
  std::map<std::string, Told> told_;
  uint64_t last_number_ = 0;
  bool homes_may_have_moved_ = false;
};

}  // namespace cairn::engine
