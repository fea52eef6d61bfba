// Who is connected. A session is one process's connection to the node; what it holds is kept by the
// components that lend it (leases.h, parts.h, attempts.h, callers.h).
//
// Changes Job::sessions. Says fact::SessionBegun, SessionEnded.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "server/engine/callers.h"
#include "server/engine/jobs.h"

namespace cairn::engine {

// Its attempt is the last one it created in, or what it said at hello.
struct Session : SessionIdentity {
  SessionId id = 0;
  std::string secret;
  std::string client;
  // Becomes the job's once this session saves in it; nullopt: it was said already, or there is none.
  std::optional<JobPolicy> policy;
  bool saves = false;  // it has created something in its attempt
};

class Sessions {
 public:
  Sessions(Outbox* out, Jobs* jobs) : out_(*out), jobs_(*jobs) {}

  const Session* Find(SessionId session) const;
  // The caller's session, or nullptr after answering why not.
  const Session* Of(const Caller& caller);
  const std::map<SessionId, std::unique_ptr<Session>>& all() const { return sessions_; }
  size_t size() const { return sessions_.size(); }
  const UserCounts& users() const { return users_; }

  // Draws the id. The hello was checked.
  const Session* Begin(const event::Hello& event);
  void Join(const Session& session, Job* job);  // it is in this job from now on
  void Entered(SessionId session, Attempt attempt);
  void Propose(SessionId session, const JobPolicy& policy);
  // Says the policy that the session brought along of its job, which is owned. Once: what anybody says later counts.
  void SayPolicy(SessionId session, Job* job);
  // Everything it held is gone: takes it out of its job and forgets it.
  void End(SessionId session);

  void Restore(const Restored& restored, const std::vector<SessionId>& live);
  void Snapshot(SessionId session, std::vector<Fact>* facts) const;

 private:
  Outbox& out_;
  Jobs& jobs_;

  std::map<SessionId, std::unique_ptr<Session>> sessions_;
  UserCounts users_{"sessions", "limits.sessions"};
};

}  // namespace cairn::engine
