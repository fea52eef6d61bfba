#include "client/cpp/connection.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TTransportException.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "client/cpp/process.h"
#include "common/fd.h"
#include "proto/convert.h"

namespace cairn::client {

using apache::thrift::transport::TTransport;
using apache::thrift::transport::TTransportException;

// A Unix socket whose every wait ends at the deadline.
class DeadlineSocket : public apache::thrift::transport::TVirtualTransport<DeadlineSocket> {
 public:
  explicit DeadlineSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  void SetDeadline(MonotonicNanos deadline) { deadline_ = deadline; }

  bool isOpen() const override { return fd_.valid(); }
  bool peek() override { return isOpen(); }
  void open() override {}
  void close() override { fd_.Reset(); }

  uint32_t read(uint8_t* buffer, uint32_t length) {
    for (;;) {
      if (drained_) AwaitBytes();
      const ssize_t n = recv(fd_.get(), buffer, length, MSG_DONTWAIT);
      if (n > 0) {
        drained_ = static_cast<uint32_t>(n) < length;
        return static_cast<uint32_t>(n);
      }
      if (n == 0) throw TTransportException(TTransportException::END_OF_FILE, "connection closed");
      drained_ = true;
      if (errno != EINTR && errno != EAGAIN) Fail("recv");
    }
  }

  void write(const uint8_t* buffer, uint32_t length) {
    while (length > 0) {
      ArmSend();
      const ssize_t n = send(fd_.get(), buffer, length, MSG_NOSIGNAL);
      if (n < 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        Fail("send");
      }
      buffer += n;
      length -= static_cast<uint32_t>(n);
    }
  }

 private:
  MonotonicNanos Left() const {
    const MonotonicNanos left = deadline_ - RealClock()->Now();
    if (left <= 0) throw TTransportException(TTransportException::TIMED_OUT, "no answer in time");
    return left;
  }

  void AwaitBytes() {
    const MonotonicNanos ms = (Left() + kNanosPerMilli - 1) / kNanosPerMilli;
    const auto readable =
        WaitReadable(fd_.get(), static_cast<int>(std::min<MonotonicNanos>(ms, 1'000'000)));
    if (!readable.ok()) Fail("poll");
  }

  // Makes send return by the deadline. The timeout that was set last is kept while it ends before the
  // deadline and not much earlier: when send returns early, it is only called again.
  void ArmSend() {
    const MonotonicNanos left = Left();
    if (send_timeout_ != 0 && send_timeout_ <= left &&
        send_timeout_ >= std::min(left, kNanosPerSecond) / 2) {
      return;
    }
    MonotonicNanos timeout = std::clamp(left, kNanosPerMilli, 1000 * kNanosPerSecond);
    // Rounded down to a second where there is more than one. Calls with equal timeouts arrive here a
    // few microseconds apart, and then find the socket's timeout already set.
    if (timeout > kNanosPerSecond) timeout = timeout / kNanosPerSecond * kNanosPerSecond;
    timeval tv;
    tv.tv_sec = timeout / kNanosPerSecond;
    tv.tv_usec = timeout % kNanosPerSecond / 1000;
    if (setsockopt(fd_.get(), SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv) != 0) Fail("setsockopt");
    send_timeout_ = timeout;
  }

  [[noreturn]] static void Fail(const char* what) {
    throw TTransportException(TTransportException::UNKNOWN, what, errno);
  }

  UniqueFd fd_;
  MonotonicNanos deadline_ = 0;
  MonotonicNanos send_timeout_ = 0;  // as set on the socket; 0: not yet
  bool drained_ = true;  // the last receive took all that was there: the next one must wait
};

namespace {

// Thrift counts the bytes of all strings that a buffered transport ever handed out against the limit
// of *one* message and never resets the count: after 100 MiB it would refuse a healthy connection.
// This one resets the count at the end of each message.
class MessageBuffer : public apache::thrift::transport::TBufferedTransport {
 public:
  using TBufferedTransport::TBufferedTransport;
  uint32_t readEnd() override {
    resetConsumedMessageSize();
    return TBufferedTransport::readEnd();
  }
};

constexpr uint32_t kBufferBytes = 8192;

Status ConnectStatus(int error, const std::string& socket) {
  if (error == ENOENT || error == ECONNREFUSED) {
    return absl::UnavailableError(
        absl::StrCat("no daemon listens at ", socket, " (", strerror(error), ")"));
  }
  if (error == EAGAIN || error == EINTR || error == ETIMEDOUT) {
    return absl::UnavailableError(absl::StrCat("the daemon at ", socket, " takes no connection"));
  }
  return ErrnoStatus(error, absl::StrCat("connect to ", socket));
}

}  // namespace

StatusOr<std::unique_ptr<Connection>> Connection::Open(const std::string& socket,
                                                       MonotonicNanos deadline) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket.empty() || socket.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("socket: path of ", socket.size(),
                                                   " bytes, must be 1 to ",
                                                   sizeof address.sun_path - 1, ": ", socket));
  }
  memcpy(address.sun_path, socket.data(), socket.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  // With a full backlog connect waits as long as a send would.
  const MonotonicNanos left = std::clamp<MonotonicNanos>(deadline - RealClock()->Now(),
                                                         kNanosPerMilli, 1000 * kNanosPerSecond);
  const timeval tv = {left / kNanosPerSecond, left % kNanosPerSecond / 1000};
  if (setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv) != 0) {
    return ErrnoStatus(errno, "setsockopt");
  }
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return ConnectStatus(errno, socket);
  }
  std::unique_ptr<Connection> connection(
      new Connection(socket, std::make_shared<DeadlineSocket>(std::move(fd))));
  return connection;
}

Connection::Connection(std::string socket, std::shared_ptr<DeadlineSocket> transport)
    : socket_(std::move(socket)), transport_(std::move(transport)) {
  auto buffer = std::make_shared<MessageBuffer>(transport_, kBufferBytes);
  client_ = std::make_unique<wire::CairnClient>(
      std::make_shared<apache::thrift::protocol::TBinaryProtocolT<MessageBuffer>>(
          std::move(buffer)));
}

Connection::~Connection() = default;

Status Connection::Call(absl::string_view what, MonotonicNanos deadline,
                        absl::FunctionRef<void(wire::CairnClient&)> body) {
  transport_->SetDeadline(deadline);
  return Contain([&]() -> Status {
    broken_ = true;  // unless the call ends well, or with an error of the daemon's
    std::string why;
    try {
      body(*client_);
      broken_ = false;
      return absl::OkStatus();
    } catch (const wire::Error& error) {
      broken_ = false;
      return FromWire(error);
    } catch (const TTransportException& e) {
      timed_out_ = e.getType() == TTransportException::TIMED_OUT;
      why = e.what();
    } catch (const apache::thrift::TException& e) {
      why = e.what();
    }
    return absl::UnavailableError(
        absl::StrCat(timed_out_ ? "the daemon at " : "lost the daemon at ", socket_,
                     timed_out_ ? " did not answer " : " in ", what, ": ", why));
  });
}

}  // namespace cairn::client
