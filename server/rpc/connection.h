// One client's Thrift connection over a Unix socket, and the listener that accepts them.
//
// A transport of our own because Thrift's has none of this: it accepts on a socket that the keeper
// already listens on, reads the peer's credentials, bounds each message (not the connection), lets
// a client with a session be silent for ever but not stop in the middle of a message, and needs one
// system call per request and one per reply.
#pragma once

#include <thrift/transport/TVirtualTransport.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/fd.h"
#include "common/mutex.h"

namespace cairn::rpc {

struct ConnectionOptions {
  uint32_t max_message_bytes = 64 << 20;
  // How long one read or write inside a message may take, and a client may be silent before hello.
  int stall_timeout_ms = 30'000;
  uint32_t buffer_bytes = 64 << 10;
};

struct Credentials {
  uint32_t uid = 0, gid = 0;
  int32_t pid = 0;
};

class Connection;

// The connections that are open, shared by their listener and each of them.
struct OpenConnections {
  Mutex mu;
  bool ended ABSL_GUARDED_BY(mu) = false;  // a connection that opens now is shut down at once
  absl::flat_hash_set<Connection*> all ABSL_GUARDED_BY(mu);
};

// Used by its own thread alone, but for Shutdown.
class Connection : public apache::thrift::transport::TVirtualTransport<Connection> {
 public:
  Connection(UniqueFd socket, const Credentials& credentials, const ConnectionOptions& options,
             OpenConnections* others);
  ~Connection() override;

  const Credentials& credentials() const { return credentials_; }
  // A session speaks here: silence between messages is allowed.
  void AllowSilence(bool allowed) { silence_allowed_ = allowed; }
  // The next byte begins a message.
  void BeginMessage();
  // Makes every read and write end, from any thread.
  void Shutdown();

  bool isOpen() const override { return open_; }
  bool peek() override;
  void open() override {}
  void close() override;
  uint32_t read(uint8_t* buffer, uint32_t length);
  void write(const uint8_t* buffer, uint32_t length);
  void flush() override;
  const uint8_t* borrow(uint8_t* buffer, uint32_t* length);
  void consume(uint32_t length);

 private:
  uint32_t Receive(uint8_t* buffer, uint32_t length);  // 0: the client has closed
  void AwaitBytes();
  void SendAll(const uint8_t* buffer, uint32_t length);
  void Count(uint32_t bytes);

  const Credentials credentials_;
  const ConnectionOptions options_;
  OpenConnections* const others_;
  const UniqueFd socket_;  // closed with the object: Shutdown may come from another thread
  bool open_ = true;
  bool silence_allowed_ = false;
  bool inside_message_ = false;
  bool drained_ = true;  // the last receive took everything: the next one has to wait first
  std::vector<uint8_t> in_, out_;
  uint32_t in_begin_ = 0, in_end_ = 0, out_end_ = 0;
};

// Accepts on `listener`, which other processes may share. Outlives its connections.
class Listener {
 public:
  Listener(UniqueFd listener, const ConnectionOptions& options);

  // The next client; null once interrupted. Throws std::bad_alloc.
  std::shared_ptr<Connection> Accept();
  void Interrupt();            // ends Accept for good; any thread
  void ShutdownConnections();  // and those that open from now on; any thread

 private:
  const ConnectionOptions options_;
  const UniqueFd listener_, wake_;
  OpenConnections connections_;
};

}  // namespace cairn::rpc
