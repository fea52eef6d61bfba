// The node: the one place that enters the engine, and carries out what it decides.
//
// The thread that brings an event (an RPC's, an executor's, the timer's) takes `mu_`, applies the
// event, appends its facts to the journal, and starts its actions in the engine's order: most are
// handed to the queue of another class. After it has released `mu_` it runs the callbacks of the
// calls that were answered and carries out the few actions that are left. So a save hops between
// no threads, nothing slow happens under the lock, and no action leaves before its facts are
// journaled.
//
// node_recovery.cc  what it starts with
// actions.cc    what is done about each kind of action
// ring.cc       what other members of the ring say and ask
// requests.cc   calls that are more than one event: hello, open, chunks
// status.cc     what status shows, and what the catalog tells of the cluster
//
// Lock order: mu_, then query_mu_ or the lock of a class below (executors, timer, recorder, cache).
// The locks of the sessions, the distant readers and the gate are never taken under mu_.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/engine/actions.h"
#include "server/engine/events.h"
#include "server/node/answers.h"
#include "server/node/cluster_index.h"
#include "server/node/distant_readers.h"
#include "server/node/event_gate.h"
#include "server/node/inherited.h"
#include "server/node/links.h"
#include "server/node/options.h"
#include "server/node/peer_links.h"
#include "server/node/recorder.h"
#include "server/node/rows.h"
#include "server/node/sessions.h"
#include "server/node/store_streams.h"
#include "server/node/timer.h"
#include "server/node/user_loops.h"

namespace cairn::cache {
class Cache;
}
namespace cairn::engine {
class Engine;
struct Outcome;
struct Recovered;
}  // namespace cairn::engine
namespace cairn::storage {
class Storage;
class Suspects;
}  // namespace cairn::storage
namespace cairn::transport {
class Transport;
}

namespace cairn::node {

class Attached;
class BackgroundGate;
class DistantParts;
class Executor;
class Granter;
class JournalWriter;
class Lender;
class MembershipLoop;
class Mover;
struct RingState;
class Persister;
class StorageWatch;
class StorageWorker;
class Verifier;

// What the node stands on; all outlive it. `storage` may be null, and `suspects`, which stands before it.
// `transport` is null where there is no ring.
struct Rooms {
  Clock* clock = nullptr;
  cache::Cache* cache = nullptr;
  storage::Storage* storage = nullptr;
  const storage::Suspects* suspects = nullptr;
  OpenCatalog open_catalog;
  SessionHolder* holder = nullptr;
  transport::Transport* transport = nullptr;
  BackgroundGate* background = nullptr;  // may be null
};

inline constexpr uint64_t kMaxChunkBytes = 8 << 20;

using AnswerCallback = std::function<void(Answer)>;

// Thread-safe, except Start and Stop.
class Node : public PeerHost {
 public:
  // Recovers what the journal holds and starts all threads. `inherited.thrift_listener` is not the
  // node's and stays unused. On failure nothing was lost: the keeper still holds what it held.
  static StatusOr<std::unique_ptr<Node>> Start(const Options& options, const Rooms& rooms,
                                               Inherited inherited);
  ~Node() override;

  const Options& options() const { return options_; }
  Clock* clock() const { return rooms_.clock; }
  UserLoops& loops() { return loops_; }
  int64_t started_unix_ms() const { return started_unix_ms_; }

  // Enters the engine with a request and returns without waiting for its answer, which comes at the
  // latest at the event's deadline. `done` runs exactly once, with no lock held: on this thread,
  // before Call returns, when the engine answers at once; else on the thread that brings the event
  // which answers it, or in Stop. That thread may be one of the cache, an executor or the timer, so
  // `done` must neither block nor wait for another answer; it may call the node otherwise.
  // What the answer lends has not left yet: call Deliver before the reply goes to the client.
  template <typename E>
  engine::RequestId Call(E event, AnswerCallback done) {
    const engine::RequestId request = event.caller.request = NextRequest();
    Submit(request, engine::Event(std::move(event)), std::move(done));
    return request;
  }
  // Nobody will read this one's answer: if it still waits in the engine, it is answered CANCELLED. What
  // promises something, as a create or a commit, goes on once it has begun.
  void Abandon(engine::RequestId request);
  // Puts the descriptors that the answer lends on the session's fd channel and returns the answer,
  // or the failure to lend. Makes system calls for each slab, waits for nobody.
  Answer Deliver(SessionId session, Answer answer);

  // Waits for the answer, then delivers it. For a thread that serves one client; never for one that
  // the engine's progress depends on.
  template <typename E>
  Answer Call(E event) {
    const engine::RequestId request = event.caller.request = NextRequest();
    const SessionId session = event.caller.session;
    return Deliver(session, Await(request, engine::Event(std::move(event))));
  }
  // One object's facts, where they are known without entering the engine: then callers do not wait for
  // each other.
  std::optional<engine::ObjectInfo> Peek(const engine::event::StatObject& event) const;

  OpenAnswer Open(engine::event::Open event);
  // Open in two steps. The second makes what the engine answered an opened object, and delivers it. Where
  // MayWait says so it waits, until the deadline, for storage or for other members.
  static bool MayWait(const Answer& answer);
  OpenAnswer FinishOpen(const engine::Caller& caller, const std::string& name,
                        MonotonicNanos deadline, Answer answer);
  // The second steps of event::StatObject and event::List, as of Open.
  StatusOr<engine::ObjectInfo> FinishStat(const std::string& name, MonotonicNanos deadline,
                                          Answer answer);
  StatusOr<engine::reply::List> FinishList(const std::string& cursor, int limit,
                                           MonotonicNanos deadline, Answer answer);
  Answer Release(engine::event::Release event);
  Answer Renew(engine::event::Renew event);

  // Of what came without a descriptor; at most kMaxChunkBytes. The reader of the bytes checks them
  // against the checksums that open gave.
  StatusOr<std::string> ReadChunk(const engine::Caller& caller, LeaseId lease, uint64_t offset,
                                  uint64_t length);
  Status WriteChunk(const engine::Caller& caller, LeaseId lease, uint64_t offset,
                    absl::string_view bytes);

  // A stream over which the session's writer sends what a store asks for: the writer's end is on the fd channel, and
  // event::Store names it by the lease.
  StatusOr<LeaseId> OpenStream(const engine::Caller& caller);

  // Begins a session; `event.secret` is drawn here.
  struct Begun {
    StatusOr<SessionInfo> info = absl::InternalError("not answered");
    Attempt superseded_by = 0;
  };
  Begun Hello(engine::event::Hello event);
  // Hello in two steps: before the engine is asked, and with what it answered.
  SessionInfo Prepare(engine::event::Hello* event) const;
  Begun Begin(SessionInfo info, Answer answer);
  StatusOr<SessionInfo> Rejoin(SessionId session, absl::string_view secret, uint32_t uid) const {
    return sessions_.Rejoin(session, secret, uid);
  }
  void Goodbye(SessionId session);
  void ConnectionClosed(SessionId session);  // of the connection that said its hello

  // --- the ring (ring.cc)

  // Once before the wire calls the methods below; and with nullptr before it is destroyed, which waits
  // until no call into it is under way. What is said while there is none is dropped.
  void SetLinks(PeerLinks* links) { links_.Set(links); }
  engine::MemberId Self() const override {
    MutexLock lock(&self_mu_);
    return self_;
  }
  void Exchanged(engine::Rank rank, std::optional<engine::MemberId> member,
                 MonotonicNanos took) override;
  void PeerSaid(engine::MemberId from, engine::peer::Message message) override;
  StatusOr<engine::peer::GrantAnswer> Grant(engine::MemberId from,
                                            engine::peer::GrantQuestion question,
                                            MonotonicNanos deadline) override;
  StatusOr<std::string> TransportAsked(engine::MemberId from, absl::string_view question) override;
  void EndGrant(engine::MemberId from, EndedGrant ended) override;
  void Met(engine::Rank rank, engine::MemberId life) override;
  void HeardView(const engine::RingView& view) override;

  // Where the members stand in the catalog: once before the wire begins, and with nullptr before it is destroyed, when it
  // has stopped and the wire, too. The loop's host calls what follows (daemon/ring_seat.h).
  void SetMembership(MembershipLoop* membership) { membership_ = membership; }
  MembershipLoop* membership() const { return membership_; }
  void SeatChanged(const fact::RingSeat& seat);  // journaled on return
  void ViewChanged(const engine::RingView& view) { links_.SetView(view); }
  void Fenced(const engine::MemberId& by);
  bool CanJournal() const { return !read_only_; }
  bool Leaves() const { return leaves_; }
  // Nor is anything being written. Of a node that leaves, or that another life has replaced.
  bool NothingIsOnlyHere();
  // The same, and without storage whatever is only here: no member reads it from a fenced node, and it stays in memory.
  bool MayStartAnew();

  StatusOr<NodeState> State(const engine::Caller& caller);
  // What the catalog that all members share tells of the cluster (cluster_index.h). Blocks until the deadline
  // at most.
  StatusOr<IndexAnswer> AskIndex(IndexQuestion question, MonotonicNanos deadline) const;

  // An operator takes the node out of service, or back: event::Leave. Where the members stand in the catalog it gives its
  // rank back once nothing is only here.
  Status Leave(const engine::Caller& caller, bool on);
  // As the catalog has it, asked now: for a thread that may wait. FAILED_PRECONDITION where it has no ring of this node.
  StatusOr<RingState> Ring() const;
  StatusOr<int64_t> ResizeRing(const engine::Caller& caller, int32_t size);

  // SIGTERM: admits nothing, lets commits finish, persists the newest complete steps. Returns true
  // when that is done, false when `deadline` came first.
  bool Drain(MonotonicNanos deadline);
  // Waits until no commit is under way: true; false when `deadline` came first. Others may begin.
  bool FinishCommits(MonotonicNanos deadline);
  // Waits until the catalog has what changed, cannot be written, or `deadline_ms` have passed.
  void FlushCatalog(int deadline_ms);
  // Answers every outstanding call with UNAVAILABLE and joins all threads.
  void Stop();

  std::string CheckInvariants() const;

 private:
  // What the thread that applied an event does once it has released mu_: the callbacks of answered
  // calls first, then the actions, in the engine's order.
  using ActionOutsideLock =
      std::variant<engine::action::WriteManifest, engine::action::ProbeSlab, engine::action::Fetch,
                   engine::action::EndSession, engine::action::Discard, engine::action::Log>;
  struct AfterUnlock {
    std::vector<std::pair<AnswerCallback, Answer>> answers;
    std::vector<ActionOutsideLock> actions;
  };
  class UnderLock;    // actions.cc: starts one action
  class OutsideLock;  // actions.cc: carries out one action
  class EngineRows;   // rows of all that the engine knows

  Node(const Options& options, const Rooms& rooms, const Inherited& inherited);

  Status Recover(Inherited inherited);
  void RecoverFromDamage(const journal::Contents& contents, journal::Journal* journal,
                         Inherited* inherited, engine::Recovered* recovered);
  std::vector<PartKey> FindLostParts(const journal::Contents& contents, const Inherited& inherited,
                                     engine::Recovered* recovered);
  // Those that the cache could not take over.
  std::vector<SlabId> RecoverSlabs(std::vector<HeldSlab>* slabs, engine::Recovered* recovered);
  StatusOr<std::string> ReadExtent(const ExtentRef& extent, uint64_t bytes) const;
  void RecoverTables(engine::Recovered* recovered);
  // Who this node is: the life that the facts tell of, or a new one.
  void RecoverSelf(engine::Recovered* recovered);
  void RecoverSeat(engine::Recovered* recovered);
  void BecomeLife(engine::MemberId self);
  void RecoverSessions(std::vector<HeldSession> sessions, engine::Recovered* recovered);

  void StopRing();
  // The transport lets go of the slab first.
  void Destroy(SlabId slab);

  // Not OK: the event asks for what must be journaled before it is acknowledged, and nothing can be.
  Status CheckWritable(const engine::Event& event) const;

  engine::RequestId NextRequest() { return next_request_.fetch_add(1); }
  void Submit(engine::RequestId request, engine::Event event, AnswerCallback done);
  Answer Await(engine::RequestId request, engine::Event event);
  void Post(engine::Event event);
  // Applies the event, and what relieves a full journal, and starts the actions of both.
  void Enter(engine::Event event, AfterUnlock* after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The event's facts are journaled when this returns; its actions are still to be started.
  engine::Outcome Apply(engine::Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartActions(std::vector<engine::Action> actions, AfterUnlock* after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Finish(AfterUnlock after);

  StatusOr<Opened> OpenStored(const engine::Caller& caller, const std::string& name,
                              engine::reply::OpenStored stored, bool takes_fds,
                              MonotonicNanos deadline);
  StatusOr<Opened> OpenElsewhere(const engine::Caller& caller, const std::string& name,
                                 engine::reply::Elsewhere elsewhere, MonotonicNanos deadline);
  // From now on the session reads it in chunks, under a lease.
  Status LendChunks(SessionId session, std::shared_ptr<const storage::Reader> reader,
                    Opened* opened);
  void AddRingProblems(NodeState* state);
  void AddSessions(NodeState* state) const;
  void AddCounters(NodeState* state) const;
  void AddSetAside(bool of_all, NodeState* state) const;

  const Options options_;
  const catalog::Author author_;
  const Rooms rooms_;
  const int restarts_;
  // Written only while recovering.
  std::string safe_mode_;       // not empty: nothing is admitted; says why
  bool read_only_ = false;      // no fact can be journaled (RecoverFromDamage); safe_mode_ says why
  std::string lost_;            // not empty: facts were lost; says which
  uint64_t record_secret_ = 0;  // of the seals of part records
  mutable Mutex self_mu_;       // a leaf
  engine::MemberId self_ ABSL_GUARDED_BY(self_mu_);  // of no rank: alone
  const std::shared_ptr<EventGate> gate_;
  int64_t started_unix_ms_ = 0;
  std::atomic<engine::RequestId> next_request_{1};

  mutable Mutex mu_;
  // The engine as queries see it. Held exclusively, under mu_, from Apply until the facts are
  // journaled: no query is answered with what a daemon's death could still undo. Held shared by
  // read-only queries.
  mutable SharedMutex query_mu_;
  const engine::Engine* query_engine_ ABSL_GUARDED_BY(query_mu_) = nullptr;  // null: recovering
  std::unique_ptr<engine::Engine> engine_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<JournalWriter> journal_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool drained_ ABSL_GUARDED_BY(mu_) = false;
  CondVar drained_wake_;                           // with mu_
  int64_t row_sequence_ ABSL_GUARDED_BY(mu_) = 0;  // the last row's place in their order
  absl::flat_hash_map<engine::RequestId, AnswerCallback> outstanding_calls_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<engine::RequestId> commits_ ABSL_GUARDED_BY(mu_);  // among them
  CondVar committed_;  // with mu_: commits_ became empty

  // These synchronize themselves.
  UserLoops loops_;  // outlives the sessions, whose sockets it watches; ends before they go
  Links links_;
  std::atomic<MembershipLoop*> membership_ = nullptr;
  std::atomic<bool> leaves_ = false;
  const std::unique_ptr<DistantParts>
      distant_parts_;  // null without a transport; the readers read from it
  DistantReaders distant_readers_;
  StoreStreams store_streams_;
  Sessions sessions_;
  const std::unique_ptr<RowSource> row_source_;
  Recorder recorder_;
  const std::unique_ptr<ClusterIndex> index_;
  Timer timer_;
  const std::unique_ptr<Lender> lender_;
  const std::unique_ptr<Verifier> verifier_;
  const std::unique_ptr<Persister> persister_;
  const std::unique_ptr<StorageWorker> storage_worker_;
  const std::unique_ptr<StorageWatch> storage_watch_;
  // Null without a transport. In this order: the last ones use those before them.
  const std::unique_ptr<Attached> attached_;
  const std::unique_ptr<Executor> detacher_;  // of slabs that are destroyed
  const std::unique_ptr<Granter> granter_;
  const std::unique_ptr<Mover> mover_;
  bool stopped_ = false;  // Stop's own
};

}  // namespace cairn::node
