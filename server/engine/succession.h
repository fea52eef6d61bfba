// Which processes a newer attempt waits for: it takes the place of an older one once those that save in that
// have ended. Two copies of a job that were started by mistake must not end the one that trains, and a
// launcher starts the next life while the last one may still be dying. In a ring those that save on other members
// count, too, as long as the members were heard a moment ago; what a silent one runs nobody waits for.
//
// Invariant: every call that waits here would begin an attempt above the newest one.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/callers.h"
#include "server/engine/sessions.h"

namespace cairn::engine {

class Succession : public Waitlist {
 public:
  Succession(Outbox* out, Callers* callers, Jobs* jobs, const Sessions* sessions,
             std::function<void(const Event&)> dispatch)
      : out_(*out),
        callers_(*callers),
        jobs_(*jobs),
        sessions_(*sessions),
        dispatch_(std::move(dispatch)) {}

  // Of a create, commit or resume of this attempt, which was checked. True: it waits, and the event is dispatched
  // again; or it was refused, for its session has waited for them before.
  bool Await(const Caller& caller, const Job& job, Attempt attempt, MonotonicNanos deadline,
             const Event& event);
  // Lets those go on whose wait is over; true: there was one.
  bool Serve();
  void CancelAll(const Status& why);
  void SessionEnds(SessionId session) { in_vain_.erase(session); }
  // What this node tells the other members of its processes.
  std::vector<SavingReport> SavingHere(const Job& job) const;

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;
  bool NothingHasBegun() const override { return true; }

  std::string CheckInvariants() const;

 private:
  struct Heir {
    Attempt attempt = 0;
    ProcessToken process, run;
    int32_t restart = -1;
  };
  // What decides whom they wait for.
  struct Seen {
    uint64_t sessions = 0, line = 0, members = 0;  // versions
    bool fresh = false;                            // what the members said
    bool operator==(const Seen&) const = default;
  };
  struct Waiting {
    std::map<RequestId, Heir> requests;
    std::map<ProcessToken, int> processes;  // theirs → how many of them
    std::optional<Seen> looked_at;          // at the last look
  };
  // By rank; kNoRank: on this node.
  using Pids = std::map<Rank, std::set<int32_t>>;
  // Processes that were started together.
  struct Launch {
    absl::string_view run;
    int32_t restart = -1;
  };

  // Those that need not wait any more, of what has changed since the last look.
  std::vector<RequestId> Over();
  // The sessions that save in the newest attempt, but for those of processes that have moved on.
  std::vector<const Session*> StillSaving(const Job& job) const;
  // And what other members said of theirs a moment ago, by rank.
  std::vector<std::pair<Rank, const SavingReport*>> SavingElsewhere(const Job& job) const;
  bool Fresh(const Job& job) const;
  // Of their processes, those that this session's would end.
  Pids PidsInTheWay(const Job& job, Attempt attempt, const Session& heir) const;
  static std::string Words(const Pids& pids);
  static Status InTheWay(const Job& job, Attempt attempt, const Pids& pids);
  void LogWait(const Job& job, Attempt attempt, const Pids& pids);

  Outbox& out_;
  Callers& callers_;
  Jobs& jobs_;
  const Sessions& sessions_;
  const std::function<void(const Event&)> dispatch_;

  std::map<std::string, Waiting> waiting_;  // by job
  std::map<SessionId, Attempt> in_vain_;    // have waited to the end, for this attempt of theirs
  MonotonicNanos log_again_ = 0;
};

}  // namespace cairn::engine
