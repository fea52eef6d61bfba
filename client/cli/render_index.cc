// What the catalog that a ring shares tells: jobs, checkpoints, who had them, and when each node last said so.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"
#include "client/cli/render.h"
#include "client/cli/status_fields.h"

namespace cairn::cli {
namespace {

std::string AgoText(int64_t unix_ms, int64_t now_unix_ms) {
  return unix_ms == 0 ? "when is not known" : absl::StrCat(HumanAge(unix_ms, now_unix_ms), " ago");
}

// "rank 0 (12 s ago), rank 2: 1 of 2 parts (3 min ago)".
std::string HoldersText(const Json& checkpoint, int64_t now_unix_ms) {
  const int64_t writers = Number(checkpoint, "world_size");
  std::vector<std::string> holders;
  for (const Json& holder : List(checkpoint, "holders")) {
    const int64_t parts = Number(holder, "parts");
    holders.push_back(
        absl::StrCat("rank ", Text(holder, "node"),
                     parts < writers ? absl::StrCat(": ", parts, " of ", writers, " parts") : "",
                     " (", AgoText(Number(holder, "seen_unix_ms"), now_unix_ms), ")"));
  }
  return holders.empty() ? "-" : Printable(absl::StrJoin(holders, ", "));
}

std::string StoredText(const Json& checkpoint) {
  return checkpoint.value("persisted", false) ? "yes" : "-";
}

const Json& LatestIn(const Json& job) {
  static const Json kNone = Json::object();
  const auto found = job.find("latest");
  return found != job.end() && found->is_object() ? *found : kNone;
}

bool SameCheckpoint(const Json& a, const Json& b) {
  return StepField(a, "step") == StepField(b, "step") &&
         Number(a, "attempt") == Number(b, "attempt") &&
         Number(a, "revision") == Number(b, "revision");
}

}  // namespace

std::string RenderIndexedJobs(const Json& index, int64_t now_unix_ms) {
  Table table({"JOB", "LATEST", "ATTEMPT", "COMPLETE", "IN STORAGE", "IN MEMORY, AS LAST SAID"},
              {1, 2, 3});
  for (const Json& job : List(index, "jobs")) {
    const Json& latest = LatestIn(job);
    if (latest.empty()) {
      table.Row({Text(job, "job"), "-", "-", "-", "-", "-"});
      continue;
    }
    table.Row({Text(job, "job"), StepText(StepField(latest, "step")),
               absl::StrCat(Number(latest, "attempt")),
               HumanAge(Number(latest, "completed_unix_ms"), now_unix_ms), StoredText(latest),
               HoldersText(latest, now_unix_ms)});
  }
  return table.empty() ? "" : table.Render();
}

std::string RenderIndexedCheckpoints(const Json& index, int64_t now_unix_ms) {
  Table table({"STEP", "ATTEMPT", "REV", "COMPLETE", "IN STORAGE", "", "IN MEMORY, AS LAST SAID"},
              {0, 1, 2, 3});
  const Json& jobs = List(index, "jobs");
  const Json latest = jobs.empty() ? Json::object() : LatestIn(jobs.front());
  for (const Json& checkpoint : List(index, "checkpoints")) {
    table.Row({StepText(StepField(checkpoint, "step")), absl::StrCat(Number(checkpoint, "attempt")),
               absl::StrCat(Number(checkpoint, "revision")),
               HumanAge(Number(checkpoint, "completed_unix_ms"), now_unix_ms),
               StoredText(checkpoint),
               !latest.empty() && SameCheckpoint(checkpoint, latest) ? "latest" : "",
               HoldersText(checkpoint, now_unix_ms)});
  }
  if (table.empty()) return "";
  return absl::StrCat(table.Render(),
                      index.value("more", false) ? "older ones are left out\n" : "");
}

std::string RenderIndexedNodes(const Json& index, int64_t now_unix_ms) {
  const std::string problem = Text(index, "problem");
  if (!problem.empty()) {
    return absl::StrCat("\nas the nodes last said: not known: ", Printable(problem), "\n");
  }
  Table table({"RANK", "INCARNATION", "SAID", "MEMORY USED", "OF", "KEPT FOR OTHERS"},
              {0, 1, 2, 3, 4, 5});
  for (const Json& node : List(index, "nodes")) {
    table.Row({Text(node, "node"), absl::StrCat(Number(node, "incarnation")),
               AgoText(Number(node, "seen_unix_ms"), now_unix_ms),
               HumanBytes(Bytes(node, "used_bytes")), HumanBytes(Bytes(node, "budget_bytes")),
               HumanBytes(Bytes(node, "replica_bytes"))});
  }
  std::string text;
  Section(&text, "as the nodes last said", table);
  return text;
}

std::string IndexedBeyond(const Json& index, const LatestCheckpoint* answered,
                          int64_t now_unix_ms) {
  const Json& jobs = List(index, "jobs");
  const Json& latest = jobs.empty() ? jobs : LatestIn(jobs.front());
  if (latest.empty() || !latest.is_object()) return "";
  const int64_t step = StepField(latest, "step"), attempt = Number(latest, "attempt");
  if (answered != nullptr && answered->key.step != kNoStep &&
      std::pair(attempt, step) <= std::pair(answered->key.attempt, answered->key.step)) {
    return "";
  }
  const std::string holders = HoldersText(latest, now_unix_ms);
  return Printable(absl::StrCat("the catalog knows of step ", step, " of attempt ", attempt,
                                ", complete since ", HumanTime(Number(latest, "completed_unix_ms")),
                                latest.value("persisted", false) ? ", in storage" : "",
                                holders == "-"
                                    ? "; nobody says that it is in memory"
                                    : absl::StrCat("; in memory as last said: ", holders)));
}

}  // namespace cairn::cli
