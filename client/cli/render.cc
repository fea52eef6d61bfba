#include "client/cli/render.h"

#include <algorithm>
#include <map>
#include <type_traits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/format.h"

namespace cairn::cli {
namespace {

// JSON of the fields of common/info.h: their names, exact numbers, checksums in hexadecimal.
template <typename Value>
Json FieldsJson(const Value& value);

template <typename Field>
Json FieldJson(const Field& field) {
  if constexpr (std::is_same_v<Field, Facts>) {
    return FieldsJson(field);
  } else if constexpr (std::is_same_v<Field, Level>) {
    return std::string(LevelName(field));
  } else if constexpr (std::is_same_v<Field, ObjectKind>) {
    return std::string(ObjectKindName(field));
  } else if constexpr (std::is_same_v<Field, UnixMillis>) {
    return field.value;
  } else if constexpr (std::is_same_v<Field, BlockChecksums>) {
    Json crcs = Json::array();
    for (const uint32_t crc : field.crcs) crcs.push_back(absl::StrFormat("%08x", crc));
    return crcs;
  } else {
    return field;
  }
}

template <typename Value>
Json FieldsJson(const Value& value) {
  Json json = Json::object();
  VisitFields(value,
              [&json](const char* name, const auto& field) { json[name] = FieldJson(field); });
  return json;
}

std::string Name(Level level) { return std::string(LevelName(level)); }

// With `line` the line is told elsewhere.
std::string Marks(const CheckpointInfo& info, bool line = false) {
  std::vector<std::string> marks;
  if (!info.facts.complete && !line) marks.push_back("incomplete");
  if (info.facts.in_conflict) marks.push_back("in conflict");
  if (info.facts.abandoned && !line) marks.push_back("abandoned");
  if (info.facts.pinned) marks.push_back("pinned");
  return absl::StrJoin(marks, ", ");
}

// Whether it counts (docs/line.md).
std::string OnLine(const CheckpointInfo& info) {
  if (info.on_line) return "on it";
  if (!info.facts.complete) return "incomplete";
  return info.facts.abandoned ? "abandoned" : "older";
}

// Of a complete one: how much of it this node's memory has, where storage does not have it, too. "": all.
std::string ShareHere(const CheckpointInfo& info) {
  const bool in_ring = info.facts.replicas_asked > 0 || info.facts.replicas > 0;
  if (!info.facts.complete || info.facts.broken || info.facts.resident) return "";
  if (info.objects == 0 && (in_ring || !info.facts.persisted)) return "none of it";
  return info.facts.persisted ? "" : "some of it";
}

// Storage that is away may have it, and nobody knows; `why` says so.
bool Unconfirmed(const CheckpointInfo& info) {
  return absl::StartsWith(info.why, "it was persisted");
}

// Of a complete one: other nodes' memory has what this node's lacks.
bool OthersHaveIt(const CheckpointInfo& info) {
  const Facts& facts = info.facts;
  if (!facts.complete || facts.broken || facts.resident) return false;
  return facts.replicas > 0 || (!facts.persisted && !Unconfirmed(info));
}

// Where the bytes are, for a table's column.
std::string Places(const CheckpointInfo& info) {
  std::vector<std::string> places;
  if (info.facts.resident) places.push_back("memory");
  if (OthersHaveIt(info)) {
    places.push_back(Plural(info.facts.replicas + 1, "node"));
  } else if (info.facts.replicas > 0) {
    places.push_back(Plural(info.facts.replicas, "other node"));
  }
  if (info.facts.persisted) places.push_back("storage");
  return places.empty() ? "-" : absl::StrJoin(places, ", ");
}

// What it has beside storage, and is not all in this node's memory.
std::string InTheRing(const CheckpointInfo& info) {
  const std::string share = ShareHere(info);
  const int32_t nodes = info.facts.replicas + 1;  // that have the part which fewest have
  if (share == "some of it") {
    return absl::StrCat("in the ring's memory, each part on ", Plural(nodes, "node"),
                        "; this node has some of it");
  }
  return absl::StrCat("in the memory of ", Plural(nodes, "other node"),
                      share.empty() ? "" : "; this node has none of it");
}

}  // namespace

Json ToJson(const CheckpointInfo& info) { return FieldsJson(info); }
Json ToJson(const PolicyPreview& preview) {
  Json json = {{"stay", preview.stay},
               {"go_now", preview.go_now},
               {"go_later", preview.go_later},
               {"bytes_now", preview.bytes_now},
               {"bytes_later", preview.bytes_later}};
  json["files"] = Json::array();
  for (const FilesFate& files : preview.files) json["files"].push_back(FieldsJson(files));
  return json;
}
Json ToJson(const ObjectInfo& info) { return FieldsJson(info); }
Json ToJson(const LatestCheckpoint& latest) { return FieldsJson(latest); }

std::string Dump(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string RenderJobs(const std::vector<std::string>& jobs) {
  std::string text;
  for (const std::string& job : jobs) absl::StrAppend(&text, Printable(job), "\n");
  return text;
}

std::string RenderPreview(const PolicyPreview& preview) {
  Table table({"STEP", "ATTEMPT", "REV", "SIZE", "DELETED (UTC)", "WHY"}, {0, 1, 2, 3});
  for (const FilesFate& files : preview.files) {
    table.Row({absl::StrCat(files.key.step), absl::StrCat(files.key.attempt),
               absl::StrCat(files.key.revision), HumanBytes(files.bytes),
               files.now                  ? "now"
               : files.after_unix_ms != 0 ? HumanTime(files.after_unix_ms)
                                          : "later",
               files.why});
  }
  std::string text = table.empty() ? "" : table.Render();
  const uint64_t unnamed = preview.go_now + preview.go_later - preview.files.size();
  if (unnamed > 0)
    absl::StrAppend(&text, "and ", Grouped(static_cast<int64_t>(unnamed)), " more\n");
  const auto some = [](uint64_t n) { return Plural(static_cast<int64_t>(n), "checkpoint"); };
  absl::StrAppend(&text, "files of ", some(preview.go_now), " (", HumanBytes(preview.bytes_now),
                  ") go at once, of ", some(preview.go_later), " (",
                  HumanBytes(preview.bytes_later), ") later, of ", some(preview.stay), " stay\n");
  return text;
}

std::string RenderCheckpoints(const std::vector<CheckpointInfo>& checkpoints,
                              const PolicyPreview& preview, const CheckpointTable& of) {
  std::map<CheckpointKey, bool> go;  // now
  for (const FilesFate& files : preview.files) go[files.key] = files.now;
  // With `all` a step may have several rows, which these tell apart.
  const bool keys = of.all || of.wide;
  std::vector<std::string> head = {"STEP", "LEVEL", "SIZE", "OBJECTS", "WRITERS", "AGE"};
  std::vector<size_t> right = {0, 2, 3, 4, 5};
  if (of.wide) head.push_back("SAVED (UTC)");
  if (keys) {
    right.insert(right.end(), {head.size(), head.size() + 1});
    head.insert(head.end(), {"ATTEMPT", "REV"});
  }
  if (of.wide) head.push_back("WHERE");
  if (of.all) head.push_back("LINE");
  head.push_back("");
  Table table(head, right);
  int64_t hidden = 0, oldest_ms = 0;
  for (const CheckpointInfo& info : checkpoints) {
    oldest_ms = std::max(oldest_ms, info.facts.replicas_age_ms);
    if (!of.all && info.facts.complete && !info.on_line && !info.facts.pinned) {
      ++hidden;
      continue;
    }
    const int64_t missing = static_cast<int64_t>(info.missing_writers.size());
    std::vector<std::string> row = {
        absl::StrCat(info.key.step),
        Name(info.level),
        HumanBytes(info.bytes),
        Grouped(static_cast<int64_t>(info.objects)),
        missing > 0 ? absl::StrCat(info.world_size - missing, "/", info.world_size)
                    : absl::StrCat(info.world_size),
        HumanAge(info.created_unix_ms, of.now_unix_ms)};
    if (of.wide) row.push_back(HumanTime(info.created_unix_ms));
    if (keys) {
      row.push_back(absl::StrCat(info.key.attempt));
      row.push_back(absl::StrCat(info.key.revision));
    }
    if (of.wide) row.push_back(Places(info));
    if (of.all) row.push_back(OnLine(info));
    std::string marks = Marks(info, of.all);
    if (const auto goes = go.find(info.key); goes != go.end()) {
      absl::StrAppend(&marks, marks.empty() ? "" : ", ",
                      goes->second ? "files about to go" : "files go later");
    }
    if (const std::string share = ShareHere(info); !share.empty()) {
      absl::StrAppend(&marks, marks.empty() ? "" : ", ", share, " on this node");
    }
    row.push_back(marks);
    table.Row(row);
  }
  std::string text = table.Render();
  if (hidden > 0) {
    absl::StrAppend(&text, "and ", Plural(hidden, "checkpoint"), " that no longer ",
                    hidden == 1 ? "counts" : "count", "; --all shows them\n");
  }
  if (oldest_ms > kRingAnswersMs) {
    absl::StrAppend(&text, "other nodes as of ", HumanDuration(absl::Milliseconds(oldest_ms)),
                    " ago\n");
  }
  return text;
}

std::string RenderObjects(const std::vector<ObjectInfo>& objects, bool wide, int64_t now_unix_ms) {
  std::vector<std::string> head = {"NAME", "SIZE", "KIND", "WRITER", "LEVEL"};
  std::vector<size_t> right = {1, 3};
  if (wide) {
    right.push_back(head.size());
    head.insert(head.end(), {"BYTES", "VERIFIED"});
  }
  Table table(head, right);
  for (const ObjectInfo& info : objects) {
    std::vector<std::string> row = {info.name, HumanBytes(info.length),
                                    std::string(ObjectKindName(info.kind)),
                                    absl::StrCat(info.writer), Name(info.level)};
    if (wide) {
      row.push_back(Grouped(static_cast<int64_t>(info.length)));
      row.push_back(info.verified_unix_ms == 0
                        ? "when it was saved"
                        : absl::StrCat(HumanAge(info.verified_unix_ms, now_unix_ms), " ago"));
    }
    table.Row(std::move(row));
  }
  return table.Render();
}

std::string Whereabouts(const CheckpointInfo& info) {
  if (info.facts.broken) return "broken: no copy of it verifies any more";
  if (info.facts.in_conflict) return "in conflict: it can never be complete";
  if (!info.facts.complete) {
    if (info.missing_writers.empty()) return "incomplete";
    return absl::StrCat("incomplete: of ", Plural(info.world_size, "writer"),
                        ", these have not committed: ", absl::StrJoin(info.missing_writers, ", "));
  }
  const Facts& facts = info.facts;
  if (facts.resident && facts.replicas > 0) {
    return absl::StrCat("in the memory of this node and ", facts.replicas,
                        facts.replicas == 1 ? " other" : " others",
                        facts.persisted ? ", and in storage" : "");
  }
  if (facts.resident) {
    return facts.persisted ? "in this node's memory and storage" : "in this node's memory only";
  }
  if (OthersHaveIt(info)) {
    return absl::StrCat(facts.persisted ? "in storage, and " : "", InTheRing(info));
  }
  return facts.persisted ? "in storage" : "nowhere to be had at the moment";
}

std::string RenderCheckpoint(const CheckpointInfo& info) {
  std::vector<std::pair<std::string, std::string>> lines = {
      {"checkpoint", absl::StrCat(info.key.job, "/", info.key.step)},
      {"it is", Whereabouts(info)},
      {"level", Name(info.level)},
      {"size", absl::StrCat(HumanBytes(info.bytes), " (", Grouped(static_cast<int64_t>(info.bytes)),
                            " bytes) in ", Plural(static_cast<int64_t>(info.objects), "object"),
                            ShareHere(info).empty() ? "" : " on this node")},
      {"writers", absl::StrCat(info.world_size)},
      {"attempt", absl::StrCat(info.key.attempt, ", revision ", info.key.revision,
                               info.on_line ? "" : " (not on the job's line)")},
      {"saved (UTC)", HumanTime(info.created_unix_ms)}};
  if (info.facts.replicas_age_ms >= 0) {
    const absl::Duration age = absl::Milliseconds(info.facts.replicas_age_ms);
    lines.emplace_back("other nodes", absl::StrCat("as of ", HumanDuration(age), " ago"));
  }
  if (!info.digest.empty()) lines.emplace_back("digest", info.digest);
  if (const std::string marks = Marks(info); !marks.empty()) lines.emplace_back("marks", marks);
  if (!info.why.empty()) lines.emplace_back("why", info.why);
  return Sheet(lines);
}

std::string RenderObject(const CheckpointKey& checkpoint, const ObjectInfo& info) {
  std::vector<std::pair<std::string, std::string>> lines = {
      {"object", checkpoint.step == kNoStep
                     ? absl::StrCat(checkpoint.job, "/latest/", info.name)
                     : absl::StrCat(checkpoint.job, "/", checkpoint.step, "/", info.name)},
      {"level", Name(info.level)},
      {"kind", std::string(ObjectKindName(info.kind))},
      {"size", absl::StrCat(HumanBytes(info.length), " (",
                            Grouped(static_cast<int64_t>(info.length)), " bytes)")},
      {"writer", absl::StrCat(info.writer)},
      {"checksums",
       absl::StrCat("CRC32C of ", Plural(static_cast<int64_t>(info.block_crcs.size()), "block"),
                    " of ", HumanBytes(kBlockBytes))},
      {"last verified (UTC)",
       info.verified_unix_ms == 0 ? "not since it was sealed" : HumanTime(info.verified_unix_ms)}};
  return Sheet(lines);
}

}  // namespace cairn::cli
