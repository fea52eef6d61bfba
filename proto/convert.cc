#include "proto/convert.h"

#include <cstring>
#include <iterator>
#include <optional>
#include <type_traits>

namespace cairn {
namespace {

// What arrived for an enumeration, which may be none of its values: reading those as the
// enumeration would be undefined.
template <typename Enumeration>
int Received(const Enumeration& value) {
  static_assert(sizeof(value) == sizeof(int));
  int out;
  std::memcpy(&out, &value, sizeof out);
  return out;
}

// Enumerators have the same numbers on both sides, from `First` to `Last` without a gap.
template <auto First, auto Last, typename Wire>
std::optional<decltype(First)> Enumerator(const Wire& value) {
  const int number = Received(value);
  if (number < static_cast<int>(First) || number > static_cast<int>(Last)) return std::nullopt;
  return static_cast<decltype(First)>(number);
}

template <typename A, typename B>
constexpr bool Same(A a, B b) {
  return static_cast<int>(a) == static_cast<int>(b);
}
static_assert(Same(Level::kWriting, wire::Level::WRITING));
static_assert(Same(Level::kCached, wire::Level::CACHED));
static_assert(Same(Level::kReplicated, wire::Level::REPLICATED));
static_assert(Same(Level::kPersisted, wire::Level::PERSISTED));
static_assert(Same(Level::kEvicted, wire::Level::EVICTED));
static_assert(Same(Level::kBroken, wire::Level::BROKEN));
static_assert(Same(ObjectKind::kRaw, wire::ObjectKind::RAW));
static_assert(Same(ObjectKind::kTorch, wire::ObjectKind::TORCH));
static_assert(Same(ObjectKind::kSafetensors, wire::ObjectKind::SAFETENSORS));
static_assert(Same(ObjectKind::kNumpy, wire::ObjectKind::NUMPY));
static_assert(Same(OpenMode::kMap, wire::OpenMode::MAP));
static_assert(Same(OpenMode::kFile, wire::OpenMode::FILE));
static_assert(Same(OpenMode::kRead, wire::OpenMode::READ));
static_assert(Same(PersistMode::kOnDemand, wire::PersistMode::ON_DEMAND));
static_assert(Same(PersistMode::kEvery, wire::PersistMode::EVERY));
static_assert(Same(PersistMode::kNewest, wire::PersistMode::NEWEST));
static_assert(Same(Readers::kOwner, wire::Readers::OWNER));
static_assert(Same(Readers::kGroup, wire::Readers::GROUP));
static_assert(Same(Readers::kAll, wire::Readers::ALL));

std::optional<Level> LevelOf(const wire::Level::type& level) {
  return Enumerator<Level::kWriting, Level::kBroken>(level);
}
std::optional<ObjectKind> KindOf(const wire::ObjectKind::type& kind) {
  return Enumerator<ObjectKind::kRaw, ObjectKind::kNumpy>(kind);
}
std::optional<PersistMode> ModeOf(const wire::PersistMode::type& mode) {
  return Enumerator<PersistMode::kOnDemand, PersistMode::kNewest>(mode);
}
std::optional<Readers> ReadersOf(const wire::Readers::type& readers) {
  return Enumerator<Readers::kOwner, Readers::kAll>(readers);
}

// By the numbers of wire::Source.
constexpr absl::string_view kSources[] = {"", "memory", "peer", "storage"};
static_assert(std::size(kSources) == static_cast<size_t>(wire::Source::STORAGE) + 1);

// --- the fields of answers
//
// One list per answer serves both directions: `pair(name, on the wire, value)` copies one way or the
// other.

class Encode {
 public:
  // Numbers, texts and lists that differ at most in signedness.
  template <typename Wire, typename Value>
  void operator()(const char* /*name*/, Wire& wire, const Value& value) {
    if constexpr (std::is_enum_v<Value>) {
      wire = ToWire(value);
    } else if constexpr (std::is_same_v<Value, std::vector<uint32_t>>) {
      wire.assign(value.begin(), value.end());
    } else {
      wire = static_cast<Wire>(value);
    }
  }
};

class Decode {
 public:
  template <typename Wire, typename Value>
  void operator()(const char* name, const Wire& wire, Value& value) {
    if constexpr (std::is_same_v<Value, Level>) {
      Enumeration(name, Received(wire), LevelOf(wire), value);
    } else if constexpr (std::is_same_v<Value, ObjectKind>) {
      Enumeration(name, Received(wire), KindOf(wire), value);
    } else if constexpr (std::is_same_v<Value, uint64_t>) {
      if (wire < 0) Refuse(name, wire);
      value = static_cast<uint64_t>(wire);
    } else if constexpr (std::is_same_v<Value, std::vector<uint32_t>>) {
      value.assign(wire.begin(), wire.end());
    } else {
      value = wire;
    }
  }
  Status status() && { return std::move(status_); }

 private:
  template <typename Value>
  void Enumeration(const char* name, int number, std::optional<Value> known, Value& value) {
    if (known.has_value()) {
      value = *known;
    } else {
      Refuse(name, number);
    }
  }
  void Refuse(const char* name, int64_t value) {
    status_.Update(absl::InternalError(absl::StrCat("the daemon answered ", name, " = ", value,
                                                    ", which this library does not know")));
  }

  Status status_;
};

template <typename Wire, typename Value, typename Pair>
void FateFields(Wire& wire, Value& files, Pair& pair) {
  pair("step", wire.step, files.key.step);
  pair("attempt", wire.attempt, files.key.attempt);
  pair("revision", wire.revision, files.key.revision);
  pair("bytes", wire.bytes, files.bytes);
  pair("now", wire.now, files.now);
  pair("after_unix_ms", wire.after_unix_ms, files.after_unix_ms);
  pair("why", wire.why, files.why);
}

// All but the files.
template <typename Wire, typename Value, typename Pair>
void PreviewFields(Wire& wire, Value& preview, Pair& pair) {
  pair("stay", wire.stay, preview.stay);
  pair("go_now", wire.go_now, preview.go_now);
  pair("go_later", wire.go_later, preview.go_later);
  pair("bytes_now", wire.bytes_now, preview.bytes_now);
  pair("bytes_later", wire.bytes_later, preview.bytes_later);
}

template <typename Wire, typename Value, typename Pair>
void FactsFields(Wire& wire, Value& facts, Pair& pair) {
  pair("complete", wire.complete, facts.complete);
  pair("resident", wire.resident, facts.resident);
  pair("replicas", wire.replicas, facts.replicas);
  pair("replicas_asked", wire.replicas_asked, facts.replicas_asked);
  pair("replicas_age_ms", wire.replicas_age_ms, facts.replicas_age_ms);
  pair("persisted", wire.persisted, facts.persisted);
  pair("broken", wire.broken, facts.broken);
  pair("in_conflict", wire.in_conflict, facts.in_conflict);
  pair("abandoned", wire.abandoned, facts.abandoned);
  pair("pinned", wire.pinned, facts.pinned);
}

template <typename Wire, typename Value, typename Pair>
void CheckpointFields(Wire& wire, Value& info, Pair& pair) {
  pair("step", wire.step, info.key.step);
  pair("attempt", wire.attempt, info.key.attempt);
  pair("revision", wire.revision, info.key.revision);
  pair("world_size", wire.world_size, info.world_size);
  pair("missing_writers", wire.missing_writers, info.missing_writers);
  pair("bytes", wire.bytes, info.bytes);
  pair("objects", wire.objects, info.objects);
  FactsFields(wire.facts, info.facts, pair);
  pair("level", wire.level, info.level);
  pair("created_unix_ms", wire.created_unix_ms, info.created_unix_ms);
  pair("why", wire.why, info.why);
  pair("on_line", wire.on_line, info.on_line);
  pair("digest", wire.digest, info.digest);
}

template <typename Wire, typename Value, typename Pair>
void ObjectFields(Wire& wire, Value& info, Pair& pair) {
  pair("name", wire.name, info.name);
  pair("writer", wire.writer, info.writer);
  pair("kind", wire.kind, info.kind);
  pair("length", wire.length, info.length);
  pair("level", wire.level, info.level);
  pair("block_crcs", wire.block_crcs, info.block_crcs);
  pair("verified_unix_ms", wire.verified_unix_ms, info.verified_unix_ms);
  FactsFields(wire.facts, info.facts, pair);
}

}  // namespace

// --- requests

wire::JobPolicy ToWire(const JobPolicy& policy) {
  wire::JobPolicy out;
  out.__set_mode(static_cast<wire::PersistMode::type>(policy.mode));
  out.__set_every(policy.every);
  out.__set_keep_last(policy.keep_last);
  out.__set_keep_every(policy.keep_every);
  out.__set_readers(static_cast<wire::Readers::type>(policy.readers));
  out.__set_replicas(policy.replicas);
  return out;
}

StatusOr<JobPolicy> FromWire(const wire::JobPolicy& policy) {
  const std::optional<PersistMode> mode = ModeOf(policy.mode);
  if (!mode.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("policy.mode: ", Received(policy.mode), " is not a persist mode"));
  }
  if (policy.every < 1) {
    return absl::InvalidArgumentError(absl::StrCat("policy.every: ", policy.every, " is below 1"));
  }
  if (policy.keep_last < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("policy.keep_last: ", policy.keep_last, " is below 0"));
  }
  if (policy.keep_every < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("policy.keep_every: ", policy.keep_every, " is below 0"));
  }
  if (ReadersOf(policy.readers) != Readers::kOwner) {
    return absl::UnimplementedError(absl::StrCat("policy.readers: ", Received(policy.readers),
                                                 " is not supported yet, only OWNER (0) is"));
  }
  if (policy.replicas < kRingsReplicas || policy.replicas > kMostReplicas) {
    return absl::InvalidArgumentError(absl::StrCat("policy.replicas: ", policy.replicas, " is not ",
                                                   kRingsReplicas, " to ", kMostReplicas));
  }
  JobPolicy out;
  out.mode = *mode;
  out.replicas = policy.replicas;
  out.every = policy.every;
  out.keep_last = policy.keep_last;
  out.keep_every = policy.keep_every;
  return out;
}

wire::CheckpointRef ToWire(const CheckpointRef& ref, const std::string& session_job) {
  wire::CheckpointRef out;
  out.__set_job(ref.job.empty() ? session_job : ref.job);
  out.__set_step(ref.step);
  out.__set_attempt(ref.attempt);
  out.__set_revision(ref.revision);
  return out;
}

StatusOr<CheckpointRef> FromWire(const wire::CheckpointRef& ref, const std::string& session_job) {
  CheckpointRef out;
  out.job = ref.job.empty() ? session_job : ref.job;
  out.step = ref.step;
  out.attempt = ref.attempt;
  out.revision = ref.revision;
  CAIRN_RETURN_IF_ERROR(ValidateCheckpointRef(out));
  return out;
}

void ToWire(const SessionIdentity& identity, wire::HelloRequest* request) {
  request->__set_job(identity.job);
  request->__set_attempt(identity.attempt);
  request->__set_writer(identity.writer);
  request->__set_world_size(identity.world_size);
  request->__set_local_writers(identity.local_writers);
  request->__set_process(identity.process);
  request->__set_takes_fds(identity.takes_fds);
  request->__set_run(identity.run);
  request->__set_restart(identity.restart);
}

StatusOr<SessionIdentity> FromWire(const wire::HelloRequest& request) {
  const bool reads_only = request.writer == -1;
  // A session that only reads needs no job: its paths and references name theirs.
  if (!(reads_only && request.job.empty())) CAIRN_RETURN_IF_ERROR(ValidateJob(request.job));
  if (request.attempt != 0) CAIRN_RETURN_IF_ERROR(ValidateAttempt(request.attempt));
  if (!reads_only) CAIRN_RETURN_IF_ERROR(ValidateWorld(request.writer, request.world_size));
  if (request.local_writers < 1 || request.local_writers > kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("local_writers: ", request.local_writers, " is not in 1 … ", kMaxWorldSize));
  }
  if (request.process.size() != kProcessTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("process: ", request.process.size(), " bytes, it has ", kProcessTokenBytes));
  }
  if (request.run.size() > kMaxRunBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("run: ", request.run.size(), " bytes, it has at most ", kMaxRunBytes));
  }
  SessionIdentity out;
  out.job = request.job;
  out.attempt = request.attempt;
  out.writer = request.writer;
  out.world_size = reads_only ? 0 : request.world_size;
  out.local_writers = request.local_writers;
  out.takes_fds = request.takes_fds;
  out.process = request.process;
  out.run = request.run;
  out.restart = request.restart;
  return out;
}

wire::OpenMode::type ToWire(OpenMode mode) { return static_cast<wire::OpenMode::type>(mode); }
StatusOr<OpenMode> FromWire(const wire::OpenMode::type& mode) {
  const auto known = Enumerator<OpenMode::kMap, OpenMode::kRead>(mode);
  if (known.has_value()) return *known;
  return absl::InvalidArgumentError(absl::StrCat("mode: ", Received(mode), " is not an open mode"));
}

wire::ObjectKind::type ToWire(ObjectKind kind) { return static_cast<wire::ObjectKind::type>(kind); }
StatusOr<ObjectKind> FromWire(const wire::ObjectKind::type& kind) {
  if (const auto known = KindOf(kind); known.has_value()) return *known;
  return absl::InvalidArgumentError(
      absl::StrCat("kind: ", Received(kind), " is not an object kind"));
}

wire::Level::type ToWire(Level level) { return static_cast<wire::Level::type>(level); }
StatusOr<Level> FromWire(const wire::Level::type& level) {
  if (const auto known = LevelOf(level); known.has_value()) return *known;
  return absl::InvalidArgumentError(absl::StrCat("level: ", Received(level), " is not a level"));
}

// --- answers

wire::Error ToWire(const Status& status, Attempt superseded_by) {
  wire::Error error;
  error.__set_code(static_cast<int32_t>(status.code()));
  error.__set_message(std::string(status.message()));
  error.__set_superseded_by(superseded_by);
  return error;
}

Status FromWire(const wire::Error& error) {
  constexpr int kLastCode = static_cast<int>(absl::StatusCode::kUnauthenticated);
  if (error.code <= 0 || error.code > kLastCode) {
    return absl::InternalError(
        absl::StrCat("the daemon answered error ", error.code, ": ", error.message));
  }
  return Status(static_cast<absl::StatusCode>(error.code), error.message);
}

wire::CheckpointInfo ToWire(const CheckpointInfo& info) {
  wire::CheckpointInfo out;
  Encode pair;
  CheckpointFields(out, info, pair);
  return out;
}

StatusOr<CheckpointInfo> FromWire(const std::string& job, const wire::CheckpointInfo& info) {
  CheckpointInfo out;
  out.key.job = job;
  Decode pair;
  CheckpointFields(info, out, pair);
  CAIRN_RETURN_IF_ERROR(std::move(pair).status());
  return out;
}

wire::ObjectInfo ToWire(const ObjectInfo& info) {
  wire::ObjectInfo out;
  Encode pair;
  ObjectFields(out, info, pair);
  return out;
}

StatusOr<ObjectInfo> FromWire(const wire::ObjectInfo& info) {
  ObjectInfo out;
  Decode pair;
  ObjectFields(info, out, pair);
  CAIRN_RETURN_IF_ERROR(std::move(pair).status());
  return out;
}

wire::PolicyPreview ToWire(const PolicyPreview& preview) {
  wire::PolicyPreview out;
  Encode pair;
  PreviewFields(out, preview, pair);
  for (const FilesFate& files : preview.files) {
    FateFields(out.files.emplace_back(), files, pair);
  }
  return out;
}

StatusOr<PolicyPreview> FromWire(const std::string& job, const wire::PolicyPreview& preview) {
  PolicyPreview out;
  Decode pair;
  PreviewFields(preview, out, pair);
  for (const wire::FilesFate& files : preview.files) {
    FateFields(files, out.files.emplace_back(), pair);
    out.files.back().key.job = job;
  }
  CAIRN_RETURN_IF_ERROR(std::move(pair).status());
  return out;
}

wire::Latest ToWire(const LatestCheckpoint& latest) {
  wire::Latest out;
  out.__set_step(latest.key.step);
  out.__set_attempt(latest.key.attempt);
  out.__set_revision(latest.key.revision);
  out.__set_world_size(latest.world_size);
  out.__set_digest(latest.digest);
  for (size_t i = 0; i < std::size(kSources); ++i) {
    if (latest.source == kSources[i]) out.__set_source(static_cast<wire::Source::type>(i));
  }
  out.__set_as_of_unix_ms(latest.as_of_unix_ms);
  out.__set_head(latest.head);
  out.__set_recorded(latest.recorded);
  out.__set_passed_over(latest.passed_over);
  return out;
}

LatestCheckpoint FromWire(const std::string& job, const wire::Latest& latest) {
  LatestCheckpoint out;
  out.key = {job, latest.step, latest.attempt, latest.revision};
  out.world_size = latest.world_size;
  out.digest = latest.digest;
  // A source that this build does not know is none that it could name.
  const int source = Received(latest.source);
  if (source >= 0 && source < static_cast<int>(std::size(kSources))) {
    out.source = std::string(kSources[source]);
  }
  out.as_of_unix_ms = latest.as_of_unix_ms;
  out.head = latest.head;
  out.recorded = latest.recorded;
  out.passed_over = latest.passed_over;
  return out;
}

absl::string_view NameOf(const wire::PersistMode::type& mode) {
  const std::optional<PersistMode> known = ModeOf(mode);
  return known.has_value() ? PersistModeName(*known) : "unknown";
}

absl::string_view NameOf(const wire::Readers::type& readers) {
  const std::optional<Readers> known = ReadersOf(readers);
  return known.has_value() ? ReadersName(*known) : "unknown";
}

}  // namespace cairn
