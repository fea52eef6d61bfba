// What the job's home says is true of its checkpoints (report.h), as this node goes by it: which are
// complete with parts elsewhere, how many copies there are, what all members secure now. It is as good as
// the reports behind it; who needs the whole truth waits here until a final verdict has come.
//
// Changes Checkpoint::elsewhere and Job::verdict. Says fact::StepSafe.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/engine/callers.h"
#include "server/engine/members.h"
#include "server/engine/parts.h"

namespace cairn::engine {

class Verdicts : public Waitlist, public RingWatcher {
 public:
  // A verdict older than this is not gone by where the present matters.
  static constexpr MonotonicNanos kFresh = 3 * kNanosPerSecond;
  // Choosing an attempt's number, and the first create of it, asks the other members, and waits so long for them at most.
  static constexpr MonotonicNanos kBeginPatience = 2 * kNanosPerSecond;
  // A call that has waited long enough does not wait again when it comes anew within this time.
  static constexpr MonotonicNanos kRemembered = 120 * kNanosPerSecond;
  // Of a job whose home has told nothing for so long it is asked whether there is such a job.
  static constexpr MonotonicNanos kUnheard = 600 * kNanosPerSecond;

  // `again` handles a parked event once more.
  Verdicts(const Options& options, Outbox* out, Callers* callers, const Members* members,
           Jobs* jobs, Attempts* attempts, Parts* parts, Standing* standing,
           std::function<void(const Event&)> again);
  ~Verdicts() override;
  // The checkpoint is complete now, with parts elsewhere, or stands in storage. The job has another verdict.
  void set_completed(std::function<void(Checkpoint*)> completed) {
    completed_ = std::move(completed);
  }
  void set_changed(std::function<void(Job*)> changed) { changed_ = std::move(changed); }
  void set_newer_attempt(std::function<void(Job*)> newer) { newer_attempt_ = std::move(newer); }
  // Asks this node's own Home.
  using AskSelf = std::function<void(const std::string& job, uint64_t question)>;
  void set_ask_self(AskSelf ask) { ask_self_ = std::move(ask); }

  // `answers`: the last question of this node that the home had heard before.
  void Take(Rank home, const JobVerdict& verdict, uint64_t answers);
  // Of a verdict that this node does not go by: what was protected. And what another member's record tells.
  void TakeSafe(const JobVerdict& verdict);
  void LearnSafe(Job* job, const std::pair<Attempt, Step>& safe);
  // This node's own timer ran late: what is heard now may have been said long ago. Of each job the whole truth is
  // what answers a question that is asked from now on.
  void TimerWasLate();

  void Restore(const Restored& restored);
  static void Snapshot(const Job& job, std::vector<Fact>* facts);

  // Parks the event until every member has answered for the job, or is lost; false: no need to, or the
  // event has waited already. `patience`: it goes on then with what is known.
  bool Await(const Caller& caller, const Job& job, MonotonicNanos deadline, const Event& event,
             MonotonicNanos patience = kNever);
  // Whether a call waits here for the job's verdict.
  bool Awaited(const std::string& job) const { return waiting_.contains(job); }
  // As Await, until the home has said something else, for kBeginPatience in all: of what has only just happened on
  // another node.
  bool AwaitNews(const Caller& caller, const Job& job, MonotonicNanos deadline, const Event& event);
  // The home has said within kFresh how things stand; alone: always.
  bool Fresh(const Job& job) const;
  // And all members have answered for the job.
  bool Known(const Job& job) const;
  // This node alone can say what is latest: the newest life that it knows of, and all of its newest
  // checkpoint, are here; and since before that life began all members, but those that are lost, have answered it.
  bool LivesHere(const Job& job) const;
  // Why an answer cannot be given: who has not answered. OK: it can.
  Status Missing(const Job& job) const;
  void AskHome(const std::string& job);
  // Somebody waits here for what may happen on other nodes: the home is asked again and again.
  void Follow(const std::string& job);
  void Run(bool again);

  void MemberCame(Rank) override { ask_all_ = true; }
  void MemberWent(Rank) override { ask_all_ = true; }

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;
  bool NothingHasBegun() const override { return true; }
  std::string CheckInvariants() const { return ""; }

 private:
  void TakeCheckpoints(Job* job, const JobVerdict& verdict);
  void AskOfUnheard();
  void ResumeAnswerable();
  void Set(Checkpoint* checkpoint, const Elsewhere& elsewhere);
  void Resume(const std::string& job);

  const Options& options_;
  Outbox& out_;
  Callers& callers_;
  const Members& members_;
  Jobs& jobs_;
  Attempts& attempts_;
  Parts& parts_;
  Standing& standing_;
  const std::function<void(const Event&)> again_;
  std::function<void(Checkpoint*)> completed_;
  std::function<void(Job*)> changed_, newer_attempt_;
  AskSelf ask_self_;

  std::string asked_last_;                              // of AskOfUnheard
  std::map<std::string, std::set<CheckpointId>> told_;  // checkpoints with something in `elsewhere`
  std::map<std::string, std::set<RequestId>> waiting_;
  std::map<RequestId, MonotonicNanos> patience_;  // when it goes on without
  std::map<RequestId, MonotonicNanos> news_;  // so long it waits for news, however often some came
  std::map<RequestId, MonotonicNanos> without_;  // so long it waits for what it can do without
  std::set<std::string> followed_;               // jobs with waits
  bool gave_up_ = false;                         // the event under way has waited long enough
  bool ask_all_ = false;
  std::map<std::string, uint64_t> in_doubt_;  // by job, the question whose answer counts
};

}  // namespace cairn::engine
