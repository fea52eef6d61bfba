// Calls that are more than one event in and its answer out: those that begin and end sessions, open
// files, or move bytes in chunks.

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "server/cache/cache.h"
#include "server/node/node.h"
#include "server/storage/storage.h"

namespace cairn::node {
namespace {

namespace reply = engine::reply;

// The answer's body as a `Reply`; INTERNAL when the engine answered with another kind.
template <typename Reply>
StatusOr<Reply> BodyAs(Answer answer, absl::string_view call) {
  if (!answer.body.ok()) return answer.body.status();
  Reply* body = std::get_if<Reply>(&*answer.body);
  if (body == nullptr) {
    return absl::InternalError(absl::StrCat(call, " was answered with something else"));
  }
  return std::move(*body);
}

Opened FromMemory(reply::Open memory, bool takes_fds) {
  Opened opened;
  opened.lease = memory.lend.lease;
  opened.slab = memory.extent.slab;
  opened.bytes = memory.lend.slab_bytes;
  opened.offset = memory.extent.offset;
  opened.checkpoint = std::move(memory.checkpoint);
  opened.object = std::move(memory.object);
  opened.exact = memory.exact;
  opened.fd_sent = takes_fds && memory.lend.lease != 0;
  return opened;
}

}  // namespace

// --- sessions

Node::Begun Node::Hello(engine::event::Hello event) {
  SessionInfo info = Prepare(&event);
  return Begin(std::move(info), Call(std::move(event)));
}

SessionInfo Node::Prepare(engine::event::Hello* event) const {
  SessionInfo info;
  static_cast<SessionIdentity&>(info) = *event;
  info.uid = event->caller.uid;
  info.gid = event->caller.gid;
  info.secret = event->secret = RandomSecret();
  info.client = event->client;
  info.connected_unix_ms = rooms_.clock->UnixMillis();
  return info;
}

Node::Begun Node::Begin(SessionInfo info, Answer answer) {
  Begun begun;
  begun.superseded_by = answer.superseded_by;
  const StatusOr<reply::Hello> hello = BodyAs<reply::Hello>(std::move(answer), "hello");
  if (!hello.ok()) {
    begun.info = hello.status();
    return begun;
  }
  info.id = hello->session;
  sessions_.Add(info);
  begun.info = std::move(info);
  return begun;
}

void Node::Goodbye(SessionId session) {
  if (sessions_.End(session)) Post(engine::event::SessionEnded{session});
  stored_readers_.ReleaseAll(session);
}

void Node::ConnectionClosed(SessionId session) {
  if (sessions_.ConnectionClosed(session)) Post(engine::event::SessionEnded{session});
  stored_readers_.ReleaseAll(session);
}

// --- open and release

OpenAnswer Node::Open(engine::event::Open event) {
  const engine::Caller caller = event.caller;
  const std::string name = event.name;
  const MonotonicNanos deadline = event.deadline;
  const engine::RequestId request = event.caller.request = NextRequest();
  return FinishOpen(caller, name, deadline, Await(request, engine::Event(std::move(event))));
}

bool Node::NeedsStorage(const Answer& answer) {
  return answer.body.ok() && std::holds_alternative<reply::OpenStored>(*answer.body);
}

OpenAnswer Node::FinishOpen(const engine::Caller& caller, const std::string& name,
                            MonotonicNanos deadline, Answer answer) {
  answer = Deliver(caller.session, std::move(answer));
  OpenAnswer result;
  result.superseded_by = answer.superseded_by;
  if (!answer.body.ok()) {
    result.opened = answer.body.status();
    return result;
  }
  const std::optional<SessionInfo> info = sessions_.Find(caller.session);
  const bool takes_fds = info.has_value() && info->takes_fds;
  if (auto* memory = std::get_if<reply::Open>(&*answer.body)) {
    result.opened = FromMemory(std::move(*memory), takes_fds);
  } else if (StatusOr<reply::OpenStored> stored =
                 BodyAs<reply::OpenStored>(std::move(answer), "open");
             stored.ok()) {
    result.opened = OpenStored(caller, name, *std::move(stored), takes_fds, deadline);
  } else {
    result.opened = stored.status();
  }
  return result;
}

// The caller's own rights count: storage opens the object as the caller.
StatusOr<Opened> Node::OpenStored(const engine::Caller& caller, const std::string& name,
                                  reply::OpenStored stored, bool takes_fds,
                                  MonotonicNanos deadline) {
  if (rooms_.storage == nullptr) return absl::InternalError("open: there is no storage");
  // What can be answered at once is answered, however little time the caller gives.
  const MonotonicNanos patience = std::max(kNanosPerSecond, deadline - clock()->Now());
  const Location location = stored.checkpoint.location;
  Opened opened;
  opened.checkpoint = stored.checkpoint.key;
  const StatusOr<std::shared_ptr<const storage::Reader>> reader = stored_readers_.Open(
      std::move(stored.checkpoint), name, storage::Owner{caller.uid, caller.gid}, patience);
  if (!reader.ok()) {
    return Annotate(reader.status(),
                    location.empty() ? opened.checkpoint.DebugString() : location.text());
  }
  opened.bytes = (*reader)->length();
  opened.object = std::move(stored.object);
  opened.exact = true;
  opened.lease = stored_readers_.NextLease();
  const std::optional<int> descriptor = takes_fds ? (*reader)->Descriptor() : std::nullopt;
  opened.fd_sent = descriptor.has_value();
  if (descriptor.has_value()) {
    const FdLent lent{FdLent::What::kFile, opened.lease, /*slab=*/0, opened.bytes};
    CAIRN_RETURN_IF_ERROR(sessions_.Push(caller.session, lent, *descriptor));
  } else {
    CAIRN_RETURN_IF_ERROR(
        stored_readers_.Add(caller.session, opened.lease, opened.checkpoint.job, *reader));
    // Ended while storage was asked: nobody would release it.
    if (!sessions_.Find(caller.session).has_value()) {
      stored_readers_.Release(caller.session, opened.lease);
      return absl::UnavailableError(absl::StrCat("session: ", caller.session, " has ended"));
    }
  }
  return opened;
}

Answer Node::Release(engine::event::Release event) {
  std::vector<LeaseId> in_memory;
  for (LeaseId lease : event.leases) {
    if (StoredReaders::IsStored(lease)) {
      stored_readers_.Release(event.caller.session, lease);
    } else {
      in_memory.push_back(lease);
    }
  }
  if (in_memory.empty()) return Answer{reply::Body(reply::Ok{}), 0};
  event.leases = std::move(in_memory);
  return Call(std::move(event));
}

// What storage lends has no time limit: with a descriptor it is the client's as long as that is open, without
// one it lasts until it is released or its session ends.
Answer Node::Renew(engine::event::Renew event) {
  std::vector<LeaseId> in_memory;
  for (LeaseId lease : event.leases) {
    if (!StoredReaders::IsStored(lease)) {
      in_memory.push_back(lease);
    } else if (!stored_readers_.Holds(event.caller.session, lease)) {
      const std::optional<SessionInfo> info = sessions_.Find(event.caller.session);
      if (info.has_value() && info->takes_fds) continue;
      return Answer{absl::NotFoundError(absl::StrCat("lease: ", lease, " has ended")), 0};
    }
  }
  if (in_memory.empty()) return Answer{reply::Body(reply::Ok{}), 0};
  event.leases = std::move(in_memory);
  return Call(std::move(event));
}

// --- chunks

StatusOr<std::string> Node::ReadChunk(const engine::Caller& caller, LeaseId lease, uint64_t offset,
                                      uint64_t length) {
  if (StoredReaders::IsStored(lease)) {
    return stored_readers_.Read(caller.session, lease, offset, length);
  }
  engine::event::LocateChunk locate{caller, lease, offset, length, /*write=*/false};
  CAIRN_ASSIGN_OR_RETURN(const reply::Chunk chunk,
                         BodyAs<reply::Chunk>(Call(std::move(locate)), "chunk"));
  std::string bytes(length, '\0');
  CAIRN_RETURN_IF_ERROR(rooms_.cache->Read(chunk.extent.slab, chunk.offset, absl::MakeSpan(bytes)));
  return bytes;
}

Status Node::WriteChunk(const engine::Caller& caller, LeaseId lease, uint64_t offset,
                        absl::string_view bytes) {
  engine::event::LocateChunk locate{caller, lease, offset, bytes.size(), /*write=*/true};
  CAIRN_ASSIGN_OR_RETURN(const reply::Chunk chunk,
                         BodyAs<reply::Chunk>(Call(std::move(locate)), "chunk"));
  const absl::Cleanup ended = [&] { Post(engine::event::ChunkWritten{chunk.write}); };
  return rooms_.cache->Write(chunk.extent.slab, chunk.offset, bytes);
}

}  // namespace cairn::node
