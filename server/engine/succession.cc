#include "server/engine/succession.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cairn::engine {
namespace {

// Launchers give processes 30 s to end before they kill them.
constexpr MonotonicNanos kPatience = 45 * kNanosPerSecond;

// Both were started by one launcher, the heir after the other had failed: it sees to the other's end.
bool WasStartedAfter(const Session& heir, const Session& other) {
  return !heir.run.empty() && heir.run == other.run && heir.restart > other.restart;
}

}  // namespace

bool Succession::Await(const Caller& caller, const Job& job, Attempt attempt,
                       MonotonicNanos deadline, const Event& event) {
  const std::set<int32_t> pids = PidsInTheWay(job, attempt, *sessions_.Find(caller.session));
  if (pids.empty()) return false;
  const auto in_vain = in_vain_.find(caller.session);
  if (in_vain != in_vain_.end() && in_vain->second == attempt) {
    out_.Answer(caller.request, InTheWay(job, attempt, pids));
    return true;
  }
  deadline = std::min(deadline, out_.now() + kPatience);
  if (!callers_.Park(this, caller, job.name, deadline, event)) return true;
  Waiting& waiting = waiting_[job.name];
  if (waiting.requests.empty()) {
    out_.Log(
        Severity::kWarning,
        absl::StrCat("attempt ", attempt, " of job ", job.name, " waits for the end of pid ",
                     absl::StrJoin(pids, ", "), ", saving in attempt ", job.attempts->newest()));
  }
  waiting.requests[caller.request] = attempt;
  waiting.looked_at = {};  // the others need not wait for this one's process
  return true;
}

std::set<int32_t> Succession::PidsInTheWay(const Job& job, Attempt attempt,
                                           const Session& heir) const {
  std::set<int32_t> pids;
  if (job.attempts->begun.empty()) return pids;
  const AttemptState& newest = job.attempts->begun.rbegin()->second;
  // One that a `use` has fenced saves nothing more, whoever of it lives.
  if (attempt <= newest.attempt || newest.attempt < job.attempts->fence()) return pids;
  // Who has said hello for a newer attempt, or waits to begin one, has moved on by itself.
  absl::flat_hash_set<absl::string_view> moved_on;
  moved_on.insert(heir.process);
  for (SessionId id : job.sessions->all) {
    const Session& session = *sessions_.Find(id);
    if (session.attempt > newest.attempt) moved_on.insert(session.process);
  }
  if (const auto waiting = waiting_.find(job.name); waiting != waiting_.end()) {
    for (const auto& [request, number] : waiting->second.requests) {
      const Session& session = *sessions_.Find(callers_.Find(request)->session);
      if (number > newest.attempt) moved_on.insert(session.process);
    }
  }
  for (SessionId id : newest.sessions) {
    const Session& session = *sessions_.Find(id);
    if (moved_on.contains(session.process) || WasStartedAfter(heir, session)) continue;
    pids.insert(session.pid);
  }
  return pids;
}

Status Succession::InTheWay(const Job& job, Attempt attempt, const std::set<int32_t>& pids) {
  return absl::FailedPreconditionError(absl::StrCat(
      "attempt: ", attempt, " of job ", job.name, " is newer than ", job.attempts->newest(),
      ", in which pid ", absl::StrJoin(pids, ", "),
      pids.size() == 1 ? " still saves" : " still save", "; end ", pids.size() == 1 ? "it" : "them",
      ", or insist with `fence` (connect(fence=True)): then nothing more of that attempt is "
      "saved"));
}

void Succession::Serve() {
  // One that goes on may begin the attempt, and nothing is in the way of its other ranks then.
  for (std::vector<RequestId> over = Over(); !over.empty(); over = Over()) {
    for (RequestId request : over) {
      if (const auto parked = callers_.Unpark(request)) dispatch_(parked->event);
    }
  }
}

std::vector<RequestId> Succession::Over() {
  std::vector<RequestId> over;
  for (auto& [name, waiting] : waiting_) {
    const Job& job = *jobs_.Find(name);
    const std::pair now(sessions_.changes(), job.attempts->line_version);
    if (std::exchange(waiting.looked_at, now) == now) continue;
    for (const auto& [request, attempt] : waiting.requests) {
      const Session& heir = *sessions_.Find(callers_.Find(request)->session);
      if (PidsInTheWay(job, attempt, heir).empty()) over.push_back(request);
    }
  }
  return over;
}

void Succession::CancelAll(const Status& why) {
  std::vector<RequestId> all;
  for (const auto& [name, waiting] : waiting_) {
    for (const auto& [request, attempt] : waiting.requests) all.push_back(request);
  }
  for (RequestId request : all) callers_.Answer(request, why);
}

void Succession::Left(const Parked& parked) {
  const auto waiting = waiting_.find(parked.job);
  waiting->second.requests.erase(parked.request);
  if (waiting->second.requests.empty()) waiting_.erase(waiting);
}

void Succession::TimeUp(const Parked& parked) {
  const Job& job = *jobs_.Find(parked.job);
  const Attempt attempt = waiting_.at(parked.job).requests.at(parked.request);
  in_vain_[parked.session] = attempt;
  const Status why =
      InTheWay(job, attempt, PidsInTheWay(job, attempt, *sessions_.Find(parked.session)));
  callers_.Answer(parked.request, why);
}

std::string Succession::CheckInvariants() const {
  for (const auto& [name, waiting] : waiting_) {
    const Job* job = jobs_.Find(name);
    if (job == nullptr) return absl::StrCat("job ", name, " is gone, and an heir waits");
    for (const auto& [request, attempt] : waiting.requests) {
      if (!callers_.Contains(request)) return absl::StrCat("job ", name, ": an heir has left");
      if (job->attempts->begun.contains(attempt) || attempt <= job->attempts->newest()) {
        return absl::StrCat("job ", name, ": attempt ", attempt, " waits to begin, and cannot");
      }
    }
  }
  return "";
}

}  // namespace cairn::engine
