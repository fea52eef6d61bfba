#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "client/cli/format.h"
#include "client/cli/render.h"
#include "client/cli/status_fields.h"

namespace cairn::cli {
namespace {

// An enumerator by its name or number; `fallback` where the field is absent or unknown. `last` is
// the greatest number.
template <typename Enumeration, typename Parse>
Enumeration EnumeratorField(const Json& object, const char* field, Enumeration last,
                            const Parse& parse, Enumeration fallback) {
  const auto found = object.find(field);
  if (found == object.end()) return fallback;
  if (found->is_number_integer()) {
    const int64_t number = found->get<int64_t>();
    const bool known = number >= 0 && number <= static_cast<int64_t>(last);
    return known ? static_cast<Enumeration>(number) : fallback;
  }
  // proto/cairn.thrift and older clients write "ON_DEMAND" and "on_demand".
  const StatusOr<Enumeration> named =
      parse(absl::AsciiStrToLower(absl::StrReplaceAll(Text(object, field), {{"_", "-"}})));
  return named.ok() ? *named : fallback;
}

struct JobVerdict {
  bool safe = true;
  std::string words;
};

JobVerdict NothingComplete(const std::string& name, const RingJob& ring, bool in_ring) {
  if (!ring.why.empty()) {
    return {false, absl::StrCat(name, ": nothing complete can be had now: ", Printable(ring.why))};
  }
  if (!ring.silent.empty()) {
    return {true, absl::StrCat(name, ": nothing complete is known; not heard: rank ",
                               absl::StrJoin(ring.silent, ", "), ".")};
  }
  if (in_ring && !ring.known) {
    return {true, absl::StrCat(name,
                               ": nothing complete is known on this node, which has not heard "
                               "yet what others have.")};
  }
  return {true, absl::StrCat(name, in_ring ? ": nothing complete can be had now."
                                           : ": nothing complete has been saved yet.")};
}

// Where the latest step is, of which there are no two copies. A part of it may be on any node of a ring.
std::string OneCopy(const RingJob& ring, bool in_ring) {
  if (!in_ring) return "is in this node's memory only; ";
  if (!ring.known) {
    return "is in memory, and this node has not heard yet whether others have a copy; ";
  }
  return ring.asked > 0 ? "has no replica yet; " : "has no replica, for its policy asks for none; ";
}

JobVerdict Judge(const Json& job, bool storage, bool away, bool in_ring) {
  const std::string name = Printable(Text(job, "job"));
  const int64_t latest = StepField(job, "latest_step");
  const int64_t persisted = StepField(job, "latest_persisted_step");
  const std::string problem = Printable(Text(job, "persist_problem"));
  const RingJob ring = RingJobOf(job);
  if (latest == kNoStep) return NothingComplete(name, ring, in_ring);
  const std::string step = absl::StrCat(name, ": step ", latest, ", the latest, ");
  if (persisted == latest) return {true, step + "is safe: it is in storage."};
  if (ring.known && ring.latest == latest && ring.replicas > 0) {
    const std::string missing =
        ring.replicas < ring.asked ? absl::StrCat(" (", ReplicasText(ring), " replicas)") : "";
    const std::string nodes = Plural(ring.replicas + 1, "node");
    // The home speaks each second to nodes that have a part of it.
    if (ring.age_ms > kRingAnswersMs && Bytes(job, "resident_bytes") > 0) {
      return {false, absl::StrCat(step, "was in the memory of ", nodes, " ",
                                  HumanDuration(absl::Milliseconds(ring.age_ms)),
                                  " ago; the ring has not said since whether it still is.")};
    }
    return {true, absl::StrCat(step, "is safe: each part of it is in the memory of ", nodes,
                               missing, ".")};
  }
  const std::string loss =
      in_ring ? "the loss of a node that has a part of it" : "losing this node";
  const std::string why = ring.why.empty() ? "" : " " + Printable(ring.why);
  const bool protects = ring.asked > 0 && ring.protect > persisted && ring.protect < latest;
  if (ring.known && protects) {
    return {false, absl::StrCat(step, "has no replica yet; ", loss, " goes back to step ",
                                ring.protect, ", which has its replicas.", why)};
  }
  std::string words = step + OneCopy(ring, in_ring);
  const std::string loses =
      absl::StrCat("so ", in_ring ? loss : "the loss of this node", " loses it.");
  if (!storage) {
    absl::StrAppend(&words, "there is no storage, ", loses);
  } else if (away) {
    absl::StrAppend(&words, "the storage is away, ", loses);
  } else if (persisted == kNoStep) {
    words += "nothing of this job is in storage yet.";
  } else {
    absl::StrAppend(&words, loss, " goes back to step ", persisted, " in storage.");
  }
  words += why;
  const int64_t unprotected = Number(job, "unprotected_checkpoints");
  if (unprotected > 1) {
    absl::StrAppend(&words, " Unprotected: ", Plural(unprotected, "checkpoint"), ", ",
                    HumanBytes(Bytes(job, "unprotected_bytes")), ".");
  }
  if (!problem.empty()) absl::StrAppend(&words, " The last persist failed: ", problem);
  return {false, words};
}

Table Jobs(const Json& status) {
  const bool ring = InRing(status);
  std::vector<std::string> header = {"JOB",        "OWNER",       "IN MEMORY", "LATEST",
                                     "IN STORAGE", "UNPROTECTED", "PERSISTS"};
  if (ring) header.insert(header.begin() + 4, "REPLICAS");
  Table table(header, {1, 2, 3, 4, size_t{ring ? 5u : 4u}});
  for (const Json& job : List(status, "jobs")) {
    if (Text(job, "job").empty()) continue;
    const int64_t unprotected = Number(job, "unprotected_checkpoints");
    std::string policy = PersistText(job);
    if (const int64_t go = Number(job, "deletable_checkpoints"); go > 0) {
      absl::StrAppend(&policy, "; files of ", Plural(go, "checkpoint"), " go");
    }
    std::vector<std::string> row = {Text(job, "job"),
                                    absl::StrCat("uid ", Number(job, "owner_uid")),
                                    HumanBytes(Bytes(job, "resident_bytes")),
                                    StepText(StepField(job, "latest_step")),
                                    StepText(StepField(job, "latest_persisted_step")),
                                    unprotected == 0
                                        ? "-"
                                        : absl::StrCat(Plural(unprotected, "checkpoint"), ", ",
                                                       HumanBytes(Bytes(job, "unprotected_bytes"))),
                                    policy};
    if (ring) {
      const RingJob of = RingJobOf(job);
      row.insert(row.begin() + 4, of.known ? ReplicasText(of) : "-");
    }
    table.Row(row);
  }
  return table;
}

Table Quarantine(const Json& status) {
  Table table({"SLAB", "SIZE", "AGE", "HELD BY PID", "JOB"}, {0, 1});
  for (const Json& slab : List(status, "quarantined")) {
    std::string pids;
    for (const Json& pid : List(slab, "pids")) {
      if (pid.is_number()) absl::StrAppend(&pids, pids.empty() ? "" : ", ", pid.get<int64_t>());
    }
    table.Row({absl::StrCat(Number(slab, "slab")), HumanBytes(Bytes(slab, "bytes")),
               HumanDuration(absl::Milliseconds(Number(slab, "age_ms"))),
               pids.empty() ? "unknown" : pids, Text(slab, "job")});
  }
  return table;
}

// How much of his share the user holds; empty when he may hold the whole budget.
std::string Yours(const Json& status) {
  const auto counters = status.find("counters");
  if (counters == status.end() || !counters->is_object()) return "";
  const uint64_t most = Bytes(*counters, "user_memory_most_bytes");
  if (most == 0 || most >= Bytes(status, "budget_bytes")) return "";
  return absl::StrCat("\nyours     ", HumanBytes(Bytes(*counters, "user_memory_bytes")), " of ",
                      HumanBytes(most), " that one user may hold, in ",
                      Plural(Number(*counters, "user_jobs"), "job"));
}

}  // namespace

void Section(std::string* text, const std::string& title, const Table& table) {
  if (table.empty()) return;
  absl::StrAppend(text, "\n", title, "\n", table.Render(2));
}

Table SessionsTable(const Json& status, int64_t now_unix_ms) {
  Table table({"JOB", "WRITER", "PID", "UID", "CONNECTED", "LEASED", "DOING"}, {1, 2, 3, 5});
  for (const Json& session : List(status, "sessions")) {
    // Sessions that only look, as this command's own, are left out.
    if (Text(session, "job").empty() && Number(session, "leases") == 0) continue;
    const int64_t writer = session.contains("writer") ? Number(session, "writer") : -1;
    const int64_t step = StepField(session, "writing_step");
    std::string doing = "idle";
    const uint64_t total = Bytes(session, "writing_total"), done = Bytes(session, "writing_done");
    if (step != kNoStep && total > 0) {
      doing = absl::StrCat("step ", step, " ", Bar(done, total, 16), " ", Percent(done, total),
                           " % of ", HumanBytes(total));
    }
    const int64_t connected = Number(session, "connected_unix_ms");
    table.Row({Text(session, "job").empty() ? "-" : Text(session, "job"),
               writer < 0 ? "reader" : absl::StrCat(writer), absl::StrCat(Number(session, "pid")),
               absl::StrCat(Number(session, "uid")),
               connected == 0 ? "-" : HumanDuration(absl::Milliseconds(now_unix_ms - connected)),
               HumanBytes(Bytes(session, "leased_bytes")), doing});
  }
  return table;
}

JobPolicy PolicyFromJson(const Json& policy) {
  JobPolicy out;
  if (!policy.is_object()) return out;
  out.mode = EnumeratorField(policy, "mode", PersistMode::kNewest, ParsePersistMode, out.mode);
  out.readers = EnumeratorField(policy, "readers", Readers::kAll, ParseReaders, out.readers);
  out.every = std::max<int64_t>(1, Number(policy, "every"));
  out.keep_last = Number(policy, "keep_last");
  out.keep_every = Number(policy, "keep_every");
  if (policy.contains("replicas")) out.replicas = static_cast<int32_t>(Number(policy, "replicas"));
  return out;
}

Verdict IsMyCheckpointSafe(const Json& status) {
  Verdict verdict;
  const bool storage = !Text(status, "storage_root").empty();
  const bool away = !Text(status, "storage_problem").empty();
  std::vector<std::string> safe;
  for (const Json& job : List(status, "jobs")) {
    if (Text(job, "job").empty()) continue;  // the job "" is that of sessions without one
    JobVerdict one = Judge(job, storage, away, InRing(status));
    (one.safe ? safe : verdict.words).push_back(std::move(one.words));
    verdict.safe = verdict.safe && one.safe;
  }
  verdict.words.insert(verdict.words.end(), safe.begin(), safe.end());
  if (verdict.words.empty()) verdict.words.push_back("No job has saved anything on this node yet.");
  return verdict;
}

std::string RenderStatus(const Json& status, int64_t now_unix_ms) {
  std::string text;
  for (const std::string& words : IsMyCheckpointSafe(status).words)
    absl::StrAppend(&text, words, "\n");

  const uint64_t budget = Bytes(status, "budget_bytes"), used = Bytes(status, "used_bytes");
  const uint64_t quarantined = Bytes(status, "quarantined_bytes");
  const int64_t started = Number(status, "started_unix_ms");
  absl::StrAppend(&text, "\nnode      ", Printable(Text(status, "node")), ", ",
                  Printable(Text(status, "state")), ", up ",
                  HumanDuration(absl::Milliseconds(started == 0 ? 0 : now_unix_ms - started)));
  if (const int64_t restarts = Number(status, "restarts"); restarts > 0) {
    absl::StrAppend(&text, ", restarted ", Plural(restarts, "time"));
  }
  absl::StrAppend(&text, ", version ", Printable(Text(status, "version")));
  if (const std::string cure = SafeModeCure(Text(status, "state")); !cure.empty()) {
    absl::StrAppend(&text, "\n          ", cure);
  }
  absl::StrAppend(&text, "\nmemory    ", Bar(used, budget, 24), " ", Percent(used, budget),
                  " % of ", HumanBytes(budget), ": used ", HumanBytes(used), ", free ",
                  HumanBytes(Bytes(status, "free_bytes")));
  if (const uint64_t writing = Bytes(status, "writing_bytes"); writing > 0) {
    absl::StrAppend(&text, ", being written ", HumanBytes(writing));
  }
  if (quarantined > 0) absl::StrAppend(&text, ", quarantined ", HumanBytes(quarantined));
  const auto prefault = status.find("prefault_done");
  if (prefault != status.end() && prefault->is_boolean() && !prefault->get<bool>()) {
    absl::StrAppend(&text,
                    "\n          faulted in so far: ", HumanBytes(Bytes(status, "slab_bytes")));
  }
  text += Yours(status);
  const std::string root = Printable(Text(status, "storage_root"));
  absl::StrAppend(&text, "\nstorage   ", root.empty() ? "none" : root);
  if (const std::string id = Printable(Text(status, "storage_id")); !id.empty()) {
    absl::StrAppend(&text, ", identity ", id);
  }
  if (const std::string problem = Printable(Text(status, "storage_problem")); !problem.empty()) {
    absl::StrAppend(&text, "\n          AWAY: ", problem);
  }
  text += "\n";
  if (const std::string catalog = Printable(Text(status, "catalog")); !catalog.empty()) {
    absl::StrAppend(&text, "catalog   ", catalog, "\n");
  }
  text += RingLines(status);

  Section(&text, "jobs", Jobs(status));
  for (const Json& job : List(status, "jobs")) {
    for (const std::string& words : RefusedBriefly(job, now_unix_ms)) {
      absl::StrAppend(&text, "  ", Printable(Text(job, "job")), ": ", words, "\n");
    }
  }
  Section(&text, "sessions", SessionsTable(status, now_unix_ms));
  Section(&text, "quarantined: freed by the job, still mapped by a process", Quarantine(status));
  return text;
}

}  // namespace cairn::cli
