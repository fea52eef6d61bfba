// A job's files in the order in which a keep policy counts them, kept up to date with each checkpoint
// that changes: what is past the newest `keep_last` is known without a walk over what stays. A pure
// structure; keep_plan.h is the rule.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "common/policy.h"
#include "server/engine/line.h"

namespace cairn::engine {

class KeepIndex {
 public:
  // What the policy sees of a checkpoint.
  struct Seen {
    bool persisted = false;
    bool on_line = false;
    // It may be deleted: not pinned, and not being deleted already. (The newest of all counts, pinned or
    // not.)
    bool counted = false;
    bool abandoned = false;
    bool deleting = false;
    bool operator==(const Seen&) const = default;
  };
  struct OfAttempt {
    int64_t files = 0, on_line = 0;
    bool operator==(const OfAttempt&) const = default;
  };

  void SetPolicy(const JobPolicy& policy);
  void Put(const CheckpointId& id, const Seen& seen);  // Seen{}: it goes

  // On the line, past the newest keep_last, and none of keep_every.
  const std::set<CheckpointId>& surplus() const { return surplus_; }
  const std::set<CheckpointId>& abandoned() const { return abandoned_; }
  const std::map<Attempt, OfAttempt>& attempts() const { return attempts_; }
  int64_t files() const { return files_; }  // that are not being deleted

 private:
  void Count(Attempt attempt, const Seen& seen, int64_t by);
  void Add(const CheckpointId& id);
  void Drop(const CheckpointId& id);
  std::set<CheckpointId>& PastNewest(const CheckpointId& id);

  int64_t keep_last_ = 0, keep_every_ = 0;
  int64_t files_ = 0;
  std::map<CheckpointId, Seen> seen_;  // of what is persisted
  std::map<Attempt, OfAttempt> attempts_;
  // What is counted on the line: the newest keep_last, and what is past them.
  std::set<CheckpointId> newest_, surplus_, of_keep_every_;
  std::set<CheckpointId> abandoned_;
};

}  // namespace cairn::engine
