// What status pages say of the ring: its members, and where a job's steps are safe.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"
#include "client/cli/render.h"
#include "client/cli/status_fields.h"

namespace cairn::cli {
namespace {

// A step by its number, or as an object that names it; kNoStep where the page says none.
int64_t StepOf(const Json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end()) return kNoStep;
  if (found->is_number()) return found->get<int64_t>();
  return found->is_object() ? StepField(*found, "step") : kNoStep;
}

const Json& RingIn(const Json& page) {
  static const Json kNone = Json::object();
  const auto found = page.find("ring");
  return found != page.end() && found->is_object() ? *found : kNone;
}

std::string HumanSilence(const Json& member) {
  return HumanDuration(absl::Milliseconds(Number(member, "silent_ms")));
}

// A node that has none of a ring whose members stand in the catalog.
bool HasRank(const Json& ring) { return Number(ring, "rank") >= 0; }
bool IsSelf(const Json& member) { return Text(member, "state") == "self"; }

std::string RankList(const std::vector<int64_t>& ranks) { return absl::StrJoin(ranks, ", "); }

Table Members(const Json& ring) {
  Table table(
      {"RANK", "ADDRESS", "STATE", "INCARNATION", "LAST HEARD", "KEEPS FOR US", "WE KEEP FOR IT"},
      {0, 3, 4, 5, 6});
  for (const Json& member : List(ring, "members")) {
    const bool self = IsSelf(member);
    const int64_t incarnation = Number(member, "incarnation");
    const int64_t rank = Number(member, "rank");
    table.Row({rank < 0 ? "-" : absl::StrCat(rank), Text(member, "address"),
               MemberStateText(member), incarnation == 0 ? "-" : absl::StrCat(incarnation),
               self               ? "-"
               : incarnation == 0 ? "never"
                                  : absl::StrCat(HumanSilence(member), " ago"),
               self ? "-" : HumanBytes(Bytes(member, "held_for_us_bytes")),
               self ? "-" : HumanBytes(Bytes(member, "held_for_it_bytes"))});
  }
  return table;
}

Table Fetches(const Json& ring) {
  Table table({"JOB", "STEP", "WRITER", "FROM", "FOR", "DONE"}, {1, 2});
  for (const Json& fetch : List(ring, "fetches")) {
    std::vector<int64_t> from;
    for (const Json& rank : List(fetch, "sources")) {
      if (rank.is_number()) from.push_back(rank.get<int64_t>());
    }
    const uint64_t done = Bytes(fetch, "done_bytes"), total = Bytes(fetch, "bytes");
    table.Row({Text(fetch, "job"), StepText(StepOf(fetch, "step")),
               absl::StrCat(Number(fetch, "writer")),
               from.empty() ? "-" : absl::StrCat("rank ", RankList(from)), Text(fetch, "what_for"),
               absl::StrCat(Bar(done, total, 16), " ", Percent(done, total), " % of ",
                            HumanBytes(total))});
  }
  return table;
}

Table RingJobs(const Json& status) {
  Table table({"JOB", "LATEST", "REPLICAS", "IN STORAGE", "PROTECTED", "TARGET", "NOT HEARD"},
              {1, 2, 3, 4, 5});
  for (const Json& job : List(status, "jobs")) {
    const RingJob ring = RingJobOf(job);
    if (!ring.known || Text(job, "job").empty()) continue;
    table.Row({Text(job, "job"), StepText(ring.latest), ReplicasText(ring),
               StepText(StepField(job, "latest_persisted_step")), StepText(ring.protect),
               StepText(ring.target), ring.silent.empty() ? "-" : RankList(ring.silent)});
  }
  return table;
}

// "rank 0 of 3 in run, 2 of 3 up; rank 1 silent for 12 s"; "no rank of the 3 in run".
std::string Heading(const Json& ring) {
  if (!HasRank(ring)) {
    const size_t ranks = List(ring, "members").size() - 1;  // without itself
    return Printable(absl::StrCat("no rank of the ", ranks, " in ", Text(ring, "cluster")));
  }
  size_t up = 0;
  std::vector<std::string> others;
  for (const Json& member : List(ring, "members")) {
    const std::string state = Text(member, "state");
    if (state == "up" || IsSelf(member)) {
      ++up;
    } else {
      others.push_back(absl::StrCat("rank ", Number(member, "rank"), " ", MemberStateText(member)));
    }
  }
  const size_t all = List(ring, "members").size();
  std::string text = absl::StrCat("rank ", Number(ring, "rank"), " of ", all, " in ",
                                  Text(ring, "cluster"), ", ", up, " of ", all, " up");
  if (!others.empty()) absl::StrAppend(&text, "; ", absl::StrJoin(others, ", "));
  return Printable(text);
}

}  // namespace

std::string MemberStateText(const Json& member) {
  const std::string state = Text(member, "state");
  if (state != "silent") return state;
  return Number(member, "silent_ms") < 0 ? "never heard"
                                         : absl::StrCat("silent for ", HumanSilence(member));
}

std::string RingHeading(const Json& status) { return Heading(RingIn(status)); }

size_t RingSize(const Json& status) { return List(RingIn(status), "members").size(); }

bool InRing(const Json& status) { return RingSize(status) > 0; }

RingJob RingJobOf(const Json& job) {
  const Json& ring = RingIn(job);
  RingJob of;
  of.known = !ring.empty();
  of.latest = StepOf(ring, "latest");
  of.protect = StepOf(ring, "protected");
  of.target = StepOf(ring, "target");
  of.replicas = Number(ring, "replicas");
  of.asked = Number(ring, "asked");
  of.age_ms = Number(ring, "age_ms");
  of.why = Text(ring, "why");
  for (const Json& rank : List(ring, "silent")) {
    if (rank.is_number()) of.silent.push_back(rank.get<int64_t>());
  }
  return of;
}

std::string ReplicasText(const RingJob& ring) {
  return absl::StrCat(ring.replicas, " of ", ring.asked);
}

std::string RingLines(const Json& status) {
  if (!InRing(status)) return "";
  const Json& ring = RingIn(status);
  std::string text =
      absl::StrCat("ring      ", Heading(ring),
                   "\n          kept for others: ", HumanBytes(Bytes(ring, "replica_bytes")),
                   " of ", HumanBytes(Bytes(ring, "replica_quota_bytes")), "\n");
  std::vector<std::string> lost;
  for (const Json& job : List(status, "jobs")) {
    const RingJob of = RingJobOf(job);
    const int64_t latest = of.known ? of.latest : StepField(job, "latest_step");
    const bool stored = StepField(job, "latest_persisted_step") == latest;
    const bool here = Bytes(job, "resident_bytes") > 0;
    if (latest == kNoStep || stored || of.replicas > 0 || !here) continue;
    lost.push_back(absl::StrCat(Text(job, "job"), " step ", latest,
                                of.known ? "" : " (the ring was not heard about it yet)"));
  }
  absl::StrAppend(&text, "          lost if this node dies now: ",
                  lost.empty() ? "nothing complete" : Printable(absl::StrJoin(lost, ", ")), "\n");
  return text;
}

void RingSheet(const Json& job, std::vector<std::pair<std::string, std::string>>* lines) {
  const RingJob ring = RingJobOf(job);
  if (!ring.known) return;
  lines->emplace_back("replicas", ReplicasText(ring));
  lines->emplace_back("protected", StepText(ring.protect));
  lines->emplace_back("target", StepText(ring.target));
  if (!ring.silent.empty()) {
    lines->emplace_back("not heard", absl::StrCat("rank ", RankList(ring.silent)));
  }
  if (!ring.why.empty()) lines->emplace_back("why", ring.why);
}

std::string RenderPeers(const Json& status) {
  if (!InRing(status)) return "This node is alone: ring.nodes names no others.\n";
  const Json& ring = RingIn(status);
  std::string text = absl::StrCat(Heading(ring), "\n\n", Members(ring).Render());
  Section(&text, "being fetched", Fetches(ring));
  return text;
}

std::string RenderCluster(const Json& status) {
  if (!InRing(status)) return "This node is alone: ring.nodes names no others.\n";
  const Json& ring = RingIn(status);
  std::string text =
      absl::StrCat(Heading(ring), "; a job has ", Plural(Number(ring, "replicas"), "replica"),
                   " where its policy does not say otherwise\n");
  Section(&text, "members", Members(ring));
  Section(&text, "jobs", RingJobs(status));
  for (const Json& job : List(status, "jobs")) {
    const RingJob of = RingJobOf(job);
    if (of.why.empty()) continue;
    absl::StrAppend(&text, "  ", Printable(Text(job, "job")), ": ", Printable(of.why), "\n");
  }
  Section(&text, "being fetched", Fetches(ring));
  return text;
}

}  // namespace cairn::cli
