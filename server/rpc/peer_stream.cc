#include "server/rpc/peer_stream.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "proto/frame.h"

namespace cairn::rpc {
namespace {

constexpr size_t kReadAtOnceBytes = 256 << 10;
constexpr size_t kSlowestBytesPerSecond = 4 << 20;
// How often a connect looks whether it shall stop.
constexpr int kTickMs = 50;

template <class T>
void SetOption(int socket, int level, int option, T value) {
  // Each is an improvement that the stream does not depend on for being right.
  (void)setsockopt(socket, level, option, &value, sizeof(value));
}

TlsMoved PlainMoved(ssize_t moved, short wait) {
  if (moved >= 0) return {static_cast<size_t>(moved), 0, absl::OkStatus()};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {0, wait, absl::OkStatus()};
  return {0, 0, absl::UnavailableError(ErrnoStatus(errno, "the connection was cut").message())};
}

int MillisUntil(MonotonicNanos until) {
  const MonotonicNanos left = until - RealClock()->Now();
  return static_cast<int>(
      std::clamp<MonotonicNanos>((left + kNanosPerMilli - 1) / kNanosPerMilli, 0, 60'000));
}

}  // namespace

MonotonicNanos TimeToMove(size_t bytes) {
  return static_cast<MonotonicNanos>(bytes) * (kNanosPerSecond / 1000) /
         static_cast<MonotonicNanos>(kSlowestBytesPerSecond / 1000);
}

PeerStream::PeerStream(UniqueFd socket, std::unique_ptr<TlsSession> tls, MonotonicNanos stall)
    : socket_(std::move(socket)), tls_(std::move(tls)), stall_(stall) {
  const int fd = socket_.get();
  (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<unsigned>(stall_ / kNanosPerMilli));
  if (tls_ != nullptr) tls_->Attach(fd);
}

Status PeerStream::Wait(short events, MonotonicNanos deadline) {
  const MonotonicNanos until = std::min(deadline, RealClock()->Now() + stall_);
  pollfd waiting = {socket_.get(), events, 0};
  for (;;) {
    const int ready = ::poll(&waiting, 1, MillisUntil(until));
    if (shut_) return absl::UnavailableError("the connection was cut on this side");
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
    const MonotonicNanos now = RealClock()->Now();
    if (now >= deadline) return absl::DeadlineExceededError("the peer does not answer in time");
    if (now >= until) {
      return absl::UnavailableError(
          absl::StrCat("no byte has moved for ", stall_ / kNanosPerMilli, " ms"));
    }
  }
}

StatusOr<size_t> PeerStream::Move(const std::function<TlsMoved()>& move, MonotonicNanos deadline) {
  for (;;) {
    if (shut_) return absl::UnavailableError("the connection was cut on this side");
    const TlsMoved moved = move();
    if (!moved.status.ok()) return moved.status;
    if (moved.wait == 0) return moved.bytes;
    CAIRN_RETURN_IF_ERROR(Wait(moved.wait, deadline));
  }
}

Status PeerStream::Handshake(MonotonicNanos deadline) {
  if (tls_ == nullptr) return absl::OkStatus();
  CAIRN_RETURN_IF_ERROR(Move([this] { return tls_->Handshake(); }, deadline).status());
  CAIRN_ASSIGN_OR_RETURN(peer_, tls_->Peer());
  return absl::OkStatus();
}

Status PeerStream::Send(absl::string_view bytes, MonotonicNanos deadline) {
  while (!bytes.empty()) {
    const auto move = [&] {
      if (tls_ != nullptr) return tls_->Write(bytes);
      return PlainMoved(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), POLLOUT);
    };
    CAIRN_ASSIGN_OR_RETURN(const size_t sent, Move(move, deadline));
    bytes.remove_prefix(sent);
  }
  return absl::OkStatus();
}

Status PeerStream::Receive(char* into, size_t length, MonotonicNanos deadline) {
  while (length > 0) {
    const auto move = [&] {
      if (tls_ != nullptr) return tls_->Read(into, length);
      return PlainMoved(::recv(socket_.get(), into, length, 0), POLLIN);
    };
    CAIRN_ASSIGN_OR_RETURN(const size_t got, Move(move, deadline));
    if (got == 0) return absl::UnavailableError("the peer has closed the connection");
    into += got;
    length -= got;
  }
  return absl::OkStatus();
}

Status PeerStream::WaitReadable(MonotonicNanos deadline) {
  if (tls_ != nullptr && tls_->HasPending()) return absl::OkStatus();
  for (;;) {
    const Status waited = Wait(POLLIN, deadline);
    if (waited.ok() || shut_ || RealClock()->Now() >= deadline) return waited;
  }
}

StatusOr<uint32_t> PeerStream::ReceiveLength(MonotonicNanos deadline) {
  char header[kFrameHeaderBytes] = {};
  CAIRN_RETURN_IF_ERROR(Receive(header, sizeof(header), deadline));
  return FrameLength(header);
}

StatusOr<std::string> PeerStream::ReceiveMessage(uint32_t length, MonotonicNanos deadline) {
  std::string message;
  while (message.size() < length) {
    const size_t had = message.size();
    const size_t piece = std::min<size_t>(length - had, kReadAtOnceBytes);
    message.resize(had + piece);
    CAIRN_RETURN_IF_ERROR(Receive(message.data() + had, piece, deadline));
  }
  return message;
}

void PeerStream::Shutdown() {
  shut_ = true;
  (void)::shutdown(socket_.get(), SHUT_RDWR);
}

StatusOr<UniqueFd> ConnectTcp(const TcpAddress& address, MonotonicNanos deadline,
                              const std::atomic<bool>& stop) {
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "socket");
  int error = 0;
  if (::connect(socket.get(), address.raw(), address.raw_length()) != 0) error = errno;
  if (error == EINPROGRESS) {
    pollfd waiting = {socket.get(), POLLOUT, 0};
    int ready = 0;
    while (ready == 0 && !stop && RealClock()->Now() < deadline) {
      ready = ::poll(&waiting, 1, std::min(kTickMs, MillisUntil(deadline)));
    }
    if (ready == 0) {
      return absl::UnavailableError(absl::StrCat(address.ToString(), ": nobody answers"));
    }
    socklen_t length = sizeof(error);
    if (ready < 0 || getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
      error = errno;
    }
  }
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat(address.ToString(), ": ", ErrnoStatus(error, "connect").message()));
  }
  return socket;
}

}  // namespace cairn::rpc
