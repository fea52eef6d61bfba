// What of a job could not be saved in this daemon's life, for its status: those who read
// the trainer's log are not those who look after the node.
//
// Changes Job::refusals.
#pragma once

#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/engine/sessions.h"

namespace cairn::engine {

class Refusals {
 public:
  Refusals(Outbox* out, Jobs* jobs, const Sessions* sessions)
      : out_(*out), jobs_(*jobs), sessions_(*sessions) {}

  // A create or commit of this step was asked for.
  void Asked(const Caller& caller, const CheckpointKey& key);
  // What an event brought about: a refused step counts once, however many of its calls hear so.
  void See(const std::vector<Action>& actions);
  // What its owner was refused, or root for him. Before somebody owned the job, others may have been.
  static const JobRefusals& Of(const Job& job);
  // The answer refuses nothing: nobody hears it, for its session has ended, or what was asked for goes on.
  void Forget(RequestId request) { asked_.erase(request); }

 private:
  Outbox& out_;
  Jobs& jobs_;
  const Sessions& sessions_;

  struct Request {
    Caller caller;
    CheckpointKey key;
  };
  absl::flat_hash_map<RequestId, Request> asked_;  // and not answered
};

}  // namespace cairn::engine
