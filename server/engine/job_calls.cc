#include "server/engine/job_calls.h"

#include "absl/strings/str_cat.h"

namespace cairn::engine {

JobCalls::JobCalls(const Options& options, Outbox* out, Jobs* jobs, Sessions* sessions,
                   Attempts* attempts, Persistence* persistence, Retention* retention,
                   Standing* standing, Describing* describing, Scanning* scanning)
    : options_(options),
      out_(*out),
      jobs_(*jobs),
      sessions_(*sessions),
      attempts_(*attempts),
      persistence_(*persistence),
      retention_(*retention),
      standing_(*standing),
      describing_(*describing),
      scanning_(*scanning) {}

void JobCalls::On(const event::ChooseAttempt& event) {
  if (sessions_.Of(event.caller) == nullptr) return;
  const RequestId request = event.caller.request;
  Job* job = jobs_.FindOrMake(event.job);
  if (scanning_.Await(event.caller, job, event.deadline, event)) return;
  const Status access = Jobs::CheckAccess(*job, event.caller);
  if (!access.ok()) return out_.Answer(request, access);
  out_.Answer(request, Body(reply::Attempt{attempts_.Choose(job, event.unix_ms)}));
}

void JobCalls::On(const event::ResumeFrom& event) {
  if (sessions_.Of(event.caller) == nullptr) return;
  const RequestId request = event.caller.request;
  Job* job = jobs_.FindOrMake(event.job);
  if (scanning_.Await(event.caller, job, event.deadline, event)) return;
  Status status = Jobs::CheckAccess(*job, event.caller);
  if (status.ok()) status = attempts_.CheckBound(*job, event.attempt);
  if (!status.ok()) return out_.Answer(request, status);
  Attempt superseded_by = 0;
  status = Attempts::CheckFence(*job, event.attempt, &superseded_by);
  if (!status.ok()) return out_.Answer(request, status, superseded_by);

  const auto begun = job->attempts->begun.find(event.attempt);
  const bool has_begun = begun != job->attempts->begun.end();
  if (has_begun && begun->second.comes_from != event.step) {
    const Step comes_from = begun->second.comes_from;
    return out_.Answer(request, absl::FailedPreconditionError(absl::StrCat(
                                    "resume: attempt ", event.attempt, " has begun, from ",
                                    comes_from == kUnknownStep ? "a step that is not known yet"
                                    : comes_from == kNoStep    ? "nothing"
                                                            : absl::StrCat("step ", comes_from))));
  }
  reply::Latest from;
  from.key.job = event.job;
  from.key.step = kNoStep;
  if (event.step != kNoStep) {
    const Checkpoint* checkpoint = standing_.At(*job, event.step, /*besides=*/event.attempt);
    if (checkpoint == nullptr) {
      return out_.Answer(request, absl::NotFoundError(absl::StrCat(
                                      "resume: step ", event.step, " of job ", event.job,
                                      " is not a complete step of its line")));
    }
    from = Describing::LatestOf(*checkpoint);
  }
  if (!has_begun) {
    const auto& resumes = job->attempts->resumes;
    if (resumes.size() >= kKeptResumes && event.attempt < resumes.begin()->first) {
      return out_.Answer(
          request, absl::FailedPreconditionError(absl::StrCat(
                       "resume: attempt ", event.attempt, " of job ", event.job,
                       " is older than all of the ", kKeptResumes, " that were resumed last")));
    }
    attempts_.Resume(job, event.attempt, event.step);
  }
  out_.Answer(request, Body(std::move(from)));
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
  // What the new policy wants of the newest step is wanted now, not at the next one.
  if (Checkpoint* newest = standing_.Newest(*job)) persistence_.ScheduleByPolicy(newest);
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
  if (!(*found)->files->persisted) persistence_.Ask(*found);
  out_.Answer(request, Body(reply::Ok{}));
}

}  // namespace cairn::engine
