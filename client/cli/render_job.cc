// What status pages say of one job.
#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/format.h"
#include "client/cli/render.h"
#include "client/cli/status_fields.h"

namespace cairn::cli {
namespace {

std::string UnprotectedText(const Json& job) {
  const int64_t unprotected = Number(job, "unprotected_checkpoints");
  if (unprotected == 0) return "none";
  return absl::StrCat(Plural(unprotected, "checkpoint"), ", ",
                      HumanBytes(Bytes(job, "unprotected_bytes")), ", in memory only");
}

// "3, 1 of them incomplete, 2 that no longer count".
std::string CheckpointsText(const std::vector<CheckpointInfo>& checkpoints) {
  int64_t incomplete = 0, left = 0, pinned = 0;
  for (const CheckpointInfo& info : checkpoints) {
    if (!info.facts.complete) {
      ++incomplete;
    } else if (!info.on_line) {
      ++left;
    }
    if (info.facts.pinned) ++pinned;
  }
  std::string text = Grouped(static_cast<int64_t>(checkpoints.size()));
  if (incomplete > 0) absl::StrAppend(&text, ", incomplete ", Grouped(incomplete));
  if (left > 0) absl::StrAppend(&text, ", no longer counting ", Grouped(left));
  if (pinned > 0) absl::StrAppend(&text, ", pinned ", Grouped(pinned));
  return text;
}

std::string LastAgo(int64_t count, int64_t unix_ms, int64_t now_unix_ms) {
  if (unix_ms == 0) return "";
  return absl::StrCat(count == 1 ? ", " : ", the last ", HumanAge(unix_ms, now_unix_ms), " ago");
}

// Of every entry of `field` those of `job`.
Json OfJob(const Json& status, const char* field, const std::string& job) {
  Json of = Json::array();
  for (const Json& entry : List(status, field)) {
    if (Text(entry, "job") == job) of.push_back(entry);
  }
  return of;
}

// What the daemon refused, or could not do, of a job since it started.
struct Trouble {
  std::string title;  // "refused"
  std::string count;  // "12 saves"
  std::string last;   // ", the last 3 min ago"
  std::string why;    // printable; empty: it is over
};

std::vector<Trouble> Troubles(const Json& job, int64_t now_unix_ms) {
  std::vector<Trouble> all;
  if (const int64_t count = Number(job, "refused_saves"); count > 0) {
    all.push_back({"refused", Plural(count, "save"),
                   LastAgo(count, Number(job, "last_refusal_unix_ms"), now_unix_ms),
                   Printable(Text(job, "last_refusal"))});
  }
  if (const int64_t count = Number(job, "failed_persists"); count > 0) {
    all.push_back({"failed", Plural(count, "persist"),
                   LastAgo(count, Number(job, "last_failed_persist_unix_ms"), now_unix_ms),
                   Printable(Text(job, "persist_problem"))});
  }
  return all;
}

// The first phrase of a reason that may have many: `status JOB` has all of it.
std::string Brief(const std::string& why) {
  constexpr size_t kMostBytes = 160;
  if (why.empty()) return "";
  size_t end = std::min(why.find("; "), why.size());
  if (end > kMostBytes) {
    end = kMostBytes;
    while (end > 0 && (why[end] & 0xC0) == 0x80) --end;  // not within a character
  }
  return absl::StrCat(": ", why.substr(0, end), end < why.size() ? " …" : "");
}

}  // namespace

Json JobIn(const Json& status, const std::string& job) {
  for (const Json& entry : List(status, "jobs")) {
    if (Text(entry, "job") == job) return entry;
  }
  return Json();
}

std::string PersistText(const Json& job) {
  const auto json = job.find("policy");
  if (json == job.end() || !json->is_object()) return "-";
  const JobPolicy policy = PolicyFromJson(*json);
  if (policy.mode == PersistMode::kEvery) {
    return policy.every <= 1 ? "every step" : absl::StrCat("every ", policy.every, " steps");
  }
  return std::string(PersistModeName(policy.mode));
}

std::string KeepText(const JobPolicy& policy) {
  if (policy.keep_last == 0)
    return "all";  // keep_every spares some of those that keep_last deletes
  std::string text = absl::StrCat("the newest ", policy.keep_last);
  if (policy.keep_every > 0) {
    absl::StrAppend(&text, " and those with step % ", policy.keep_every, " == 0");
  }
  return text;
}

std::vector<std::string> RefusedBriefly(const Json& job, int64_t now_unix_ms) {
  std::vector<std::string> lines;
  for (const Trouble& of : Troubles(job, now_unix_ms)) {
    lines.push_back(absl::StrCat(of.count, " ", of.title, of.last, Brief(of.why)));
  }
  return lines;
}

std::string SafeModeCure(const std::string& text) {
  if (!absl::StrContains(text, "safe mode:")) return "";
  if (absl::StrContains(text, "safe mode lasts")) {
    return "it ends by itself; SIGHUP to the keeper, which is the cairnd that was started, ends it "
           "at "
           "once. Meanwhile `cairn get` reads, and `cairn persist JOB/STEP` brings to storage, "
           "what "
           "memory has";
  }
  return "put the newer cairnd back and kill the daemon, then everything is there, or restart the "
         "keeper, then memory is gone; meanwhile `cairn get` reads what memory has";
}

std::string RenderJobsWide(const std::vector<std::string>& jobs, const Json& status) {
  Table table({"JOB", "OWNER", "IN MEMORY", "LATEST", "IN STORAGE", "PERSISTS", "KEEPS FILES"},
              {1, 2, 3, 4});
  for (const std::string& name : jobs) {
    const Json job = JobIn(status, name);
    if (job.empty()) {
      table.Row({name, "-", "-", "-", "-", "-", "-"});
      continue;
    }
    const auto policy = job.find("policy");
    table.Row({name, absl::StrCat("uid ", Number(job, "owner_uid")),
               HumanBytes(Bytes(job, "resident_bytes")), StepText(StepField(job, "latest_step")),
               StepText(StepField(job, "latest_persisted_step")), PersistText(job),
               policy == job.end() ? "-" : KeepText(PolicyFromJson(*policy))});
  }
  return table.empty() ? "" : table.Render();
}

std::string RenderJob(const Json& status, const Json& job,
                      const std::vector<CheckpointInfo>& checkpoints, int64_t now_unix_ms) {
  const std::string name = Text(job, "job");
  Json alone = status;
  alone["jobs"] = Json::array({job});
  alone["sessions"] = OfJob(status, "sessions", name);
  std::string text;
  for (const std::string& words : IsMyCheckpointSafe(alone).words) {
    absl::StrAppend(&text, words, "\n");
  }
  const Json policy = job.contains("policy") ? job["policy"] : Json::object();
  std::vector<std::pair<std::string, std::string>> lines = {
      {"owner", absl::StrCat("uid ", Number(job, "owner_uid"))},
      {"attempt", absl::StrCat(Number(job, "attempt"))},
      {"checkpoints", CheckpointsText(checkpoints)},
      {"latest", StepText(StepField(job, "latest_step"))},
      {"in storage", StepText(StepField(job, "latest_persisted_step"))},
      {"in memory", HumanBytes(Bytes(job, "resident_bytes"))},
      {"unprotected", UnprotectedText(job)},
      {"persists", PersistText(job)},
      {"keeps files", KeepText(PolicyFromJson(policy))}};
  RingSheet(job, &lines);
  if (const int64_t go = Number(job, "deletable_checkpoints"); go > 0) {
    lines.emplace_back("files to go", absl::StrCat("of ", Plural(go, "checkpoint")));
  }
  if (const std::string problem = Text(job, "persist_problem"); !problem.empty()) {
    lines.emplace_back("problem", problem);
  }
  for (const Trouble& of : Troubles(job, now_unix_ms)) {
    const bool told = of.why.empty() || of.why == Printable(Text(job, "persist_problem"));
    lines.emplace_back(of.title, absl::StrCat(of.count, " since the daemon started", of.last,
                                              told ? "" : ": ", told ? "" : of.why));
  }
  if (const std::string state = Text(status, "state"); !state.empty() && state != "serving") {
    const std::string cure = SafeModeCure(state);
    lines.emplace_back("node", absl::StrCat(state, cure.empty() ? "" : "; ", cure));
  }
  absl::StrAppend(&text, "\n", Sheet(lines));
  Section(&text, "sessions", SessionsTable(alone, now_unix_ms));
  return text;
}

}  // namespace cairn::cli
