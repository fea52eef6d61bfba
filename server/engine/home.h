// Where the reports of a job meet. Any member can be a home: it has no authority, and two of them that heard
// the same reports say the same (view.h). It tells its verdict to who holds something of the job or asked.
// A verdict that rests on partial reports may be answered with and protect; it says that it is not final.
//
// Final: every member has reported (of nothing, too), or is lost.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "server/engine/gathered.h"
#include "server/engine/members.h"

namespace cairn::engine {

class Home : public RingWatcher {
 public:
  // `to_self`: this node hears its own verdicts. `own_report`: it is asked for its own report.
  using ToSelf = std::function<void(const JobVerdict&)>;
  using OwnReport = std::function<void(const std::string& job)>;

  Home(const Options& options, Outbox* out, const Members* members);
  void set_to_self(ToSelf to_self) { to_self_ = std::move(to_self); }
  void set_own_report(OwnReport own_report) { own_report_ = std::move(own_report); }

  void On(const MemberId& from, const ReportDelta& delta);
  // Somebody wants the verdict, whether or not it holds something of the job.
  void Ask(Rank who, const std::string& job);
  void SetRecord(const std::string& job, const JobRecord& record);
  // Where the parts are, as far as is reported.
  std::vector<peer::Place> PlacesOf(const CheckpointKey& checkpoint, const std::string& name) const;

  // Says the verdicts that have changed; all of them with `again`. True: something changed here.
  bool Run(bool again);

  void MemberCame(Rank rank) override;
  void MemberWent(Rank rank) override;
  void MemberLost(Rank rank) override;

 private:
  struct Of {  // one job
    Of(const std::string& job, const RingShape& ring) : gathered(job, ring) {}
    Gathered gathered;
    std::set<Rank> reported;                // members whose present life has
    std::map<Rank, MonotonicNanos> asked;   // who asked, and when last
    std::map<Rank, MonotonicNanos> wanted;  // whose report was asked for, and when
    bool due = true;
  };
  Of& Find(const std::string& job);
  void WantReports(const std::string& job, Of* of);
  JobVerdict VerdictOf(const std::string& job, Of* of) const;
  void Say(const std::string& job, Of* of);

  const Options& options_;
  Outbox& out_;
  const Members& members_;
  ToSelf to_self_;
  OwnReport own_report_;
  std::map<std::string, std::unique_ptr<Of>> jobs_;
  std::map<std::string, JobRecord> records_;  // of jobs of which something was decided
};

}  // namespace cairn::engine
