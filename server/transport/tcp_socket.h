// One connection of a data stream, with deadlines on everything and an end that leaves nothing
// behind. A peer that stops moving is noticed within `stall`, also one that vanished without a word.
// With TLS nothing but ciphertext travels, once both ends have shown their certificates.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/status.h"
#include "server/tls/peer_tls.h"

namespace cairn::transport {

// What encrypts streams, and between whom.
struct StreamSecurity {
  std::shared_ptr<const tls::TlsContext> tls;  // null: what travels is plain
  std::string cluster;                         // whose members' certificates count
  bool any_rank = false;  // also of one whose certificate may have any rank (kAnyRank)
};

// One thread sends and receives; Shutdown and Unacknowledged may be called by any thread until the
// socket is destroyed or Reset.
class TcpSocket {
 public:
  // Takes a connected socket. `stall`: how long may pass without a byte while one is due.
  // `session` null: what travels is plain.
  TcpSocket(UniqueFd socket, MonotonicNanos stall,
            std::unique_ptr<tls::TlsSession> session = nullptr);
  // UNAVAILABLE when nobody answers there by `deadline`, or within `stall`, or `stop` is set.
  static StatusOr<UniqueFd> Connect(const std::string& address, MonotonicNanos deadline,
                                    MonotonicNanos stall, const std::atomic<bool>& stop);

  // First of all, where there is a session: whom the peer's certificate names. PERMISSION_DENIED: the certificates do
  // not fit, or the peer's is not of a member of `cluster`; UNAVAILABLE also for a peer without TLS that closes.
  StatusOr<MemberName> Handshake(const std::string& cluster, MonotonicNanos deadline);

  // All of these wait until everything was moved. UNAVAILABLE: the peer cut the connection, or no byte
  // moved for `stall`. DEADLINE_EXCEEDED: `deadline` passed first. `more` says that further bytes
  // follow at once. After an error the stream is of no use any more.
  Status Send(absl::string_view bytes, bool more, MonotonicNanos deadline);
  // SendFile needs a thread that has SIGPIPE blocked, for sendfile knows no MSG_NOSIGNAL. With TLS the bytes are copied
  // once, to be encrypted. DATA_LOSS: the file has not got them.
  Status SendFile(int file, uint64_t offset, uint64_t length, MonotonicNanos deadline);
  Status Receive(absl::Span<char> into, MonotonicNanos deadline);
  // Until there is something to receive; not bound by `stall`.
  Status WaitReadable(MonotonicNanos deadline);

  // Whether `stall` is why the last call failed.
  bool stalled() const { return stalled_; }

  // Whoever sends or receives returns at once.
  void Shutdown();
  // Bytes that were sent and that the peer's kernel has not confirmed.
  bool Unacknowledged() const;
  // Closes it without sending what is queued: the peer sees a reset.
  void Reset();

 private:
  // OK to go on after a call that moved nothing.
  Status GoOn(int error, MonotonicNanos moved, MonotonicNanos deadline);

  Status SendEncrypted(absl::string_view bytes, MonotonicNanos deadline);
  Status SendFileEncrypted(int file, uint64_t offset, uint64_t length, MonotonicNanos deadline);
  Status ReceiveEncrypted(absl::Span<char> into, MonotonicNanos deadline);

  UniqueFd socket_;
  const std::unique_ptr<tls::TlsSession> session_;
  std::vector<char> piece_;  // of a file, before it is encrypted
  const MonotonicNanos stall_;
  bool stalled_ = false;
  std::atomic<bool> shut_ = false;
};

}  // namespace cairn::transport
