#include "server/rpc/convert.h"

#include <limits>
#include <map>
#include <utility>

#include "common/checksum.h"
namespace cairn::rpc {
namespace {

constexpr int64_t kMaxTimeoutMs = 24LL * 3600 * 1000;
constexpr size_t kMaxClientBytes = 256;

int64_t Signed(uint64_t value) { return static_cast<int64_t>(value); }

}  // namespace

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
  if (specs.size() > kMaxObjectsPerCall) {
    return absl::InvalidArgumentError(
        absl::StrCat("objects: ", specs.size(), " in one create, at most ", kMaxObjectsPerCall));
  }
  std::vector<engine::event::ObjectSpec> result;
  result.reserve(specs.size());
  for (const wire::ObjectSpec& spec : specs) {
    CAIRN_RETURN_IF_ERROR(ValidateObjectName(spec.name));
    CAIRN_RETURN_IF_ERROR(
        Annotate(ValidateObjectLength(spec.length), absl::StrCat("\"", spec.name, "\"")));
    const StatusOr<ObjectKind> kind = FromWire(spec.kind);
    if (!kind.ok()) return Annotate(kind.status(), absl::StrCat("\"", spec.name, "\""));
    result.push_back({spec.name, static_cast<uint64_t>(spec.length), *kind, spec.can_pad});
  }
  return result;
}

StatusOr<engine::event::ToCome> ToComeFrom(const wire::ToCome& to_come) {
  engine::event::ToCome result;
  CAIRN_ASSIGN_OR_RETURN(result.objects, ToUnsigned("to_come.objects", to_come.objects));
  CAIRN_ASSIGN_OR_RETURN(result.bytes, ToUnsigned("to_come.bytes", to_come.bytes));
  CAIRN_ASSIGN_OR_RETURN(result.name_bytes, ToUnsigned("to_come.name_bytes", to_come.name_bytes));
  for (const auto& [field, value] :
       {std::pair("objects", result.objects), std::pair("bytes", result.bytes),
        std::pair("name_bytes", result.name_bytes)}) {
    if (value > kMaxObjectBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("to_come.", field, ": ", value, ", at most ", kMaxObjectBytes));
    }
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
      return absl::InvalidArgumentError(absl::StrCat("\"", sealed.name,
                                                     "\" covered: ", sealed.covered.size(),
                                                     " bounds, which is not an even number"));
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

StatusOr<std::vector<ObjectEntry>> ToEntries(const std::vector<wire::StoreObject>& objects) {
  if (objects.size() > kMaxObjectsPerCall) {
    return absl::InvalidArgumentError(
        absl::StrCat("objects: ", objects.size(), " in one store, at most ", kMaxObjectsPerCall));
  }
  std::vector<ObjectEntry> entries;
  entries.reserve(objects.size());
  for (const wire::StoreObject& object : objects) {
    CAIRN_RETURN_IF_ERROR(ValidateObjectName(object.name));
    const std::string named = absl::StrCat("\"", object.name, "\"");
    CAIRN_RETURN_IF_ERROR(Annotate(ValidateObjectLength(object.length), named));
    if (!entries.empty() && object.name <= entries.back().name) {
      return absl::InvalidArgumentError(absl::StrCat("objects: ", named, " after \"",
                                                     entries.back().name,
                                                     "\", names ascend and none comes twice"));
    }
    const StatusOr<ObjectKind> kind = FromWire(object.kind);
    if (!kind.ok()) return Annotate(kind.status(), named);
    ObjectEntry entry;
    entry.name = object.name;
    entry.kind = *kind;
    entry.length = static_cast<uint64_t>(object.length);
    entry.block_crcs.assign(object.block_crcs.begin(), object.block_crcs.end());
    if (entry.block_crcs.size() != BlockCount(entry.length, kBlockBytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat(named, " block_crcs: ", entry.block_crcs.size(), ", its ", entry.length,
                       " bytes have ", BlockCount(entry.length, kBlockBytes), " blocks"));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
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
  if (request.client.size() > kMaxClientBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("client: ", request.client.size(), " bytes, the limit is ", kMaxClientBytes));
  }
  engine::event::Hello hello;
  CAIRN_ASSIGN_OR_RETURN(static_cast<SessionIdentity&>(hello), FromWire(request));
  hello.client = request.client;
  if (request.__isset.policy) {
    CAIRN_ASSIGN_OR_RETURN(hello.policy, FromWire(request.policy));
  }
  return hello;
}

StatusOr<Level> ToLevelToWaitFor(const wire::Level::type& level) {
  const StatusOr<Level> known = FromWire(level);
  if (known.ok() && *known >= Level::kCached && *known <= Level::kPersisted) return *known;
  return absl::InvalidArgumentError(absl::StrCat(
      "level: ", known.ok() ? LevelName(*known) : absl::StrCat(static_cast<int>(level)),
      " cannot be waited for; CACHED, REPLICATED and PERSISTED can"));
}

wire::CreateReply FromCreated(const engine::reply::Create& created) {
  wire::CreateReply reply;
  reply.extents.reserve(created.extents.size());
  for (const engine::reply::GrantedExtent& granted : created.extents) {
    wire::Extent& extent = reply.extents.emplace_back();
    extent.__set_lease(static_cast<int64_t>(granted.lease));
    extent.__set_slab(static_cast<int64_t>(granted.slab));
    extent.__set_slab_bytes(static_cast<int64_t>(granted.slab_bytes));
    extent.__set_offset(static_cast<int64_t>(granted.offset));
    extent.__set_length(static_cast<int64_t>(granted.length));
  }
  for (SlabId slab : created.retire) reply.retire.push_back(static_cast<int64_t>(slab));
  return reply;
}

wire::OpenReply FromOpened(const node::Opened& opened) {
  wire::OpenReply reply;
  reply.__set_lease(static_cast<int64_t>(opened.lease));
  reply.__set_slab(static_cast<int64_t>(opened.slab));
  reply.__set_slab_bytes(static_cast<int64_t>(opened.bytes));
  reply.__set_offset(static_cast<int64_t>(opened.offset));
  reply.__set_object(ToWire(opened.object));
  reply.__set_step(opened.checkpoint.step);
  reply.__set_attempt(opened.checkpoint.attempt);
  reply.__set_revision(opened.checkpoint.revision);
  reply.__set_exact(opened.exact);
  reply.__set_fd_sent(opened.fd_sent);
  reply.__set_from_member(opened.from_member);
  return reply;
}

wire::Latest FromLatest(engine::reply::Latest latest, int64_t as_of_unix_ms) {
  LatestCheckpoint out;
  out.key = std::move(latest.key);
  out.world_size = latest.world_size;
  out.digest = std::move(latest.digest);
  out.source = latest.in_memory    ? "memory"
               : latest.with_peers ? "peer"
               : latest.in_storage ? "storage"
                                   : "";
  out.as_of_unix_ms = latest.as_of_unix_ms != 0 ? latest.as_of_unix_ms : as_of_unix_ms;
  out.head = latest.head;
  out.recorded = latest.recorded;
  out.passed_over = std::move(latest.passed_over);
  return ToWire(out);
}

namespace {

wire::JobRing ToWire(const engine::reply::JobRing& ring) {
  wire::JobRing shown;
  shown.__set_home(ring.home);
  shown.__set_latest(ring.latest);
  shown.__set_protected_step(ring.protect);
  shown.__set_target(ring.target);
  shown.__set_replicas(ring.replicas);
  shown.__set_asked(ring.asked);
  shown.__set_complete_view(ring.final);
  shown.__set_silent(ring.silent);
  shown.__set_why(ring.why);
  shown.__set_age_ms(ring.age / kNanosPerMilli);
  return shown;
}

wire::MemberStatus ToWire(const engine::reply::MemberStatus& member, const std::string& address) {
  wire::MemberStatus shown;
  shown.__set_rank(member.rank);
  shown.__set_address(address);
  shown.__set_state(member.state);
  shown.__set_incarnation(member.incarnation);
  shown.__set_silent_ms(member.silent_ms);
  shown.__set_held_for_us_bytes(Signed(member.held_for_us_bytes));
  shown.__set_held_for_it_bytes(Signed(member.held_for_it_bytes));
  return shown;
}

wire::FetchStatus ToWire(const engine::reply::FetchStatus& fetch) {
  wire::FetchStatus shown;
  shown.__set_job(fetch.part.checkpoint.job);
  shown.__set_attempt(fetch.part.checkpoint.attempt);
  shown.__set_step(fetch.part.checkpoint.step);
  shown.__set_writer(fetch.part.writer);
  shown.__set_what_for(fetch.what_for);
  shown.__set_bytes(Signed(fetch.bytes));
  shown.__set_done_bytes(Signed(fetch.done_bytes));
  shown.__set_sources({fetch.sources.begin(), fetch.sources.end()});
  return shown;
}

wire::RingStatus ToWire(const node::NodeState& state, const engine::RingOptions& options) {
  const engine::reply::RingStatus& ring = state.engine.ring;

  wire::RingStatus shown;
  shown.__set_cluster(options.cluster);
  shown.__set_rank(options.rank);
  shown.__set_incarnation(ring.self.incarnation);
  engine::reply::MemberStatus self{options.rank, "self", ring.self.incarnation};
  for (const auto& [rank, address] : options.members) {
    const engine::reply::MemberStatus* member = rank == options.rank ? &self : nullptr;
    for (const auto& other : ring.members) member = other.rank == rank ? &other : member;
    const bool seated = rank >= 0 && rank < static_cast<engine::Rank>(state.view.seats.size());
    if (member == nullptr) continue;
    shown.members.push_back(ToWire(*member, seated ? state.view.seats[rank].address : address));
  }
  shown.__set_replicas(options.replicas);
  shown.__set_replica_bytes(Signed(ring.replica_bytes));
  shown.__set_replica_quota_bytes(Signed(ring.replica_quota_bytes));
  shown.__set_replica_reserved_bytes(Signed(ring.replica_reserved_bytes));
  shown.__set_fetches_under_way(ring.fetches);
  shown.__set_grants(ring.grants);
  shown.__set_restoring(ring.restoring);
  for (const auto& fetch : ring.fetching) shown.fetches.push_back(ToWire(fetch));
  return shown;
}

}  // namespace

wire::RingInfo FromRing(const node::RingState& ring) {
  wire::RingInfo shown;
  shown.__set_epoch(ring.rows.epoch);
  shown.__set_rank(ring.rank);
  shown.__set_problem(ring.problem);
  int32_t rank = 0;
  for (const catalog::SeatRow& row : ring.rows.seats) {
    wire::RingSeat& seat = shown.seats.emplace_back();
    seat.__set_rank(rank++);
    seat.__set_taken(!row.instance.empty());
    seat.__set_incarnation(row.incarnation);
    seat.__set_address(row.address);
    seat.__set_beat_age_ms(row.beat_age_ms);
  }
  return shown;
}

// One function: each field of the page, once.
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
    shown.__set_policy(ToWire(job.policy));
    shown.__set_attempt(job.attempt);
    shown.__set_persist_problem(job.persist_problem);
    shown.__set_deletable_checkpoints(Signed(job.deletable_checkpoints));
    shown.__set_refused_saves(Signed(job.refused_saves));
    shown.__set_last_refusal(job.last_refusal);
    shown.__set_last_refusal_unix_ms(job.last_refusal_unix_ms);
    shown.__set_failed_persists(Signed(job.failed_persists));
    shown.__set_last_failed_persist_unix_ms(job.last_failed_persist_unix_ms);
    if (job.ring.heard) shown.__set_ring(ToWire(job.ring));
    result.jobs.push_back(std::move(shown));
  }
  result.__set_counters(engine.counters);
  result.__set_storage_root(options.storage_root);
  result.__set_storage_id(engine.storage_id);
  result.__set_storage_problem(engine.storage_problem);
  const engine::RingOptions& ring = options.engine.ring;
  if (!ring.Alone()) result.__set_ring(ToWire(state, ring));
  result.__set_catalog(state.catalog);
  return result;
}

wire::IndexReply FromIndex(const node::IndexAnswer& answer, int64_t as_of_unix_ms) {
  wire::IndexReply reply;
  reply.as_of_unix_ms = as_of_unix_ms;
  reply.more = answer.more;
  if (answer.more) reply.next_cursor = answer.last;
  std::map<std::string, int64_t> seen;
  for (const catalog::AuthorRow& row : answer.nodes) {
    seen[row.name] = row.seen_unix_ms;
    wire::IndexNode& node = reply.nodes.emplace_back();
    node.node = row.name;
    node.seen_unix_ms = row.seen_unix_ms;
    node.incarnation = row.incarnation;
    node.budget_bytes = static_cast<int64_t>(row.budget_bytes);
    node.used_bytes = static_cast<int64_t>(row.used_bytes);
    node.replica_bytes = static_cast<int64_t>(row.replica_bytes);
  }
  const auto to_wire = [&seen](const node::IndexedCheckpoint& from) {
    wire::IndexCheckpoint to;
    to.step = from.step.checkpoint.step;
    to.attempt = from.step.checkpoint.attempt;
    to.revision = from.step.checkpoint.revision;
    to.world_size = from.step.world_size;
    to.completed_unix_ms = from.step.completed_unix_ms;
    to.persisted = from.step.persisted;
    for (const catalog::HolderCount& count : from.holders) {
      wire::IndexHolder& holder = to.holders.emplace_back();
      holder.node = count.holder;
      holder.parts = count.parts;
      holder.seen_unix_ms = seen[count.holder];
    }
    return to;
  };
  for (const node::IndexedJob& job : answer.jobs) {
    wire::IndexJob& to = reply.jobs.emplace_back();
    to.job = job.job.job;
    to.owner_uid = static_cast<int32_t>(job.job.owner_uid);
    if (job.latest.has_value()) to.__set_latest(to_wire(*job.latest));
  }
  for (const node::IndexedCheckpoint& checkpoint : answer.checkpoints) {
    reply.checkpoints.push_back(to_wire(checkpoint));
  }
  return reply;
}

}  // namespace cairn::rpc
