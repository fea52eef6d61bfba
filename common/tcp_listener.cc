#include "common/tcp_listener.h"

#include <sys/socket.h>

#include <chrono>
#include <thread>
#include <utility>

namespace cairn {

StatusOr<std::unique_ptr<TcpListener>> TcpListener::Open(const TcpAddress& address) {
  auto listener = std::unique_ptr<TcpListener>(new TcpListener(address));
  bool in_use = false;
  const Status tried = listener->Try(&in_use);
  if (!tried.ok() && !in_use) return tried;
  return listener;
}

Status TcpListener::Try(bool* in_use) {
  StatusOr<UniqueFd> socket = ListenTcp(address(), in_use);
  MutexLock lock(&mu_);
  if (!socket.ok()) {
    problem_ = std::string(socket.status().message());
    return socket.status();
  }
  StatusOr<TcpAddress> bound = TcpAddress::OfSocket(socket->get());
  if (!bound.ok()) return bound.status();
  address_ = *bound;
  socket_ = *std::move(socket);
  problem_.clear();
  fd_ = socket_.get();
  return absl::OkStatus();
}

std::string TcpListener::Problem() const {
  MutexLock lock(&mu_);
  return problem_;
}

bool TcpListener::Await(const std::atomic<bool>& stop, MonotonicNanos deadline) {
  constexpr auto kTryAgain = std::chrono::milliseconds(100);
  while (fd_ < 0 && !stop && RealClock()->Now() < deadline) {
    bool in_use = false;
    if (!Try(&in_use).ok()) std::this_thread::sleep_for(kTryAgain);
  }
  return fd_ >= 0;
}

TcpAddress TcpListener::address() const {
  MutexLock lock(&mu_);
  return address_;
}

void TcpListener::Shutdown() {
  MutexLock lock(&mu_);
  if (socket_.valid()) (void)::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace cairn
