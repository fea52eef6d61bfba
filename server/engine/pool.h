// Slabs made before anybody waits for them: what each writer saved last is what its next step is
// expected to need.
//
// Changes Job::saves.
#pragma once

#include "server/engine/admission.h"
#include "server/engine/mode.h"

namespace cairn::engine {

class Pool {
 public:
  Pool(const Options& options, const Mode& mode, Outbox* out, Sessions* sessions, Ledger* ledger,
       const Admission* admission)
      : options_(options),
        mode_(mode),
        out_(*out),
        sessions_(*sessions),
        ledger_(*ledger),
        admission_(*admission) {}

  // What a writer's committing part is made of, if the writer is this node's.
  void Remember(const Part& part);
  // The same of a whole checkpoint that a daemon found, for writers it knows nothing else of. In a ring
  // they are those of all members: what this node's own ones will need is told when they are here.
  void RememberStored(const Checkpoint& checkpoint);
  // Makes, in the background and within the budget, what the writer's next `steps` saves will want.
  void Provision(const Job& job, SessionId session, Writer writer, int steps);
  void ProvisionAll(const Job& job, int steps);  // of its connected writers
  void NotMade();                                // making a slab failed: pauses
  // The sizes of `pool.slabs` that are not there.
  void Start();

 private:
  const Options& options_;
  const Mode& mode_;
  Outbox& out_;
  Sessions& sessions_;
  Ledger& ledger_;
  const Admission& admission_;

  MonotonicNanos provision_at_ = 0;  // not before
};

}  // namespace cairn::engine
