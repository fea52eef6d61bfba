// One Thrift connection to the daemon: framed binary messages over the Unix socket.
// Every read and write has the deadline of the current call. Used by one thread at a time.
#pragma once

#include <memory>
#include <string>

#include "Cairn.h"
#include "absl/functional/function_ref.h"
#include "common/clock.h"
#include "common/status.h"

namespace cairn::client {

class FramedSocket;

class Connection {
 public:
  // UNAVAILABLE, naming the socket, when nothing listens there or the deadline passes first;
  // PERMISSION_DENIED when this user may not connect.
  static StatusOr<std::unique_ptr<Connection>> Open(const std::string& socket,
                                                    MonotonicNanos deadline);
  ~Connection();

  // Runs one call on the client. An error that the daemon answered is returned as it is, and the
  // connection can be used again; so can it after a call that is too long to be sent, which is
  // INVALID_ARGUMENT. Anything else that goes wrong is UNAVAILABLE with broken() true.
  Status Call(absl::string_view what, MonotonicNanos deadline,
              absl::FunctionRef<void(wire::CairnClient&)> body);
  bool broken() const { return broken_; }
  // True when the deadline passed: the daemon may be alive and slow.
  bool timed_out() const { return timed_out_; }

  uint64_t generation = 0;  // of the session it has joined; 0: none yet

 private:
  Connection(std::string socket, std::shared_ptr<FramedSocket> transport);

  const std::string socket_;
  const std::shared_ptr<FramedSocket> transport_;
  std::unique_ptr<wire::CairnClient> client_;
  bool broken_ = false;
  bool timed_out_ = false;
};

}  // namespace cairn::client
