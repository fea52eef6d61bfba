// A connection between two members: messages in frames (proto/frame.h) over TCP, with TLS where the cluster
// has certificates, and a deadline on everything.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/member_name.h"
#include "common/status.h"
#include "common/tcp_address.h"
#include "server/tls/peer_tls.h"

namespace cairn::rpc {

using tls::TlsContext;
using tls::TlsMoved;
using tls::TlsSession;

// One thread sends and receives; Shutdown may be called by any thread.
class PeerStream {
 public:
  // Takes a connected socket. `tls` null: what travels is plain. `stall`: how long may pass without a byte
  // while one is due.
  PeerStream(UniqueFd socket, std::unique_ptr<TlsSession> tls, MonotonicNanos stall);

  // All of these wait until everything was moved. UNAVAILABLE: the peer has closed the connection, or no byte
  // moved for `stall`, or Shutdown was called. DEADLINE_EXCEEDED: `deadline` passed first. After an error
  // the stream is of no use any more.
  //
  // PERMISSION_DENIED: the certificates do not fit. Nothing happens without TLS.
  Status Handshake(MonotonicNanos deadline);
  // Whom the peer's certificate names; nothing without TLS.
  const std::optional<MemberName>& peer() const { return peer_; }
  Status Send(absl::string_view bytes, MonotonicNanos deadline);
  // Until there is something to receive; not bound by `stall`.
  Status WaitReadable(MonotonicNanos deadline);
  // The length of the next message, then the message. What is held grows with what has come, not with what
  // was announced.
  StatusOr<uint32_t> ReceiveLength(MonotonicNanos deadline);
  StatusOr<std::string> ReceiveMessage(uint32_t length, MonotonicNanos deadline);

  // Whoever waits here returns soon.
  void Shutdown();

 private:
  // Moves bytes by `move` until it has moved some; how many.
  StatusOr<size_t> Move(const std::function<TlsMoved()>& move, MonotonicNanos deadline);
  Status Receive(char* into, size_t length, MonotonicNanos deadline);
  // Waits for `events`, at most `stall_`.
  Status Wait(short events, MonotonicNanos deadline);

  const UniqueFd socket_;
  const std::unique_ptr<TlsSession> tls_;
  const MonotonicNanos stall_;
  std::optional<MemberName> peer_;
  std::atomic<bool> shut_ = false;
};

// How long a message of so many bytes may take beyond what a short one may: at 4 MiB/s.
MonotonicNanos TimeToMove(size_t bytes);

// UNAVAILABLE when nobody takes the connection by `deadline`, or `stop` is set.
StatusOr<UniqueFd> ConnectTcp(const TcpAddress& address, MonotonicNanos deadline,
                              const std::atomic<bool>& stop);

}  // namespace cairn::rpc
