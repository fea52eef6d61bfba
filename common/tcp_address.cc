#include "common/tcp_address.h"

#include <arpa/inet.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"

namespace cairn {
namespace {

Status NotOne(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not ADDRESS:PORT (or [ADDRESS]:PORT), both in numbers"));
}

sockaddr_in* V4(sockaddr_storage* storage) { return reinterpret_cast<sockaddr_in*>(storage); }
sockaddr_in6* V6(sockaddr_storage* storage) { return reinterpret_cast<sockaddr_in6*>(storage); }
const sockaddr_in* V4(const sockaddr_storage* storage) {
  return reinterpret_cast<const sockaddr_in*>(storage);
}
const sockaddr_in6* V6(const sockaddr_storage* storage) {
  return reinterpret_cast<const sockaddr_in6*>(storage);
}

}  // namespace

StatusOr<TcpAddress> TcpAddress::Parse(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return NotOne(text);
  int port = 0;
  const absl::string_view digits = text.substr(colon + 1);
  if (digits.empty() || digits[0] < '0' || digits[0] > '9' || !absl::SimpleAtoi(digits, &port) ||
      port > UINT16_MAX) {
    return NotOne(text);
  }
  std::string host(text.substr(0, colon));
  TcpAddress address;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    sockaddr_in6* const v6 = V6(&address.storage_);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) != 1) return NotOne(text);
    return address;
  }
  sockaddr_in* const v4 = V4(&address.storage_);
  v4->sin_family = AF_INET;
  v4->sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) != 1) return NotOne(text);
  return address;
}

StatusOr<TcpAddress> TcpAddress::OfSocket(int socket) {
  TcpAddress address;
  socklen_t length = sizeof(address.storage_);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage_), &length) != 0) {
    return ErrnoStatus(errno, "getsockname");
  }
  return address;
}

StatusOr<TcpAddress> TcpAddress::OfPeer(int socket) {
  TcpAddress address;
  socklen_t length = sizeof(address.storage_);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage_), &length) != 0) {
    return ErrnoStatus(errno, "getpeername");
  }
  return address;
}

std::string TcpAddress::ToString() const {
  char host[INET6_ADDRSTRLEN] = {};
  if (family() == AF_INET6) {
    inet_ntop(AF_INET6, &V6(&storage_)->sin6_addr, host, sizeof(host));
    return absl::StrCat("[", host, "]:", port());
  }
  inet_ntop(AF_INET, &V4(&storage_)->sin_addr, host, sizeof(host));
  return absl::StrCat(host, ":", port());
}

uint16_t TcpAddress::port() const {
  return ntohs(family() == AF_INET6 ? V6(&storage_)->sin6_port : V4(&storage_)->sin_port);
}

TcpAddress TcpAddress::WithPort(uint16_t port) const {
  TcpAddress other = *this;
  if (family() == AF_INET6) {
    V6(&other.storage_)->sin6_port = htons(port);
  } else {
    V4(&other.storage_)->sin_port = htons(port);
  }
  return other;
}

bool TcpAddress::IsLoopback() const {
  if (family() == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&V6(&storage_)->sin6_addr);
  constexpr uint32_t kLoopbackNet = 127;
  return family() == AF_INET && ntohl(V4(&storage_)->sin_addr.s_addr) >> 24 == kLoopbackNet;
}

bool TcpAddress::IsWildcard() const {
  if (family() == AF_INET6) return IN6_IS_ADDR_UNSPECIFIED(&V6(&storage_)->sin6_addr);
  return family() == AF_INET && V4(&storage_)->sin_addr.s_addr == INADDR_ANY;
}

socklen_t TcpAddress::raw_length() const {
  return family() == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

StatusOr<UniqueFd> ListenTcp(const TcpAddress& address, bool* in_use) {
  if (in_use != nullptr) *in_use = false;
  UniqueFd socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "socket");
  const int reuse = 1;
  (void)setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  if (::bind(socket.get(), address.raw(), address.raw_length()) == 0 &&
      ::listen(socket.get(), SOMAXCONN) == 0) {
    return socket;
  }
  if (in_use != nullptr) *in_use = errno == EADDRINUSE;
  return ErrnoStatus(errno, address.ToString());
}

}  // namespace cairn
