// How answers look: JSON (exact, stable names, those of proto/cairn.thrift) and text for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/info.h"
#include "common/policy.h"

namespace cairn::cli {

using Json = nlohmann::ordered_json;

Json ToJson(const CheckpointInfo& info);
Json ToJson(const ObjectInfo& info);
Json ToJson(const LatestCheckpoint& latest);
Json ToJson(const PolicyPreview& preview);
// Indented, and ends in a newline. Bytes that are not UTF-8 are replaced.
std::string Dump(const Json& json);

std::string RenderJobs(const std::vector<std::string>& jobs);
// With what `status` knows of each; "-" of those that it does not show.
std::string RenderJobsWide(const std::vector<std::string>& jobs, const Json& status);
// A ring that answers says each second how many replicas there are of what this node has a part of.
inline constexpr int64_t kRingAnswersMs = 3000;
struct CheckpointTable {
  bool all = false;  // also those that no longer count, and a column that says which do
  bool wide = false;
  int64_t now_unix_ms = 0;  // for ages
};
std::string RenderCheckpoints(const std::vector<CheckpointInfo>& checkpoints,
                              const PolicyPreview& preview, const CheckpointTable& table);
std::string RenderPreview(const PolicyPreview& preview);
std::string RenderObjects(const std::vector<ObjectInfo>& objects, bool wide, int64_t now_unix_ms);
std::string RenderCheckpoint(const CheckpointInfo& info);
std::string RenderObject(const CheckpointKey& checkpoint, const ObjectInfo& info);

// Where a checkpoint is, in words: "in this node's memory and storage", "in the memory of this node and 1
// other", "incomplete: of 4 writers missing 1, 3", …
std::string Whereabouts(const CheckpointInfo& info);

// The policy in a status page. Enumerators are read by name (in any case, with "_" for "-") or by
// number; what is absent or unknown has its default.
JobPolicy PolicyFromJson(const Json& policy);
std::string KeepText(const JobPolicy& policy);  // which files stay: "all", "the newest 3"

// `status`: NodeStatus of proto/cairn.thrift as JSON. `now_unix_ms` for ages.
struct Verdict {
  bool safe = true;                // every job's latest complete step outlives this node
  std::vector<std::string> words;  // one sentence per job, the unsafe ones first
};
Verdict IsMyCheckpointSafe(const Json& status);
std::string RenderStatus(const Json& status, int64_t now_unix_ms);
// `peers`: the members of the ring. `status --cluster`: also the jobs, as the whole ring has them.
std::string RenderPeers(const Json& status);
std::string RenderCluster(const Json& status);
// "rank 1 of 3 in train, 2 of 3 up; rank 2 silent for 12 s". Only of a node in a ring.
std::string RingHeading(const Json& status);

// `top`: a status page, and the one before it for rates.
struct TopPage {
  Json status = Json::object();
  Json before = Json::object();  // empty: there is none, and no rate is known
  absl::Duration between;        // from `before` to `status`
  int64_t now_unix_ms = 0;
  int columns = 0;  // of the terminal; 0: as wide as need be
  int lines = 0;    // of the terminal; 0: as many as need be
};
std::string RenderTop(const TopPage& page);
// The same with exact numbers; a rate that is not known is null.
Json TopToJson(const TopPage& page);

// `ls --cluster`, and the part of `status --cluster` that is about nodes: IndexReply of proto/cairn.thrift as JSON, or
// {"problem": why there is none}.
std::string RenderIndexedJobs(const Json& index, int64_t now_unix_ms);
std::string RenderIndexedCheckpoints(const Json& index, int64_t now_unix_ms);
std::string RenderIndexedNodes(const Json& index, int64_t now_unix_ms);
// Where the catalog knows of a later checkpoint of the line than `latest` answered (nullptr: it had none): which, who
// had it, and when they were last there. Else empty.
std::string IndexedBeyond(const Json& index, const LatestCheckpoint* answered, int64_t now_unix_ms);

// `status JOB`. The job's entry in a status page; empty when it has none there.
Json JobIn(const Json& status, const std::string& job);
// `job` an entry of `status`; `checkpoints` all of the job.
std::string RenderJob(const Json& status, const Json& job,
                      const std::vector<CheckpointInfo>& checkpoints, int64_t now_unix_ms);
// "12 saves refused, the last 3 min ago: memory: …", one line for what was refused and one for what could
// not be persisted, since the daemon started.
std::vector<std::string> RefusedBriefly(const Json& job, int64_t now_unix_ms);

// How many members the node's ring has, itself among them; 0: the node is alone.
size_t RingSize(const Json& status);

// What ends the safe mode that `text` (a state or a refusal) tells of; empty: it tells of none.
std::string SafeModeCure(const std::string& text);

}  // namespace cairn::cli
