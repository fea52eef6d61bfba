// Serves Thrift clients on an already listening socket: a thread per connection, a bound on
// connections.
//
// libthrift's own servers are not used: there the accepting thread shares each connection's objects
// with the connection's thread, and whoever lets go last destroys them. Here a connection, its
// protocol and its handler belong to one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "common/fd.h"
#include "server/node/node.h"
#include "server/rpc/connection.h"

namespace cairn::rpc {

struct Options {
  ConnectionOptions connection;
  int64_t max_connections = 4096;  // beyond it, clients wait in the socket's backlog
};

class Server {
 public:
  // `node` outlives the server.
  Server(const Options& options, node::Node* node, UniqueFd listener);
  ~Server();

  void Start();
  // Accepts no more, ends every connection and joins their threads. Stop the node first, or from
  // another thread: parked calls end with it.
  void Stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::rpc
