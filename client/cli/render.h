// How answers look: JSON (exact, stable names, those of proto/cairn.thrift) and text for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/cpp/session.h"

namespace cairn::cli {

using Json = nlohmann::ordered_json;

Json ToJson(const client::CheckpointInfo& info);
Json ToJson(const client::ObjectInfo& info);
Json ToJson(const client::LatestCheckpoint& latest, const std::string& job);
std::string Dump(
    const Json& json);  // indented, ends in a newline; bad UTF-8 is replaced, never thrown at

std::string RenderJobs(const std::vector<std::string>& jobs);
std::string RenderCheckpoints(const std::vector<client::CheckpointInfo>& checkpoints);
std::string RenderObjects(const std::vector<client::ObjectInfo>& objects);
std::string RenderCheckpoint(const client::CheckpointInfo& info);
std::string RenderObject(const CheckpointKey& checkpoint, const client::ObjectInfo& info);

// What happened to a checkpoint, in words: "in memory and storage", "in this node's memory only",
// "incomplete: writers 1, 3 are missing", …
std::string Whereabouts(const client::CheckpointInfo& info);

// Names of PersistMode and Readers, by their values.
inline constexpr const char* kPersistModes[] = {"on-demand", "every", "newest"};
inline constexpr const char* kReaders[] = {"owner", "group", "all"};
// JobPolicy of a status: enums by name or number; what is absent or unknown has its default.
JobPolicy PolicyFromJson(const Json& policy);

// `status`: NodeStatus of proto/cairn.thrift as JSON. `now_unix_ms` for ages.
struct Verdict {
  bool safe = true;                // every job's latest complete step outlives this node's memory
  std::vector<std::string> words;  // one sentence per job, the unsafe ones first
};
Verdict IsMyCheckpointSafe(const Json& status);
std::string RenderStatus(const Json& status, int64_t now_unix_ms);

}  // namespace cairn::cli
