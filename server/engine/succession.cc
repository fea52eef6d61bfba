#include "server/engine/succession.h"

#include <algorithm>
#include <iterator>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/engine/evict_class.h"

namespace cairn::engine {
namespace {

// Launchers give processes 30 s to end before they kill them.
constexpr MonotonicNanos kSuccessionPatience = 45 * kNanosPerSecond;

// Both were started by one launcher, the heir after the other had failed: it sees to the other's end.
template <class Heir, class Other>
bool WasStartedAfter(const Heir& heir, const Other& other) {
  return !heir.run.empty() && heir.run == other.run && heir.restart > other.restart;
}

}  // namespace

bool Succession::Await(const Caller& caller, const Job& job, Attempt attempt,
                       MonotonicNanos deadline, const Event& event) {
  const Pids pids = PidsInTheWay(job, attempt, *sessions_.Find(caller.session));
  if (pids.empty()) return false;
  const auto in_vain = in_vain_.find(caller.session);
  if (in_vain != in_vain_.end() && in_vain->second == attempt) {
    out_.Answer(caller.request, InTheWay(job, attempt, pids));
    return true;
  }
  deadline = std::min(deadline, out_.now() + kSuccessionPatience);
  if (!callers_.Park(this, caller, job.name, deadline, event)) return true;
  const Session& heir = *sessions_.Find(caller.session);
  Waiting& waiting = waiting_[job.name];
  if (waiting.requests.empty()) LogWait(job, attempt, pids);
  waiting.requests[caller.request] = {attempt, heir.process, heir.run, heir.restart};
  if (++waiting.processes[heir.process] > 1) return true;
  jobs_.Find(job.name)->Touch();  // the process has moved on: the members are to hear it
  // The others need not wait for this one's process, if it is one that saves.
  const std::set<SessionId>& saving = job.attempts->begun.rbegin()->second.sessions;
  if (std::any_of(saving.begin(), saving.end(),
                  [&](SessionId id) { return sessions_.Find(id)->process == heir.process; })) {
    waiting.looked_at.reset();
  }
  return true;
}

void Succession::LogWait(const Job& job, Attempt attempt, const Pids& pids) {
  if (out_.now() < log_again_) return;  // a session that asks again and again fills no log
  log_again_ = out_.now() + kNanosPerSecond;
  out_.Log(Severity::kWarning,
           absl::StrCat("attempt ", attempt, " of job ", job.name, " waits for the end of ",
                        Words(pids), ", saving in attempt ", job.attempts->newest()));
}

std::vector<const Session*> Succession::StillSaving(const Job& job) const {
  std::vector<const Session*> saving;
  if (job.attempts->begun.empty()) return saving;
  const AttemptState& newest = job.attempts->begun.rbegin()->second;
  // One that a `use` has fenced saves nothing more, whoever of it lives.
  if (newest.sessions.empty() || newest.attempt < job.attempts->fence()) return saving;
  // Who has said hello for a newer attempt, or waits to begin one, has moved on by itself.
  absl::flat_hash_set<absl::string_view> moved_on;
  for (SessionId id : job.sessions->all) {
    const Session& session = *sessions_.Find(id);
    if (session.attempt > newest.attempt) moved_on.insert(session.process);
  }
  const auto waiting = waiting_.find(job.name);
  for (SessionId id : newest.sessions) {
    const Session& session = *sessions_.Find(id);
    if (moved_on.contains(session.process)) continue;
    if (waiting != waiting_.end() && waiting->second.processes.contains(session.process)) continue;
    saving.push_back(&session);
  }
  return saving;
}

std::vector<SavingReport> Succession::SavingHere(const Job& job) const {
  std::map<std::pair<std::string, int32_t>, SavingReport> by_launch;
  for (const Session* session : StillSaving(job)) {
    SavingReport& report = by_launch[{session->run, session->restart}];
    report.attempt = job.attempts->newest();
    report.run = session->run;
    report.restart = session->restart;
    report.pids.insert(session->pid);
    if (report.pids.size() > kMostPidsTold) report.pids.erase(std::prev(report.pids.end()));
  }
  std::vector<SavingReport> reports;
  for (auto& [launch, report] : by_launch) {
    if (reports.size() == kMostSavingTold) break;
    reports.push_back(std::move(report));
  }
  return reports;
}

bool Succession::Fresh(const Job& job) const {
  return job.verdict->heard && out_.now() - job.verdict->at <= kVerdictFresh;
}

std::vector<std::pair<Rank, const SavingReport*>> Succession::SavingElsewhere(
    const Job& job) const {
  std::vector<std::pair<Rank, const SavingReport*>> saving;
  if (!Fresh(job)) return saving;
  for (const auto& [rank, reports] : job.verdict->saving) {
    for (const SavingReport& report : reports) {
      if (report.attempt >= job.attempts->fence()) saving.emplace_back(rank, &report);
    }
  }
  return saving;
}

Succession::Pids Succession::PidsInTheWay(const Job& job, Attempt attempt,
                                          const Session& heir) const {
  Pids pids;
  if (attempt <= job.attempts->newest()) return pids;
  for (const Session* session : StillSaving(job)) {
    if (session->process == heir.process || WasStartedAfter(heir, *session)) continue;
    pids[kNoRank].insert(session->pid);
  }
  for (const auto& [rank, report] : SavingElsewhere(job)) {
    if (report->attempt >= attempt || WasStartedAfter(heir, *report)) continue;
    pids[rank].insert(report->pids.begin(), report->pids.end());
  }
  return pids;
}

std::string Succession::Words(const Pids& pids) {
  std::vector<std::string> words;
  for (const auto& [rank, of_rank] : pids) {
    words.push_back(absl::StrCat("pid ", absl::StrJoin(of_rank, ", "),
                                 rank == kNoRank ? "" : absl::StrCat(" on rank ", rank)));
  }
  return absl::StrJoin(words, " and ");
}

Status Succession::InTheWay(const Job& job, Attempt attempt, const Pids& pids) {
  const bool one = pids.size() == 1 && pids.begin()->second.size() == 1;
  return absl::FailedPreconditionError(absl::StrCat(
      "attempt: ", attempt, " of job ", job.name, " is newer than ", job.attempts->newest(),
      ", in which ", Words(pids), one ? " still saves" : " still save", "; end ",
      one ? "it" : "them",
      ", or insist with `fence` (connect(fence=True)): then nothing more of that attempt is "
      "saved"));
}

bool Succession::Serve() {
  bool any = false;
  // One that goes on may begin the attempt, and nothing is in the way of its other ranks then.
  for (std::vector<RequestId> over = Over(); !over.empty(); over = Over()) {
    for (RequestId request : over) {
      if (const auto parked = callers_.Unpark(request)) dispatch_(parked->event);
      any = true;
    }
  }
  return any;
}

std::vector<RequestId> Succession::Over() {
  std::vector<RequestId> over;
  for (auto& [name, waiting] : waiting_) {
    const Job& job = *jobs_.Find(name);
    const Seen now{job.sessions->changes, job.attempts->line_version, job.verdict->saving_changes,
                   Fresh(job)};
    const std::optional<Seen> before = std::exchange(waiting.looked_at, now);
    if (before == now) continue;
    std::vector<Launch> saving;
    for (const Session* session : StillSaving(job)) {
      saving.push_back({session->run, session->restart});
    }
    for (const auto& [rank, report] : SavingElsewhere(job)) {
      saving.push_back({report->run, report->restart});
    }
    // Started before all others of one launcher, if they are one launcher's.
    const Launch* last = saving.empty() ? nullptr : &saving.front();
    for (const Launch& launch : saving) {
      if (launch.run != last->run) last = nullptr;
      if (last == nullptr) break;
      if (launch.restart > last->restart) last = &launch;
    }
    // With many that wait, and somebody else's process in the way of all of them, that is all to see.
    const bool none_goes_on = !saving.empty() && (last == nullptr || last->run.empty());
    if (none_goes_on && before.has_value() && before->line == now.line) continue;
    for (const auto& [request, heir] : waiting.requests) {
      if (saving.empty() || heir.attempt <= job.attempts->newest() ||
          (last != nullptr && WasStartedAfter(heir, *last))) {
        over.push_back(request);
      }
    }
  }
  return over;
}

void Succession::CancelAll(const Status& why) {
  std::vector<RequestId> all;
  for (const auto& [name, waiting] : waiting_) {
    for (const auto& [request, heir] : waiting.requests) all.push_back(request);
  }
  for (RequestId request : all) callers_.Answer(request, why);
}

void Succession::Left(const Parked& parked) {
  const auto waiting = waiting_.find(parked.job);
  const auto request = waiting->second.requests.find(parked.request);
  const auto process = waiting->second.processes.find(request->second.process);
  if (--process->second == 0) {
    waiting->second.processes.erase(process);
    waiting->second.looked_at.reset();  // it may go on to save in the older attempt
    jobs_.Find(parked.job)->Touch();
  }
  waiting->second.requests.erase(request);
  if (waiting->second.requests.empty()) waiting_.erase(waiting);
}

void Succession::TimeUp(const Parked& parked) {
  const Job& job = *jobs_.Find(parked.job);
  const Attempt attempt = waiting_.at(parked.job).requests.at(parked.request).attempt;
  in_vain_[parked.session] = attempt;
  const Status why =
      InTheWay(job, attempt, PidsInTheWay(job, attempt, *sessions_.Find(parked.session)));
  callers_.Answer(parked.request, why);
}

std::string Succession::CheckInvariants() const {
  for (const auto& [name, waiting] : waiting_) {
    const Job* job = jobs_.Find(name);
    if (job == nullptr) return absl::StrCat("job ", name, " is gone, and an heir waits");
    std::map<ProcessToken, int> processes;
    for (const auto& [request, heir] : waiting.requests) {
      const Attempt attempt = heir.attempt;
      ++processes[heir.process];
      if (!callers_.Contains(request)) return absl::StrCat("job ", name, ": an heir has left");
      if (job->attempts->begun.contains(attempt) || attempt <= job->attempts->newest()) {
        return absl::StrCat("job ", name, ": attempt ", attempt, " waits to begin, and cannot");
      }
    }
    if (processes != waiting.processes) return absl::StrCat("job ", name, ": heirs' processes");
  }
  return "";
}

}  // namespace cairn::engine
