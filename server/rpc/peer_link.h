// This member's end of speaking to one other member: a thread that dials it, says what waits in the outbox as
// soon as something does, and once a second in any case. How each of these exchanges ended is what the node
// knows of the other's life.
//
// What waits is lost when an exchange fails, and what is told while the member does not answer is not kept: the
// node says everything anew once the member is back.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"
#include "server/engine/peer_messages.h"
#include "server/node/peer_links.h"
#include "server/rpc/peer_caller.h"
#include "server/rpc/peer_outbox.h"

namespace cairn::rpc {

// Thread-safe, except Start and Stop.
class PeerLink {
 public:
  // `context` outlives it.
  PeerLink(const PeerContext* context, engine::Rank rank);
  ~PeerLink() { Stop(); }

  void Start();
  void Stop();

  // As node::PeerLinks. Tell and EndGrant wait for nothing.
  void Tell(engine::peer::Message message);
  StatusOr<node::PeerLinks::Granted> AskGrant(const engine::peer::GrantQuestion& question,
                                              MonotonicNanos deadline);
  StatusOr<std::string> AskTransport(const std::string& question, MonotonicNanos deadline);
  void EndGrant(node::EndedGrant ended);
  // The next exchange is due, whatever the last one was.
  void Look();

 private:
  void Run();
  StatusOr<engine::MemberId> Exchange();
  // What the host is told of it, and what becomes of what waits.
  void Ended(const StatusOr<engine::MemberId>& who, MonotonicNanos took);
  void AwaitNext(MonotonicNanos begun, bool answered);
  // A connection of its own for questions of one kind. One asks at a time, the others wait.
  struct Line {
    Line(const PeerContext* context, engine::Rank rank) : caller(context, rank) {}
    Mutex mu;
    CondVar free;  // with mu
    bool asking ABSL_GUARDED_BY(mu) = false;
    PeerCaller caller;  // who has set `asking` uses it
  };
  // Calls `ask` with the line's caller, connected, once nobody else asks.
  template <typename Answer>
  StatusOr<Answer> AskOn(Line* line, MonotonicNanos deadline,
                         const std::function<StatusOr<Answer>(PeerCaller*)>& ask);
  template <typename Answer>
  StatusOr<Answer> AskConnected(PeerCaller* caller, MonotonicNanos deadline,
                                const std::function<StatusOr<Answer>(PeerCaller*)>& ask);

  const PeerContext* const context_;
  const engine::Rank rank_;
  std::atomic<bool> stopping_ = false;

  Mutex mu_;
  CondVar wake_;  // with mu_: something waits, or it shall look or stop
  bool answers_ ABSL_GUARDED_BY(mu_) = false;  // the last exchange succeeded: what is told is kept
  bool look_ ABSL_GUARDED_BY(mu_) = false;
  bool overflown_ ABSL_GUARDED_BY(mu_) =
      false;  // something had no room: counts as a failed exchange
  PeerOutbox outbox_ ABSL_GUARDED_BY(mu_);
  std::vector<node::EndedGrant> ended_grants_ ABSL_GUARDED_BY(mu_);

  // The thread's own.
  PeerCaller exchanges_;
  MonotonicNanos back_off_ = 0;
  std::optional<absl::StatusCode> last_;  // how the last exchange ended

  Line grants_;     // which may take long
  Line transport_;  // which must not wait for those

  std::thread thread_;
};

}  // namespace cairn::rpc
