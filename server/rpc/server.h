// Serves Thrift clients on an already listening socket: each connection on its user's loop, bounds on
// connections in all and for each user, and what takes long on a few workers that users share in turns.
//
// libthrift's own servers are not used: they read a message as it comes, so that a client holds a
// thread, and what a message announces is believed before its bytes are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/fd.h"
#include "server/node/node.h"
#include "server/rpc/connection.h"

namespace cairn::rpc {

struct Options {
  ConnectionOptions connection;
  // Beyond them a connection's first call is answered RESOURCE_EXHAUSTED. Of all, a sixteenth (at most
  // 64) is kept for uid 0.
  int64_t max_connections = 4096;  // one user may have engine::Options::user_percent of them
  // What messages of more than 64 KiB, and chunks, may take until the reply has left, of one user and in
  // all.
  uint64_t max_message_bytes_of_user = 128 << 20;
  uint64_t max_message_bytes = 512 << 20;
  int workers = 4;  // of which one user has at most half
};

class Server {
 public:
  // `node` outlives the server.
  Server(const Options& options, node::Node* node, UniqueFd listener);
  ~Server();

  void Start();
  // Accepts no more and ends every connection. Stop the node first: parked calls end with it.
  void Stop();

  // What clients have of it now.
  struct Held {
    size_t connections = 0;      // those that are only told that they are too many, too
    uint64_t message_bytes = 0;  // of max_message_bytes
  };
  Held held() const;  // thread-safe

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairn::rpc
