// The daemon's two listening sockets, and the lock file that says which keeper owns them.
#pragma once

#include <cstdint>
#include <string>

#include "common/fd.h"
#include "common/status.h"

namespace cairn::keeper {

// Bound and listening; removes the socket files when destroyed. The lock file stays: removing it
// would race with another keeper that has just locked it.
class ListeningSockets {
 public:
  // Makes the directory of `socket_path` when it is missing, but none above it. FAILED_PRECONDITION,
  // naming the path, when a process listens there or the path is not a socket. `origin` is for the
  // error of a directory that cannot be made: where the path comes from; empty: nothing is said.
  static StatusOr<ListeningSockets> Listen(const std::string& socket_path, uint32_t mode,
                                           const std::string& origin);
  ListeningSockets(ListeningSockets&&) = default;
  ListeningSockets& operator=(ListeningSockets&&) = default;
  ~ListeningSockets();

  int thrift() const { return thrift_.get(); }
  int fd_channel() const { return fd_channel_.get(); }

 private:
  ListeningSockets() = default;

  std::string socket_path_;
  UniqueFd lock_;
  UniqueFd thrift_;      // SOCK_STREAM at socket_path
  UniqueFd fd_channel_;  // SOCK_SEQPACKET at socket_path + ".fd"
};

}  // namespace cairn::keeper
