// What was decided about a job, which a report does not tell again: its owner, its policy, where its
// attempts come from, `resume` and `use`, pins, removals, and the highest checkpoint that was ever
// protected. Several members keep it, each says what it has to the others, and shared storage holds it, too.
//
// Records merge in any order, any number of times, to the same (a join-semilattice). That holds because each
// entry either has one value for ever, or carries a Stamp, of which the greater wins; where two say
// different things of what should have one value, an order that everybody knows decides (JobRecord::Merge).
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "common/keys.h"
#include "common/line_record.h"
#include "common/lineage.h"
#include "common/policy.h"
#include "common/removed.h"
#include "common/status.h"
#include "server/engine/line.h"
#include "server/engine/ring.h"

namespace cairn::engine {

// Which of two sayings of one thing is the later: the greater version, of equal ones the greater rank's. Who
// says something anew takes the next version after all it knows.
struct Stamp {
  int64_t version = 0;  // 0: never said
  Rank rank = kNoRank;
  auto operator<=>(const Stamp&) const = default;
};

// The bounds. Attempts and decisions beyond them go, the lowest numbers first, for nothing but their age
// speaks of them any more; of pins and removals one more is refused.
inline constexpr size_t kMostRecordAttempts = 1024;
inline constexpr size_t kMostRecordDecisions = 64;  // docs/line.md, rule 6
inline constexpr size_t kMostRecordPins = 4096;
inline constexpr size_t kMostRecordRanges = 4096;

struct JobRecord {
  struct Owner {
    uint32_t uid = 0, gid = 0;
    auto operator<=>(const Owner&) const = default;
  };
  struct Origin {
    Step first = kNoStep;
    Lineage lineage;  // open: not known yet
    int64_t unix_ms = 0;
    bool operator==(const Origin&) const = default;
  };
  struct Decision {
    Lineage lineage;  // begins with the point itself
    int64_t unix_ms = 0;
    Stamp stamp;  // `resume` may be said anew before its attempt begins (rule 13)
    bool operator==(const Decision&) const = default;
  };
  struct Pin {
    bool pinned = false;
    Stamp stamp;
    bool operator==(const Pin&) const = default;
  };
  using DecisionId = std::pair<Attempt, LineRecordKind>;  // kResume or kUse

  std::optional<Owner> owner;
  JobPolicy policy;
  Stamp policy_stamp;
  std::map<Attempt, Origin> attempts;
  std::map<DecisionId, Decision> decisions;
  std::map<CheckpointId, Pin> pins;
  RemovedSteps removed;
  // `rm JOB`: nothing of attempts up to this one is there any more, and nothing is kept about them.
  Attempt removed_up_to = 0;
  std::pair<Attempt, Step> highest_protected{0, kNoStep};

  bool Forbids(Step step, Attempt attempt) const {
    return attempt <= removed_up_to || removed.Forbids(step, attempt);
  }
  // For the line, by number.
  std::map<Attempt, Lineage> Decided() const;

  bool operator==(const JobRecord&) const = default;
};

}  // namespace cairn::engine
