// Parts that go straight into storage: a writer for whom there is no memory, or who does not wait for his last copy, sends
// their bytes, and none of them takes memory of the node. Such a part is committed when its checkpoint is published,
// with the parts of all its writers, and from then on it is like any that only storage has. A daemon that dies before
// has nothing to recover: what it wrote is swept, or kept for a writer who stores it again.
//
// Invariants:
//   1. A part is stored once at a time, and each that is stored has an action under way.
//   2. Who is told that a part is complete has the very part in it that he sent.
#pragma once

#include <map>
#include <set>
#include <string>

#include "server/engine/callers.h"
#include "server/engine/merging.h"
#include "server/engine/mode.h"
#include "server/engine/persistence.h"
#include "server/engine/refusals.h"
#include "server/engine/retention.h"
#include "server/engine/saving.h"

namespace cairn::engine {

class Storing : public Waitlist {
 public:
  Storing(const Options& options, const Mode& mode, Outbox* out, Callers* callers, Jobs* jobs,
          Parts* parts, Persistence* persistence, Retention* retention, Refusals* refusals,
          Saving* saving, Merging* merging)
      : options_(options),
        mode_(mode),
        out_(*out),
        callers_(*callers),
        jobs_(*jobs),
        parts_(*parts),
        persistence_(*persistence),
        retention_(*retention),
        refusals_(*refusals),
        saving_(*saving),
        merging_(*merging) {}

  void On(const event::Store& event);
  void On(const event::Stored& event);
  size_t under_way() const { return under_way_.size(); }
  bool IsUnderWay(const PartKey& part) const { return under_way_.contains(part); }

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;

  std::string CheckInvariants() const;

 private:
  struct UnderWay {
    SessionId session = 0;
    uint32_t uid = 0;
    uint64_t bytes = 0;  // of the manifest, which the action holds
    std::set<RequestId> waiting;
  };

  // What is under way holds memory and a descriptor, also when its caller waits no more.
  Status CheckFew(const event::Store& event, uint32_t uid, uint64_t bytes) const;
  // What a call that was answered before is answered again; nullopt: it was not.
  std::optional<Body> AnswerOfRepeat(const event::Store& event, const Job& job) const;
  void Await(const event::Store& event, UnderWay* under_way);
  StatusOr<Body> AnswerOf(const event::Stored& event, Job* job, Attempt* superseded_by);

  const Options& options_;
  const Mode& mode_;
  Outbox& out_;
  Callers& callers_;
  Jobs& jobs_;
  Parts& parts_;
  Persistence& persistence_;
  Retention& retention_;
  Refusals& refusals_;
  Saving& saving_;
  Merging& merging_;

  std::map<PartKey, UnderWay> under_way_;
};

}  // namespace cairn::engine
