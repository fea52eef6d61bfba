// The node: the one place that enters the engine, and carries out what it decides.
//
// Whoever brings an event (an RPC thread, a finished action, the timer) takes `mu_`, applies it,
// appends the facts to the journal, hands what other threads do to their queues in the engine's
// order, lets go of the lock and does the rest itself. So a save hops between no threads, nothing
// slow stands under the lock, and no action leaves before its facts are journaled.
//
// Lock order: mu_, then a queue's own lock (executors, timer, recorder, cache). Sessions' lock is
// never taken under mu_.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "server/cache/cache.h"
#include "server/engine/engine.h"
#include "server/journal/journal.h"
#include "server/node/executor.h"
#include "server/node/recorder.h"
#include "server/node/sessions.h"
#include "server/storage/storage.h"

namespace cairn::node {

struct Options {
  engine::Options engine;
  journal::Options journal;
  SessionsOptions sessions;
  RecorderOptions recorder;
  int verify_threads = 2;
  std::string name;  // host name: in replies, in the catalog as holder
  std::string version;
  std::string fd_socket;  // path that hello names
  std::string storage_root;
  int restarts = 0;               // of the daemon under this keeper
  std::string safe_mode;          // not empty: why nothing is admitted
  bool check_invariants = false;  // after every event, at a cost in what the node holds: tests only
};

// What the node stands on; all outlive it. `storage` may be null.
struct Rooms {
  Clock* clock = nullptr;
  cache::Cache* cache = nullptr;
  storage::Storage* storage = nullptr;
  OpenCatalog open_catalog;
  SessionHolder* holder = nullptr;
};

// What a daemon finds at its keeper. The slabs are handed to the cache.
struct Inherited {
  struct HeldSlab {
    SlabId slab = 0;
    uint64_t bytes = 0;
    UniqueFd fd;
  };
  UniqueFd journal, fd_listener;
  std::vector<HeldSlab> slabs;
  std::vector<HeldSession> sessions;
};

struct Answer {
  StatusOr<engine::reply::Body> body = absl::InternalError("not answered");
  Attempt superseded_by = 0;
};

// An opened object, its descriptor already on the fd channel.
struct Opened {
  LeaseId lease = 0;    // 0: nothing to release
  SlabId slab = 0;      // 0: a file in storage
  uint64_t bytes = 0;   // of the slab or file
  uint64_t offset = 0;  // of the object in it
  CheckpointKey checkpoint;
  engine::ObjectInfo object;
  bool exact = false;
  bool fd_sent = false;
};
struct OpenAnswer {
  StatusOr<Opened> opened = absl::InternalError("not answered");
  Attempt superseded_by = 0;
};

struct SessionState {
  engine::reply::SessionStatus status;
  Step writing_step = kNoStep;
  uint64_t writing_total = 0, writing_done = 0;
  int64_t connected_unix_ms = 0;
};
struct NodeState {
  engine::reply::Status engine;
  std::vector<SessionState> sessions;
  std::string state;  // "serving", "draining", "safe mode: why"
  int64_t started_unix_ms = 0;
  std::string catalog;
  MonotonicNanos now = 0;  // on the clock of engine.quarantined[].since
};

inline constexpr uint64_t kMaxChunkBytes = 8 << 20;

class Node {
 public:
  // Recovers what the journal holds and starts all threads. On failure nothing was lost: the keeper
  // still holds what it held.
  static StatusOr<std::unique_ptr<Node>> Start(const Options& options, const Rooms& rooms,
                                               Inherited inherited);
  ~Node() { Stop(); }

  const Options& options() const { return options_; }
  Clock* clock() const { return rooms_.clock; }
  int64_t started_unix_ms() const { return started_unix_ms_; }

  // Enters the engine with a request and waits for its answer, at the latest until the event's
  // deadline. Descriptors that the answer lends are on the fd channel when this returns. Any thread
  // that serves one client; never one that the engine's progress depends on.
  template <typename E>
  Answer Call(E event) {
    const engine::Caller caller = event.caller = WithRequest(event.caller);
    return CallEvent(caller, engine::Event(std::move(event)));
  }
  // One object's facts. Asked often (a loader asks per tensor file), so those who ask do not wait
  // for each other.
  Answer Stat(engine::event::StatObject event);
  OpenAnswer Open(engine::event::Open event);
  Answer Release(engine::event::Release event);

  // For clients without descriptors; at most kMaxChunkBytes. The bytes as they are: who reads them
  // checks them against the checksums of open.
  StatusOr<std::string> ReadChunk(const engine::Caller& caller, LeaseId lease, uint64_t offset,
                                  uint64_t length);
  Status WriteChunk(const engine::Caller& caller, LeaseId lease, uint64_t offset,
                    absl::string_view bytes);

  // Begins a session; `event.secret` is drawn here.
  struct Begun {
    StatusOr<SessionInfo> info = absl::InternalError("not answered");
    Attempt superseded_by = 0;
  };
  Begun Hello(engine::event::Hello event);
  StatusOr<SessionInfo> Rejoin(SessionId session, absl::string_view secret, uint32_t uid) const {
    return sessions_.Rejoin(session, secret, uid);
  }
  void Goodbye(SessionId session);
  void ConnectionClosed(SessionId session);  // of the connection that said its hello

  StatusOr<NodeState> State(const engine::Caller& caller);

  // SIGTERM: admits nothing, lets commits finish, persists the newest complete steps; returns when
  // that is done or `deadline` has come. False: it had come.
  bool Drain(MonotonicNanos deadline);
  // Answers every parked caller with UNAVAILABLE and joins all threads.
  void Stop();

  std::string CheckInvariants() const;

 private:
  struct Waiter {
    CondVar wake;
    bool done = false;
    Answer answer;
  };
  // Actions that the posting thread carries out itself, once the lock is gone.
  using Own = std::variant<engine::action::WriteManifest, engine::action::ProbeSlab,
                           engine::action::EndSession, engine::action::Log>;

  Node(const Options& options, const Rooms& rooms);
  Status Recover(Inherited inherited);

  engine::Caller WithRequest(engine::Caller caller) {
    caller.request = next_request_.fetch_add(1);
    return caller;
  }
  Answer CallEvent(const engine::Caller& caller, engine::Event event);
  void Post(engine::Event event);
  // What is to be carried out; its facts are journaled.
  engine::Outcome Apply(engine::Event event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Enter(engine::Event event, std::vector<Own>* own) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Take(engine::Outcome outcome, std::vector<Own>* own) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Journal(const std::vector<Fact>& facts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status SwitchJournal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RelieveJournal(std::vector<Own>* own) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RecordRows(const engine::action::Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CarryOut(std::vector<Own> own);

  // Sends one description; on failure the engine learns that it never left.
  Status LendTo(SessionId session, const engine::Lend& lend);
  void AddMappers(std::vector<engine::reply::Quarantined>* quarantined) const;
  Status LendAll(const engine::Caller& caller, const engine::reply::Body& body);

  void Verify(const engine::action::Verify& action);
  void Persist(const engine::action::Persist& action);
  void DeleteFiles(const engine::action::DeleteFiles& action);
  void ScanJob(const engine::action::ScanJob& action);
  void RunTimer();

  // What the cache's callbacks go through: it outlives the node, they must not.
  class Gate;

  const Options options_;
  const Rooms rooms_;
  const std::shared_ptr<Gate> gate_;
  int64_t started_unix_ms_ = 0;
  std::atomic<engine::RequestId> next_request_{1};

  mutable Mutex mu_;
  // Held by whoever applies an event and journals its facts, under mu_; shared by who only looks.
  mutable SharedMutex looking_mu_;
  const engine::Engine* looked_at_ ABSL_GUARDED_BY(looking_mu_) = nullptr;  // once it has recovered
  std::unique_ptr<engine::Engine> engine_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<journal::Journal> journal_ ABSL_GUARDED_BY(mu_);
  bool journal_full_ ABSL_GUARDED_BY(mu_) = false;    // as the engine was told
  uint64_t snapshot_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of the journal's half, when it was begun
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool drained_ ABSL_GUARDED_BY(mu_) = false;
  CondVar drained_wake_;  // with mu_
  int64_t row_sequence_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<engine::RequestId, Waiter*> waiters_ ABSL_GUARDED_BY(mu_);

  Mutex timer_mu_;
  CondVar timer_wake_;
  MonotonicNanos timer_at_ ABSL_GUARDED_BY(timer_mu_) = 0;  // 0: none
  bool timer_stopping_ ABSL_GUARDED_BY(timer_mu_) = false;

  // Objects in storage that clients read in chunks. A reader lives on while a chunk is read from it.
  struct StoredOpen {
    SessionId session = 0;
    std::shared_ptr<const storage::Reader> reader;
  };
  Mutex stored_mu_;
  LeaseId next_stored_ ABSL_GUARDED_BY(stored_mu_) = 0;
  std::map<LeaseId, StoredOpen> stored_ ABSL_GUARDED_BY(stored_mu_);

  Sessions sessions_;
  Recorder recorder_;
  Executor verifier_, persister_, storage_;  // storage_: scans and deletes, one at a time
  std::thread timer_;
  bool stopped_ = false;  // Stop's own
};

}  // namespace cairn::node
