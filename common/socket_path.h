// Where a node's daemon listens.
#pragma once

#include <string>

namespace cairn {

// Thrift, unless the daemon and its clients are told another path.
inline constexpr char kDefaultSocketPath[] = "/run/cairn/cairn.sock";

// The fd channel's socket stands beside the Thrift socket.
inline std::string FdSocketPath(const std::string& socket_path) { return socket_path + ".fd"; }

}  // namespace cairn
