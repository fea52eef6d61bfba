// Jobs and their owners; attempts: which may go on, which begins, who is which writer of it.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/engine/impl.h"

namespace cairn::engine {
namespace {

constexpr size_t kKeptRefusals = 1024;
constexpr MonotonicNanos kScanPatience = 10 * kNanosPerSecond;

}  // namespace

Job* Engine::Impl::FindJob(const std::string& job) const {
  const auto at = jobs_.find(job);
  return at == jobs_.end() ? nullptr : at->second.get();
}

Job* Engine::Impl::GetJob(const std::string& name) {
  std::unique_ptr<Job>& job = jobs_[name];
  if (job == nullptr) {
    job = std::make_unique<Job>();
    job->name = name;
    job->policy = options_.default_policy;
    maybe_forget_.insert(name);
    if (!options_.storage) job->scan = ScanState::kScanned;
  }
  return job.get();
}

// A job nobody created anything in, and nobody is in, is no job.
void Engine::Impl::MaybeForgetJob(Job* job) {
  if (job->owned || !job->sessions.empty() || !job->checkpoints.empty() || !job->waits.empty() ||
      !job->scan_waiters.empty() || job->scan == ScanState::kScanning) {
    return;
  }
  jobs_.erase(job->name);
}

Status Engine::Impl::CheckAccess(const Job& job, const Caller& caller) const {
  if (!job.owned || caller.uid == job.owner_uid || caller.uid == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "job: ", job.name, " is owned by uid ", job.owner_uid, ", the caller is uid ", caller.uid));
}

Status Engine::Impl::CheckPolicy(const JobPolicy& policy) {
  if (policy.readers != Readers::kOwner) {
    return absl::UnimplementedError("readers: only \"owner\" is there so far");
  }
  if (policy.every < 1) {
    return absl::InvalidArgumentError(absl::StrCat("every: ", policy.every, " is below 1"));
  }
  if (policy.keep_last < 0) {
    return absl::InvalidArgumentError(absl::StrCat("keep_last: ", policy.keep_last, " is below 0"));
  }
  if (policy.keep_every < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep_every: ", policy.keep_every, " is below 0"));
  }
  return absl::OkStatus();
}

void Engine::Impl::EmitJob(const Job& job) {
  out_.facts.push_back(fact::Job{job.name, job.owner_uid, job.owner_gid, job.policy});
}

void Engine::Impl::TakeOwnership(Job* job, const Caller& caller) {
  if (job->owned) return;
  job->owned = true;
  if (const Session* session = FindSession(caller.session); session->policy.has_value()) {
    job->policy = *session->policy;
  }
  job->owner_uid = caller.uid;
  job->owner_gid = caller.gid;
  EmitJob(*job);
}

void Engine::Impl::On(const event::SetPolicy& event) {
  if (SessionOf(event.caller) == nullptr) return;
  const RequestId request = event.caller.request;
  Job* job = FindJob(event.job);
  if (job == nullptr) {
    return Answer(request, absl::NotFoundError(absl::StrCat("job: ", event.job, " is unknown")));
  }
  if (ScanFirst(event.caller, job, now_ + kScanPatience, event)) return;
  Status status = CheckAccess(*job, event.caller);
  if (status.ok()) status = CheckPolicy(event.policy);
  if (!status.ok()) return Answer(request, status);
  if (!job->owned) {
    // Whoever creates first will own it, and brings the policy along.
    Session* session = FindSession(event.caller.session);
    if (session->job != job->name) {
      return Answer(
          request, absl::NotFoundError(absl::StrCat("job: ", job->name, " has nothing in it yet")));
    }
    session->policy = event.policy;
    return Answer(request, Body(reply::Ok{}));
  }
  job->policy = event.policy;
  EmitJob(*job);
  // What the new policy wants of the newest step is wanted now, not at the next one.
  if (Checkpoint* newest = NewestOnLine(*job)) ScheduleByPolicy(newest);
  waits_to_check_.insert(job->name);
  ApplyKeepPolicy(job);
  Answer(request, Body(reply::Ok{}));
}

void Engine::Impl::On(const event::ChooseAttempt& event) {
  if (SessionOf(event.caller) == nullptr) return;
  const RequestId request = event.caller.request;
  Job* job = GetJob(event.job);
  if (ScanFirst(event.caller, job, event.deadline, event)) return;
  const Status access = CheckAccess(*job, event.caller);
  if (!access.ok()) return Answer(request, access);
  Attempt known = job->greatest_attempt;
  if (!job->attempts.empty()) known = std::max(known, job->attempts.rbegin()->first);
  const Attempt chosen = std::max<Attempt>(event.unix_ms, known + 1);
  job->greatest_attempt = chosen;
  Answer(request, Body(reply::Attempt{chosen}));
}

void Engine::Impl::On(const event::ResumeFrom& event) {
  if (SessionOf(event.caller) == nullptr) return;
  const RequestId request = event.caller.request;
  Job* job = GetJob(event.job);
  if (ScanFirst(event.caller, job, event.deadline, event)) return;
  Status status = CheckAccess(*job, event.caller);
  if (status.ok()) status = ValidateAttempt(event.attempt);
  if (!status.ok()) return Answer(request, status);
  Attempt superseded_by = 0;
  status = CheckFence(*job, event.attempt, &superseded_by);
  if (!status.ok()) return Answer(request, status, superseded_by);

  reply::Latest from;
  from.key.job = event.job;
  from.key.step = kNoStep;
  if (event.step != kNoStep) {
    const Checkpoint* checkpoint = LineAt(*job, event.step);
    if (checkpoint == nullptr) {
      return Answer(request, absl::NotFoundError(
                                 absl::StrCat("resume: step ", event.step, " of job ", event.job,
                                              " is not a complete step of its line")));
    }
    from = LatestOf(*checkpoint);
  }
  const auto begun = job->attempts.find(event.attempt);
  if (begun != job->attempts.end()) {
    if (begun->second.comes_from != event.step) {
      return Answer(request, absl::FailedPreconditionError(
                                 absl::StrCat("resume: attempt ", event.attempt,
                                              " has begun, from step ", begun->second.comes_from)));
    }
    return Answer(request, Body(std::move(from)));
  }
  job->resumes[event.attempt] = event.step;
  job->greatest_attempt = std::max(job->greatest_attempt, event.attempt);
  out_.facts.push_back(fact::Resume{event.job, event.attempt, event.step});
  Answer(request, Body(std::move(from)));
}

// --- what an attempt may do

Status Engine::Impl::CheckFence(const Job& job, Attempt attempt, Attempt* superseded_by) const {
  if (job.attempts.empty()) return absl::OkStatus();
  const Attempt newest = job.attempts.rbegin()->first;
  if (attempt >= newest) return absl::OkStatus();
  *superseded_by = newest;
  return absl::FailedPreconditionError(
      absl::StrCat("attempt: ", attempt, " of job ", job.name, " is superseded by ", newest));
}

// A lone writer fences no one alive. If it merely went on beside the older attempt, the line could
// follow only one of them and the other's saves would be abandoned as they are made; so it may not
// begin, and is told whom it would have to end.
Status Engine::Impl::CheckLone(const Job& job, Attempt attempt, const Session& session) const {
  if (job.attempts.empty()) return absl::OkStatus();
  const AttemptState& newest = job.attempts.rbegin()->second;
  if (attempt <= newest.attempt) return absl::OkStatus();
  for (SessionId id : newest.sessions) {
    const Session& alive = *sessions_.at(id);
    if (alive.process == session.process) continue;  // it moved on by itself
    return absl::FailedPreconditionError(
        absl::StrCat("attempt: ", attempt, " is a lone writer's and fences no one alive: attempt ",
                     newest.attempt, " of job ", job.name, " is being written by pid ", alive.pid,
                     "; end it, or save in that attempt"));
  }
  return absl::OkStatus();
}

Status Engine::Impl::CheckProcess(const Job& job, const PartKey& part,
                                  const Session& session) const {
  const auto attempt = job.attempts.find(part.checkpoint.attempt);
  if (attempt == job.attempts.end()) return absl::OkStatus();
  const auto process = attempt->second.processes.find(part.writer);
  if (process == attempt->second.processes.end() || process->second.first == session.process) {
    return absl::OkStatus();
  }
  const int32_t pid = process->second.second;
  return absl::AlreadyExistsError(absl::StrCat(
      "writer: ", part.writer, " of attempt ", part.checkpoint.attempt, " of job ", job.name,
      " is another process", pid == 0 ? std::string() : absl::StrCat(", pid ", pid),
      "; a writer is one process for the life of its attempt"));
}

Status Engine::Impl::CheckWorld(const Job& job, const PartKey& part, int32_t world_size) const {
  CAIRN_RETURN_IF_ERROR(ValidateWorld(part.writer, world_size));
  const auto attempt = job.attempts.find(part.checkpoint.attempt);
  if (attempt == job.attempts.end()) return absl::OkStatus();
  const auto world = attempt->second.worlds.find(part.checkpoint.step);
  if (world == attempt->second.worlds.end() || world->second == world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("world_size: ", world_size, ", but step ", part.checkpoint.step, " of attempt ",
                   part.checkpoint.attempt, " has world_size ", world->second));
}

void Engine::Impl::EnterAttempt(Job* job, const PartKey& part, int32_t world_size,
                                Session* session) {
  const Attempt number = part.checkpoint.attempt;
  const Step step = part.checkpoint.step;
  auto at = job->attempts.find(number);
  if (at == job->attempts.end()) {
    AttemptState attempt;
    attempt.attempt = number;
    attempt.unix_ms = UnixMillis();
    attempt.first_step = step;
    const auto chosen = job->resumes.find(number);
    if (chosen != job->resumes.end()) {
      attempt.chosen = true;
      attempt.comes_from = chosen->second;
    } else {
      attempt.comes_from = ComesFromLine(*job, step);
      attempt.provisional = !ScanKnown(*job);
    }
    job->resumes.erase(job->resumes.begin(), job->resumes.upper_bound(number));
    at = job->attempts.emplace(number, std::move(attempt)).first;
    job->greatest_attempt = std::max(job->greatest_attempt, number);
    out_.facts.push_back(
        fact::AttemptBegun{job->name, number, at->second.comes_from, at->second.unix_ms});
    FenceOlder(job);
  }
  AttemptState& attempt = at->second;
  if (!attempt.processes.contains(part.writer)) {
    attempt.processes[part.writer] = {session->process, session->pid};
    out_.facts.push_back(fact::WriterProcess{job->name, number, part.writer, session->process});
  }
  if (!attempt.worlds.contains(step)) {
    attempt.worlds[step] = world_size;
    out_.facts.push_back(fact::StepWorld{job->name, number, step, world_size});
  }
  attempt.sessions.insert(session->id);
  session->began.insert({job->name, number});
  session->attempt = number;
  while (attempt.refused.size() > kKeptRefusals) attempt.refused.erase(attempt.refused.begin());
}

// The newest attempt has just begun: older ones can complete nothing more.
void Engine::Impl::FenceOlder(Job* job) {
  const Attempt newest = job->attempts.rbegin()->first;
  std::vector<RequestId> fenced;
  for (const CheckpointId& id : job->incomplete) {
    if (std::get<1>(id) >= newest) continue;
    Checkpoint* checkpoint = job->checkpoints.at(id).get();
    ReleaseReservation(checkpoint);
    fenced.insert(fenced.end(), checkpoint->waiting_creates.begin(),
                  checkpoint->waiting_creates.end());
  }
  for (RequestId request : fenced) {
    AnswerParked(request,
                 absl::FailedPreconditionError(absl::StrCat("attempt: superseded by ", newest)),
                 newest);
  }
  // Attempts that left nothing behind cut nothing off the line: they need not be remembered.
  for (auto at = job->attempts.begin(); at->first != newest;) {
    at->second.dropped.clear();  // nothing of it is committed any more
    const bool empty = at->second.checkpoints_at.empty() && at->second.sessions.empty();
    at = empty ? job->attempts.erase(at) : std::next(at);
  }
  TouchJob(job);
}

}  // namespace cairn::engine
