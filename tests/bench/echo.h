// The bare Thrift server that calls are measured against: the class of server the daemon uses,
// Thrift's own transports, a handler that answers at once.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "Cairn.h"
#include "common/status.h"
#include "tests/bench/harness.h"

namespace cairn::bench {

// In a process of its own; ends with this object.
class EchoServer {
 public:
  static StatusOr<std::unique_ptr<EchoServer>> Start(const Settings& settings,
                                                     const std::string& folder);
  ~EchoServer();
  const std::string& socket() const { return socket_; }

 private:
  EchoServer(std::string socket, pid_t pid) : socket_(std::move(socket)), pid_(pid) {}
  const std::string socket_;
  const pid_t pid_;
};

// Throws what Thrift throws.
std::unique_ptr<wire::CairnClient> EchoClient(const std::string& socket);
void Echo(wire::CairnClient* client);  // one call: a short string there and back

}  // namespace cairn::bench
