// The line of a job: which complete checkpoints count, across restarts that may have gone back. The
// rules and their numbers are in docs/line.md.
//
// Pure. The engine uses it over memory and storage, and the reader of bare storage when no daemon
// runs; whoever knows the same of attempts and decisions says the same.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "common/keys.h"
#include "common/lineage.h"

namespace cairn {

struct LineStep {
  Step step = kNoStep;
  Attempt attempt = 0;
  Revision revision = 0;  // the newest complete revision
  bool operator==(const LineStep&) const = default;
};

struct AttemptLine {
  Step first =
      kNoStep;  // of its first create; kNoStep: not known, its lowest complete one stands for it
  Lineage lineage;
  std::map<Step, Revision> complete;  // its complete steps, newest complete revision of each
};

// What is known of a job.
struct History {
  std::map<Attempt, AttemptLine> attempts;
  std::map<Attempt, Lineage> decisions;  // `resume` and `use`, by number: what was decided for
};

// The attempt that the line is of, or the decision. Of equal numbers the attempt wins.
struct LineHead {
  Attempt number = 0;  // 0: nothing is complete, and nothing was decided
  bool decided = false;
  bool operator==(const LineHead&) const = default;
};

inline constexpr Attempt kEveryAttempt = std::numeric_limits<Attempt>::max();

// All that follow know only the attempts and decisions below `below`.
LineHead HeadOf(const History& history, Attempt below = kEveryAttempt);
// Ascends by step, one entry per step.
std::vector<LineStep> ComputeLine(const History& history, Attempt below = kEveryAttempt);
// Of what goes on from the highest checkpoint below `first_step` on the line: where attempt `below`
// comes from if that is its first step (rules 9 and 17).
Lineage LineageBelow(const History& history, Attempt below, Step first_step);
// The attempt's lineage, closed with what is known by now (rule 18). For display and for settling;
// nothing is deleted by it while the attempt's own is open.
Lineage ResolveLineage(const History& history, Attempt attempt);
// The same of what was decided.
Lineage ResolveDecision(const History& history, Attempt number);

}  // namespace cairn
