// What a keep policy makes of a job's files: which of them go, which go later, and why. The one place
// that decides it, for retention that deletes and for people who ask what it would delete.
// docs/line.md, rule 21.
//
// Files go only by an explicit keep_last: all but the newest so many on the line, those of keep_every,
// the newest complete one, and what is pinned. What the line has left goes when the life that left it has
// keep_last persisted steps of its own and is old enough (keep_abandoned_seconds).
#pragma once

#include <string>
#include <vector>

#include "common/info.h"
#include "server/engine/options.h"
#include "server/engine/standing.h"

namespace cairn::engine {

enum class KeepReason : uint8_t {
  // It stays.
  kNoKeepLast,   // the policy deletes nothing
  kNewest,       // it is `latest`
  kAmongNewest,  // of the keep_last newest
  kKeepEvery,
  kPinned,
  kGoneOnFrom,  // a life with fewer than keep_last files of its own comes from it
  // It goes.
  kSurplus,
  kAbandoned,
  // It goes later.
  kDecision,    // once a life has saved something after the decision at the head
  kOrigin,      // once it is known where every attempt comes from
  kUnread,      // once storage could be read
  kYoung,       // once the attempt at the head has keep_last files
  kLineIsLong,  // abandoned as far as a lineage of the greatest length can tell
  kNotLooked,   // once storage has been read anew
  kGrace,       // once the attempt at the head is as old as keep_abandoned_seconds
};

struct PlannedFiles {
  Checkpoint* checkpoint = nullptr;
  KeepReason reason = KeepReason::kNoKeepLast;

  bool Goes() const { return reason == KeepReason::kSurplus || reason == KeepReason::kAbandoned; }
  bool GoesLater() const { return reason > KeepReason::kAbandoned; }
};

struct KeepPlan {
  std::vector<PlannedFiles> files;  // that are in storage and not being deleted; highest step first
  int64_t grace_over_unix_ms = 0;   // by storage's clock, when one of them waits for that
  bool look = false;                // storage is to be read anew, and this asked again
};

KeepPlan PlanKeep(const Job& job, const JobPolicy& policy, const Options& options,
                  const Standing& standing, MonotonicNanos now);

// What the job's own policy deletes: the same as of PlanKeep, without a walk over what stays.
struct Deletions {
  std::vector<Checkpoint*> now;  // highest step first
  int64_t all = 0;               // now or later
  bool unread = false;           // later, once storage could be read
  bool look = false;             // as in KeepPlan
  bool operator==(const Deletions&) const = default;
};

Deletions PlanDeletions(const Job& job, const Options& options, const Standing& standing,
                        MonotonicNanos now);
// Whether the two say the same; empty: they do.
std::string CheckDeletions(const Job& job, const Options& options, const Standing& standing,
                           MonotonicNanos now);

// The same for people: what goes, and why.
PolicyPreview PreviewOf(const KeepPlan& plan, const JobPolicy& policy);
// Of the job's own policy, without a walk over what stays.
PolicyPreview PreviewOf(const Job& job, const Options& options, const Standing& standing,
                        MonotonicNanos now);

}  // namespace cairn::engine
