#include "server/node/node.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "glog/logging.h"
#include "server/cache/cache.h"
#include "server/engine/engine.h"
#include "server/node/journal_writer.h"
#include "server/node/lender.h"
#include "server/node/persister.h"
#include "server/node/recovery.h"
#include "server/node/storage_watch.h"
#include "server/node/storage_worker.h"
#include "server/node/verifier.h"
#include "server/storage/storage.h"

namespace cairn::node {
namespace {

Status Stopping() { return absl::UnavailableError("the daemon is stopping"); }

}  // namespace

// --- start and stop

Node::Node(const Options& options, const Rooms& rooms, const Inherited& inherited)
    : options_(options),
      rooms_(rooms),
      restarts_(inherited.restarts),
      safe_mode_(inherited.safe_mode),
      gate_(std::make_shared<EventGate>([this](engine::Event event) { Post(std::move(event)); })),
      sessions_(options.sessions, rooms.holder, rooms.clock,
                [this](SessionId session) { gate_->Post(engine::event::SessionEnded{session}); }),
      recorder_(options.recorder, rooms.open_catalog),
      timer_(rooms.clock, [this] { gate_->Post(engine::event::Tick{}); }),
      lender_(std::make_unique<Lender>(rooms.cache, &sessions_, gate_)),
      verifier_(
          std::make_unique<Verifier>(options.verify_threads, rooms.cache, rooms.clock, gate_)),
      persister_(
          std::make_unique<Persister>(rooms.storage == nullptr ? 0 : options.engine.max_persists,
                                      rooms.cache, rooms.storage, rooms.clock, gate_)),
      storage_worker_(std::make_unique<StorageWorker>(rooms.storage, gate_)),
      storage_watch_(std::make_unique<StorageWatch>(options.storage_look_interval, rooms.storage,
                                                    rooms.clock, gate_)) {}

Node::~Node() { Stop(); }

StatusOr<std::unique_ptr<Node>> Node::Start(const Options& options, const Rooms& rooms,
                                            Inherited inherited) {
  CAIRN_RETURN_IF_ERROR(options.engine.Validate());
  CAIRN_RETURN_IF_ERROR(options.journal.Validate());
  auto node = std::unique_ptr<Node>(new Node(options, rooms, inherited));
  CAIRN_RETURN_IF_ERROR(node->Recover(std::move(inherited)));
  return node;
}

Status Node::Recover(Inherited inherited) {
  started_unix_ms_ = rooms_.clock->UnixMillis();
  journal::Contents contents;
  CAIRN_ASSIGN_OR_RETURN(
      std::unique_ptr<journal::Journal> journal,
      journal::Journal::Open(std::move(inherited.journal), options_.journal, &contents));
  if (contents.torn_tail) LOG(WARNING) << "journal: dropped an incomplete last frame";

  engine::Recovered recovered;
  recovered.facts = std::move(contents.facts);
  recovered.safe_mode = safe_mode_;
  // Before anything is asked of it.
  if (const std::string id = StorageOf(recovered.facts); rooms_.storage != nullptr && !id.empty()) {
    rooms_.storage->Expect(id);
  }
  RecoverSlabs(std::move(inherited.slabs), &recovered);
  RecoverManifests(&recovered);
  RecoverSessions(std::move(inherited.sessions), &recovered);
  const std::string summary = absl::StrCat("recovered ", recovered.held_slabs.size(), " slabs, ",
                                           recovered.manifests.size(), " manifests, ",
                                           recovered.live_sessions.size(), " sessions");
  ReachFailpoint(Failpoint::kNodeRecover);

  AfterUnlock after;
  {
    MutexLock lock(&mu_);
    journal_ = std::make_unique<JournalWriter>(std::move(journal), options_.journal.bytes);
    engine_ = std::make_unique<engine::Engine>(options_.engine);
    // Versions of catalog rows: seconds since the epoch, then a count, so that the rows of a later
    // daemon win.
    row_sequence_ = (started_unix_ms_ / 1000) << 32;
    engine::Outcome started =
        engine_->Start(rooms_.clock->Now(), started_unix_ms_, std::move(recovered));
    journal_->Append(started.facts, *engine_);
    StartActions(std::move(started.actions), &after);
    WriterLock alone(&query_mu_);
    query_engine_ = engine_.get();
  }
  ReachFailpoint(Failpoint::kNodeRecovered);
  timer_.Start();
  storage_watch_->Start();
  Finish(std::move(after));
  CAIRN_RETURN_IF_ERROR(sessions_.Start(std::move(inherited.fd_listener)));
  if (restarts_ > 0) LOG(INFO) << summary;
  return absl::OkStatus();
}

void Node::RecoverSlabs(std::vector<HeldSlab> slabs, engine::Recovered* recovered) {
  for (HeldSlab& held : slabs) {
    const Status adopted = rooms_.cache->Adopt(held.slab, held.bytes, std::move(held.fd));
    if (!adopted.ok()) {
      // The objects in this slab are lost; those in the others need not be.
      LOG(ERROR) << "recovery: " << adopted;
      rooms_.cache->Destroy(held.slab, [] {});
      continue;
    }
    recovered->held_slabs.emplace_back(held.slab, held.bytes);
  }
}

void Node::RecoverManifests(engine::Recovered* recovered) {
  const auto read = [this](const ExtentRef& extent, uint64_t bytes) -> StatusOr<std::string> {
    if (bytes > extent.length || bytes > kMaxManifestBytes) {
      return absl::DataLossError("it is longer than its place");
    }
    std::string buffer(bytes, '\0');
    CAIRN_RETURN_IF_ERROR(rooms_.cache->Read(extent.slab, extent.offset, absl::MakeSpan(buffer)));
    return buffer;
  };
  std::vector<std::string> problems;
  recovered->manifests = ManifestsOf(recovered->facts, read, &problems);
  for (const std::string& problem : problems) LOG(ERROR) << "recovery: " << problem;
}

void Node::RecoverSessions(std::vector<HeldSession> sessions, engine::Recovered* recovered) {
  absl::flat_hash_map<SessionId, SessionInfo> begun = SessionsOf(recovered->facts);
  for (HeldSession& held : sessions) {
    const SessionId id = held.session;
    const auto it = begun.find(id);
    if (it == begun.end() || !PidfdAlive(held.pidfd.get())) {
      rooms_.holder->DropSession(id);
      continue;
    }
    const Status adopted = sessions_.Adopt(it->second, std::move(held));
    if (!adopted.ok()) {
      LOG(ERROR) << "recovery: session " << id << ": " << adopted;
      rooms_.holder->DropSession(id);
      continue;
    }
    recovered->live_sessions.push_back(id);
  }
}

void Node::Stop() {
  if (stopped_) return;
  stopped_ = true;
  AfterUnlock after;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    for (auto& [request, done] : outstanding_calls_) {
      after.answers.emplace_back(std::move(done), Answer{Stopping(), 0});
    }
    outstanding_calls_.clear();
    drained_wake_.NotifyAll();
  }
  Finish(std::move(after));
  gate_->Close();
  timer_.Stop();
  sessions_.Stop();
  persister_->Stop();
  storage_worker_->Stop();
  storage_watch_->Stop();
  verifier_->Stop();
  recorder_.Flush(/*deadline_ms=*/1000);
  recorder_.Stop();
}

bool Node::Drain(MonotonicNanos deadline) {
  {
    MutexLock lock(&mu_);
    draining_ = true;
  }
  Post(engine::event::Drain{deadline});
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::nanoseconds(std::max<int64_t>(0, deadline - clock()->Now()));
  MutexLock lock(&mu_);
  while (!drained_ && !stopping_) {
    if (!drained_wake_.WaitUntil(&mu_, until)) break;
  }
  return drained_;
}

std::string Node::CheckInvariants() const {
  MutexLock lock(&mu_);
  return engine_->CheckInvariants();
}

// --- entering the engine

void Node::Submit(engine::RequestId request, engine::Event event, AnswerCallback done) {
  AfterUnlock after;
  {
    MutexLock lock(&mu_);
    if (stopping_) {
      after.answers.emplace_back(std::move(done), Answer{Stopping(), 0});
    } else {
      outstanding_calls_.emplace(request, std::move(done));
      Enter(std::move(event), &after);
    }
  }
  Finish(std::move(after));
}

Answer Node::Await(engine::RequestId request, engine::Event event) {
  struct {
    Mutex mu;  // a leaf
    CondVar wake;
    bool done ABSL_GUARDED_BY(mu) = false;
    Answer answer ABSL_GUARDED_BY(mu);
  } waiter;
  Submit(request, std::move(event), [&waiter](Answer answer) {
    MutexLock lock(&waiter.mu);
    waiter.answer = std::move(answer);
    waiter.done = true;
    waiter.wake.NotifyOne();  // under the lock: the waiter is gone once it is released
  });
  MutexLock lock(&waiter.mu);
  while (!waiter.done) waiter.wake.Wait(&waiter.mu);
  return std::move(waiter.answer);
}

Answer Node::Deliver(SessionId session, Answer answer) {
  if (!answer.body.ok()) return answer;
  const Status lent = lender_->LendAll(session, *answer.body);
  if (!lent.ok()) answer.body = lent;
  return answer;
}

void Node::Post(engine::Event event) {
  AfterUnlock after;
  {
    MutexLock lock(&mu_);
    // Nothing may leave after Stop: no caller is left to hear of it.
    if (stopping_) return;
    Enter(std::move(event), &after);
  }
  Finish(std::move(after));
}

Answer Node::Stat(engine::event::StatObject event) {
  {
    ReaderLock query(&query_mu_);
    if (query_engine_ != nullptr) {
      if (std::optional<engine::ObjectInfo> info = query_engine_->Peek(event)) {
        return Answer{engine::reply::Body(*std::move(info)), 0};
      }
    }
  }
  return Call(std::move(event));
}

void Node::Enter(engine::Event event, AfterUnlock* after) {
  StartActions(Apply(std::move(event)).actions, after);
  if (journal_->NeedsRelief()) {
    journal_->Relieve(*engine_, [&](bool full) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      engine::Outcome outcome = Apply(engine::event::JournalFull{full});
      const bool let_go = !outcome.facts.empty();
      StartActions(std::move(outcome.actions), after);
      return let_go;
    });
  }
  if (options_.check_invariants) {
    const std::string broken = engine_->CheckInvariants();
    CHECK(broken.empty()) << "engine: " << broken;
  }
}

engine::Outcome Node::Apply(engine::Event event) {
  WriterLock alone(&query_mu_);
  engine::Outcome outcome = engine_->Apply(rooms_.clock->Now(), std::move(event));
  journal_->Append(outcome.facts, *engine_);
  return outcome;
}

}  // namespace cairn::node
