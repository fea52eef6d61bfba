// Answers one connection's calls: decode and validate, ask the node, encode. Nothing here waits: a
// call that the node does not answer at once is finished when its answer comes. What takes long, like
// chunks and long messages, goes to the workers, where users take turns.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "Cairn.h"
#include "proto/frame.h"
#include "server/node/job_executor.h"
#include "server/node/node.h"
#include "server/rpc/connection.h"
#include "server/rpc/connection_limits.h"

namespace cairn::rpc {

// Which call a reply belongs to.
struct CallId {
  const char* name = "";  // a literal
  int32_t sequence = 0;
};

// Where calls go that take long; in both, users take turns, and one has at most a part of the threads.
struct Workers {
  explicit Workers(int threads)
      : copying("worker", threads, std::max(1, threads / 2)),
        distant("waits", 16, 4),
        database("asks", 8, 2) {}
  void Stop() {
    copying.Stop();
    distant.Stop();
    database.Stop();
  }

  node::JobExecutor copying;   // bytes, and decoding; never waits
  node::JobExecutor distant;   // waits for storage or other members, to the caller's deadline
  node::JobExecutor database;  // waits for the cluster's catalog
};

// Used on its connection's loop alone.
class Handler : public std::enable_shared_from_this<Handler> {
 public:
  Handler(node::Node* node, Workers* workers, Connection* connection,
          std::shared_ptr<ConnectionLimits::Ticket> ticket);

  // What the connection says; it outlives the handler's use of it, or has told Closed.
  void Receive(absl::string_view message);
  // One of `length` bytes was dropped, as it was too long; `begin` is what it began with.
  void ReceiveTooLong(absl::string_view begin, uint32_t length);
  void Closed();  // a call that waits is abandoned, where it changes nothing

  // Each may take what it needs out of the arguments.
  void Hello(CallId id, wire::Cairn_hello_args& args);
  void Rejoin(CallId id, wire::Cairn_rejoin_args& args);
  void Goodbye(CallId id, wire::Cairn_goodbye_args& args);
  void Ping(CallId id, wire::Cairn_ping_args& args);
  void ChooseAttempt(CallId id, wire::Cairn_chooseAttempt_args& args);
  void Resume(CallId id, wire::Cairn_resume_args& args);
  void UseCheckpoint(CallId id, wire::Cairn_useCheckpoint_args& args);
  void Create(CallId id, wire::Cairn_create_args& args);
  void Seal(CallId id, wire::Cairn_seal_args& args);
  void Commit(CallId id, wire::Cairn_commit_args& args);
  void Abort(CallId id, wire::Cairn_abort_args& args);
  void OpenStream(CallId id, wire::Cairn_openStream_args& args);
  void Store(CallId id, wire::Cairn_store_args& args);
  void Open(CallId id, wire::Cairn_open_args& args);
  void Release(CallId id, wire::Cairn_release_args& args);
  void Renew(CallId id, wire::Cairn_renew_args& args);
  void MapStanding(CallId id, wire::Cairn_mapStanding_args& args);
  void AwaitUnmap(CallId id, wire::Cairn_awaitUnmap_args& args);
  void ReadChunk(CallId id, wire::Cairn_readChunk_args& args);
  void WriteChunk(CallId id, wire::Cairn_writeChunk_args& args);
  void Latest(CallId id, wire::Cairn_latest_args& args);
  void StatCheckpoint(CallId id, wire::Cairn_statCheckpoint_args& args);
  void Stat(CallId id, wire::Cairn_stat_args& args);
  void Ls(CallId id, wire::Cairn_ls_args& args);
  void Wait(CallId id, wire::Cairn_wait_args& args);
  void Persist(CallId id, wire::Cairn_persist_args& args);
  void Ring(CallId id, wire::Cairn_ring_args& args);
  void ResizeRing(CallId id, wire::Cairn_resizeRing_args& args);
  void Drain(CallId id, wire::Cairn_drain_args& args);
  void Remove(CallId id, wire::Cairn_remove_args& args);
  void Pin(CallId id, wire::Cairn_pin_args& args);
  void SetPolicy(CallId id, wire::Cairn_setPolicy_args& args);
  void PreviewPolicy(CallId id, wire::Cairn_previewPolicy_args& args);
  void TellStatus(CallId id, wire::Cairn_status_args& args);
  void Index(CallId id, wire::Cairn_index_args& args);

  // Runs one call, or a later part of it: whatever it throws is the reply.
  template <typename Result, typename F>
  void Answering(CallId id, F call);
  // Its message has come whole, but its arguments cannot be read. A session is told so and goes on;
  // another connection is cut off.
  void Unreadable(CallId id, const std::string& why);

 private:
  void SealSome(int64_t call, const PartKey& part, bool provisional,
                std::vector<engine::event::Seal>* seals);
  engine::Caller Anyone() const;  // with a session or without one
  engine::Caller Caller() const;  // with a session; throws FAILED_PRECONDITION without one
  // The part that a create, seal, commit or abort is about; throws wire::Error when its fields are
  // bad, or its attempt is not the one that this session's hello said.
  template <typename Request>
  PartKey PartOf(const Request& request) const;
  MonotonicNanos DeadlineOrMinute(int64_t timeout_ms) const;  // 0: a minute from now
  MonotonicNanos DeadlineOf(int64_t timeout_ms) const;        // 0: the longest; throws wire::Error
  wire::HelloReply Greet(node::SessionInfo info);

  template <typename Result>
  void Respond(CallId id, const Result& result);
  // Runs `finish(answer)` on the loop: now, when the node answers at once from this thread.
  using Finish = std::function<void(node::Answer)>;
  node::AnswerCallback OnLoop(Finish finish);
  // Asks the node; `fill(body, result)` makes the reply of an answer that is a `Body`.
  template <typename Result, typename Body, typename E, typename Fill>
  void Ask(CallId id, E event, Fill fill);
  // As Ask, where the answer needs a second step (Node::MayWait); `fill(answer)` takes it and makes the reply.
  template <typename Result, typename E, typename Fill>
  void AskAndFinish(CallId id, E event, Fill fill);
  // The reply is empty.
  template <typename Result, typename E>
  void Tell(CallId id, E event);
  void Waiting(engine::RequestId request);  // the node hears when its caller hangs up
  // `work()` makes the reply, on one of these threads.
  template <typename Result, typename F>
  void Offload(node::JobExecutor* on, CallId id, F work);

  node::Node* const node_;
  Workers* const workers_;
  Connection* connection_;  // null: it has closed
  std::atomic<bool> closed_{false};
  const std::shared_ptr<node::EventLoop> loop_;
  const Credentials credentials_;
  const std::shared_ptr<ConnectionLimits::Ticket> ticket_;  // as long as calls are under way
  node::SessionInfo session_;                               // id 0: none yet
  bool said_hello_ = false;        // on this connection, with which the session may end
  bool answered_ = true;           // the call that came last
  engine::RequestId waiting_ = 0;  // the request that it waits for
};

}  // namespace cairn::rpc
