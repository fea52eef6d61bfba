// Which processes a newer attempt waits for: it takes the place of an older one once those that save in that
// have ended. Two copies of a job that were started by mistake must not end the one that trains, and a
// launcher starts the next life while the last one may still be dying.
//
// Invariant: every call that waits here would begin an attempt above the newest one.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/callers.h"
#include "server/engine/sessions.h"

namespace cairn::engine {

class Succession : public Waitlist {
 public:
  Succession(Outbox* out, Callers* callers, const Jobs* jobs, const Sessions* sessions,
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
  // Lets those go on whose wait is over.
  void Serve();
  void CancelAll(const Status& why);
  void SessionEnds(SessionId session) { in_vain_.erase(session); }

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
  struct Waiting {
    std::map<RequestId, Heir> requests;
    std::map<ProcessToken, int> processes;  // theirs → how many of them
    // The versions of sessions and line when it was looked at last whom they wait for.
    std::pair<uint64_t, uint64_t> looked_at;
  };

  // Those that need not wait any more, of what has changed since the last look.
  std::vector<RequestId> Over();
  // The sessions that save in the newest attempt, but for those of processes that have moved on.
  std::vector<const Session*> StillSaving(const Job& job) const;
  // Of their processes, those that this session's would end.
  std::set<int32_t> PidsInTheWay(const Job& job, Attempt attempt, const Session& heir) const;
  static Status InTheWay(const Job& job, Attempt attempt, const std::set<int32_t>& pids);
  void LogWait(const Job& job, Attempt attempt, const std::set<int32_t>& pids);

  Outbox& out_;
  Callers& callers_;
  const Jobs& jobs_;
  const Sessions& sessions_;
  const std::function<void(const Event&)> dispatch_;

  std::map<std::string, Waiting> waiting_;  // by job
  std::map<SessionId, Attempt> in_vain_;    // have waited to the end, for this attempt of theirs
  MonotonicNanos log_again_ = 0;
};

}  // namespace cairn::engine
