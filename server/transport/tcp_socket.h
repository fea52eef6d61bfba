// One connection of a data stream, with deadlines on everything and an end that leaves nothing
// behind. A peer that stops moving is noticed within `stall`, also one that vanished without a word.
#pragma once

#include <atomic>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/status.h"

namespace cairn::transport {

// One thread sends and receives; Shutdown and Unacknowledged may be called by any thread until the
// socket is destroyed or Reset.
class TcpSocket {
 public:
  // Takes a connected socket. `stall`: how long may pass without a byte while one is due.
  TcpSocket(UniqueFd socket, MonotonicNanos stall);
  // UNAVAILABLE when nobody answers there by `deadline`, or within `stall`, or `stop` is set.
  static StatusOr<UniqueFd> Connect(const std::string& address, MonotonicNanos deadline,
                                    MonotonicNanos stall, const std::atomic<bool>& stop);

  // All of these wait until everything was moved. UNAVAILABLE: the peer cut the connection, or no byte
  // moved for `stall`. DEADLINE_EXCEEDED: `deadline` passed first. `more` says that further bytes
  // follow at once. After an error the stream is of no use any more.
  Status Send(absl::string_view bytes, bool more, MonotonicNanos deadline);
  // SendFile needs a thread that has SIGPIPE blocked, for sendfile knows no MSG_NOSIGNAL.
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

  UniqueFd socket_;
  const MonotonicNanos stall_;
  bool stalled_ = false;
  std::atomic<bool> shut_ = false;
};

}  // namespace cairn::transport
