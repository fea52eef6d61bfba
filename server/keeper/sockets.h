// The node's two listening sockets and the lock that says whose they are.
#pragma once

#include <cstdint>
#include <string>

#include "common/fd.h"
#include "common/status.h"

namespace cairn::keeper {

// Bound and listening; removes the socket files when destroyed. The lock file stays: whoever
// removed it could be racing with somebody who has just locked it.
class NodeSockets {
 public:
  // FAILED_PRECONDITION when somebody lives on a path, or it is no socket; the message names it.
  static StatusOr<NodeSockets> Listen(const std::string& socket_path, uint32_t mode);
  NodeSockets(NodeSockets&&) = default;
  NodeSockets& operator=(NodeSockets&&) = default;
  ~NodeSockets();

  int thrift() const { return thrift_.get(); }
  int fd_channel() const { return fd_channel_.get(); }

 private:
  NodeSockets() = default;

  std::string socket_path_;
  UniqueFd lock_;
  UniqueFd thrift_;      // SOCK_STREAM at socket_path
  UniqueFd fd_channel_;  // SOCK_SEQPACKET at socket_path + ".fd"
};

}  // namespace cairn::keeper
