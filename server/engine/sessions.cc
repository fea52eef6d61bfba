#include "server/engine/sessions.h"

#include "absl/strings/str_cat.h"
#include "server/engine/restored.h"

namespace cairn::engine {
namespace {

fact::SessionBegun BegunFact(const Session& session) {
  return {static_cast<const SessionIdentity&>(session), session.id, session.secret, session.saves};
}

}  // namespace

const Session* Sessions::Find(SessionId session) const {
  const auto at = sessions_.find(session);
  return at == sessions_.end() ? nullptr : at->second.get();
}

const Session* Sessions::Of(const Caller& caller) {
  const Session* session = Find(caller.session);
  if (session != nullptr) return session;
  out_.Answer(caller.request,
              caller.session == 0
                  ? Status(absl::FailedPreconditionError("session: none; say hello first"))
                  : Status(absl::UnavailableError(
                        absl::StrCat("session: ", caller.session, " has ended; connect again"))));
  return nullptr;
}

const Session* Sessions::Begin(const event::Hello& event) {
  auto session = std::make_unique<Session>();
  session->id = out_.NextId();
  static_cast<SessionIdentity&>(*session) = event;
  session->uid = event.caller.uid;
  session->gid = event.caller.gid;
  session->secret = event.secret;
  session->client = event.client;
  session->policy = event.policy;
  out_.Say(BegunFact(*session));
  users_.Add(session->uid);
  const Session* at = session.get();
  sessions_[at->id] = std::move(session);
  return at;
}

void Sessions::Join(const Session& session, Job* job) {
  JobSessions& sessions = job->sessions.Edit();
  if (!sessions.all.insert(session.id).second) return;
  ++sessions.changes;
  if (session.writer >= 0) ++sessions.writers;
}

void Sessions::Entered(SessionId id, Attempt attempt) {
  Session& session = *sessions_.at(id);
  if (session.attempt == attempt && session.saves) return;
  session.attempt = attempt;
  session.saves = true;
  out_.Say(BegunFact(session));
  if (Job* job = jobs_.Find(session.job)) ++job->sessions.Edit().changes;
}

void Sessions::Propose(SessionId session, const JobPolicy& policy) {
  sessions_.at(session)->policy = policy;
}

void Sessions::SayPolicy(SessionId id, Job* job) {
  Session& session = *sessions_.at(id);
  if (!session.policy.has_value()) return;
  if (job->owner->policy != *session.policy) jobs_.SetPolicy(job, *session.policy);
  session.policy.reset();
}

void Sessions::End(SessionId id) {
  const Session& session = *sessions_.at(id);
  if (Job* job = jobs_.Find(session.job)) {
    JobSessions& sessions = job->sessions.Edit();
    ++sessions.changes;
    if (sessions.all.erase(id) > 0 && session.writer >= 0 && --sessions.writers == 0) {
      sessions.finished = out_.now();
    }
    jobs_.MayForget(job->name);
  }
  out_.Say(fact::SessionEnded{id});
  out_.Do(action::EndSession{id});
  users_.Drop(session.uid);
  sessions_.erase(id);
}

void Sessions::Restore(const Restored& restored, const std::vector<SessionId>& live_sessions) {
  const std::set<SessionId> live(live_sessions.begin(), live_sessions.end());
  for (const auto& [id, fact] : restored.sessions) {
    if (!live.contains(id)) {
      out_.Say(fact::SessionEnded{id});
      out_.Do(action::EndSession{id});
      continue;
    }
    auto session = std::make_unique<Session>();
    static_cast<SessionIdentity&>(*session) = fact;
    session->id = id;
    session->secret = fact.secret;
    session->saves = fact.saves;
    const Session& at = *session;
    users_.Add(at.uid);
    sessions_[id] = std::move(session);
    if (!at.job.empty()) Join(at, jobs_.FindOrMake(at.job));
  }
  for (const auto& [name, job] : jobs_.all()) job->sessions.Edit().finished = out_.now();
  // The keeper may hold sessions whose beginning was never journaled: nobody knows their secret.
  for (SessionId id : live) {
    if (!restored.sessions.contains(id)) out_.Do(action::EndSession{id});
  }
}

void Sessions::Snapshot(SessionId id, std::vector<Fact>* facts) const {
  if (const Session* session = Find(id)) facts->push_back(BegunFact(*session));
}

}  // namespace cairn::engine
