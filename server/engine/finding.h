// latest, stat, ls, wait: what exists, and when it comes to be.
//
// Changes Job::waits.
#pragma once

#include <optional>

#include "server/engine/callers.h"
#include "server/engine/describing.h"
#include "server/engine/scanning.h"
#include "server/engine/tables.h"

namespace cairn::engine {

class Cluster;

class Finding : public Waitlist {
 public:
  Finding(const Options& options, Outbox* out, Callers* callers, Jobs* jobs, Sessions* sessions,
          Standing* standing, Describing* describing, Scanning* scanning, Tables* tables);

  void On(const event::Latest& event);
  void On(const event::StatCheckpoint& event);
  void On(const event::StatObject& event);
  void On(const event::List& event);
  void On(const event::Wait& event);
  // See Engine::Peek.
  std::optional<ObjectInfo> Peek(const event::StatObject& event) const;

  // Answers waits that were reached, or never can be.
  void CheckWaits();

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;

  std::string CheckInvariants(const Job& job) const;

  // What other members know counts.
  void set_cluster(Cluster* cluster) { cluster_ = cluster; }

 private:
  void CheckWaits(const Job& job);
  // Of one of which nothing can be had: `why` (NOT_FOUND), or a reason not to say so.
  Status WhyNothing(const Job& job, const Status& why) const;
  bool PassedOver(const Checkpoint& checkpoint) const;
  // Whether it has reached the level because of copies or files that only the members know of.
  static bool GoesByOthers(Level level, const Checkpoint& checkpoint);
  // OK with a body: reached. An error: never. nullopt: not yet.
  std::optional<StatusOr<Body>> Evaluate(const event::Wait& wait) const;
  // The checkpoint waited for, nullptr: not there yet, or never to be there (`never` says why).
  const Checkpoint* Meant(const event::Wait& wait, const Job& job, Status* never) const;
  const Checkpoint* After(const event::Wait& wait, const Job& job) const;
  void ListJobs(const event::List& event, size_t limit);
  void AskAgain(const Job& job);
  void ListCheckpoints(const event::List& event, const Job& job, size_t limit);
  void ListObjects(const event::List& event, const Job& job, const CheckpointRef& ref,
                   size_t limit);

  Cluster* cluster_ = nullptr;  // set once, before the first event
  const Options& options_;
  Outbox& out_;
  Callers& callers_;
  Jobs& jobs_;
  Sessions& sessions_;
  Standing& standing_;
  Describing& describing_;
  Scanning& scanning_;
  Tables& tables_;

  // Jobs whose waits are to be checked once all that a scan has found of them is merged.
  std::set<std::string> deferred_;
};

}  // namespace cairn::engine
