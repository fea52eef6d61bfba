#include "client/cpp/connection.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <thrift/transport/TTransportException.h>
#include <thrift/transport/TVirtualTransport.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "client/cpp/process.h"
#include "common/fd.h"
#include "proto/convert.h"
#include "proto/frame.h"

namespace cairn::client {

using apache::thrift::transport::TTransport;
using apache::thrift::transport::TTransportException;

namespace {

// What the lists of one reply may take in memory.
constexpr uint64_t kMaxEntryBytes = 256 << 20;
constexpr size_t kFirstPiece = 8 << 10, kPiece = 1 << 20;

}  // namespace

// A Unix socket that carries framed messages (proto/frame.h) and whose every wait ends at the deadline. A
// reply is read when all of it is there; the space for it grows with what has come, not with what it
// announces.
class FramedSocket : public apache::thrift::transport::TVirtualTransport<FramedSocket> {
 public:
  explicit FramedSocket(UniqueFd fd)
      : TVirtualTransport(std::make_shared<apache::thrift::TConfiguration>(
            static_cast<int>(kMaxFrameBytes + kFrameHeaderBytes))),
        fd_(std::move(fd)) {}

  void SetDeadline(MonotonicNanos deadline) { deadline_ = deadline; }

  bool isOpen() const override { return fd_.valid(); }
  bool peek() override { return isOpen(); }
  void open() override {}
  void close() override { fd_.Reset(); }

  // The whole of the next reply.
  void AwaitMessage() {
    if (in_.size() < kFirstPiece) in_.resize(kFirstPiece);
    size_t have = 0;
    size_t wanted = kFrameHeaderBytes;
    while (have < wanted) {
      if (have == in_.size()) in_.resize(std::min(wanted, have + std::max(have, kPiece)));
      have += Receive(in_.data() + have, in_.size() - have);
      if (have < kFrameHeaderBytes) continue;
      const uint32_t length = FrameLength(in_.data());
      if (length > kMaxFrameBytes) {
        throw TTransportException(TTransportException::CORRUPTED_DATA,
                                  absl::StrCat("an answer of ", length, " bytes"));
      }
      wanted = kFrameHeaderBytes + length;
    }
    if (have > wanted) {
      throw TTransportException(TTransportException::CORRUPTED_DATA, "more than one answer");
    }
    at_ = kFrameHeaderBytes;
    end_ = wanted;
  }
  uint32_t available_read() const { return static_cast<uint32_t>(end_ - at_); }

  uint32_t read(uint8_t* bytes, uint32_t length) {
    const uint32_t n = std::min(length, available_read());
    if (n == 0) throw TTransportException(TTransportException::END_OF_FILE, "the answer is short");
    memcpy(bytes, in_.data() + at_, n);
    at_ += n;
    return n;
  }
  const uint8_t* borrow(uint8_t*, uint32_t* length) {
    if (available_read() < *length) return nullptr;
    *length = available_read();
    return reinterpret_cast<const uint8_t*>(in_.data()) + at_;
  }
  void consume(uint32_t length) { at_ += length; }
  uint32_t readEnd() override {
    if (in_.size() > kPiece) in_ = std::string();
    at_ = end_ = 0;
    return 0;
  }

  void write(const uint8_t* bytes, uint32_t length) {
    if (out_.empty()) out_.assign(kFrameHeaderBytes, '\0');
    out_.append(reinterpret_cast<const char*>(bytes), length);
  }
  void flush() override {
    const absl::Cleanup next = [this] {
      if (out_.capacity() > kPiece) out_ = std::string();
      out_.clear();
    };
    if (out_.size() > kMaxFrameBytes + kFrameHeaderBytes) {
      throw TTransportException(
          TTransportException::BAD_ARGS,
          absl::StrCat("message: ", out_.size() - kFrameHeaderBytes, " bytes, the limit is ",
                       kMaxFrameBytes, "; say it in several calls, each with fewer objects"));
    }
    PutFrameLength(static_cast<uint32_t>(out_.size() - kFrameHeaderBytes), out_.data());
    SendAll(out_);
  }

 private:
  size_t Receive(char* into, size_t room) {
    for (;;) {
      if (drained_) AwaitBytes();
      Left();
      const ssize_t n = recv(fd_.get(), into, room, MSG_DONTWAIT);
      if (n > 0) {
        drained_ = static_cast<size_t>(n) < room;
        return static_cast<size_t>(n);
      }
      if (n == 0) throw TTransportException(TTransportException::END_OF_FILE, "connection closed");
      drained_ = true;
      if (errno != EINTR && errno != EAGAIN) Fail("recv");
    }
  }

  void SendAll(absl::string_view bytes) {
    while (!bytes.empty()) {
      ArmSend();
      const ssize_t n = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n < 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        Fail("send");
      }
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }

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
  std::string in_, out_;
  size_t at_ = 0, end_ = 0;  // what of in_ is not read yet
};

namespace {

class ReplyReader : public FrameReader<FramedSocket> {
 public:
  using FrameReader::FrameReader;
  uint32_t readMessageBegin_virt(std::string& name, apache::thrift::protocol::TMessageType& type,
                                 int32_t& sequence) override {
    trans_->AwaitMessage();
    return FrameReader::readMessageBegin_virt(name, type, sequence);
  }
};

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
      new Connection(socket, std::make_shared<FramedSocket>(std::move(fd))));
  return connection;
}

Connection::Connection(std::string socket, std::shared_ptr<FramedSocket> transport)
    : socket_(std::move(socket)), transport_(std::move(transport)) {
  client_ = std::make_unique<wire::CairnClient>(
      std::make_shared<ReplyReader>(transport_, kMaxEntryBytes));
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
      if (e.getType() == TTransportException::BAD_ARGS) {  // of flush: nothing was sent
        broken_ = false;
        return absl::InvalidArgumentError(absl::StrCat(what, ": ", e.what()));
      }
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
