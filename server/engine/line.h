// The line of one job, kept up to date with each checkpoint that comes or goes instead of computed
// anew. A pure structure: it knows attempts, where they come from, what was decided, and which
// checkpoints can be had. common/line.h is the rule; it must always say the same (a test and the
// engine's invariants compare them).
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/keys.h"
#include "common/line.h"

namespace cairn::engine {

// A checkpoint within its job; ordered by step, then attempt, then revision.
struct CheckpointId {
  Step step = kNoStep;
  Attempt attempt = 0;
  Revision revision = 0;
  auto operator<=>(const CheckpointId&) const = default;
};

class Line {
 public:
  // Whose place on the line may have changed, besides that of the checkpoint itself. `all` is said
  // once for any number of changes in a row, until the line is next read.
  struct Affected {
    bool all = false;
    std::optional<CheckpointId> replaced;
  };

  struct Origin {
    Step first = kNoStep;
    Lineage lineage;
    bool operator==(const Origin&) const = default;
  };
  // The attempts that have begun, and what was decided.
  Affected SetAttempts(const std::map<Attempt, Origin>& origins,
                       const std::map<Attempt, Lineage>& decisions);
  // A checkpoint of an attempt that has begun can be had now, or no longer.
  Affected Add(const CheckpointId& id);
  Affected Remove(const CheckpointId& id);

  // What the line is of.
  LineHead Head() const;
  // The highest step on the line.
  std::optional<CheckpointId> Newest() const;
  std::optional<CheckpointId> At(Step step) const;
  // On the line of the attempts and decisions below `below`.
  std::optional<CheckpointId> AtBelow(Step step, Attempt below) const;
  std::optional<CheckpointId> Next(Step after) const;  // the lowest step above `after`
  bool Has(const CheckpointId& id) const { return At(id.step) == id; }
  // It can be had, and is neither on the line nor an older revision of what is.
  bool Abandoned(const CheckpointId& id) const;
  // Of what goes on from the highest checkpoint below `first_step`.
  Lineage LineageBelow(Step first_step) const;
  // Of what goes on from this one.
  Lineage LineageOf(const CheckpointId& id) const;
  // What common/line.h knows of it.
  History ToHistory() const;
  // The next read writes: several threads may read only a line that is not stale.
  bool stale() const { return stale_; }

 private:
  struct Life {
    Origin origin;
    std::map<Step, std::set<Revision>> complete;
  };

  // Most changes touch one step. The others (another head, a lineage that is known by now) make the
  // whole line stale: it is built anew when it is next read, once for any number of them.
  Affected MakeStale();
  bool GoesOnFromAll(Attempt attempt) const;  // the head's line, all of it
  const std::map<Step, CheckpointId>& Settled() const;
  void Build() const;
  // How far the attempt's steps count; kNoStep: not at all.
  Step Reach(Attempt attempt) const;

  std::map<Attempt, Life> lives_;
  std::map<Attempt, Lineage> decisions_;
  // Meaningful unless `stale_`.
  mutable LineHead head_;
  mutable bool derived_ = false;  // the head's lineage was open: all that is older may change it
  mutable std::map<Attempt, Step> reach_;
  mutable std::map<Step, CheckpointId> settled_;
  mutable bool stale_ = false;
};

}  // namespace cairn::engine
