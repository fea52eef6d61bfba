#include "server/engine/records.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/engine/describing.h"

namespace cairn::engine {

void Records::Owe(LineRecord record) {
  if (!options_.storage) return;
  const Id id{record.number, record.kind};
  Owed& owed = jobs_owing_[record.job].owed[id];
  if (!(owed.record == record)) owed = {std::move(record)};
}

void Records::Scanned(const Job& job, const std::vector<LineRecord>& stored,
                      const std::set<Attempt>& with_files) {
  const JobAttempts& attempts = *job.attempts;
  std::map<Id, const LineRecord*> stands;  // of those that are known here
  for (const LineRecord& record : stored) {
    const bool known = record.kind == LineRecordKind::kOrigin
                           ? attempts.begun.contains(record.number)
                           : attempts.decisions.contains(record.number);
    if (known) stands[{record.number, record.kind}] = &record;
  }
  for (const auto& [number, decision] : attempts.decisions) {
    const auto at = stands.find({number, decision.kind});
    if (at != stands.end() && at->second->lineage == decision.lineage) continue;
    Owe({job.name, number, decision.kind, decision.lineage});
  }
  for (const auto& [number, attempt] : attempts.begun) {
    const Id id{number, LineRecordKind::kOrigin};
    if (attempt.lineage.open || !with_files.contains(number) || stands.contains(id)) continue;
    Owe({job.name, number, LineRecordKind::kOrigin, attempt.lineage});
  }
}

void Records::Run() {
  for (auto at = jobs_owing_.begin(); at != jobs_owing_.end();) {
    const Job* job = jobs_.Find(at->first);
    if (job == nullptr || at->second.owed.empty()) {
      at =
          at->second.writing || !at->second.waiting.empty() ? std::next(at) : jobs_owing_.erase(at);
      continue;
    }
    OfJob& of_job = (at++)->second;
    const LineRecord* next = Next(of_job);
    if (of_job.writing || next == nullptr || !job->owner->owned) continue;
    of_job.writing = true;
    out_.Do(action::WriteLineRecord{*next, job->owner->uid, job->owner->gid});
  }
}

const LineRecord* Records::Next(const OfJob& of_job) const {
  const auto next = std::find_if(of_job.owed.rbegin(), of_job.owed.rend(),
                                 [&](const auto& at) { return at.second.at <= out_.now(); });
  return next == of_job.owed.rend() ? nullptr : &next->second.record;
}

MonotonicNanos Records::next() const {
  MonotonicNanos next = kNever;
  for (const auto& [name, of_job] : jobs_owing_) {
    if (of_job.writing) continue;
    for (const auto& [id, owed] : of_job.owed) {
      if (owed.at > out_.now()) next = std::min(next, owed.at);
    }
  }
  return next;
}

Records::Written Records::On(const event::LineRecordWritten& event) {
  OfJob& of_job = jobs_owing_[event.record.job];
  if (!event.with_persist) of_job.writing = false;
  const Id id{event.record.number, event.record.kind};
  const auto owed = of_job.owed.find(id);
  if (!event.stands.ok()) {
    if (owed != of_job.owed.end()) {
      Owed& again = owed->second;
      again.wait =
          std::clamp(again.wait * 2, options_.persist_retry_min, options_.persist_retry_max);
      again.at = out_.now() + again.wait;
    }
    out_.Log(Severity::kWarning,
             absl::StrCat("job ", event.record.job, ": line record ", event.record.number, ".",
                          LineRecordKindName(event.record.kind),
                          " is not written, trying again: ", event.stands.status().message()));
    // Decided all the same; the next try may be far away.
    const auto waiting = of_job.waiting;
    for (const auto& [request, wait] : waiting) {
      if (wait.id == id) callers_.Answer(request, Body(wait.body));
    }
    return {};
  }
  const bool other = !(*event.stands == event.record);
  // A `resume` may have been said anew while the file was written.
  if (owed != of_job.owed.end() && (owed->second.record == event.record || other)) {
    of_job.owed.erase(owed);
  }
  if (other) RefuseOthers(&of_job, id, *event.stands);
  Written written;
  for (auto& [request, wait] : of_job.waiting) {
    if (wait.id != id || of_job.owed.contains(id)) continue;
    wait.body.recorded = true;
    written.look = true;
  }
  if (!other) return written;
  out_.Log(Severity::kWarning,
           absl::StrCat("job ", event.record.job, ": storage says that ",
                        LineRecordKindName(event.record.kind), " ", event.record.number, " is of ",
                        OriginText(event.stands->lineage), ", not of ",
                        OriginText(event.record.lineage)));
  written.other = &*event.stands;
  return written;
}

void Records::LookEnded(const Job& job, const Describing& describing) {
  const auto of_job = jobs_owing_.find(job.name);
  if (of_job == jobs_owing_.end()) return;
  const auto waiting = of_job->second.waiting;
  for (const auto& [request, wait] : waiting) {
    if (!wait.body.recorded) continue;
    reply::Latest body = wait.body;
    if (body.key.step != kNoStep) {
      const StatusOr<Checkpoint*> found =
          describing.Resolve(job, {job.name, body.key.step, body.key.attempt, body.key.revision});
      if (!found.ok()) {
        callers_.Answer(request,
                        absl::FailedPreconditionError(absl::StrCat(
                            LineRecordKindName(wait.id.second), ": ", body.key.DebugString(),
                            " was deleted by another node at the same moment; decide anew: ",
                            found.status().message())));
        continue;
      }
      body.in_memory = (*found)->Resident();
      body.in_storage = job.scan->Known() && (*found)->files->persisted;
    }
    callers_.Answer(request, Body(std::move(body)));
  }
}

void Records::AnswerWritten(const Caller& caller, Job* job, Attempt number, LineRecordKind kind,
                            MonotonicNanos deadline, reply::Latest body) {
  const Id id{number, kind};
  const auto of_job = jobs_owing_.find(job->name);
  const bool owed = of_job != jobs_owing_.end() && of_job->second.owed.contains(id);
  body.recorded = options_.storage && !owed && job->attempts->decisions.contains(number);
  // Who has nothing in storage yet has nobody who could write it. It is decided, also for one whom there
  // is no room to let wait.
  if (!owed || !job->owner->owned || of_job->second.owed.at(id).at > out_.now() ||
      deadline <= out_.now() || !callers_.CheckRoom(caller).ok()) {
    return out_.Answer(caller.request, Body(std::move(body)));
  }
  event::Tick nothing_to_repeat;
  deadline = std::min(deadline, out_.now() + kRecordPatience);
  if (callers_.Park(this, caller, job->name, deadline, nothing_to_repeat)) {
    of_job->second.waiting[caller.request] = {id, std::move(body)};
  }
}

// Another node has taken the number for another decision, which counts.
void Records::RefuseOthers(OfJob* of_job, const Id& id, const LineRecord& stands) {
  const auto waiting = of_job->waiting;
  for (const auto& [request, wait] : waiting) {
    if (wait.id != id) continue;
    callers_.Answer(request, absl::FailedPreconditionError(absl::StrCat(
                                 LineRecordKindName(id.second), ": another node decided for ",
                                 OriginText(stands.lineage), " at the same moment")));
  }
}

void Records::Left(const Parked& parked) {
  const auto of_job = jobs_owing_.find(parked.job);
  if (of_job != jobs_owing_.end()) of_job->second.waiting.erase(parked.request);
}

// It is decided, and the file follows when storage takes it.
void Records::TimeUp(const Parked& parked) {
  reply::Latest body = jobs_owing_.at(parked.job).waiting.at(parked.request).body;
  callers_.Answer(parked.request, Body(std::move(body)));
}

}  // namespace cairn::engine
