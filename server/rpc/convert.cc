#include "server/rpc/convert.h"

#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace cairn::rpc {
namespace {

constexpr int64_t kMaxTimeoutMs = 24LL * 3600 * 1000;
constexpr size_t kMaxClientBytes = 256;
constexpr size_t kProcessBytes = 16;

int64_t Signed(uint64_t value) { return static_cast<int64_t>(value); }

}  // namespace

wire::Error ToError(const Status& status, Attempt superseded_by) {
  wire::Error error;
  error.__set_code(static_cast<int32_t>(status.code()));
  error.__set_message(std::string(status.message()));
  error.__set_superseded_by(superseded_by);
  return error;
}

StatusOr<MonotonicNanos> ToDeadline(MonotonicNanos now, int64_t timeout_ms) {
  if (timeout_ms < 0) {
    return absl::InvalidArgumentError(absl::StrCat("timeout_ms: ", timeout_ms, " is below 0"));
  }
  return now + std::min(timeout_ms, kMaxTimeoutMs) * kNanosPerMilli;
}

StatusOr<uint64_t> ToUnsigned(absl::string_view field, int64_t value) {
  if (value < 0) return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, " is below 0"));
  return static_cast<uint64_t>(value);
}

StatusOr<std::vector<uint64_t>> ToIds(absl::string_view field, const std::vector<int64_t>& values) {
  std::vector<uint64_t> ids;
  ids.reserve(values.size());
  for (int64_t value : values) {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t id, ToUnsigned(field, value));
    ids.push_back(id);
  }
  return ids;
}

StatusOr<JobPolicy> ToPolicy(const wire::JobPolicy& policy) {
  JobPolicy result;
  switch (policy.mode) {
    case wire::PersistMode::ON_DEMAND:
      result.mode = PersistMode::kOnDemand;
      break;
    case wire::PersistMode::EVERY:
      result.mode = PersistMode::kEvery;
      break;
    case wire::PersistMode::NEWEST:
      result.mode = PersistMode::kNewest;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("policy.mode: ", static_cast<int>(policy.mode), " is not a persist mode"));
  }
  if (policy.every < 1) {
    return absl::InvalidArgumentError(absl::StrCat("policy.every: ", policy.every, " is below 1"));
  }
  if (policy.keep_last < 0 || policy.keep_every < 0) {
    return absl::InvalidArgumentError(absl::StrCat("policy.keep_last ", policy.keep_last,
                                                   " or keep_every ", policy.keep_every,
                                                   " is below 0"));
  }
  if (policy.readers != wire::Readers::OWNER) {
    return absl::UnimplementedError(
        absl::StrCat("policy.readers: ", static_cast<int>(policy.readers),
                     " is not supported yet, only OWNER (0) is"));
  }
  result.every = policy.every;
  result.keep_last = policy.keep_last;
  result.keep_every = policy.keep_every;
  return result;
}

StatusOr<engine::CheckpointRef> ToRef(const wire::CheckpointRef& ref, const std::string& job) {
  engine::CheckpointRef result;
  result.job = ref.job.empty() ? job : ref.job;
  CAIRN_RETURN_IF_ERROR(ValidateJob(result.job));
  if (ref.step != kNoStep) CAIRN_RETURN_IF_ERROR(ValidateStep(ref.step));
  if (ref.attempt != 0) CAIRN_RETURN_IF_ERROR(ValidateAttempt(ref.attempt));
  if (ref.revision < -1) {
    return absl::InvalidArgumentError(absl::StrCat("revision: ", ref.revision, " is below -1"));
  }
  if (ref.step == kNoStep && (ref.attempt != 0 || ref.revision != -1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: latest has its own attempt and revision; attempt ", ref.attempt,
                     " revision ", ref.revision, " were asked for"));
  }
  result.step = ref.step;
  result.attempt = ref.attempt;
  result.revision = ref.revision;
  return result;
}

StatusOr<PartKey> ToPart(const std::string& job, int64_t step, int64_t attempt, int32_t revision,
                         int32_t writer) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(job));
  CAIRN_RETURN_IF_ERROR(ValidateStep(step));
  CAIRN_RETURN_IF_ERROR(ValidateAttempt(attempt));
  if (revision < 0) {
    return absl::InvalidArgumentError(absl::StrCat("revision: ", revision, " is below 0"));
  }
  if (writer < 0 || writer >= kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("writer: ", writer, " is not in 0 … ", kMaxWorldSize - 1));
  }
  return PartKey{CheckpointKey{job, step, attempt, revision}, writer};
}

StatusOr<std::vector<engine::event::ObjectSpec>> ToSpecs(
    const std::vector<wire::ObjectSpec>& specs) {
  std::vector<engine::event::ObjectSpec> result;
  result.reserve(specs.size());
  for (const wire::ObjectSpec& spec : specs) {
    CAIRN_RETURN_IF_ERROR(ValidateObjectName(spec.name));
    CAIRN_RETURN_IF_ERROR(
        Annotate(ValidateObjectLength(spec.length), absl::StrCat("\"", spec.name, "\"")));
    if (spec.kind < wire::ObjectKind::RAW || spec.kind > wire::ObjectKind::NUMPY) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", spec.name, "\" kind: ", static_cast<int>(spec.kind), " is not an object kind"));
    }
    result.push_back({spec.name, static_cast<uint64_t>(spec.length),
                      static_cast<ObjectKind>(spec.kind), spec.can_pad});
  }
  return result;
}

StatusOr<std::vector<engine::event::Seal>> ToSeals(const std::vector<wire::SealedObject>& seals) {
  std::vector<engine::event::Seal> result;
  result.reserve(seals.size());
  for (const wire::SealedObject& sealed : seals) {
    CAIRN_RETURN_IF_ERROR(ValidateObjectName(sealed.name));
    CAIRN_RETURN_IF_ERROR(
        Annotate(ValidateObjectLength(sealed.length), absl::StrCat("\"", sealed.name, "\"")));
    if (sealed.covered.size() % 2 != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", sealed.name, "\" covered: ", sealed.covered.size(), " bounds, an odd number"));
    }
    engine::event::Seal seal;
    seal.name = sealed.name;
    seal.length = static_cast<uint64_t>(sealed.length);
    seal.block_crcs.reserve(sealed.block_crcs.size());
    for (int32_t crc : sealed.block_crcs) seal.block_crcs.push_back(static_cast<uint32_t>(crc));
    for (size_t i = 0; i < sealed.covered.size(); i += 2) {
      const int64_t begin = sealed.covered[i], end = sealed.covered[i + 1];
      if (begin < 0 || end < begin) {
        return absl::InvalidArgumentError(
            absl::StrCat("\"", sealed.name, "\" covered: ", begin, " … ", end, " is not a range"));
      }
      seal.covered.emplace_back(static_cast<uint64_t>(begin), static_cast<uint64_t>(end));
    }
    result.push_back(std::move(seal));
  }
  return result;
}

StatusOr<engine::event::Hello> ToHello(const wire::HelloRequest& request) {
  if (request.protocol > wire::g_cairn_constants.PROTOCOL_VERSION) {
    return absl::UnimplementedError(absl::StrCat("protocol: the client speaks ", request.protocol,
                                                 ", this daemon ",
                                                 wire::g_cairn_constants.PROTOCOL_VERSION));
  }
  if (request.protocol < 1) {
    return absl::InvalidArgumentError(absl::StrCat("protocol: ", request.protocol, " is below 1"));
  }
  engine::event::Hello hello;
  const bool reads_only = request.writer == -1;
  // A session that only reads needs no job: paths and references name theirs.
  if (!(reads_only && request.job.empty())) CAIRN_RETURN_IF_ERROR(ValidateJob(request.job));
  if (request.attempt != 0) CAIRN_RETURN_IF_ERROR(ValidateAttempt(request.attempt));
  if (!reads_only) CAIRN_RETURN_IF_ERROR(ValidateWorld(request.writer, request.world_size));
  if (request.local_writers < 1 || request.local_writers > kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("local_writers: ", request.local_writers, " is not in 1 … ", kMaxWorldSize));
  }
  if (request.process.size() != kProcessBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("process: ", request.process.size(), " bytes, it has ", kProcessBytes));
  }
  if (request.client.size() > kMaxClientBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("client: ", request.client.size(), " bytes, the limit is ", kMaxClientBytes));
  }
  hello.job = request.job;
  hello.attempt = request.attempt;
  hello.writer = request.writer;
  hello.world_size = reads_only ? 0 : request.world_size;
  hello.local_writers = request.local_writers;
  hello.process = request.process;
  hello.takes_fds = request.takes_fds;
  hello.client = request.client;
  if (request.__isset.policy) {
    CAIRN_ASSIGN_OR_RETURN(hello.policy, ToPolicy(request.policy));
  }
  return hello;
}

StatusOr<engine::Level> ToLevel(wire::Level::type level) {
  switch (level) {
    case wire::Level::CACHED:
      return engine::Level::kCached;
    case wire::Level::REPLICATED:
      return engine::Level::kReplicated;
    case wire::Level::PERSISTED:
      return engine::Level::kPersisted;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("level: ", static_cast<int>(level),
                       " cannot be waited for, only CACHED, REPLICATED, PERSISTED can"));
  }
}

StatusOr<engine::OpenMode> ToMode(wire::OpenMode::type mode) {
  if (mode < wire::OpenMode::MAP || mode > wire::OpenMode::READ) {
    return absl::InvalidArgumentError(
        absl::StrCat("mode: ", static_cast<int>(mode), " is not an open mode"));
  }
  return static_cast<engine::OpenMode>(mode);
}

Status ValidateListPath(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const std::vector<absl::string_view> parts = absl::StrSplit(path, absl::MaxSplits('/', 1));
  CAIRN_RETURN_IF_ERROR(ValidateJob(parts[0]));
  if (parts.size() == 1 || parts[1] == "latest") return absl::OkStatus();
  Step step = kNoStep;
  if (!absl::SimpleAtoi(parts[1], &step) || step < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("path: \"", path, "\" is not \"\", JOB, JOB/STEP or JOB/latest"));
  }
  return absl::OkStatus();
}

wire::JobPolicy FromPolicy(const JobPolicy& policy) {
  wire::JobPolicy result;
  result.__set_mode(static_cast<wire::PersistMode::type>(policy.mode));
  result.__set_every(policy.every);
  result.__set_keep_last(policy.keep_last);
  result.__set_keep_every(policy.keep_every);
  result.__set_readers(static_cast<wire::Readers::type>(policy.readers));
  return result;
}

wire::Facts FromFacts(const engine::Facts& facts) {
  wire::Facts result;
  result.__set_complete(facts.complete);
  result.__set_resident(facts.resident);
  result.__set_replicas(facts.replicas);
  result.__set_replicas_asked(facts.replicas_asked);
  result.__set_persisted(facts.persisted);
  result.__set_broken(facts.broken);
  result.__set_in_conflict(facts.in_conflict);
  result.__set_abandoned(facts.abandoned);
  result.__set_pinned(facts.pinned);
  return result;
}

wire::CheckpointInfo FromCheckpoint(const engine::CheckpointInfo& info) {
  wire::CheckpointInfo result;
  result.__set_step(info.key.step);
  result.__set_attempt(info.key.attempt);
  result.__set_revision(info.key.revision);
  result.__set_world_size(info.world_size);
  result.__set_missing_writers(info.missing_writers);
  result.__set_bytes(Signed(info.bytes));
  result.__set_objects(Signed(info.objects));
  result.__set_facts(FromFacts(info.facts));
  result.__set_level(static_cast<wire::Level::type>(info.level));
  result.__set_created_unix_ms(info.created_unix_ms);
  result.__set_why(info.why);
  result.__set_on_line(info.on_line);
  result.__set_digest(info.digest);
  return result;
}

wire::ObjectInfo FromObject(const engine::ObjectInfo& info) {
  wire::ObjectInfo result;
  result.__set_name(info.name);
  result.__set_writer(info.writer);
  result.__set_kind(static_cast<wire::ObjectKind::type>(info.kind));
  result.__set_length(Signed(info.length));
  result.__set_level(static_cast<wire::Level::type>(info.level));
  std::vector<int32_t> crcs;
  crcs.reserve(info.block_crcs.size());
  for (uint32_t crc : info.block_crcs) crcs.push_back(static_cast<int32_t>(crc));
  result.__set_block_crcs(crcs);
  result.__set_verified_unix_ms(info.verified_unix_ms);
  result.__set_facts(FromFacts(info.facts));
  return result;
}

wire::Latest FromLatest(const engine::reply::Latest& latest, int64_t as_of_unix_ms) {
  wire::Latest result;
  result.__set_step(latest.key.step);
  result.__set_attempt(latest.key.attempt);
  result.__set_revision(latest.key.revision);
  result.__set_world_size(latest.world_size);
  result.__set_digest(latest.digest);
  result.__set_source(latest.in_memory    ? wire::Source::MEMORY
                      : latest.in_storage ? wire::Source::STORAGE
                                          : wire::Source::NONE);
  result.__set_as_of_unix_ms(as_of_unix_ms);
  return result;
}

wire::NodeStatus FromState(const node::NodeState& state, const node::Options& options) {
  const engine::reply::Status& engine = state.engine;
  wire::NodeStatus result;
  result.__set_node(options.name);
  result.__set_version(options.version);
  result.__set_started_unix_ms(state.started_unix_ms);
  result.__set_restarts(state.restarts);
  result.__set_state(state.state);
  result.__set_budget_bytes(Signed(engine.budget_bytes));
  result.__set_slab_bytes(Signed(engine.slab_bytes));
  result.__set_used_bytes(Signed(engine.used_bytes));
  result.__set_free_bytes(Signed(engine.free_bytes));
  result.__set_quarantined_bytes(Signed(engine.quarantined_bytes));
  result.__set_writing_bytes(Signed(engine.writing_bytes));
  result.__set_prefault_done(engine.prefault_done);
  for (const node::SessionState& session : state.sessions) {
    wire::SessionStatus shown;
    shown.__set_session(Signed(session.status.session));
    shown.__set_pid(session.status.pid);
    shown.__set_uid(static_cast<int32_t>(session.status.uid));
    shown.__set_job(session.status.job);
    shown.__set_writer(session.status.writer);
    shown.__set_attempt(session.status.attempt);
    shown.__set_leased_bytes(Signed(session.status.leased_bytes));
    shown.__set_leases(Signed(session.status.leases));
    shown.__set_writing_step(session.writing_step);
    shown.__set_writing_total(Signed(session.writing_total));
    shown.__set_writing_done(Signed(session.writing_done));
    shown.__set_connected_unix_ms(session.connected_unix_ms);
    shown.__set_client(session.status.client);
    result.sessions.push_back(std::move(shown));
  }
  for (const engine::reply::Quarantined& slab : engine.quarantined) {
    wire::QuarantineStatus shown;
    shown.__set_slab(Signed(slab.slab));
    shown.__set_bytes(Signed(slab.bytes));
    shown.__set_age_ms((state.now - slab.since) / kNanosPerMilli);
    shown.__set_pids(slab.pids);
    shown.__set_job(slab.job);
    result.quarantined.push_back(std::move(shown));
  }
  for (const engine::reply::JobStatus& job : engine.jobs) {
    wire::JobStatus shown;
    shown.__set_job(job.job);
    shown.__set_owner_uid(static_cast<int32_t>(job.owner_uid));
    shown.__set_resident_bytes(Signed(job.resident_bytes));
    shown.__set_latest_step(job.latest);
    shown.__set_latest_persisted_step(job.latest_persisted);
    shown.__set_unprotected_checkpoints(Signed(job.unprotected_checkpoints));
    shown.__set_unprotected_bytes(Signed(job.unprotected_bytes));
    shown.__set_policy(FromPolicy(job.policy));
    shown.__set_attempt(job.attempt);
    shown.__set_persist_problem(job.persist_problem);
    result.jobs.push_back(std::move(shown));
  }
  result.__set_counters(engine.counters);
  result.__set_storage_root(options.storage_root);
  result.__set_catalog(state.catalog);
  return result;
}

}  // namespace cairn::rpc
