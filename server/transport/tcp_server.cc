#include "server/transport/tcp_server.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <exception>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "common/tcp_address.h"
#include "glog/logging.h"
#include "server/transport/tcp_wire.h"

namespace cairn::transport {
namespace {

// How often the accepting thread looks whether streams have ended.
constexpr int kLookMs = 100;

// A stranger has so long for its opening, and again for its first question.
MonotonicNanos StrangersTime(const TcpServerOptions& options) { return options.stall; }

}  // namespace

Status TcpServerOptions::Validate() const {
  if (max_streams < 2 || max_streams > 4096) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_streams: ", max_streams, " is not 2 to 4096"));
  }
  if (max_strangers < 1 || max_strangers >= max_streams) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_strangers: ", max_strangers, " is not 1 to ", max_streams - 1, ", below max_streams"));
  }
  if (stall < kNanosPerSecond || idle < stall) {
    return absl::InvalidArgumentError("stall: at least 1 s, and idle not less");
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<TcpServer>> TcpServer::Start(const TcpServerOptions& options, Slabs* slabs,
                                                      TcpGrants* grants) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  auto server = std::unique_ptr<TcpServer>(new TcpServer(options, slabs, grants));
  const StatusOr<TcpAddress> address = TcpAddress::Parse(options.listen);
  if (!address.ok()) return Annotate(address.status(), "listen");
  StatusOr<std::unique_ptr<TcpListener>> listener = TcpListener::Open(*address);
  if (!listener.ok()) return Annotate(listener.status(), "listen");
  server->listener_ = *std::move(listener);
  server->accepting_ = std::thread([raw = server.get()] { raw->Accept(); });
  return server;
}

TcpServer::TcpServer(const TcpServerOptions& options, Slabs* slabs, TcpGrants* grants)
    : options_(options), slabs_(slabs), grants_(grants) {}

TcpServer::~TcpServer() {
  stopping_ = true;
  if (listener_ != nullptr) listener_->Shutdown();
  if (accepting_.joinable()) accepting_.join();
  grants_->CutAll();
  Reap(/*all=*/true);
}

int TcpServer::streams() const {
  MutexLock lock(&mu_);
  int open = 0;
  for (const auto& stream : streams_) open += stream->ended ? 0 : 1;
  return open;
}

void TcpServer::Accept() {
  pthread_setname_np(pthread_self(), "data-accept");
  AwaitListener();
  while (!stopping_) {
    Reap(/*all=*/false);
    const StatusOr<bool> ready = WaitReadable(listener_->fd(), kLookMs);
    if (!ready.ok() || !*ready) continue;
    UniqueFd connection(::accept4(listener_->fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.valid()) {
      Admit(std::move(connection));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      // It stays in the queue: to ask again at once would only spin.
      LOG_EVERY_N(WARNING, 100) << "data stream: " << ErrnoStatus(errno, "accept");
      std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
    }
  }
}

void TcpServer::AwaitListener() {
  if (listener_->Await(stopping_, RealClock()->Now() + kPredecessorGoes) || stopping_) return;
  LOG(WARNING) << "other members cannot read this node's memory: " << problem()
               << "; this is tried until it succeeds";
  if (listener_->Await(stopping_, std::numeric_limits<MonotonicNanos>::max())) {
    LOG(INFO) << "other members can read this node's memory, at " << address();
  }
}

void TcpServer::Admit(UniqueFd connection) {
  if (!MakeRoom()) return;  // its closing says so
  std::unique_ptr<tls::TlsSession> session;
  if (options_.security.tls != nullptr) {
    auto made = options_.security.tls->NewSession(/*server=*/true);
    if (!made.ok()) {
      LOG_EVERY_N(WARNING, 100) << "data stream: " << made.status();
      return;
    }
    session = *std::move(made);
  }
  MutexLock lock(&mu_);
  try {
    streams_.push_back(
        std::make_unique<Stream>(std::move(connection), options_.stall, std::move(session)));
    Stream* const stream = streams_.back().get();
    stream->id = grants_->Open(&stream->socket);
    stream->thread = std::thread([this, stream] { Serve(stream); });
  } catch (const std::exception& e) {
    LOG_EVERY_N(WARNING, 100) << "data stream: neither thread nor memory for it: " << e.what();
    if (streams_.empty() || streams_.back()->thread.joinable()) return;
    if (streams_.back()->id != 0) grants_->Close(streams_.back()->id);
    streams_.pop_back();
  }
}

bool TcpServer::MakeRoom() {
  std::unique_ptr<Stream> gives_way;
  {
    MutexLock lock(&mu_);
    int open = 0, strangers = 0;
    auto oldest = streams_.end();
    for (auto at = streams_.begin(); at != streams_.end(); ++at) {
      ++open;
      if (!(*at)->stranger) continue;
      ++strangers;
      if (oldest == streams_.end()) oldest = at;
    }
    const bool full = open >= options_.max_streams;
    if (full && oldest == streams_.end()) return false;
    if (!full && strangers < options_.max_strangers) return true;
    gives_way = std::move(*oldest);
    streams_.erase(oldest);
  }
  grants_->Cut(gives_way->id);
  gives_way->thread.join();  // soon: it waits for nothing but its peer
  return true;
}

void TcpServer::Reap(bool all) {
  std::list<std::unique_ptr<Stream>> ended;
  {
    MutexLock lock(&mu_);
    for (auto at = streams_.begin(); at != streams_.end();) {
      const auto next = std::next(at);
      if (all || (*at)->ended) ended.splice(ended.end(), streams_, at);
      at = next;
    }
  }
  for (const auto& stream : ended) stream->thread.join();
}

void TcpServer::Serve(Stream* stream) {
  pthread_setname_np(pthread_self(), "data-serve");
  sigset_t broken_pipe;
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);
  PeerId reader;
  Status status;
  try {
    status = Greet(stream, &reader);
    while (status.ok() && !stopping_) status = AnswerOne(stream, reader);
  } catch (const std::exception& e) {  // no memory
    status = absl::ResourceExhaustedError(e.what());
  }
  VLOG(1) << "data stream of rank " << reader.rank << " has ended: " << status;
  grants_->Close(stream->id);
  stream->ended = true;  // last: who sees it joins this thread
}

Status TcpServer::Greet(Stream* stream, PeerId* reader) {
  const MonotonicNanos deadline = RealClock()->Now() + StrangersTime(options_);
  std::optional<MemberName> named;
  if (options_.security.tls != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(named, stream->socket.Handshake(options_.security.cluster, deadline));
  }
  std::array<char, kOpeningBytes> bytes = {};
  CAIRN_RETURN_IF_ERROR(stream->socket.Receive(absl::MakeSpan(bytes), deadline));
  CAIRN_ASSIGN_OR_RETURN(const Opening opening,
                         DecodeOpening(absl::string_view(bytes.data(), bytes.size())));
  Opened opened;
  if (opening.version != kTcpVersion) opened.code = absl::StatusCode::kUnimplemented;
  CAIRN_RETURN_IF_ERROR(stream->socket.Send(Encode(opened), /*more=*/false, deadline));
  if (opened.code != absl::StatusCode::kOk) {
    return absl::UnimplementedError(absl::StrCat("version: ", opening.version));
  }
  const bool any = options_.security.any_rank && named.has_value() && named->rank == kAnyRank;
  if (named.has_value() && !any && named->rank != opening.reader.rank) {
    return absl::PermissionDeniedError(
        absl::StrCat("reader: it says that it is rank ", opening.reader.rank,
                     ", and its certificate names ", MemberUri(*named)));
  }
  *reader = opening.reader;
  return absl::OkStatus();
}

Status TcpServer::AnswerOne(Stream* stream, PeerId reader) {
  TcpSocket& socket = stream->socket;
  const MonotonicNanos patience = stream->stranger ? StrangersTime(options_) : options_.idle;
  CAIRN_RETURN_IF_ERROR(socket.WaitReadable(RealClock()->Now() + patience));
  std::array<char, kQuestionBytes> bytes = {};
  CAIRN_RETURN_IF_ERROR(socket.Receive(absl::MakeSpan(bytes), RealClock()->Now() + options_.stall));
  CAIRN_ASSIGN_OR_RETURN(const Question question,
                         DecodeQuestion(absl::string_view(bytes.data(), bytes.size())));

  // Who has shown no token that counts is answered at once: the accepting thread may be waiting for its end.
  Status begun = grants_->Check(reader, question);
  if (begun.ok()) {
    stream->stranger = false;
    options_.before_answer();
    begun = grants_->Begin(stream->id, reader, question);  // the grant may have ended meanwhile
  }
  // An answer has no end of its own: it goes on as long as the peer takes something within `stall`.
  constexpr MonotonicNanos kNever = std::numeric_limits<MonotonicNanos>::max();
  Answer answer = {question.sequence, absl::StatusCode::kOk, question.length};
  const auto slab =
      begun.ok() ? slabs_->Find({question.slab, question.offset, question.length}) : begun;
  if (!slab.ok()) {
    if (begun.ok()) grants_->End(stream->id);
    answer.code = absl::StatusCode::kPermissionDenied;
    answer.length = 0;
    CAIRN_RETURN_IF_ERROR(socket.Send(Encode(answer), /*more=*/false, kNever));
    return stream->stranger ? slab.status() : absl::OkStatus();
  }
  Status sent = socket.Send(Encode(answer), /*more=*/true, kNever);
  if (sent.ok()) sent = socket.SendFile((*slab)->fd(), question.offset, question.length, kNever);
  grants_->End(stream->id);
  return sent;
}

}  // namespace cairn::transport
