#include "server/transport/tcp_reader.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <iterator>
#include <utility>

#include "common/checksum.h"
#include "server/transport/region.h"

namespace cairn::transport {
namespace {

// What the owner's code says to the reader. Only an owner that is wrong answers with other codes than these, and
// then it is of no use: NOT_FOUND and CANCELLED would speak of the reader's own memory.
Status Refusal(absl::StatusCode code) {
  if (code == absl::StatusCode::kPermissionDenied) {
    return absl::PermissionDeniedError("the owner refused: its grant permits no such read");
  }
  if (code == absl::StatusCode::kDataLoss) {
    return absl::DataLossError("the owner could not read its own bytes");
  }
  return absl::UnavailableError(
      absl::StrCat("the owner refused with ", absl::StatusCodeToString(code)));
}

}  // namespace

Status TcpReaderOptions::Validate() const {
  const auto within = [](absl::string_view name, uint64_t value, uint64_t least, uint64_t most) {
    if (value >= least && value <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", static_cast<int64_t>(value), " is not ", least, " to ", most));
  };
  CAIRN_RETURN_IF_ERROR(within("streams", static_cast<uint64_t>(streams), 1, 8));
  CAIRN_RETURN_IF_ERROR(within("ahead", static_cast<uint64_t>(ahead), 1, 64));
  CAIRN_RETURN_IF_ERROR(within("max_peers", static_cast<uint64_t>(max_peers), 1, 1024));
  CAIRN_RETURN_IF_ERROR(within("max_waiting", max_waiting, 1, 65536));
  if (stall < kNanosPerSecond || idle < stall) {
    return absl::InvalidArgumentError("stall: at least 1 s, and idle not less");
  }
  return absl::OkStatus();
}

// One connection after the other, by a thread of its own. Only the thread touches what is not guarded.
class TcpPeer::Stream {
 public:
  explicit Stream(TcpPeer* peer) : peer_(peer), buffer_(kPieces * kCheckedReadBytes) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Stream() { thread_.join(); }
  // The thread ends soon; what it has asked for ends with CANCELLED.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    stop_ = true;
    MutexLock lock(&mu_);
    if (socket_ != nullptr) socket_->Shutdown();
  }

 private:
  void Run();
  // Waits for something to ask, asks it, and takes an answer.
  Status Go(bool* closing);
  Status Connect(MonotonicNanos deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void Disconnect() ABSL_LOCKS_EXCLUDED(mu_);
  // Sends the questions of asked_[first …].
  Status Ask(size_t first);
  // Takes the answer to asked_.front(), and ends it. An error is the stream's.
  Status TakeAnswer();
  StatusOr<uint32_t> TakeBytes(const Waiting& read, Status* written);
  // The stream is of no use any more: what was asked is asked again, or ends.
  void Abandon(const Status& status);

  // While another stream writes the slab, so many pieces are received before this one waits for its turn.
  static constexpr size_t kPieces = 4;

  TcpPeer* const peer_;
  std::vector<char>
      buffer_;  // the first piece is used again and again, unless its turn has to wait
  std::deque<Waiting> asked_;  // in order of their questions
  uint64_t first_ = 1;         // sequence number of asked_.front()
  std::atomic<bool> stop_ = false;
  Mutex mu_;
  // The thread changes it under mu_, and reads it without.
  std::unique_ptr<TcpSocket> socket_;
  std::thread thread_;
};

TcpPeer::TcpPeer(std::string address, const TcpReaderOptions& options)
    : address_(std::move(address)), options_(options) {}

TcpPeer::~TcpPeer() = default;

void TcpPeer::Close() {
  std::vector<std::unique_ptr<Stream>> streams;
  {
    MutexLock lock(&mu_);
    closing_ = true;
    wake_.NotifyAll();
    streams.swap(streams_);
  }
  for (const auto& stream : streams) stream->Stop();
  streams.clear();
  FailAll(absl::CancelledError("the transport is closing"));
}

void TcpPeer::Read(Waiting read) {
  const Status refused = Admit(&read);
  if (!refused.ok()) read.done(refused);
}

Status TcpPeer::Admit(Waiting* read) {
  MutexLock lock(&mu_);
  if (closing_) return absl::CancelledError("the transport is closing");
  if (waiting_.size() >= options_.max_waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat("peer ", address_, ": ", waiting_.size(), " reads wait for it already"));
  }
  if (idle_ <= static_cast<int>(waiting_.size())) CAIRN_RETURN_IF_ERROR(AddStream());
  waiting_.push_back(std::move(*read));
  wake_.NotifyOne();
  return absl::OkStatus();
}

Status TcpPeer::AddStream() {
  if (streams_.size() >= static_cast<size_t>(options_.streams)) return absl::OkStatus();
  try {
    streams_.push_back(std::make_unique<Stream>(this));
  } catch (const std::exception& e) {
    if (streams_.empty()) {
      return absl::ResourceExhaustedError(absl::StrCat("a stream to read with: ", e.what()));
    }
  }
  return absl::OkStatus();
}

std::deque<TcpPeer::Waiting> TcpPeer::Take(size_t most, bool wait, bool* closing) {
  std::deque<Waiting> taken, late;
  {
    MutexLock lock(&mu_);
    const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(options_.idle);
    ++idle_;
    while (wait && waiting_.empty() && !closing_) {
      if (!wake_.WaitUntil(&mu_, until)) break;
    }
    --idle_;
    const MonotonicNanos now = RealClock()->Now();
    while (!waiting_.empty() && taken.size() < most && !closing_) {
      auto& into = waiting_.front().request.deadline <= now ? late : taken;
      into.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    *closing = closing_;
  }
  for (const Waiting& read : late) {
    read.done(absl::DeadlineExceededError("the deadline passed while the read waited its turn"));
  }
  return taken;
}

void TcpPeer::PutBack(std::deque<Waiting> reads) {
  MutexLock lock(&mu_);
  while (!reads.empty()) {
    waiting_.push_front(std::move(reads.back()));
    reads.pop_back();
  }
  wake_.NotifyAll();
}

void TcpPeer::FailAll(const Status& status) {
  std::deque<Waiting> reads;
  {
    MutexLock lock(&mu_);
    reads.swap(waiting_);
  }
  for (const Waiting& read : reads) read.done(status);
}

// --- one stream

void TcpPeer::Stream::Run() {
  pthread_setname_np(pthread_self(), "data-read");
  bool closing = false;
  while (!closing) {
    Status status;
    try {
      status = Go(&closing);
    } catch (const std::exception& e) {  // no memory
      status = absl::ResourceExhaustedError(e.what());
    }
    if (!status.ok()) Abandon(status);
  }
  Disconnect();
  for (const Waiting& read : asked_) {
    read.done(absl::CancelledError("the transport is closing"));
  }
}

Status TcpPeer::Stream::Go(bool* closing) {
  const size_t first = asked_.size();
  std::deque<Waiting> more =
      peer_->Take(static_cast<size_t>(peer_->options_.ahead) - first, asked_.empty(), closing);
  if (*closing) return absl::OkStatus();
  std::move(more.begin(), more.end(), std::back_inserter(asked_));
  if (asked_.empty()) {
    Disconnect();
    return absl::OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(Ask(first));
  return TakeAnswer();
}

Status TcpPeer::Stream::Connect(MonotonicNanos deadline) {
  const TcpReaderOptions& options = peer_->options_;
  CAIRN_ASSIGN_OR_RETURN(UniqueFd connection,
                         TcpSocket::Connect(peer_->address_, deadline, options.stall, stop_));
  std::unique_ptr<tls::TlsSession> session;
  if (options.security.tls != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(session, options.security.tls->NewSession(/*server=*/false));
  }
  {
    MutexLock lock(&mu_);
    socket_ = std::make_unique<TcpSocket>(std::move(connection), options.stall, std::move(session));
    if (stop_) socket_->Shutdown();
  }
  if (options.security.tls != nullptr) {
    // Nobody but a member of this cluster is shown a token.
    CAIRN_RETURN_IF_ERROR(socket_->Handshake(options.security.cluster, deadline).status());
  }
  CAIRN_RETURN_IF_ERROR(
      socket_->Send(Encode(Opening{kTcpVersion, options.self}), /*more=*/false, deadline));
  std::array<char, kOpenedBytes> bytes = {};
  CAIRN_RETURN_IF_ERROR(socket_->Receive(absl::MakeSpan(bytes), deadline));
  CAIRN_ASSIGN_OR_RETURN(const Opened opened,
                         DecodeOpened(absl::string_view(bytes.data(), bytes.size())));
  if (opened.code != absl::StatusCode::kOk || opened.version != kTcpVersion) {
    return absl::UnavailableError(absl::StrCat("peer ", peer_->address_, " speaks version ",
                                               opened.version, " of the data stream, not ",
                                               kTcpVersion));
  }
  return absl::OkStatus();
}

void TcpPeer::Stream::Disconnect() {
  MutexLock lock(&mu_);
  socket_.reset();
}

Status TcpPeer::Stream::Ask(size_t first) {
  if (socket_ == nullptr) {
    CAIRN_RETURN_IF_ERROR(Connect(asked_.front().request.deadline));
  }
  std::string questions;
  for (size_t i = first; i < asked_.size(); ++i) {
    const Waiting& read = asked_[i];
    questions += Encode(Question{first_ + i, read.request.token, read.from.slab, read.from.offset,
                                 static_cast<uint32_t>(read.request.length)});
  }
  return socket_->Send(questions, /*more=*/false, asked_.front().request.deadline);
}

Status TcpPeer::Stream::TakeAnswer() {
  Waiting& read = asked_.front();
  std::array<char, kAnswerBytes> bytes = {};
  CAIRN_RETURN_IF_ERROR(socket_->Receive(absl::MakeSpan(bytes), read.request.deadline));
  CAIRN_ASSIGN_OR_RETURN(const Answer answer,
                         DecodeAnswer(absl::string_view(bytes.data(), bytes.size())));
  if (answer.sequence != first_) {
    return absl::UnavailableError(
        absl::StrCat("the peer answered question ", answer.sequence, ", not ", first_));
  }
  StatusOr<uint32_t> result = uint32_t{0};
  if (answer.code != absl::StatusCode::kOk) {
    result = Refusal(answer.code);
  } else if (answer.length != read.request.length) {
    return absl::UnavailableError(absl::StrCat("the peer answered with ", answer.length,
                                               " bytes, not ", read.request.length));
  } else {
    Status written;
    CAIRN_ASSIGN_OR_RETURN(result, TakeBytes(read, &written));
    if (!written.ok()) result = written;
  }
  const ReadDone done = std::move(read.done);
  asked_.pop_front();
  ++first_;
  done(result);
  return absl::OkStatus();
}

StatusOr<uint32_t> TcpPeer::Stream::TakeBytes(const Waiting& read, Status* written) {
  uint32_t crc = 0;
  uint64_t at = read.request.into.offset + read.request.into_offset;
  std::vector<PlacedBytes> due;  // received, and not yet in the slab
  due.reserve(kPieces);
  for (uint64_t left = read.request.length; left > 0;) {
    const absl::Span<char> piece(buffer_.data() + due.size() * kCheckedReadBytes,
                                 std::min<uint64_t>(left, kCheckedReadBytes));
    CAIRN_RETURN_IF_ERROR(socket_->Receive(piece, read.request.deadline));
    crc = Crc32c(crc, piece.data(), piece.size());
    due.push_back({piece, at});
    at += piece.size();
    left -= piece.size();
    // What cannot be written is taken all the same: other answers stand behind it.
    const bool wait = left == 0 || due.size() == kPieces;
    if (!written->ok() || read.into->Write(due, wait, written)) due.clear();
  }
  return crc;
}

void TcpPeer::Stream::Abandon(const Status& status) {
  const bool late = absl::IsDeadlineExceeded(status);  // the first one's; the others may yet do it
  const bool gone = socket_ == nullptr || socket_->stalled();
  Disconnect();
  std::deque<Waiting> asked, again;
  asked.swap(asked_);
  first_ = 1;
  std::vector<Waiting> ended;
  for (Waiting& read : asked) {
    const bool first = &read == &asked.front();
    if (late ? first : gone || read.tries > 0) {
      ended.push_back(std::move(read));
    } else {
      if (!late) ++read.tries;
      again.push_back(std::move(read));
    }
  }
  peer_->PutBack(std::move(again));
  const Status said =
      late ? status
           : absl::UnavailableError(absl::StrCat("peer ", peer_->address_, ": ", status.message()));
  for (const Waiting& read : ended) read.done(said);
  if (gone && !late) peer_->FailAll(said);
}

// --- all peers

void TcpReader::Read(ReadRequest request, ReadDone done) {
  const auto prepare = [&]() -> StatusOr<TcpPeer::Waiting> {
    CAIRN_ASSIGN_OR_RETURN(const ExtentRef from, BytesOf(request));
    CAIRN_ASSIGN_OR_RETURN(auto slab, slabs_->Find(request.into));
    return TcpPeer::Waiting{std::move(request), std::move(done), std::move(slab), from};
  };
  StatusOr<TcpPeer::Waiting> read = prepare();
  if (!read.ok()) return done(read.status());
  const std::string& address = read->request.address;
  const StatusOr<TcpPeer*> peer =
      peers_.At(address, [&] { return std::make_unique<TcpPeer>(address, options_); });
  if (!peer.ok()) return read->done(peer.status());
  (*peer)->Read(*std::move(read));
}

}  // namespace cairn::transport
