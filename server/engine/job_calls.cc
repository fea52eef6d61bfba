#include "server/engine/job_calls.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/engine/cluster.h"
#include "server/engine/keep_plan.h"

namespace cairn::engine {

JobCalls::JobCalls(const Options& options, Outbox* out, Jobs* jobs, Sessions* sessions,
                   Attempts* attempts, Persistence* persistence, Retention* retention,
                   Standing* standing, Describing* describing, Scanning* scanning,
                   Admission* admission, Records* records, Succession* succession)
    : options_(options),
      out_(*out),
      jobs_(*jobs),
      sessions_(*sessions),
      attempts_(*attempts),
      persistence_(*persistence),
      retention_(*retention),
      standing_(*standing),
      describing_(*describing),
      scanning_(*scanning),
      admission_(*admission),
      records_(*records),
      succession_(*succession) {}

void JobCalls::On(const event::ChooseAttempt& event) {
  if (sessions_.Of(event.caller) == nullptr) return;
  const RequestId request = event.caller.request;
  Job* job = jobs_.FindOrMake(event.job);
  // What has begun elsewhere the other members know. They are not waited for longer than a moment: a number that is
  // too small is refused where it begins.
  if (cluster_->verdicts().Await(event.caller, *job, event.deadline, event,
                                 Verdicts::kBeginPatience)) {
    return;
  }
  if (scanning_.Await(event.caller, job, event.deadline, event)) return;
  const Status access = Jobs::CheckAccess(*job, event.caller);
  if (!access.ok()) return out_.Answer(request, access);
  out_.Answer(request, Body(reply::Attempt{attempts_.Choose(job, event.unix_ms)}));
}

// Whether what was said or done before lets it be said (line rule 13).
Status JobCalls::CheckResume(const event::ResumeFrom& event, const Job& job) const {
  const JobAttempts& attempts = *job.attempts;
  const auto begun = attempts.begun.find(event.attempt);
  if (begun != attempts.begun.end() && begun->second.lineage.step() != event.step) {
    return absl::FailedPreconditionError(absl::StrCat(
        "resume: attempt ", event.attempt, " has begun, from ", OriginText(begun->second.lineage)));
  }
  const auto decided = attempts.decisions.find(event.attempt);
  if (decided == attempts.decisions.end()) {
    if (attempts.decisions.size() < kKeptDecisions || begun != attempts.begun.end() ||
        event.attempt > attempts.decisions.begin()->first) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat("resume: attempt ", event.attempt, " of job ",
                                                      event.job, " is older than all of the ",
                                                      kKeptDecisions, " decided last"));
  }
  const Decision& decision = decided->second;
  if (decision.kind == LineRecordKind::kUse) {
    return absl::FailedPreconditionError(absl::StrCat("attempt: ", event.attempt, " of job ",
                                                      event.job,
                                                      " is the number of a `use`; choose a "
                                                      "greater one"));
  }
  const ProcessToken& process = sessions_.Find(event.caller.session)->process;
  if (decision.lineage.step() != event.step && !decision.process.empty() &&
      decision.process != process) {
    return absl::FailedPreconditionError(absl::StrCat("resume: another writer said that attempt ",
                                                      event.attempt, " goes on from ",
                                                      OriginText(decision.lineage)));
  }
  return absl::OkStatus();
}

void JobCalls::On(const event::ResumeFrom& event) {
  if (sessions_.Of(event.caller) == nullptr) return;
  const RequestId request = event.caller.request;
  Job* job = jobs_.FindOrMake(event.job);
  if (scanning_.AwaitLook(event.caller, job, event.deadline, event)) return;
  Status status = Jobs::CheckAccess(*job, event.caller);
  if (status.ok()) status = attempts_.CheckBound(*job, event.attempt);
  if (!status.ok()) return out_.Answer(request, status);
  Attempt superseded_by = 0;
  status = Attempts::CheckFence(*job, event.attempt, &superseded_by);
  if (!status.ok()) return out_.Answer(request, status, superseded_by);

  const auto begun = job->attempts->begun.find(event.attempt);
  const auto decided = job->attempts->decisions.find(event.attempt);
  const bool has_begun = begun != job->attempts->begun.end();
  const bool was_decided = decided != job->attempts->decisions.end();
  const ProcessToken& process = sessions_.Find(event.caller.session)->process;
  status = CheckResume(event, *job);
  if (!status.ok()) return out_.Answer(request, status);
  // What nobody has saved anything in has no owner whose word would count, and nothing to go back from.
  if (!job->owner->owned && event.step == kNoStep) {
    if (options_.storage && !job->scan->Known()) {
      return out_.Answer(request, absl::UnavailableError(absl::StrCat(
                                      "resume: job ", event.job,
                                      " is not in memory, and storage cannot be read")));
    }
    reply::Latest nothing;
    nothing.key.job = event.job;
    nothing.key.step = kNoStep;
    return out_.Answer(request, Body(std::move(nothing)));
  }
  reply::Latest from;
  from.key.job = event.job;
  from.key.step = kNoStep;
  Lineage lineage;
  if (event.step != kNoStep) {
    const Checkpoint* checkpoint = has_begun || was_decided
                                       ? standing_.AtBelow(*job, event.step, event.attempt)
                                       : standing_.At(*job, event.step);
    if (checkpoint == nullptr) {
      return out_.Answer(request, absl::NotFoundError(absl::StrCat(
                                      "resume: step ", event.step, " of job ", event.job,
                                      " is not a complete step of its line")));
    }
    from = describing_.LatestOf(*checkpoint);
    lineage = standing_.LineageOf(*checkpoint);
  }
  if (has_begun || (was_decided && decided->second.lineage == lineage)) {
    return records_.AnswerWritten(event.caller, job, event.attempt, LineRecordKind::kResume,
                                  event.deadline, std::move(from));
  }
  // It moves the head at once, under an attempt that trains: its further steps would count for nothing.
  if (!event.fence && succession_.Await(event.caller, *job, event.attempt, event.deadline, event)) {
    return;
  }
  from.head = event.attempt;
  attempts_.Decide(job, event.attempt,
                   {LineRecordKind::kResume, std::move(lineage), out_.UnixMillis(), process});
  records_.AnswerWritten(event.caller, job, event.attempt, LineRecordKind::kResume, event.deadline,
                         std::move(from));
}

Status JobCalls::CheckUse(const event::Use& event, const Job& job) const {
  if (event.fence || job.attempts->begun.empty()) return absl::OkStatus();
  const AttemptState& newest = job.attempts->begun.rbegin()->second;
  std::vector<std::string> pids;
  for (SessionId id : newest.sessions) pids.push_back(absl::StrCat(sessions_.Find(id)->pid));
  if (pids.empty() || newest.attempt < job.attempts->fence()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("use: attempt ", newest.attempt, " of job ", job.name,
                   " is being written by pid ", absl::StrJoin(pids, ", "),
                   "; end it, or use the step with fence, which refuses its further saves"));
}

// The number of the `use` that stands, if it is of `lineage`: whoever says it again, perhaps because the
// answer was lost, decides nothing anew. Once another attempt has begun it would.
std::optional<Attempt> JobCalls::UsedAlready(const Job& job, const Lineage& lineage) {
  const JobAttempts& attempts = *job.attempts;
  if (attempts.decisions.empty()) return std::nullopt;
  const auto& [number, decision] = *attempts.decisions.rbegin();
  if (decision.kind != LineRecordKind::kUse || decision.lineage != lineage) return std::nullopt;
  if (number <= attempts.newest_recorded()) return std::nullopt;
  return number;
}

void JobCalls::On(const event::Use& event) {
  Job* job = scanning_.Readable(&sessions_, event.caller, event.ref.job, event.deadline, event,
                                /*scan=*/true);
  if (job == nullptr) return;
  if (scanning_.AwaitLook(event.caller, job, event.deadline, event)) return;
  const RequestId request = event.caller.request;
  const Status status = CheckUse(event, *job);
  if (!status.ok()) return out_.Answer(request, status);
  const StatusOr<Checkpoint*> found = describing_.Resolve(*job, event.ref);
  if (!found.ok()) return out_.Answer(request, found.status());
  const Checkpoint& checkpoint = **found;
  if (!checkpoint.Obtainable()) {
    return out_.Answer(request, absl::FailedPreconditionError(absl::StrCat(
                                    "use: ", checkpoint.key.DebugString(), " cannot be had")));
  }
  Lineage lineage = standing_.LineageOf(checkpoint);
  reply::Latest used = describing_.LatestOf(checkpoint);
  std::optional<Attempt> number = UsedAlready(*job, lineage);
  if (!number.has_value()) {
    number = attempts_.Choose(job, out_.UnixMillis());
    attempts_.Decide(job, *number, {LineRecordKind::kUse, std::move(lineage), out_.UnixMillis()});
    out_.Count("used_steps");
  }
  used.head = *number;
  admission_.Fence(job);
  ReinstateLine(*job);
  records_.AnswerWritten(event.caller, job, *number, LineRecordKind::kUse, event.deadline,
                         std::move(used));
}

// Who looks at the files by their steps finds those that count.
void JobCalls::ReinstateLine(const Job& job) {
  for (auto at = job.files->persisted.begin(); at != job.files->persisted.end();) {
    const Step step = at->step;
    int64_t of_step = 0;
    const Checkpoint* on_line = nullptr;
    for (; at != job.files->persisted.end() && at->step == step; ++at, ++of_step) {
      const Checkpoint* checkpoint = CheckpointOf(job, *at);
      if (standing_.OnLine(*checkpoint)) on_line = checkpoint;
    }
    if (of_step < 2 || on_line == nullptr) continue;
    out_.Do(action::Reinstate{on_line->key, job.owner->uid, job.owner->gid});
  }
}

void JobCalls::On(const event::PreviewPolicy& event) {
  Job* job = scanning_.Readable(&sessions_, event.caller, event.job, event.deadline, event,
                                /*scan=*/true);
  if (job == nullptr) return;
  // Who asks about a policy may set it next; a listing makes do with what is known.
  if (event.policy.has_value() &&
      scanning_.AwaitLook(event.caller, job, event.deadline, event, /*can_do_without=*/true)) {
    return;
  }
  PolicyPreview preview;
  if (event.policy.has_value()) {
    const KeepPlan plan = PlanKeep(*job, *event.policy, options_, standing_, out_.now());
    preview = PreviewOf(plan, *event.policy);
  } else {
    preview = PreviewOf(*job, options_, standing_, out_.now());
  }
  out_.Answer(event.caller.request, Body(std::move(preview)));
}

void JobCalls::On(const event::SetPolicy& event) {
  const Session* session = sessions_.Of(event.caller);
  if (session == nullptr) return;
  const RequestId request = event.caller.request;
  Job* job = jobs_.Find(event.job);
  if (job == nullptr) {
    return out_.Answer(request,
                       absl::NotFoundError(absl::StrCat("job: ", event.job, " is unknown")));
  }
  if (scanning_.Await(event.caller, job, out_.now() + kScanPatience, event)) return;
  Status status = Jobs::CheckAccess(*job, event.caller);
  if (!status.ok()) return out_.Answer(request, status);
  if (!job->owner->owned) {
    // The uid that creates first will own it; its session brings the policy along.
    if (session->job != job->name) {
      return out_.Answer(
          request, absl::NotFoundError(absl::StrCat("job: ", job->name, " has nothing in it yet")));
    }
    sessions_.Propose(session->id, event.policy);
    return out_.Answer(request, Body(reply::Ok{}));
  }
  jobs_.SetPolicy(job, event.policy);
  if (session->job == job->name && session->policy.has_value()) {
    sessions_.Propose(session->id, event.policy);  // not the one that it brought along
  }
  // What the new policy wants of the newest step is wanted now, not at the next one.
  persistence_.ScheduleNext(job);
  retention_.ApplyKeepPolicy(job);
  out_.Answer(request, Body(reply::Ok{}));
}

void JobCalls::On(const event::PersistNow& event) {
  Job* job = scanning_.Readable(&sessions_, event.caller, event.ref.job, out_.now() + kScanPatience,
                                event, /*scan=*/true);
  if (job == nullptr) return;
  const RequestId request = event.caller.request;
  if (!options_.storage) {
    return out_.Answer(request,
                       absl::FailedPreconditionError("persist: this daemon has no storage"));
  }
  const StatusOr<Checkpoint*> found = describing_.Resolve(*job, event.ref);
  if (!found.ok()) return out_.Answer(request, found.status());
  if (!(*found)->files->persisted) persistence_.AskEverybody(*found);
  out_.Answer(request, Body(reply::Ok{}));
}

}  // namespace cairn::engine
