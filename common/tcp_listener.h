// Where members of a ring reach this process, as soon as the port is free. Another process may have it when a daemon
// starts: its predecessor, of which the kernel has not taken all apart yet, or any user of the host. That is no
// reason not to serve this node's own clients.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/tcp_address.h"

namespace cairn {

// A process that was killed holds its sockets until the kernel has taken its memory apart: who takes its place finds the
// port in use for about so long, and that is nothing to tell.
inline constexpr MonotonicNanos kPredecessorGoes = 2 * kNanosPerSecond;

// Thread-safe, but for what says otherwise.
class TcpListener {
 public:
  // Listens there, or will where the address is in use. Other errors, as of an address that is not this host's, name
  // the address.
  static StatusOr<std::unique_ptr<TcpListener>> Open(const TcpAddress& address);

  // Why nobody can connect, with the address; empty: it listens.
  std::string Problem() const;
  // True once it listens; it tries again ten times a second until then. False: `stop` is set, or the deadline has
  // passed. By one thread, which alone may then use fd().
  bool Await(const std::atomic<bool>& stop, MonotonicNanos deadline);
  int fd() const { return fd_; }  // does not block; -1 before it listens
  TcpAddress address() const;     // where it listens, or will
  // Wakes the thread that waits at fd().
  void Shutdown();

 private:
  explicit TcpListener(const TcpAddress& address) : address_(address) {}
  Status Try(bool* in_use);

  mutable Mutex mu_;
  TcpAddress address_ ABSL_GUARDED_BY(mu_);  // with the port that the kernel chose, once it listens
  UniqueFd socket_ ABSL_GUARDED_BY(mu_);     // does not change any more once it is valid
  std::string problem_ ABSL_GUARDED_BY(mu_);
  std::atomic<int> fd_ = -1;  // of socket_
};

}  // namespace cairn
