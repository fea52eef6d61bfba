// Where a node's daemon listens, when neither it nor its clients are told another path. Daemon,
// library, command line and Python ask here, so that they agree.
#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"

namespace cairn {

// Of root's daemon, of a service's, and of a user without a directory of his own for sockets.
inline constexpr char kDefaultSocketPath[] = "/run/cairn/cairn.sock";

// The fd channel's socket stands beside the Thrift socket.
inline std::string FdSocketPath(const std::string& socket_path) { return socket_path + ".fd"; }

// Whose daemon, or whose client.
struct SocketUser {
  uint32_t uid = 0;
  std::string runtime_dir;  // XDG_RUNTIME_DIR; empty: not set
};
SocketUser ThisProcess();  // effective uid, environment

// RUNTIME_DIR/cairn/cairn.sock, which need not exist. NOT_FOUND for root and where XDG_RUNTIME_DIR is
// not set; FAILED_PRECONDITION, saying why, when it is not a directory of the user's own, closed to
// others, as it is after `su` without a login.
StatusOr<std::string> OwnSocketPath(const SocketUser& user);

// The user's own socket when it exists, else the default: a user's client reaches the user's own daemon
// where one was started, and the machine's everywhere else.
std::string ClientSocketPath(const SocketUser& user);
inline std::string ClientSocketPath() { return ClientSocketPath(ThisProcess()); }

}  // namespace cairn
