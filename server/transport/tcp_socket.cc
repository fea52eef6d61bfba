#include "server/transport/tcp_socket.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/tcp_address.h"

namespace cairn::transport {
namespace {

// A call that waits in the kernel returns this often, to look at deadlines and at Shutdown.
constexpr MonotonicNanos kTick = 100 * kNanosPerMilli;
// A sendfile of more would keep a stream in the kernel beyond its tick.
constexpr uint64_t kSendPiece = 4 << 20;
// Of a file, to be encrypted: it fits the processor's cache.
constexpr uint64_t kEncryptedPiece = 256 << 10;

template <class T>
void SetOption(int socket, int level, int option, T value) {
  // Each is an improvement that the stream does not depend on for being right.
  (void)setsockopt(socket, level, option, &value, sizeof(value));
}

void SetBlocking(int socket) {
  const int flags = fcntl(socket, F_GETFL);
  (void)fcntl(socket, F_SETFL, flags & ~O_NONBLOCK);
}

}  // namespace

TcpSocket::TcpSocket(UniqueFd socket, MonotonicNanos stall,
                     std::unique_ptr<tls::TlsSession> session)
    : socket_(std::move(socket)), session_(std::move(session)), stall_(stall) {
  const int fd = socket_.get();
  if (session_ != nullptr) session_->Attach(fd);
  SetBlocking(fd);
  const timeval tick = {.tv_sec = 0, .tv_usec = kTick / 1000};
  SetOption(fd, SOL_SOCKET, SO_RCVTIMEO, tick);
  SetOption(fd, SOL_SOCKET, SO_SNDTIMEO, tick);
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A connection on which nothing moves is probed, so that one whose peer vanished does not stay.
  const int seconds = std::max<int>(1, static_cast<int>(stall_ / kNanosPerSecond));
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<unsigned>(stall_ / kNanosPerMilli));
}

StatusOr<UniqueFd> TcpSocket::Connect(const std::string& address, MonotonicNanos deadline,
                                      MonotonicNanos stall, const std::atomic<bool>& stop) {
  const StatusOr<TcpAddress> found = TcpAddress::Parse(address);
  if (!found.ok()) return Annotate(found.status(), "address");
  UniqueFd socket(::socket(found->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "socket");
  int error = 0;
  if (::connect(socket.get(), found->raw(), found->raw_length()) != 0) error = errno;
  if (error == EINPROGRESS) {
    const MonotonicNanos until = std::min(deadline, RealClock()->Now() + stall);
    pollfd waiting = {socket.get(), POLLOUT, 0};
    int ready = 0;
    while (ready == 0 && !stop && RealClock()->Now() < until) {
      ready = ::poll(&waiting, 1, kTick / kNanosPerMilli);
    }
    if (ready == 0) {
      return absl::UnavailableError(absl::StrCat("peer ", address, " does not answer"));
    }
    socklen_t length = sizeof(error);
    if (ready < 0 || getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) {
      error = errno;
    }
  }
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("peer ", address, ": ", ErrnoStatus(error, "connect").message()));
  }
  return socket;
}

Status TcpSocket::GoOn(int error, MonotonicNanos moved, MonotonicNanos deadline) {
  if (shut_) return absl::UnavailableError("the connection was cut on this side");
  if (error != 0 && error != EAGAIN && error != EWOULDBLOCK && error != EINTR) {
    return absl::UnavailableError(ErrnoStatus(error, "the connection was cut").message());
  }
  const MonotonicNanos now = RealClock()->Now();
  if (now >= deadline) return absl::DeadlineExceededError("the deadline has passed");
  if (now - moved >= stall_) {
    stalled_ = true;
    return absl::UnavailableError(
        absl::StrCat("no byte has moved for ", stall_ / kNanosPerMilli, " ms"));
  }
  return absl::OkStatus();
}

StatusOr<MemberName> TcpSocket::Handshake(const std::string& cluster, MonotonicNanos deadline) {
  const MonotonicNanos begun = RealClock()->Now();
  for (;;) {
    const tls::TlsMoved moved = session_->Handshake();
    if (!moved.status.ok()) return moved.status;
    if (moved.wait == 0) break;
    CAIRN_RETURN_IF_ERROR(GoOn(0, begun, deadline));
  }
  CAIRN_ASSIGN_OR_RETURN(MemberName peer, session_->Peer());
  if (peer.cluster != cluster) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the peer's certificate is of ", MemberUri(peer), ", this member's cluster is ", cluster));
  }
  return peer;
}

Status TcpSocket::SendEncrypted(absl::string_view bytes, MonotonicNanos deadline) {
  MonotonicNanos moved_at = RealClock()->Now();
  while (!bytes.empty()) {
    const tls::TlsMoved moved = session_->Write(bytes);
    if (!moved.status.ok()) return shut_ ? GoOn(0, moved_at, deadline) : moved.status;
    if (moved.bytes > 0) {
      bytes.remove_prefix(moved.bytes);
      moved_at = RealClock()->Now();
    }
    if (!bytes.empty()) CAIRN_RETURN_IF_ERROR(GoOn(0, moved_at, deadline));
  }
  return absl::OkStatus();
}

Status TcpSocket::ReceiveEncrypted(absl::Span<char> into, MonotonicNanos deadline) {
  MonotonicNanos moved_at = RealClock()->Now();
  while (!into.empty()) {
    const tls::TlsMoved moved = session_->Read(into.data(), into.size());
    if (!moved.status.ok()) return shut_ ? GoOn(0, moved_at, deadline) : moved.status;
    if (moved.bytes == 0 && moved.wait == 0) {
      return absl::UnavailableError("the peer closed the connection");
    }
    if (moved.bytes > 0) {
      into.remove_prefix(moved.bytes);
      moved_at = RealClock()->Now();
    }
    if (!into.empty()) CAIRN_RETURN_IF_ERROR(GoOn(0, moved_at, deadline));
  }
  return absl::OkStatus();
}

Status TcpSocket::SendFileEncrypted(int file, uint64_t offset, uint64_t length,
                                    MonotonicNanos deadline) {
  piece_.resize(kEncryptedPiece);
  while (length > 0) {
    const uint64_t part = std::min<uint64_t>(length, piece_.size());
    CAIRN_RETURN_IF_ERROR(PreadAll(file, piece_.data(), part, offset));
    CAIRN_RETURN_IF_ERROR(SendEncrypted({piece_.data(), part}, deadline));
    offset += part;
    length -= part;
  }
  return absl::OkStatus();
}

Status TcpSocket::Send(absl::string_view bytes, bool more, MonotonicNanos deadline) {
  if (session_ != nullptr) return SendEncrypted(bytes, deadline);
  MonotonicNanos moved = RealClock()->Now();
  while (!bytes.empty()) {
    const ssize_t n =
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    if (n > 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
      moved = RealClock()->Now();
    }
    if (!bytes.empty()) CAIRN_RETURN_IF_ERROR(GoOn(n < 0 ? errno : 0, moved, deadline));
  }
  return absl::OkStatus();
}

Status TcpSocket::SendFile(int file, uint64_t offset, uint64_t length, MonotonicNanos deadline) {
  if (session_ != nullptr) return SendFileEncrypted(file, offset, length, deadline);
  MonotonicNanos moved = RealClock()->Now();
  auto at = static_cast<off_t>(offset);
  while (length > 0) {
    const ssize_t n = ::sendfile(socket_.get(), file, &at, std::min(length, kSendPiece));
    const int error = n < 0 ? errno : 0;
    if (n > 0) {
      length -= static_cast<uint64_t>(n);
      moved = RealClock()->Now();
    }
    if (n == 0) return absl::DataLossError("the slab is shorter than it was");
    if (length > 0) CAIRN_RETURN_IF_ERROR(GoOn(error, moved, deadline));
  }
  return absl::OkStatus();
}

Status TcpSocket::Receive(absl::Span<char> into, MonotonicNanos deadline) {
  if (session_ != nullptr) return ReceiveEncrypted(into, deadline);
  MonotonicNanos moved = RealClock()->Now();
  while (!into.empty()) {
    const ssize_t n = ::recv(socket_.get(), into.data(), into.size(), MSG_WAITALL);
    const int error = n < 0 ? errno : 0;
    if (n == 0) return absl::UnavailableError("the peer closed the connection");
    if (n > 0) {
      into.remove_prefix(static_cast<size_t>(n));
      moved = RealClock()->Now();
    }
    if (!into.empty()) CAIRN_RETURN_IF_ERROR(GoOn(error, moved, deadline));
  }
  return absl::OkStatus();
}

Status TcpSocket::WaitReadable(MonotonicNanos deadline) {
  if (session_ != nullptr && session_->HasPending()) return absl::OkStatus();
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(const bool readable,
                           cairn::WaitReadable(socket_.get(), kTick / kNanosPerMilli));
    if (readable) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(GoOn(0, RealClock()->Now(), deadline));
  }
}

void TcpSocket::Shutdown() {
  shut_ = true;
  (void)::shutdown(socket_.get(), SHUT_RDWR);
}

bool TcpSocket::Unacknowledged() const {
  int bytes = 0;
  return ioctl(socket_.get(), SIOCOUTQ, &bytes) != 0 || bytes > 0;
}

void TcpSocket::Reset() {
  // With a time of 0 close throws away what is queued, and the pages that it refers to.
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  SetOption(socket_.get(), SOL_SOCKET, SO_LINGER, at_once);
  socket_.Reset();
}

}  // namespace cairn::transport
