// What a node says of a job to where its reports meet, and what is concluded from all of them. A node
// decides about parts; what is true of a checkpoint (complete, in conflict, on the line, protected, the
// target) is View(reports, record) and nothing else (view.h): two nodes that gathered the same reports
// say the same.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/keys.h"
#include "common/lineage.h"
#include "common/policy.h"
#include "server/engine/line.h"
#include "server/engine/ring.h"
#include "server/engine/world_writer.h"
#include "server/facts/facts.h"

namespace cairn::engine {

// Sorted 64-bit hashes of a part's names, for telling whether two writers claim the same. Shared, for it is
// made once per part and travels in each whole report.
uint64_t NameHash(absl::string_view name);
using NameHashes = std::shared_ptr<const std::vector<uint64_t>>;

// A part whose every block is sealed here (own) or was verified here (others).
struct PartReport {
  int32_t world_size = 0;
  std::string digest;  // of its manifest
  PartRole role = PartRole::kOwn;
  Rank owner = kNoRank;   // whose writer committed it
  uint64_t bytes = 0;     // of its objects, each in whole pages
  bool in_memory = true;  // all of it; else it is only `stored`
  bool stored = false;    // this node, or who acts for it, wrote it to storage, synced
  NameHashes names;       // of its objects
  bool operator==(const PartReport& o) const {
    return world_size == o.world_size && digest == o.digest && role == o.role && owner == o.owner &&
           bytes == o.bytes && in_memory == o.in_memory && stored == o.stored &&
           (names == o.names || (names != nullptr && o.names != nullptr && *names == *o.names));
  }
};

using PartId = std::pair<CheckpointId, Writer>;
using WriterKey = std::pair<Attempt, WorldWriter>;

struct AttemptReport {
  Step first = kNoStep;
  Lineage lineage;  // open: not known yet
  int64_t unix_ms = 0;
  bool operator==(const AttemptReport&) const = default;
};

// A writer of the attempt that runs, or ran, on the node.
struct WriterReport {
  std::pair<Step, Revision> reached{kNoStep, 0};  // the highest that it has entered
  bool alive = true;                              // its process has a session
  // Parts at or below `reached` that it will not commit: refused, withdrawn, failed. The newest 128.
  std::set<std::pair<Step, Revision>> given_up;
  bool operator==(const WriterReport&) const = default;
};

// Processes that save in the job's newest attempt and have not moved on to a newer one: a newer attempt waits for
// their end (succession.h). Those that one launcher started together stand together.
struct SavingReport {
  Attempt attempt = 0;
  std::string run;  // SessionIdentity's; empty: no launcher told
  int32_t restart = -1;
  std::set<int32_t> pids;  // the kMostPidsTold lowest
  bool operator==(const SavingReport&) const = default;
};
inline constexpr size_t kMostSavingTold = 64;  // of one node
inline constexpr size_t kMostPidsTold = 16;

// What one node knows of one job of itself. Reports carry a number that grows with each change; a delta
// names the number it builds on.
struct JobReport {
  bool owned = false;
  uint32_t owner_uid = 0, owner_gid = 0;
  JobPolicy policy;
  std::map<Attempt, AttemptReport> attempts;
  std::map<PartId, PartReport> parts;
  std::map<WriterKey, WriterReport> writers;  // of the newest attempts
  std::set<CheckpointId> published;    // that it saw whole in storage, of those that parts name
  std::optional<CheckpointId> target;  // it works on this one
  std::vector<SavingReport> saving;    // at most kMostSavingTold
  bool operator==(const JobReport&) const = default;
};

// A change of the report. What is not named stays.
struct ReportDelta {
  std::string job;
  uint64_t after = 0;   // the number of the report it builds on; 0: it is whole
  uint64_t number = 0;  // of the report that results, > after
  uint64_t answers =
      0;  // it was made after the receiver asked this question (peer::ReportWanted); 0: none
  bool owned = false;
  uint32_t owner_uid = 0, owner_gid = 0;
  JobPolicy policy;
  std::map<Attempt, AttemptReport> attempts;  // new or changed
  std::set<Attempt> attempts_gone;
  std::map<PartId, PartReport> parts;  // new or changed
  std::set<PartId> parts_gone;
  std::map<WriterKey, WriterReport> writers;
  std::set<WriterKey> writers_gone;
  std::set<CheckpointId> published, published_gone;
  // Always said.
  std::optional<CheckpointId> target;
  std::vector<SavingReport> saving;
};

// The change that makes `to` of `from`; whole when `after` is 0.
ReportDelta DeltaOf(const std::string& job, const JobReport& from, const JobReport& to,
                    uint64_t after, uint64_t number);
void ApplyDelta(const ReportDelta& delta, JobReport* report);
// What two deltas in a row, `newer` building on `older`, say as one: for what builds on what `older` does.
ReportDelta MergeDelta(ReportDelta older, const ReportDelta& newer);

// --- conclusions

struct CheckpointVerdict {
  int32_t world_size = 0;
  bool complete = false;
  std::string digest;      // of a complete one
  int64_t bytes = 0;       // of its objects, as far as known
  bool in_memory = false;  // complete, and every part is in some member's memory
  bool stored = false;     // seen whole in storage
  int replicas = 0;        // copies − 1 of its least replicated part
  bool hopeless = false;   // it lacks writers that will not commit it any more
  std::string conflict;    // not empty: which writers claim which name; it is never complete
  bool operator==(const CheckpointVerdict&) const = default;
};

// Whether the node runs, or ran, a writer 0 of the attempt.
bool RunsWriter0(const JobReport& report, Attempt attempt);

// What a home tells those who hold something of the job.
struct JobVerdict {
  std::string job;
  // What it rests on: member → number of its report. Those that were not heard are in `silent`.
  std::map<Rank, std::pair<MemberId, uint64_t>> reports;
  std::set<Rank> silent;
  bool final = false;  // every member has answered, or was silent for ring.lost_after
  LineHead head;       // of the line
  bool owned = false;
  uint32_t owner_uid = 0, owner_gid = 0;
  JobPolicy policy;
  std::map<Attempt, AttemptReport> attempts;  // of those that `checkpoints` are of, and the newest
  std::map<CheckpointId, CheckpointVerdict> checkpoints;  // of which some part is reported
  std::optional<CheckpointId> latest;                     // highest on the line that can be had
  std::optional<CheckpointId>
      protect;  // "protected": the newest with the replicas asked for, or stored
  std::optional<CheckpointId> target;                // the one that all nodes secure now
  std::pair<Attempt, Step> safe{0, kNoStep};         // the highest that was ever protected
  int asked = 0;                                     // replicas that the job's policy asks for
  std::map<Rank, std::vector<SavingReport>> saving;  // of the members that were heard
  std::string why;  // of a latest that moved back, or a target that cannot be secured
  bool operator==(const JobVerdict&) const = default;
};

}  // namespace cairn::engine
