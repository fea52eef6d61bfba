// What was decided about a job, which a report does not tell again: its owner, its policy, where its
// attempts come from, `resume` and `use`, pins, removals, and the highest checkpoint that was ever
// protected. Several members keep it, each says what it has to the others, and shared storage holds it, too.
//
// Records merge in any order, any number of times, to the same (a join-semilattice). That holds because each
// entry either has one value for ever, or carries a Stamp, of which the greater wins; where two say
// different things of what should have one value, an order that everybody knows decides. What a removal
// covers goes, and of attempts and decisions the newest stay: both only ever take from below.
//
// Layout (all integers little-endian; lists are u32 count and elements, strings u32 length and bytes):
//   0   8  magic "CAIRNJR\x01"
//   8   4  format version: 1, or 2 of a record in which something is asked; a reader refuses a greater one,
//          naming both
//   12     job; u8 whether the owner is known, u32 uid, u32 gid
//       policy: u8 mode, i64 every, i64 keep_last, i64 keep_every, u8 readers, i32 replicas, stamp
//       attempts: i64 number, i64 first step, i64 unix_ms, lineage
//       decisions: i64 number, u8 kind, i64 unix_ms, stamp, lineage
//       pins: i64 step, i64 attempt, i32 revision, u8 pinned, stamp
//       removed: i64 step, list of (i64 first, i64 last)
//       i64 removed_up_to; i64 attempt and i64 step that were protected
//       of format 2: asked: i64 step, i64 attempt, i32 revision
//       4  CRC32C of everything before
//   stamp: i64 version, i32 rank. lineage: u8 form, and
//     0 (whole)  a string (lineage.h)
//     1 (from)   i64 attempt, i64 step: goes on from there, and from where that attempt came, which is among
//                the record's. A job of a thousand lives would else take megabytes
//     2 (same)   as the one before it in the list
// Lists ascend. There is one form of each record: what would be encoded otherwise is refused.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
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
// speaks of them any more; of pins and removals one more is refused. Members that decided at the same time
// may come to twice as many.
inline constexpr size_t kMostRecordAttempts = 1024;
inline constexpr size_t kMostRecordDecisions = 64;  // docs/line.md, rule 6
inline constexpr size_t kMostRecordPins = 4096;
inline constexpr size_t kMostRecordRanges = 4096;
inline constexpr size_t kMostRecordAsked = 256;  // the highest steps stay, as with attempts
// Of an encoded one: were every lineage whole, about 18 MiB.
inline constexpr size_t kMaxJobRecordBytes = 20 << 20;

struct JobRecord {
  struct Owner {
    uint32_t uid = 0, gid = 0;
    auto operator<=>(const Owner&) const = default;
  };
  struct Origin {
    Step first = kNoStep;
    Lineage lineage = Lineage::OfUnknown();
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

  std::string job;
  std::optional<Owner> owner;
  JobPolicy policy;
  Stamp policy_stamp;
  std::map<Attempt, Origin> attempts;
  std::map<DecisionId, Decision> decisions;
  std::map<CheckpointId, Pin> pins;  // those that were taken back, too
  // `persist`: of these everybody writes what they have. What was written, or removed, stays here until higher
  // ones take its place: were it dropped before, records would not merge to the same in any order.
  std::set<CheckpointId> asked;
  RemovedSteps removed;
  // `rm JOB`: nothing of attempts up to this one is there any more, and nothing is kept about them.
  Attempt removed_up_to = 0;
  std::pair<Attempt, Step> highest_protected{0, kNoStep};

  bool Forbids(Step step, Attempt attempt) const {
    return attempt <= removed_up_to || removed.Forbids(step, attempt);
  }
  bool Pinned(const CheckpointId& id) const {
    const auto at = pins.find(id);
    return at != pins.end() && at->second.pinned;
  }
  // What was decided for, by number.
  std::map<Attempt, Lineage> Decided() const;

  // --- decisions of this member. Each says whether the record is another one now.

  // FAILED_PRECONDITION: the job has another owner.
  StatusOr<bool> SetOwner(const Owner& its);
  bool SetPolicy(const JobPolicy& its, Rank by);
  // That an attempt has begun, and what is known of where it comes from. What is known once stays.
  bool NoteAttempt(Attempt attempt, const Origin& origin);
  // `resume`, `use` or `origin`.
  bool Decide(const LineRecord& decided, int64_t unix_ms, Rank by);
  // RESOURCE_EXHAUSTED with the arithmetic at the bound.
  StatusOr<bool> SetPinned(const CheckpointId& id, bool pinned, Rank by);
  bool Ask(const CheckpointId& id);
  StatusOr<bool> Remove(Step step, Attempt first, Attempt last);
  bool RemoveAll(Attempt up_to);
  bool NoteProtected(Attempt attempt, Step step);

  // Takes in what another member's record of the same job knows; whether this one says more now. RESOURCE_
  // EXHAUSTED, with nothing taken in, when pins or removals of both are beyond twice their bounds.
  StatusOr<bool> Merge(const JobRecord& other);

  // Nothing but `asked` is kept of what was removed: so it is unless somebody else made it.
  bool IsTidy() const;

  bool operator==(const JobRecord&) const = default;

 private:
  // Drops what a removal covers, and what is beyond the bounds of attempts and decisions.
  void Tidy();
};

// Whether `a`, said with that stamp, is the one that counts of two policies.
bool IsLater(const JobPolicy& a, const Stamp& said_a, const JobPolicy& b, const Stamp& said_b);

std::string EncodeJobRecord(const JobRecord& record);
// DATA_LOSS for a bad magic, CRC or structure; UNIMPLEMENTED for a newer format.
StatusOr<JobRecord> DecodeJobRecord(absl::string_view bytes);

}  // namespace cairn::engine
