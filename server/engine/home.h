// Where the reports of a job meet. Any member can be a home: it has no authority, and two of them that heard
// the same reports say the same (view.h). It tells its verdict to who holds something of the job or asked.
// A verdict that rests on partial reports may be answered with and protect; it says that it is not final.
//
// Final: every member has reported (of nothing, too), or is lost.
//
// A report counts while this node hears its member: the member answers, and did so within kHeardFor by this node's
// own clock. Once it was not heard, or this node was stopped itself for a while, its report counts again when it
// answers a question that was asked since: what it said before may only arrive now. Members tell the changes to who
// asked lately only (Reporting), so a home asks again before that time is up, and counts no report that is older.
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
  using ToSelf = std::function<void(const JobVerdict&, uint64_t answers)>;
  using OwnReport = std::function<void(const std::string& job)>;

  Home(const Options& options, Outbox* out, const Members* members);
  void set_to_self(ToSelf to_self) { to_self_ = std::move(to_self); }
  // Whose the job is, as far as this node knows.
  void set_owner(std::function<std::optional<uint32_t>(const std::string&)> owner) {
    owner_ = std::move(owner);
  }
  void set_own_report(OwnReport own_report) { own_report_ = std::move(own_report); }

  void On(const MemberId& from, const ReportDelta& delta);
  // Somebody wants the verdict, whether or not it holds something of the job.
  void Ask(Rank who, const std::string& job, uint64_t question = 0);
  void SetRecord(const std::string& job, const JobRecord& record);
  // Of a job that is forgotten: what was decided of it judges no later one of its name.
  void ForgetRecord(const std::string& job);
  // Where the parts are, as far as is reported: those that may have the name; all for an empty one. nullopt: it cannot
  // be said yet whether there is such a name.
  std::optional<std::vector<peer::Place>> PlacesOf(const CheckpointKey& checkpoint,
                                                   const std::string& name) const;

  const Gathered* GatheredOf(const std::string& job) const;

  static constexpr MonotonicNanos kHeardFor = 3 * kNanosPerSecond;

  // Says the verdicts that have changed; all of them with `again`. True: something changed here.
  bool Run(bool again);

  // This node's own timer ran late: what it hears now may have been said long ago.
  void TimerWasLate();

  void MemberCame(Rank rank) override;
  void MemberWent(Rank rank) override;
  void MemberLost(Rank rank) override;

 private:
  struct Of {  // one job
    Of(const std::string& job, const RingShape& ring) : gathered(job, ring) {}
    Gathered gathered;
    std::map<Rank, MonotonicNanos> reported;  // members whose present life has, and when last
    struct Asked {
      MonotonicNanos at = 0;  // when last
      uint64_t question = 0;
    };
    std::map<Rank, Asked> asked;            // by who asked
    std::map<Rank, MonotonicNanos> wanted;  // whose report was asked for, and when
    std::map<Rank, uint64_t> questions;     // whose report counts again as the answer to this
    std::set<Rank> foreign;                 // who says that the job is another user's
    MonotonicNanos says_again = 0;          // its verdict, not before that
  };
  Of& Find(const std::string& job);
  void Take(const MemberId& from, const ReportDelta& delta, Of* of);
  void WantReports(const std::string& job, Of* of);
  // Their reports do not count until they answer anew.
  void Doubt(const std::set<Rank>& ranks);
  void DoubtWhoIsNotHeard();
  void DoubtOldReports();
  bool MustTell(const std::string& job, const Of& of) const;
  JobVerdict VerdictOf(const std::string& job, Of* of) const;
  void Say(const std::string& job, Of* of);

  const Options& options_;
  Outbox& out_;
  const Members& members_;
  ToSelf to_self_;
  OwnReport own_report_;
  std::function<std::optional<uint32_t>(const std::string&)> owner_;
  std::map<std::string, std::unique_ptr<Of>> jobs_;
  std::set<std::string> due_;                 // jobs of which something is to be said
  std::map<std::string, JobRecord> records_;  // of jobs of which something was decided
  std::set<Rank> unheard_;              // members that are up, and have said nothing for kHeardFor
  MonotonicNanos all_heard_until_ = 0;  // until then no other can be one of these
};

}  // namespace cairn::engine
