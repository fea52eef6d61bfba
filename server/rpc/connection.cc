#include "server/rpc/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "glog/logging.h"

namespace cairn::rpc {

using apache::thrift::transport::TTransportException;

Connection::Connection(UniqueFd socket, const Credentials& credentials,
                       const ConnectionOptions& options, OpenConnections* others)
    : TVirtualTransport(std::make_shared<apache::thrift::TConfiguration>(
          static_cast<int>(options.max_message_bytes))),
      credentials_(credentials),
      options_(options),
      others_(others),
      socket_(std::move(socket)),
      in_(options.buffer_bytes),
      out_(options.buffer_bytes) {
  timeval timeout = {};
  timeout.tv_sec = options.stall_timeout_ms / 1000;
  timeout.tv_usec = (options.stall_timeout_ms % 1000) * 1000;
  setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  MutexLock lock(&others_->mu);
  others_->all.insert(this);
  if (others_->ended) Shutdown();
}

Connection::~Connection() {
  MutexLock lock(&others_->mu);
  others_->all.erase(this);
}

void Connection::BeginMessage() {
  resetConsumedMessageSize();
  inside_message_ = in_begin_ < in_end_;
}

void Connection::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

bool Connection::peek() {
  if (in_begin_ < in_end_) return true;
  in_begin_ = 0;
  in_end_ = Receive(in_.data(), static_cast<uint32_t>(in_.size()));
  return in_end_ > 0;
}

void Connection::close() {
  open_ = false;
  Shutdown();
}

void Connection::Count(uint32_t bytes) {
  if (static_cast<long>(bytes) > getRemainingMessageSize()) {
    throw TTransportException(TTransportException::CORRUPTED_DATA, "message is too long");
  }
  setRemainingMessageSize(getRemainingMessageSize() - static_cast<long>(bytes));
}

uint32_t Connection::Receive(uint8_t* buffer, uint32_t length) {
  for (;;) {
    if (drained_) AwaitBytes();
    const ssize_t got = recv(socket_.get(), buffer, length, MSG_DONTWAIT);
    if (got > 0) {
      inside_message_ = true;
      drained_ = static_cast<uint32_t>(got) < length;
      return static_cast<uint32_t>(got);
    }
    if (got == 0) return 0;
    drained_ = true;
    if (errno == EINTR || errno == EAGAIN) continue;
    throw TTransportException(TTransportException::END_OF_FILE, std::strerror(errno));
  }
}

// Waits here and not in recv: common/fd.h, WaitReadable, says why.
void Connection::AwaitBytes() {
  const bool for_ever = silence_allowed_ && !inside_message_;
  const StatusOr<bool> readable =
      WaitReadable(socket_.get(), for_ever ? -1 : options_.stall_timeout_ms);
  if (!readable.ok()) {
    throw TTransportException(TTransportException::END_OF_FILE,
                              std::string(readable.status().message()));
  }
  if (!*readable && !for_ever) {
    throw TTransportException(TTransportException::TIMED_OUT, "client stalls");
  }
}

uint32_t Connection::read(uint8_t* buffer, uint32_t length) {
  Count(length);
  const uint32_t buffered = std::min(length, in_end_ - in_begin_);
  if (buffered > 0) {
    std::memcpy(buffer, in_.data() + in_begin_, buffered);
    in_begin_ += buffered;
  } else if (length >= in_.size()) {
    const uint32_t got = Receive(buffer, length);
    setRemainingMessageSize(getRemainingMessageSize() + static_cast<long>(length - got));
    return got;
  } else {
    in_begin_ = 0;
    in_end_ = Receive(in_.data(), static_cast<uint32_t>(in_.size()));
    const uint32_t got = std::min(length, in_end_);
    std::memcpy(buffer, in_.data(), got);
    in_begin_ = got;
    setRemainingMessageSize(getRemainingMessageSize() + static_cast<long>(length - got));
    return got;
  }
  // readAll asks again for the rest, which is counted then.
  setRemainingMessageSize(getRemainingMessageSize() + static_cast<long>(length - buffered));
  return buffered;
}

const uint8_t* Connection::borrow(uint8_t*, uint32_t* length) {
  if (in_end_ - in_begin_ < *length) return nullptr;
  *length = in_end_ - in_begin_;
  return in_.data() + in_begin_;
}

void Connection::consume(uint32_t length) {
  if (in_end_ - in_begin_ < length) {
    throw TTransportException(TTransportException::BAD_ARGS, "consume without borrow");
  }
  Count(length);
  in_begin_ += length;
}

void Connection::write(const uint8_t* buffer, uint32_t length) {
  if (length > out_.size() - out_end_) {
    flush();
    if (length >= out_.size()) {
      SendAll(buffer, length);
      return;
    }
  }
  std::memcpy(out_.data() + out_end_, buffer, length);
  out_end_ += length;
}

void Connection::flush() {
  const uint32_t length = std::exchange(out_end_, 0);
  SendAll(out_.data(), length);
}

void Connection::SendAll(const uint8_t* buffer, uint32_t length) {
  while (length > 0) {
    const ssize_t sent = send(socket_.get(), buffer, length, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) {
        throw TTransportException(TTransportException::TIMED_OUT, "client does not read");
      }
      throw TTransportException(TTransportException::END_OF_FILE, std::strerror(errno));
    }
    buffer += sent;
    length -= static_cast<uint32_t>(sent);
  }
}

Listener::Listener(UniqueFd listener, const ConnectionOptions& options)
    : options_(options),
      listener_(std::move(listener)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(wake_.valid()) << "eventfd: errno " << errno;
  const int flags = fcntl(listener_.get(), F_GETFL);
  PCHECK(flags >= 0 && fcntl(listener_.get(), F_SETFL, flags | O_NONBLOCK) == 0) << "listener";
}

void Listener::Interrupt() {
  const uint64_t one = 1;
  PCHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
}

void Listener::ShutdownConnections() {
  MutexLock lock(&connections_.mu);
  connections_.ended = true;
  for (Connection* connection : connections_.all) connection->Shutdown();
}

std::shared_ptr<Connection> Listener::Accept() {
  for (;;) {
    pollfd waits[2] = {{listener_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    if (poll(waits, 2, -1) < 0 && errno != EINTR) throw std::bad_alloc();  // nothing else fails it
    if ((waits[1].revents & POLLIN) != 0) return nullptr;
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
        // The client stays in the backlog and would wake us at once.
        LOG_EVERY_N(ERROR, 100) << "no descriptor left to accept a client";
        poll(waits + 1, 1, 50);
      }
      continue;
    }
    ucred peer = {};
    socklen_t length = sizeof(peer);
    if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) continue;
    return std::make_shared<Connection>(
        std::move(socket), Credentials{peer.uid, peer.gid, peer.pid}, options_, &connections_);
  }
}

}  // namespace cairn::rpc
