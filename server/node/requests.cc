// The node's calls beside the plain ones: those that hand out descriptors, move bytes in chunks,
// begin and end sessions, or put together what several rooms know.
#include <algorithm>
#include <utility>

#include "common/failpoint.h"
#include "server/node/mappers.h"
#include "server/node/node.h"

namespace cairn::node {
namespace {

// Leases of objects in storage are the node's own: the engine's count up from 1 and never reach
// these.
constexpr LeaseId kStoredLease = LeaseId{1} << 62;

}  // namespace

Status Node::LendTo(SessionId session, const engine::Lend& lend) {
  Status status;
  {
    ReachFailpoint(Failpoint::kNodeLend);
    StatusOr<UniqueFd> fd = rooms_.cache->Lend(lend.slab, lend.lease, lend.mode);
    status = fd.status();
    if (fd.ok()) {
      status = sessions_.Push(session, FdMessageType::kSlab, lend.lease, lend.slab, lend.slab_bytes,
                              fd->get());
    }
    ReachFailpoint(Failpoint::kNodeLent);
  }  // our end of the description is closed before the engine is told that nobody has it
  if (!status.ok()) Post(engine::event::LendFailed{lend.lease});
  return status;
}

Status Node::LendAll(const engine::Caller& caller, const engine::reply::Body& body) {
  Status first;
  if (const auto* created = std::get_if<engine::reply::Create>(&body)) {
    for (const engine::Lend& lend : created->lend) {
      if (first.ok()) {
        first = LendTo(caller.session, lend);
      } else {
        Post(engine::event::LendFailed{lend.lease});
      }
    }
  } else if (const auto* opened = std::get_if<engine::reply::Open>(&body)) {
    if (opened->lend.lease != 0) {
      const std::optional<SessionInfo> info = sessions_.Find(caller.session);
      // Without descriptors the lease alone counts: the bytes go in chunks.
      if (!info.has_value() || info->takes_fds) first = LendTo(caller.session, opened->lend);
    }
  }
  return first;
}

OpenAnswer Node::Open(engine::event::Open event) {
  const engine::Caller caller = event.caller;
  const std::string name = event.name;
  Answer answer = Call(std::move(event));
  OpenAnswer result;
  result.superseded_by = answer.superseded_by;
  if (!answer.body.ok()) {
    result.opened = answer.body.status();
    return result;
  }
  const std::optional<SessionInfo> info = sessions_.Find(caller.session);
  const bool takes_fds = info.has_value() && info->takes_fds;
  Opened opened;
  if (auto* memory = std::get_if<engine::reply::Open>(&*answer.body)) {
    opened.lease = memory->lend.lease;
    opened.slab = memory->extent.slab;
    opened.bytes = memory->lend.slab_bytes;
    opened.offset = memory->extent.offset;
    opened.checkpoint = std::move(memory->checkpoint);
    opened.object = std::move(memory->object);
    opened.exact = memory->exact;
    opened.fd_sent = takes_fds && memory->lend.lease != 0;
    result.opened = std::move(opened);
    return result;
  }
  auto* stored = std::get_if<engine::reply::OpenStored>(&*answer.body);
  if (stored == nullptr || rooms_.storage == nullptr) {
    result.opened = absl::InternalError("open was answered with something else");
    return result;
  }
  StatusOr<std::unique_ptr<storage::Reader>> reader =
      rooms_.storage->Open(stored->checkpoint, name, storage::Owner{caller.uid, caller.gid});
  if (!reader.ok()) {
    result.opened = Annotate(reader.status(), stored->checkpoint.location.text());
    return result;
  }
  opened.bytes = (*reader)->length();
  opened.checkpoint = stored->checkpoint.key;
  opened.object = std::move(stored->object);
  opened.exact = true;
  {
    MutexLock lock(&stored_mu_);
    opened.lease = kStoredLease | ++next_stored_;
  }
  const std::optional<int> descriptor = takes_fds ? (*reader)->Descriptor() : std::nullopt;
  if (descriptor.has_value()) {
    Status pushed = sessions_.Push(caller.session, FdMessageType::kFile, opened.lease, 0,
                                   opened.bytes, *descriptor);
    if (!pushed.ok()) {
      result.opened = pushed;
      return result;
    }
    opened.fd_sent = true;
  } else {
    constexpr size_t kMaxStored = 64;  // of one session
    MutexLock lock(&stored_mu_);
    size_t held = 0;
    for (const auto& [id, open] : stored_) held += open.session == caller.session ? 1 : 0;
    if (held >= kMaxStored) {
      result.opened = absl::ResourceExhaustedError(absl::StrCat(
          "objects open in storage: ", held, " of this session, the limit is ", kMaxStored));
      return result;
    }
    stored_[opened.lease] = StoredOpen{caller.session, *std::move(reader)};
  }
  result.opened = std::move(opened);
  return result;
}

Answer Node::Release(engine::event::Release event) {
  std::vector<LeaseId> in_memory;
  for (LeaseId lease : event.leases) {
    if ((lease & kStoredLease) == 0) {
      in_memory.push_back(lease);
      continue;
    }
    MutexLock lock(&stored_mu_);
    auto it = stored_.find(lease);
    if (it != stored_.end() && it->second.session == event.caller.session) stored_.erase(it);
  }
  if (in_memory.empty()) return Answer{engine::reply::Body(engine::reply::Ok{}), 0};
  event.leases = std::move(in_memory);
  return Call(std::move(event));
}

StatusOr<std::string> Node::ReadChunk(const engine::Caller& caller, LeaseId lease, uint64_t offset,
                                      uint64_t length) {
  std::string bytes(length, '\0');
  if ((lease & kStoredLease) != 0) {
    std::shared_ptr<const storage::Reader> reader;
    {
      MutexLock lock(&stored_mu_);
      auto it = stored_.find(lease);
      if (it == stored_.end() || it->second.session != caller.session) {
        return absl::NotFoundError(absl::StrCat("lease: ", lease, " is not this session's"));
      }
      reader = it->second.reader;
    }
    CAIRN_RETURN_IF_ERROR(reader->ReadAt(offset, absl::MakeSpan(bytes)));
    return bytes;
  }
  Answer answer = Call(engine::event::LocateChunk{caller, lease, offset, length, /*write=*/false});
  if (!answer.body.ok()) return answer.body.status();
  const auto* chunk = std::get_if<engine::reply::Chunk>(&*answer.body);
  if (chunk == nullptr) return absl::InternalError("chunk was answered with something else");
  CAIRN_RETURN_IF_ERROR(
      rooms_.cache->Read(chunk->extent.slab, chunk->offset, absl::MakeSpan(bytes)));
  return bytes;
}

Status Node::WriteChunk(const engine::Caller& caller, LeaseId lease, uint64_t offset,
                        absl::string_view bytes) {
  engine::event::LocateChunk locate{caller, lease, offset, bytes.size(), /*write=*/true};
  Answer answer = Call(std::move(locate));
  if (!answer.body.ok()) return answer.body.status();
  const auto* chunk = std::get_if<engine::reply::Chunk>(&*answer.body);
  if (chunk == nullptr) return absl::InternalError("chunk was answered with something else");
  return rooms_.cache->Write(chunk->extent.slab, chunk->offset, bytes);
}

Node::Begun Node::Hello(engine::event::Hello event) {
  SessionInfo info;
  info.secret = event.secret = RandomSecret();
  info.uid = event.caller.uid;
  info.gid = event.caller.gid;
  info.pid = event.pid;
  info.job = event.job;
  info.attempt = event.attempt;
  info.writer = event.writer;
  info.world_size = event.world_size;
  info.local_writers = event.local_writers;
  info.takes_fds = event.takes_fds;
  info.client = event.client;
  info.connected_unix_ms = rooms_.clock->UnixMillis();
  Begun begun;
  Answer answer = Call(std::move(event));
  begun.superseded_by = answer.superseded_by;
  if (!answer.body.ok()) {
    begun.info = answer.body.status();
    return begun;
  }
  const auto* hello = std::get_if<engine::reply::Hello>(&*answer.body);
  if (hello == nullptr) {
    begun.info = absl::InternalError("hello was answered with something else");
    return begun;
  }
  info.id = hello->session;
  sessions_.Add(info);
  begun.info = std::move(info);
  return begun;
}

void Node::Goodbye(SessionId session) {
  if (sessions_.End(session)) Post(engine::event::SessionEnded{session});
  MutexLock lock(&stored_mu_);
  std::erase_if(stored_, [&](const auto& open) { return open.second.session == session; });
}

void Node::ConnectionClosed(SessionId session) {
  if (sessions_.ConnectionClosed(session)) Post(engine::event::SessionEnded{session});
  MutexLock lock(&stored_mu_);
  std::erase_if(stored_, [&](const auto& open) { return open.second.session == session; });
}

StatusOr<NodeState> Node::State(const engine::Caller& caller) {
  Answer answer = Call(engine::event::Status{caller});
  if (!answer.body.ok()) return answer.body.status();
  auto* status = std::get_if<engine::reply::Status>(&*answer.body);
  if (status == nullptr) return absl::InternalError("status was answered with something else");
  NodeState state;
  state.engine = std::move(*status);
  state.now = rooms_.clock->Now();
  state.started_unix_ms = started_unix_ms_;
  {
    MutexLock lock(&mu_);
    state.state = !options_.safe_mode.empty() ? absl::StrCat("safe mode: ", options_.safe_mode)
                  : draining_                 ? "draining"
                                              : "serving";
    state.engine.counters["journal_used_bytes"] = static_cast<int64_t>(journal_->used_bytes());
    state.engine.counters["waiting_calls"] = static_cast<int64_t>(waiters_.size());
  }
  for (engine::reply::SessionStatus& session : state.engine.sessions) {
    SessionState shown;
    if (std::optional<SessionInfo> info = sessions_.Find(session.session)) {
      shown.connected_unix_ms = info->connected_unix_ms;
    }
    if (std::optional<ProgressPage> page = sessions_.Progress(session.session)) {
      shown.writing_step = static_cast<Step>(page->step);
      shown.writing_total = page->bytes_total;
      shown.writing_done = page->bytes_done;
    }
    shown.status = std::move(session);
    state.sessions.push_back(std::move(shown));
  }
  state.engine.sessions.clear();
  AddMappers(&state.engine.quarantined);
  const cache::Counters cache = rooms_.cache->counters();
  std::map<std::string, int64_t>& counters = state.engine.counters;
  const auto put = [&counters](const char* name, uint64_t value) {
    counters[name] = static_cast<int64_t>(value);
  };
  put("slabs_made", cache.slabs_made);
  put("slabs_destroyed", cache.slabs_destroyed);
  put("bytes_faulted", cache.bytes_faulted);
  put("lends", cache.lends);
  put("probes", cache.probes);
  put("bad_reads", cache.bad_reads);
  if (rooms_.storage != nullptr) {
    const storage::Counters storage = rooms_.storage->counters();
    put("files_written", storage.objects_written);
    put("file_bytes_written", storage.bytes_written);
    put("fsync_failures", storage.sync_failures);
    put("file_rewrites", storage.rewrites);
    put("published", storage.published);
  }
  state.catalog = recorder_.State();
  return state;
}

// The engine knows sessions; who else has a slab (a forked child, say) only the kernel does.
void Node::AddMappers(std::vector<engine::reply::Quarantined>* quarantined) const {
  std::map<SlabId, uint64_t> inodes;
  std::set<uint64_t> wanted;
  for (const engine::reply::Quarantined& slab : *quarantined) {
    const StatusOr<uint64_t> inode = rooms_.cache->Inode(slab.slab);
    if (!inode.ok()) continue;
    inodes[slab.slab] = *inode;
    wanted.insert(*inode);
  }
  const std::map<uint64_t, std::set<int32_t>> mappers = FindMappers(wanted);
  for (engine::reply::Quarantined& slab : *quarantined) {
    const auto inode = inodes.find(slab.slab);
    if (inode == inodes.end()) continue;
    const auto found = mappers.find(inode->second);
    if (found == mappers.end()) continue;
    std::set<int32_t> pids(slab.pids.begin(), slab.pids.end());
    pids.insert(found->second.begin(), found->second.end());
    slab.pids.assign(pids.begin(), pids.end());
  }
}

}  // namespace cairn::node
