// The end that other members call: a thread accepts, and each connection has one that answers its calls.
// Connections are bounded; so are those of callers that are not known as members, of which the oldest gives
// way: strangers do not keep members out, and are held to short messages of one kind.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/fd.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/tcp_listener.h"
#include "server/rpc/peer_caller.h"
#include "server/rpc/peer_stream.h"

namespace cairn::rpc {

// Thread-safe, except Start and Stop.
class PeerServer {
 public:
  // `context` outlives it.
  PeerServer(const PeerContext* context, std::unique_ptr<TcpListener> listener);
  ~PeerServer();

  void Start();
  // On return the host is not called any more.
  void Stop();
  std::string problem() const { return listener_->Problem(); }  // why nobody can connect
  int connections() const ABSL_LOCKS_EXCLUDED(mu_);             // that are open now

 private:
  class Connection;
  // What the messages of one member are delivered under, so that they come in the order in which they were
  // sent: those that an older connection still has are refused.
  struct Speaker {
    Mutex mu;
    uint64_t connection ABSL_GUARDED_BY(mu) = 0;  // the newest that has said something
  };
  // Room for long messages, of all connections together.
  class Room {
   public:
    explicit Room(uint64_t bytes) : free_(bytes) {}
    bool Take(uint64_t bytes);
    void Give(uint64_t bytes);

   private:
    Mutex mu_;
    uint64_t free_ ABSL_GUARDED_BY(mu_);
  };

  void Accept();
  void AwaitListener();  // or that it stops
  void Admit(UniqueFd socket) ABSL_LOCKS_EXCLUDED(mu_);
  // Of connections that are too many the oldest of a stranger gives way. False: there is none.
  bool MakeRoom() ABSL_LOCKS_EXCLUDED(mu_);
  void Reap(bool all) ABSL_LOCKS_EXCLUDED(mu_);  // joins threads that have ended

  const PeerContext* const context_;
  const std::unique_ptr<TcpListener> listener_;
  std::atomic<bool> stopping_ = false;
  std::map<engine::Rank, Speaker> speakers_;  // constant; each synchronizes itself
  Room room_;
  mutable Mutex mu_;
  std::list<std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mu_);  // in order of coming
  uint64_t last_connection_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread accepting_;
};

}  // namespace cairn::rpc
