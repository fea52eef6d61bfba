// Where a member of a ring is reached: "ADDRESS:PORT", "[ADDRESS]:PORT" for IPv6; numbers only, so that
// nothing depends on a resolver that may be away when it is needed.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/fd.h"
#include "common/status.h"

namespace cairn {

class TcpAddress {
 public:
  TcpAddress() = default;
  // INVALID_ARGUMENT quotes `text`; the caller names the field.
  static StatusOr<TcpAddress> Parse(absl::string_view text);
  // Where a socket is bound, or whom it is connected to.
  static StatusOr<TcpAddress> OfSocket(int socket);
  static StatusOr<TcpAddress> OfPeer(int socket);

  std::string ToString() const;  // in the form that Parse takes
  uint16_t port() const;
  TcpAddress WithPort(uint16_t port) const;
  bool IsLoopback() const;  // only processes of this host reach it
  bool IsWildcard() const;  // 0.0.0.0 or [::]: all of this host's, so nobody can dial it

  int family() const { return storage_.ss_family; }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t raw_length() const;

 private:
  sockaddr_storage storage_ = {};
};

// A socket that listens there and does not block; port 0: the kernel chooses. Errors name the address; `in_use` says
// whether another socket has it.
StatusOr<UniqueFd> ListenTcp(const TcpAddress& address, bool* in_use = nullptr);

}  // namespace cairn
