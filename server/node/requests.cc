// Calls that are more than one event in and its answer out: those that begin and end sessions, open
// files, or move bytes in chunks.

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "server/cache/cache.h"
#include "server/node/distant_parts.h"
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

// Of an object that other members have: `like` what all of them are.
engine::ObjectInfo InfoOf(engine::ObjectInfo like, const PartKey& part, const ObjectEntry& entry,
                          bool with_crcs) {
  like.name = entry.name;
  like.writer = part.writer;
  like.kind = entry.kind;
  like.length = entry.length;
  if (with_crcs) like.block_crcs = entry.block_crcs;
  return like;
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
  if (sessions_.End(session)) Post(engine::event::SessionEnded{session, /*goodbye=*/true});
  distant_readers_.ReleaseAll(session);
  store_streams_.ForgetAll(session);
}

void Node::ConnectionClosed(SessionId session) {
  if (sessions_.ConnectionClosed(session)) {
    Post(engine::event::SessionEnded{session});
    store_streams_.ForgetAll(session);
  }
  distant_readers_.ReleaseAll(session);
}

// --- open and release

OpenAnswer Node::Open(engine::event::Open event) {
  const engine::Caller caller = event.caller;
  const std::string name = event.name;
  const MonotonicNanos deadline = event.deadline;
  const engine::RequestId request = event.caller.request = NextRequest();
  return FinishOpen(caller, name, deadline, Await(request, engine::Event(std::move(event))));
}

bool Node::MayWait(const Answer& answer) {
  return answer.body.ok() && (std::holds_alternative<reply::OpenStored>(*answer.body) ||
                              std::holds_alternative<reply::Elsewhere>(*answer.body));
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
  } else if (auto* elsewhere = std::get_if<reply::Elsewhere>(&*answer.body)) {
    result.opened = OpenElsewhere(caller, name, std::move(*elsewhere), deadline);
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
  const StatusOr<std::shared_ptr<const storage::Reader>> reader = distant_readers_.Open(
      std::move(stored.checkpoint), name, storage::Owner{caller.uid, caller.gid}, patience);
  if (!reader.ok()) {
    return Annotate(reader.status(),
                    location.empty() ? opened.checkpoint.DebugString() : location.text());
  }
  opened.bytes = (*reader)->length();
  opened.object = std::move(stored.object);
  opened.exact = true;
  const std::optional<int> descriptor = takes_fds ? (*reader)->Descriptor() : std::nullopt;
  if (!descriptor.has_value()) {
    CAIRN_RETURN_IF_ERROR(LendChunks(caller.session, *reader, &opened));
    return opened;
  }
  opened.lease = distant_readers_.NextLease(/*chunks=*/false);
  opened.fd_sent = true;
  const FdLent lent{FdLent::What::kFile, opened.lease, /*slab=*/0, opened.bytes};
  CAIRN_RETURN_IF_ERROR(sessions_.Push(caller.session, lent, *descriptor));
  return opened;
}

Status Node::LendChunks(SessionId session, std::shared_ptr<const storage::Reader> reader,
                        Opened* opened) {
  opened->lease = distant_readers_.NextLease(/*chunks=*/true);
  CAIRN_RETURN_IF_ERROR(
      distant_readers_.Add(session, opened->lease, opened->checkpoint.job, std::move(reader)));
  // Ended while it was opened: nobody would release it.
  if (!sessions_.Find(session).has_value()) {
    distant_readers_.Release(session, opened->lease);
    return absl::UnavailableError(absl::StrCat("session: ", session, " has ended"));
  }
  return absl::OkStatus();
}

StatusOr<Opened> Node::OpenElsewhere(const engine::Caller& caller, const std::string& name,
                                     reply::Elsewhere elsewhere, MonotonicNanos deadline) {
  CAIRN_ASSIGN_OR_RETURN(DistantParts::Object object,
                         distant_parts_->Open(elsewhere.parts, name, deadline));
  Opened opened;
  opened.checkpoint = object.found.part.checkpoint;
  opened.bytes = object.found.entry->length;
  opened.object =
      InfoOf(elsewhere.like, object.found.part, *object.found.entry, /*with_crcs=*/true);
  opened.exact = opened.from_member = true;
  CAIRN_RETURN_IF_ERROR(
      LendChunks(caller.session,
                 distant_readers_.Share(opened.checkpoint.job, std::move(object.reader)), &opened));
  return opened;
}

// --- stat and ls

StatusOr<engine::ObjectInfo> Node::FinishStat(const std::string& name, MonotonicNanos deadline,
                                              Answer answer) {
  if (!MayWait(answer)) return BodyAs<engine::ObjectInfo>(std::move(answer), "stat");
  CAIRN_ASSIGN_OR_RETURN(const reply::Elsewhere elsewhere,
                         BodyAs<reply::Elsewhere>(std::move(answer), "stat"));
  CAIRN_ASSIGN_OR_RETURN(const DistantParts::Found found,
                         distant_parts_->Find(elsewhere.parts, name, deadline));
  return InfoOf(elsewhere.like, found.part, *found.entry, /*with_crcs=*/true);
}

StatusOr<reply::List> Node::FinishList(const std::string& cursor, int limit,
                                       MonotonicNanos deadline, Answer answer) {
  if (!MayWait(answer)) return BodyAs<reply::List>(std::move(answer), "ls");
  CAIRN_ASSIGN_OR_RETURN(reply::Elsewhere elsewhere,
                         BodyAs<reply::Elsewhere>(std::move(answer), "ls"));
  reply::List list = std::move(elsewhere.here);
  for (const reply::PartElsewhere& part : elsewhere.parts) {
    CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<const PartTable> table,
                           distant_parts_->Table(part, deadline));
    for (const std::shared_ptr<const ObjectEntry>& entry : table->entries) {
      if (entry->name <= cursor) continue;
      list.objects.push_back(InfoOf(elsewhere.like, part.part, *entry, /*with_crcs=*/false));
    }
  }
  std::sort(list.objects.begin(), list.objects.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  // A part may have come meanwhile for somebody else.
  list.objects.erase(std::unique(list.objects.begin(), list.objects.end(),
                                 [](const auto& a, const auto& b) { return a.name == b.name; }),
                     list.objects.end());
  if (list.objects.size() > static_cast<size_t>(limit)) {
    list.objects.resize(static_cast<size_t>(limit));
    list.next_cursor = list.objects.back().name;
  }
  return list;
}

Answer Node::Release(engine::event::Release event) {
  std::vector<LeaseId> in_memory;
  for (LeaseId lease : event.leases) {
    if (DistantReaders::IsDistant(lease)) {
      distant_readers_.Release(event.caller.session, lease);
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
    if (!DistantReaders::IsDistant(lease)) {
      in_memory.push_back(lease);
    } else if (!distant_readers_.Holds(event.caller.session, lease)) {
      if (!DistantReaders::IsOfChunks(lease)) continue;  // its descriptor tells
      return Answer{absl::NotFoundError(absl::StrCat("lease: ", lease, " has ended")), 0};
    }
  }
  if (in_memory.empty()) return Answer{reply::Body(reply::Ok{}), 0};
  event.leases = std::move(in_memory);
  return Call(std::move(event));
}

StatusOr<LeaseId> Node::OpenStream(const engine::Caller& caller) {
  CAIRN_RETURN_IF_ERROR(sessions_.CheckTaken(caller.session));
  const LeaseId lease = distant_readers_.NextLease(/*chunks=*/false);
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd theirs, store_streams_.Open(caller.session, lease));
  const FdLent lent{FdLent::What::kFile, lease, /*slab=*/0, /*bytes=*/0};
  if (const Status sent = sessions_.Push(caller.session, lent, theirs.get()); !sent.ok()) {
    store_streams_.Take(caller.session, lease);  // nobody else would close it
    return sent;
  }
  return lease;
}

// --- chunks

StatusOr<std::string> Node::ReadChunk(const engine::Caller& caller, LeaseId lease, uint64_t offset,
                                      uint64_t length) {
  if (DistantReaders::IsDistant(lease)) {
    return distant_readers_.Read(caller.session, lease, offset, length);
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
