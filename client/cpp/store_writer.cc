#include "client/cpp/store_writer.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cpp/background.h"
#include "client/cpp/process.h"
#include "common/checksum.h"
#include "common/codec.h"
#include "proto/convert.h"

namespace cairn::client {
namespace {

// A daemon that was replaced meanwhile is asked again so often.
constexpr int kMostStreams = 3;
constexpr uint64_t kSentAtOnce = 1 << 20;
constexpr size_t kFrameBytes = 3 * sizeof(uint64_t);

Status ReceiveAll(int socket, char* into, size_t length) {
  while (length > 0) {
    const ssize_t n = ::recv(socket, into, length, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError("the node has closed the stream");
    into += n;
    length -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

Status SendAll(int socket, const char* from, size_t length) {
  while (length > 0) {
    const ssize_t n = ::send(socket, from, length, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError("the node has closed the stream");
    from += n;
    length -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

Status StoreWriter::Usable() const {
  CAIRN_RETURN_IF_ERROR(link_->CheckProcess());
  if (done_) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", identity_.step, " of this writer is committed or aborted"));
  }
  return failure_;
}

// --- objects

Status StoreWriter::Add(const std::string& name, ObjectKind kind, ObjectLayout layout) {
  CAIRN_RETURN_IF_ERROR(ValidateObjectName(name));
  if (layout.length() > kMaxObjectBytes) {
    return absl::InvalidArgumentError(absl::StrCat("length: more than ", kMaxObjectBytes));
  }
  if (objects_.contains(name)) {
    return absl::AlreadyExistsError(
        absl::StrCat("name: ", name, " is already in step ", identity_.step));
  }
  auto object = std::make_unique<Object>();
  object->kind = kind;
  object->layout = std::move(layout);
  StatusOr<ObjectBytes> bytes = ObjectBytes::Make(&object->layout);
  if (!bytes.ok()) return failure_ = Annotate(bytes.status(), absl::StrCat("reading ", name));
  object->bytes = std::make_unique<ObjectBytes>(*std::move(bytes));
  StatusOr<std::vector<uint32_t>> crcs = object->bytes->BlockCrcs();
  if (!crcs.ok()) return failure_ = Annotate(crcs.status(), absl::StrCat("reading ", name));
  object->block_crcs = *std::move(crcs);
  objects_[name] = std::move(object);
  return absl::OkStatus();
}

Status StoreWriter::Write(const std::string& name, ObjectKind kind,
                          absl::Span<const Source> sources) {
  return WriteMany({Item{name, kind, {sources.begin(), sources.end()}, nullptr}});
}

Status StoreWriter::WriteZip(const std::string& name, ObjectKind kind, const ZipPlan& plan,
                             absl::Span<const Source> records) {
  return WriteMany({Item{name, kind, {records.begin(), records.end()}, &plan}});
}

StatusOr<std::vector<PiecePlace>> StoreWriter::WritePieces(const std::string& name, ObjectKind kind,
                                                           absl::Span<const Piece> pieces) {
  std::vector<PiecePlace> places;
  const Status added = Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Usable());
    for (const Piece& piece : pieces) CAIRN_RETURN_IF_ERROR(ValidateSources(piece.sources));
    CAIRN_ASSIGN_OR_RETURN(ObjectLayout layout, ObjectLayout::Pieces(pieces, &places));
    return Add(name, kind, std::move(layout));
  });
  CAIRN_RETURN_IF_ERROR(added);
  return places;
}

Status StoreWriter::WriteMany(absl::Span<const Item> items) {
  return Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Usable());
    for (const Item& item : items) {
      StatusOr<ObjectLayout> layout = ObjectLayout::Of(item.sources, item.plan);
      if (!layout.ok()) return Annotate(layout.status(), item.name);
      CAIRN_RETURN_IF_ERROR(Add(item.name, item.kind, *std::move(layout)));
    }
    return absl::OkStatus();
  });
}

Status StoreWriter::SetAside(const Room& room, absl::Duration patience) {
  (void)room;
  (void)patience;
  return Usable();
}

StatusOr<StepWriter::Buffer> StoreWriter::Reserve(const std::string& name, ObjectKind kind,
                                                  uint64_t length) {
  (void)kind;
  (void)length;
  return absl::UnimplementedError(absl::StrCat(
      "reserving ", name, ": a step that goes straight into storage has no memory to fill"));
}

Status StoreWriter::Seal(const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat("name: ", name, " was not reserved"));
}

StatusOr<std::string> StoreWriter::HandOver() {
  return absl::FailedPreconditionError(
      "a step that goes straight into storage is not handed over: its bytes are this process's");
}

Status StoreWriter::Abort() {
  done_ = true;  // nothing of it is with the node before the commit
  return absl::OkStatus();
}

// --- commit

wire::StoreRequest StoreWriter::Request(const std::map<std::string, std::string>& notes) const {
  wire::StoreRequest request;
  request.step = identity_.step;
  request.attempt = identity_.attempt;
  request.revision = identity_.revision;
  request.writer = identity_.writer;
  request.world_size = identity_.world_size;
  request.notes = notes;
  request.created_unix_ms = absl::ToUnixMillis(absl::Now());
  request.__set_fence(link_->options().fence);
  for (const auto& [name, object] : objects_) {
    wire::StoreObject entry;
    entry.name = name;
    entry.kind = ToWire(object->kind);
    entry.length = static_cast<int64_t>(object->layout.length());
    entry.block_crcs.assign(object->block_crcs.begin(), object->block_crcs.end());
    request.objects.push_back(std::move(entry));
  }
  return request;
}

StatusOr<CommitResult> StoreWriter::Commit(const std::map<std::string, std::string>& notes) {
  CommitResult result;
  const Status status = Contain([&]() -> Status {
    CAIRN_RETURN_IF_ERROR(Usable());
    wire::StoreRequest request = Request(notes);
    wire::CommitReply reply;
    Status stored;
    // The daemon may be replaced: the next one keeps what of the part was written whole.
    for (int streams = 0; streams < kMostStreams; ++streams) {
      stored = Store(&request, &reply);
      if (!absl::IsUnavailable(stored)) break;
    }
    if (absl::IsDataLoss(stored)) {
      return absl::FailedPreconditionError(
          absl::StrCat("changed while it was being saved: ", stored.message()));
    }
    CAIRN_RETURN_IF_ERROR(stored);
    result.digest = reply.digest;
    result.complete = reply.complete;
    done_ = true;
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return result;
}

StatusOr<UniqueFd> StoreWriter::OpenStream(std::shared_ptr<Attachment>* attachment,
                                           int64_t* lease) {
  const Link::FdCall fd_call(link_.get());
  const int64_t call = link_->NextCall();
  bool known = true;
  CAIRN_RETURN_IF_ERROR(
      link_->Call("openStream", link_->Deadline(timeout_),
                  [&](wire::CairnClient& client, const std::shared_ptr<Attachment>& asked) {
                    *attachment = asked;
                    try {
                      *lease = client.openStream(call);
                    } catch (const apache::thrift::TApplicationException& error) {
                      if (error.getType() != error.UNKNOWN_METHOD) throw;
                      known = false;
                    }
                  }));
  if (!known) {
    return absl::UnimplementedError("this daemon is older than saves straight into storage");
  }
  if ((*attachment)->fds == nullptr) {
    return absl::UnimplementedError("this session takes no descriptors");
  }
  CAIRN_ASSIGN_OR_RETURN(
      ReceivedFd stream,
      (*attachment)->fds->Take(static_cast<LeaseId>(*lease), link_->Deadline(timeout_)));
  return std::move(stream.fd);
}

Status StoreWriter::Store(wire::StoreRequest* request, wire::CommitReply* reply) {
  std::shared_ptr<Attachment> attachment;
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd stream, OpenStream(&attachment, &request->stream));
  const auto hang_up = [&stream] { (void)::shutdown(stream.get(), SHUT_RDWR); };
  const Background serving([&](const std::atomic<bool>&) {
    const absl::Cleanup ended = hang_up;  // what cannot be read the node must not wait for
    return Serve(stream.get());
  });
  // Where something is thrown: the thread is joined then, and would wait for the node.
  const absl::Cleanup thrown = hang_up;
  // Before the node asks for anything it has ended only where the system gives no thread.
  if (serving.Wait(absl::ZeroDuration()) && !serving.status().ok()) return serving.status();
  const int64_t call = link_->NextCall();
  Status stored;
  for (uint64_t before = bytes_sent_;; before = bytes_sent_) {
    const MonotonicNanos deadline = link_->Deadline(timeout_);
    stored = link_->Call(
        "store", deadline,
        [&](wire::CairnClient& client, const std::shared_ptr<Attachment>&) {
          request->timeout_ms = Link::TimeoutMillis(deadline);
          client.store(*reply, call, *request);
        },
        attachment.get());
    if (!absl::IsDeadlineExceeded(stored) || bytes_sent_ == before) break;
  }
  hang_up();
  while (!serving.Wait(absl::Seconds(1))) continue;
  const Status served = serving.status();
  return !stored.ok() && !served.ok() ? served : stored;
}

Status StoreWriter::Serve(int socket) {
  std::vector<const std::pair<const std::string, std::unique_ptr<Object>>*> objects;
  for (const auto& object : objects_) objects.push_back(&object);
  std::string bytes;
  for (;;) {
    char frame[kFrameBytes];
    if (!ReceiveAll(socket, frame, sizeof frame).ok()) return absl::OkStatus();  // it has ended
    const auto index = ReadInteger<uint64_t>(frame);
    auto at = ReadInteger<uint64_t>(frame + sizeof(uint64_t));
    auto left = ReadInteger<uint64_t>(frame + 2 * sizeof(uint64_t));
    if (index >= objects.size()) return absl::InternalError("the node asks for another object");
    const auto& [name, object] = *objects[index];
    const uint64_t length = object->layout.length();
    if (at > length || left > length - at) {
      return absl::InternalError(absl::StrCat("the node asks for bytes beyond the end of ", name));
    }
    while (left > 0) {
      bytes.resize(std::min(left, kSentAtOnce));
      const Status read = object->bytes->Read(at, bytes.size(), bytes.data());
      if (!read.ok()) return Annotate(read, absl::StrCat("reading ", name));
      if (!SendAll(socket, bytes.data(), bytes.size()).ok()) return absl::OkStatus();
      at += bytes.size();
      left -= bytes.size();
      bytes_sent_.fetch_add(bytes.size(), std::memory_order_relaxed);
    }
  }
}

}  // namespace cairn::client
