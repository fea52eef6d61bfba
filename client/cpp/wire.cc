#include "client/cpp/wire.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace cairn::client {
namespace {

using Json = nlohmann::ordered_json;

CheckpointFacts FromWire(const wire::Facts& facts) {
  CheckpointFacts out;
  out.complete = facts.complete;
  out.resident = facts.resident;
  out.persisted = facts.persisted;
  out.broken = facts.broken;
  out.in_conflict = facts.in_conflict;
  out.abandoned = facts.abandoned;
  out.pinned = facts.pinned;
  out.replicas = facts.replicas;
  out.replicas_asked = facts.replicas_asked;
  return out;
}

// What arrived for an enumeration, which may be none of its values: reading those as the
// enumeration would be undefined.
template <typename Enumeration>
int Received(const Enumeration& value) {
  static_assert(sizeof(value) == sizeof(int));
  int out;
  std::memcpy(&out, &value, sizeof out);
  return out;
}

Status Unexpected(absl::string_view field, int64_t value) {
  return absl::InternalError(absl::StrCat("the daemon answered ", field, " = ", value,
                                          ", which this library does not know"));
}

StatusOr<Level> LevelFromWire(const wire::Level::type& level) {
  switch (Received(level)) {
    case wire::Level::WRITING:
      return Level::kWriting;
    case wire::Level::CACHED:
      return Level::kCached;
    case wire::Level::REPLICATED:
      return Level::kReplicated;
    case wire::Level::PERSISTED:
      return Level::kPersisted;
    case wire::Level::EVICTED:
      return Level::kEvicted;
    case wire::Level::BROKEN:
      return Level::kBroken;
  }
  return Unexpected("level", Received(level));
}

StatusOr<ObjectKind> KindFromWire(const wire::ObjectKind::type& kind) {
  switch (Received(kind)) {
    case wire::ObjectKind::RAW:
      return ObjectKind::kRaw;
    case wire::ObjectKind::TORCH:
      return ObjectKind::kTorch;
    case wire::ObjectKind::SAFETENSORS:
      return ObjectKind::kSafetensors;
    case wire::ObjectKind::NUMPY:
      return ObjectKind::kNumpy;
  }
  return Unexpected("kind", Received(kind));
}

const char* SourceName(const wire::Source::type& source) {
  switch (Received(source)) {
    case wire::Source::MEMORY:
      return "memory";
    case wire::Source::PEER:
      return "peer";
    case wire::Source::STORAGE:
      return "storage";
    case wire::Source::NONE:
      return "";
  }
  return "";
}

const char* PersistModeName(const wire::PersistMode::type& mode) {
  switch (Received(mode)) {
    case wire::PersistMode::ON_DEMAND:
      return "on_demand";
    case wire::PersistMode::EVERY:
      return "every";
    case wire::PersistMode::NEWEST:
      return "newest";
  }
  return "unknown";
}

const char* ReadersName(const wire::Readers::type& readers) {
  switch (Received(readers)) {
    case wire::Readers::OWNER:
      return "owner";
    case wire::Readers::GROUP:
      return "group";
    case wire::Readers::ALL:
      return "all";
  }
  return "unknown";
}

Json PolicyJson(const wire::JobPolicy& policy) {
  return {{"mode", PersistModeName(policy.mode)},
          {"every", policy.every},
          {"keep_last", policy.keep_last},
          {"keep_every", policy.keep_every},
          {"readers", ReadersName(policy.readers)}};
}

Json SessionJson(const wire::SessionStatus& s) {
  return {{"session", s.session},
          {"pid", s.pid},
          {"uid", s.uid},
          {"job", s.job},
          {"writer", s.writer},
          {"attempt", s.attempt},
          {"leased_bytes", s.leased_bytes},
          {"leases", s.leases},
          {"writing_step", s.writing_step},
          {"writing_total", s.writing_total},
          {"writing_done", s.writing_done},
          {"connected_unix_ms", s.connected_unix_ms},
          {"client", s.client}};
}

Json JobJson(const wire::JobStatus& j) {
  return {{"job", j.job},
          {"owner_uid", j.owner_uid},
          {"resident_bytes", j.resident_bytes},
          {"latest_step", j.latest_step},
          {"latest_persisted_step", j.latest_persisted_step},
          {"unprotected_checkpoints", j.unprotected_checkpoints},
          {"unprotected_bytes", j.unprotected_bytes},
          {"policy", PolicyJson(j.policy)},
          {"attempt", j.attempt},
          {"persist_problem", j.persist_problem}};
}

}  // namespace

Status FromWire(const wire::Error& error) {
  constexpr int kLastCode = 16;  // UNAUTHENTICATED
  if (error.code <= 0 || error.code > kLastCode) {
    return absl::InternalError(
        absl::StrCat("the daemon answered error ", error.code, ": ", error.message));
  }
  return Status(static_cast<absl::StatusCode>(error.code), error.message);
}

wire::JobPolicy ToWire(const JobPolicy& policy) {
  wire::JobPolicy out;
  out.__set_mode(static_cast<wire::PersistMode::type>(policy.mode));
  out.__set_every(policy.every);
  out.__set_keep_last(policy.keep_last);
  out.__set_keep_every(policy.keep_every);
  out.__set_readers(static_cast<wire::Readers::type>(policy.readers));
  return out;
}

wire::CheckpointRef ToWire(const CheckpointRef& ref, const std::string& default_job) {
  wire::CheckpointRef out;
  out.__set_job(ref.job.empty() ? default_job : ref.job);
  out.__set_step(ref.step);
  out.__set_attempt(ref.attempt);
  out.__set_revision(ref.revision);
  return out;
}

wire::ObjectKind::type ToWire(ObjectKind kind) { return static_cast<wire::ObjectKind::type>(kind); }
wire::Level::type ToWire(Level level) { return static_cast<wire::Level::type>(level); }
wire::OpenMode::type ToWire(OpenMode mode) { return static_cast<wire::OpenMode::type>(mode); }

StatusOr<CheckpointInfo> FromWire(const std::string& job, const wire::CheckpointInfo& info) {
  CheckpointInfo out;
  out.key = {job, info.step, info.attempt, info.revision};
  out.world_size = info.world_size;
  out.missing_writers = info.missing_writers;
  if (info.bytes < 0) return Unexpected("bytes", info.bytes);
  if (info.objects < 0) return Unexpected("objects", info.objects);
  out.bytes = static_cast<uint64_t>(info.bytes);
  out.objects = static_cast<uint64_t>(info.objects);
  out.facts = FromWire(info.facts);
  CAIRN_ASSIGN_OR_RETURN(out.level, LevelFromWire(info.level));
  out.created_unix_ms = info.created_unix_ms;
  out.why = info.why;
  out.on_line = info.on_line;
  out.digest = info.digest;
  return out;
}

StatusOr<ObjectInfo> FromWire(const wire::ObjectInfo& info) {
  ObjectInfo out;
  out.name = info.name;
  out.writer = info.writer;
  CAIRN_ASSIGN_OR_RETURN(out.kind, KindFromWire(info.kind));
  if (info.length < 0) return Unexpected("length", info.length);
  out.length = static_cast<uint64_t>(info.length);
  CAIRN_ASSIGN_OR_RETURN(out.level, LevelFromWire(info.level));
  out.block_crcs.assign(info.block_crcs.begin(), info.block_crcs.end());
  out.verified_unix_ms = info.verified_unix_ms;
  out.facts = FromWire(info.facts);
  return out;
}

LatestCheckpoint FromWire(const std::string& job, const wire::Latest& latest) {
  LatestCheckpoint out;
  out.key = {job, latest.step, latest.attempt, latest.revision};
  out.world_size = latest.world_size;
  out.digest = latest.digest;
  out.source = SourceName(latest.source);
  out.as_of_unix_ms = latest.as_of_unix_ms;
  return out;
}

std::string ToJson(const wire::NodeStatus& status) {
  Json sessions = Json::array();
  for (const auto& s : status.sessions) sessions.push_back(SessionJson(s));
  Json quarantined = Json::array();
  for (const auto& q : status.quarantined) {
    quarantined.push_back({{"slab", q.slab},
                           {"bytes", q.bytes},
                           {"age_ms", q.age_ms},
                           {"pids", q.pids},
                           {"job", q.job}});
  }
  Json jobs = Json::array();
  for (const auto& j : status.jobs) jobs.push_back(JobJson(j));
  const Json out = {{"node", status.node},
                    {"version", status.version},
                    {"started_unix_ms", status.started_unix_ms},
                    {"restarts", status.restarts},
                    {"state", status.state},
                    {"budget_bytes", status.budget_bytes},
                    {"slab_bytes", status.slab_bytes},
                    {"used_bytes", status.used_bytes},
                    {"free_bytes", status.free_bytes},
                    {"quarantined_bytes", status.quarantined_bytes},
                    {"writing_bytes", status.writing_bytes},
                    {"prefault_done", status.prefault_done},
                    {"sessions", sessions},
                    {"quarantined", quarantined},
                    {"jobs", jobs},
                    {"counters", status.counters},
                    {"storage_root", status.storage_root},
                    {"catalog", status.catalog}};
  // What a client called itself is any bytes; a status page must not fail over them.
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace cairn::client
