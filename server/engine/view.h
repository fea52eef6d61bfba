// What is true of a job's checkpoints, of all members' reports together: a pure function of the reports and
// the job's record, so that any two members that gathered the same say the same. It is computed from
// scratch; gathered.h says the same as changes come.
//
// The rules:
//  1. A report counts while its member is heard. One that is in `silent` speaks for nobody: what only it
//     has cannot be had now, and what it holds is no copy.
//  2. What the record removed does not count at all.
//  3. A checkpoint is complete when the parts of all its writers are reported, or a member saw it whole in
//     storage. It is in conflict, and never complete, when parts disagree on the number of writers, when a
//     writer is reported with two manifests, or when two writers claim one name. Names are compared as
//     64-bit hashes: equal hashes are a conflict, and that one name is a directory of another does not
//     show here, only where the manifests meet (storage, a load).
//  4. It can be had when it is complete, and all of it is in memory somewhere or in storage.
//  5. Only what can be had is on the line (docs/line.md).
//  6. An incomplete one is hopeless only by final reports, when each writer it lacks has entered a later
//     step, gave this part up, or has ended. A writer that no report mentions is still to come, until a newer
//     attempt has begun; or it is on a member that is silent, which may have its part and come back with it.
//     Of an attempt older than one that has something to show all that is incomplete is hopeless.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/job_record.h"
#include "server/engine/report.h"
#include "server/engine/ring.h"

namespace cairn::engine {

// The last report of a member.
struct Heard {
  MemberId from;
  uint64_t number = 0;
  JobReport report;
  bool operator==(const Heard&) const = default;
};

struct Gathering {
  std::map<Rank, Heard> reports;
  std::set<Rank> silent;  // not heard for some seconds; it may have a report, and may have none
  // Every member has answered, or was silent for ring.lost_after. While one is silent that may still come
  // back with writers that live, this is false.
  bool final = false;
};

// Of the ring, what a verdict depends on.
struct RingShape {
  int members = 1;
  int replicas = 0;  // of a job whose policy names none
  static RingShape Of(const RingOptions& options);
};

JobVerdict View(const std::string& job, const Gathering& gathering, const JobRecord& record,
                const RingShape& ring);

// --- the rules one by one, for View and what says the same incrementally

// A report is from outside: what cannot be a part is passed over.
inline bool Counts(const PartId& id, const PartReport& part) {
  return id.second >= 0 && id.second < part.world_size;
}
inline bool CanBeHad(const CheckpointVerdict& checkpoint) {
  return checkpoint.complete && (checkpoint.in_memory || checkpoint.stored);
}
// What is on the line and satisfied is protected, and is no target any more.
inline bool IsSatisfied(const CheckpointVerdict& checkpoint, int asked) {
  return checkpoint.stored || (asked > 0 && checkpoint.replicas >= asked);
}
// Of two on the line. What is protected stands for all before it: to secure one of those would be in vain, for its
// copies are let go.
inline bool IsBehind(const CheckpointId& id, const std::optional<CheckpointId>& protect) {
  return protect.has_value() && id < *protect;
}
// How many copies of a part count. What somebody merely loaded may go at any time: it serves as a source, and
// as the last copy, but is no replica.
inline int CopiesThatCount(int kept, int fetched) { return kept > 0 ? kept : std::min(fetched, 1); }
// Whether a writer will not commit its part of this checkpoint any more, by what the members that know the
// writer say of it. One process is the writer, on one member; if two know it, it has ended when both say so.
class Outlook {
 public:
  Outlook(Step step, Revision revision) : part_(step, revision) {}
  void Hear(const WriterReport& writer) {
    mentioned_ = true;
    alive_ |= writer.alive;
    passed_ |= writer.reached > part_ || writer.given_up.contains(part_);
  }
  bool mentioned() const { return mentioned_; }
  bool expected() const { return alive_ && !passed_; }

 private:
  std::pair<Step, Revision> part_;
  bool mentioned_ = false, alive_ = false, passed_ = false;
};

// Why a part of a checkpoint cannot be counted on, in words.
std::string WorldConflict(int32_t least, int32_t most);
std::string DigestConflict(Writer writer);
std::string NameConflict(Writer one, Writer other);

// One source of what is known of an attempt.
struct OriginSaid {
  bool writer_0 = false;  // its member runs the attempt's writer 0
  const AttemptReport* said = nullptr;
};
// By rank, ascending. The record's word counts most, then that of writer 0's member (docs/line.md, rules 18
// and 19), then the lowest rank's; but a lineage that is known beats one that is not.
Line::Origin MergeOrigins(const JobRecord::Origin* recorded, const std::vector<OriginSaid>& said);

// Replicas that are asked for: by the policy of the record, else of the lowest rank that knows the owner.
int AskedFor(const JobRecord& record, const std::optional<JobPolicy>& reported,
             const RingShape& ring);

// What makes an incomplete checkpoint hopeless (rule 6), besides its own writers.
struct Prospects {
  bool final = false;
  bool silent = false;  // some member is
  Attempt begun = 0;    // the greatest attempt that is known
  Attempt shown = 0;    // the greatest that has a checkpoint which can be had
  bool operator==(const Prospects&) const = default;
};
// Of the writers it lacks, `expected` are mentioned and may still commit, `unknown` are not mentioned.
bool IsHopeless(Attempt attempt, int64_t expected, int64_t unknown, const Prospects& prospects);

// Of a verdict whose other fields are set.
std::string WhyOf(const JobVerdict& verdict, const JobRecord& record, const RingShape& ring);

}  // namespace cairn::engine
