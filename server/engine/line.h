// The line of one job, kept up to date with each checkpoint that comes or goes instead of computed
// anew. A pure structure: it knows attempts, where they come from, and which checkpoints can be
// had. common/line.h is the rule; `Compute` there must always say the same (a test and the engine's
// invariants compare them).
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
    Step step = kNoStep;   // as AttemptLine::comes_from
    bool resumed = false;  // its owner said so
    bool operator==(const Origin&) const = default;
  };
  // Where each attempt comes from that has begun or was resumed.
  Affected SetAttempts(const std::map<Attempt, Origin>& origins);
  // A checkpoint of an attempt that has begun can be had now, or no longer.
  Affected Add(const CheckpointId& id);
  Affected Remove(const CheckpointId& id);

  // The attempt that the line is of; nullopt when nothing is complete, or when the owner's word where
  // to go on from is newer.
  std::optional<Attempt> Head() const;
  // The highest step on the line.
  std::optional<CheckpointId> Newest() const;
  // As if the owner had not said where `besides` goes on from.
  std::optional<CheckpointId> At(Step step, Attempt besides = 0) const;
  std::optional<CheckpointId> Next(Step after) const;  // the lowest step above `after`
  bool Has(const CheckpointId& id) const;
  // It can be had, and an attempt that completed something went on from before it.
  bool Abandoned(const CheckpointId& id) const;
  // Where an attempt whose first step is `step` comes from; kNoStep: from nothing.
  Step ComesFrom(Step step) const;
  // The same on the line of the attempts below `attempt`, whatever began since.
  Step ComesFromBelow(Attempt attempt, Step first_step) const;
  // The next read writes: several threads may read only a line that is not stale.
  bool stale() const { return stale_; }

 private:
  struct Life {
    Origin origin;
    std::map<Step, std::set<Revision>> complete;
  };

  // Whether a step that was just added or removed is below all others of a life whose origin is
  // unknown, so that it is another from now on.
  static bool MovesOrigin(const Life& life, Step step);

  // Most changes touch one step. The others (an attempt's first complete step, a late one of an older
  // attempt, an attempt that comes from elsewhere) make the whole line stale: it is built anew when
  // it is next read, once for any number of them.
  Affected MakeStale();
  std::vector<AttemptLine> AttemptLines(Attempt below) const;
  const std::map<Step, CheckpointId>& Settled() const;
  // The line ends here, whatever is settled above: at the head's origin while it has completed nothing.
  Step Bound(Attempt besides = 0) const;

  std::map<Attempt, Life> lives_;
  // The line as the attempts with a complete step left it; meaningful unless `stale_`.
  mutable std::map<Step, CheckpointId> settled_;
  mutable bool stale_ = false;
};

}  // namespace cairn::engine
