#include "server/engine/connecting.h"

#include "absl/strings/str_cat.h"

namespace cairn::engine {

Connecting::Connecting(const Options& options, const Mode& mode, Outbox* out, Callers* callers,
                       Jobs* jobs, Sessions* sessions, Leases* leases, Attempts* attempts,
                       Parts* parts, Admission* admission, Pool* pool, Scanning* scanning,
                       Succession* succession, Refusals* refusals)
    : options_(options),
      mode_(mode),
      out_(*out),
      callers_(*callers),
      jobs_(*jobs),
      sessions_(*sessions),
      leases_(*leases),
      attempts_(*attempts),
      parts_(*parts),
      admission_(*admission),
      pool_(*pool),
      scanning_(*scanning),
      succession_(*succession),
      refusals_(*refusals) {}

Status Connecting::CheckHello(const event::Hello& event) const {
  if (mode_.draining) return absl::UnavailableError("draining: the daemon is stopping");
  CAIRN_RETURN_IF_ERROR(
      sessions_.users().CheckRoom(options_, options_.max_sessions, event.caller.uid));
  const Job* known = jobs_.Find(event.job);
  return known == nullptr ? absl::OkStatus() : Jobs::CheckAccess(*known, event.caller);
}

void Connecting::On(const event::Hello& event) {
  const Status status = CheckHello(event);
  if (!status.ok()) return out_.Answer(event.caller.request, status);
  const Session& session = *sessions_.Begin(event);
  out_.Answer(event.caller.request, Body(reply::Hello{session.id}));
  if (session.job.empty()) return;

  Job* job = jobs_.FindOrMake(session.job);
  if (job->owner->owned) sessions_.SayPolicy(session.id, job);
  sessions_.Join(session, job);
  attempts_.Joined(session);
  if (options_.storage && !job->scan->Known()) {
    scanning_.Start(job);
  } else if (session.writer >= 0) {
    pool_.Provision(*job, session.id, session.writer, 2);
  }
}

// What it had not committed can never be: a writer is one process for life.
void Connecting::EraseWhatItWrote(SessionId session) {
  const std::set<PartKey> writing = parts_.WrittenBy(session);
  for (const PartKey& key : writing) {
    Part* part = parts_.Find(key);
    if (part == nullptr || part->content->committed || part->manifest->committing) continue;
    Checkpoint* checkpoint = part->checkpoint;
    parts_.Erase(part);
    parts_.EraseIfEmpty(checkpoint);
  }
}

void Connecting::On(const event::SessionEnded& event) {
  const SessionId id = event.session;
  if (sessions_.Find(id) == nullptr) return;
  const std::set<CheckpointKey> asked = admission_.AskedBy(id);
  for (RequestId request : callers_.Of(id)) {
    refusals_.Forget(request);
    callers_.Answer(request, absl::UnavailableError(absl::StrCat("session: ", id, " has ended")));
  }
  EraseWhatItWrote(id);
  // A step that nobody has a part of, and nobody waits to get one, never was.
  for (const CheckpointKey& key : asked) {
    if (Checkpoint* checkpoint = parts_.Find(key)) parts_.EraseIfEmpty(checkpoint);
  }
  leases_.EndAll(id, event.goodbye);
  for (const auto& [name, attempt] : attempts_.EndSession(id)) {
    if (const Job* job = jobs_.Find(name)) admission_.ReleaseAttempt(*job, attempt);
  }
  admission_.ReleaseGivenUp();
  parts_.ForgetWriter(id);
  succession_.SessionEnds(id);
  sessions_.End(id);
}

}  // namespace cairn::engine
