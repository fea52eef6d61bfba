#include "server/node/node.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "server/engine/engine.h"
#include "server/engine/journal_use.h"
#include "server/node/attached.h"
#include "server/node/background_gate.h"
#include "server/node/distant_parts.h"
#include "server/node/executor.h"
#include "server/node/granter.h"
#include "server/node/journal_writer.h"
#include "server/node/lender.h"
#include "server/node/mover.h"
#include "server/node/persister.h"
#include "server/node/rows.h"
#include "server/node/storage_watch.h"
#include "server/node/storage_worker.h"
#include "server/node/verifier.h"
#include "server/storage/storage.h"

namespace cairn::node {
namespace {

std::function<void(engine::Event)> PostThrough(std::shared_ptr<EventGate> gate) {
  return [gate = std::move(gate)](engine::Event event) { gate->Post(std::move(event)); };
}

Status Stopping() { return absl::UnavailableError("the daemon is stopping"); }

}  // namespace

// Holds mu_ for as long as a page of checkpoints takes.
class Node::EngineRows : public RowSource {
 public:
  explicit EngineRows(Node* node) : node_(*node) {}

  std::vector<std::string> Jobs() override {
    MutexLock lock(&node_.mu_);
    return node_.engine_->JobNames();
  }
  std::vector<CheckpointKey> Checkpoints(const CheckpointKey& after, int limit) override {
    MutexLock lock(&node_.mu_);
    return node_.engine_->CheckpointsOf(after, limit);
  }
  std::vector<catalog::Row> Rows(const std::string& job,
                                 const std::vector<CheckpointKey>& checkpoints) override {
    MutexLock lock(&node_.mu_);
    return RowsOf(node_.engine_->Describe(job, checkpoints), node_.author_, &node_.row_sequence_);
  }
  Knowledge KnowledgeOf(const std::string& job) override {
    MutexLock lock(&node_.mu_);
    const engine::Engine::Description known = node_.engine_->Describe(job, {});
    const bool scanned = node_.rooms_.storage == nullptr || known.scanned;
    if (node_.author_.alone) return scanned ? Knowledge::kAll : Knowledge::kSome;
    if (!known.job.has_value() && known.attempts.empty()) return Knowledge::kNothing;
    // Who is not the home tells of its own memory alone, and that it knows.
    if (!known.writes_checkpoints) return Knowledge::kAll;
    return scanned && known.settled ? Knowledge::kAll : Knowledge::kSome;
  }
  std::vector<catalog::Row> Gone(const std::string& job,
                                 const std::vector<CheckpointKey>& checkpoints,
                                 bool left) override {
    MutexLock lock(&node_.mu_);
    engine::Engine::Description gone;
    engine::Engine::Description all = node_.engine_->Describe(job, checkpoints);
    const bool storage = node_.rooms_.storage != nullptr;
    if (all.scanned || !storage) gone.gone = std::move(all.gone);
    // Of a job that the engine has forgotten it tells nothing.
    if (node_.author_.alone && !storage && !all.job.has_value() && all.parts.empty() &&
        all.complete.empty()) {
      gone.gone = checkpoints;
    }
    gone.writes_checkpoints = all.writes_checkpoints;
    gone.vanished = std::move(all.vanished);
    std::set<CheckpointKey> here;
    for (const auto& part : all.parts) here.insert(part.key.checkpoint);
    for (const CheckpointKey& key : checkpoints) {
      if (left && !here.contains(key)) gone.left.push_back({key, /*whole=*/true});
    }
    return RowsOf(gone, node_.author_, &node_.row_sequence_);
  }
  // Who is alone reads what it has written from nobody's copy.
  std::optional<catalog::AuthorRow> Mark() override {
    if (node_.author_.alone) return std::nullopt;
    const Answer answer = node_.Call(engine::event::Status{{}, /*of_all=*/true});
    const engine::reply::Status* status =
        answer.body.ok() ? std::get_if<engine::reply::Status>(&*answer.body) : nullptr;
    if (status != nullptr) {  // else as it was
      mark_.budget_bytes = status->budget_bytes;
      mark_.used_bytes = status->used_bytes;
      mark_.replica_bytes = status->ring.replica_bytes;
    }
    mark_.name = node_.author_.name;
    mark_.incarnation = node_.Self().incarnation;
    mark_.seen_unix_ms = node_.clock()->UnixMillis();
    MutexLock lock(&node_.mu_);
    mark_.sequence = ++node_.row_sequence_;
    return mark_;
  }

 private:
  Node& node_;
  catalog::AuthorRow mark_;  // the recorder's thread's own
};

// --- start and stop

Node::Node(const Options& options, const Rooms& rooms, const Inherited& inherited)
    : options_(options),
      author_(AuthorOf(options)),
      rooms_(rooms),
      restarts_(inherited.restarts),
      safe_mode_(inherited.safe_mode),
      gate_(std::make_shared<EventGate>([this](engine::Event event) { Post(std::move(event)); })),
      loops_(options.max_client_threads),
      distant_parts_(rooms.transport == nullptr
                         ? nullptr
                         : std::make_unique<DistantParts>(options.mover, &links_, rooms.transport,
                                                          rooms.clock)),
      distant_readers_(rooms.storage, /*members=*/rooms.transport != nullptr),
      sessions_(options.sessions, &loops_, rooms.holder,
                [this](SessionId session) {
                  gate_->Post(engine::event::SessionEnded{session});
                  store_streams_.ForgetAll(session);
                }),
      row_source_(std::make_unique<EngineRows>(this)),
      recorder_(options.recorder, rooms.open_catalog, rooms.clock, row_source_.get()),
      index_(std::make_unique<ClusterIndex>(
          options.engine.shared_catalog ? rooms.open_catalog : nullptr, rooms.clock)),
      timer_(rooms.clock, [this] { gate_->Post(engine::event::Tick{}); }),
      lender_(std::make_unique<Lender>(rooms.cache, &sessions_, gate_)),
      verifier_(
          std::make_unique<Verifier>(options.verify_threads, rooms.cache, rooms.clock, gate_)),
      persister_(std::make_unique<Persister>(
          rooms.storage == nullptr ? 0 : options.engine.max_persists, rooms.cache, rooms.storage,
          rooms.clock, gate_, rooms.background)),
      storage_worker_(std::make_unique<StorageWorker>(rooms.storage, gate_)),
      storage_watch_(std::make_unique<StorageWatch>(options.storage_look_interval, rooms.storage,
                                                    rooms.clock, gate_)),
      attached_(rooms.transport == nullptr
                    ? nullptr
                    : std::make_unique<Attached>(rooms.cache, rooms.transport)),
      detacher_(rooms.transport == nullptr ? nullptr : std::make_unique<Executor>("detacher", 1)),
      granter_(rooms.transport == nullptr
                   ? nullptr
                   : std::make_unique<Granter>(options.granter, rooms.transport, attached_.get(),
                                               rooms.clock, PostThrough(gate_))),
      mover_(rooms.transport == nullptr
                 ? nullptr
                 : std::make_unique<Mover>(options.mover, &links_, rooms.transport, rooms.cache,
                                           attached_.get(), rooms.clock, PostThrough(gate_))) {}

Node::~Node() {
  Stop();
  loops_.Stop();
}

StatusOr<std::unique_ptr<Node>> Node::Start(const Options& options, const Rooms& rooms,
                                            Inherited inherited) {
  CAIRN_RETURN_IF_ERROR(options.engine.Validate());
  CAIRN_RETURN_IF_ERROR(options.journal.Validate());
  CAIRN_RETURN_IF_ERROR(Annotate(options.granter.Validate(), "granter"));
  CAIRN_RETURN_IF_ERROR(Annotate(options.mover.Validate(), "mover"));
  auto node = std::unique_ptr<Node>(new Node(options, rooms, inherited));
  CAIRN_RETURN_IF_ERROR(node->Recover(std::move(inherited)));
  return node;
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
  verifier_->Stop();
  StopRing();
  recorder_.Flush(/*deadline_ms=*/1000);
  recorder_.Stop();
  index_->Stop();
  // Last: a thread that hangs in storage holds up what comes after it.
  persister_->Stop();
  storage_worker_->Stop();
  storage_watch_->Stop();
  distant_readers_.Stop();
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

bool Node::FinishCommits(MonotonicNanos deadline) {
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::nanoseconds(std::max<int64_t>(0, deadline - clock()->Now()));
  MutexLock lock(&mu_);
  while (!commits_.empty()) {
    if (!committed_.WaitUntil(&mu_, until)) break;
  }
  return commits_.empty();
}

void Node::FlushCatalog(int deadline_ms) { recorder_.Flush(deadline_ms); }

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
    } else if (const Status writable = CheckWritable(event); !writable.ok()) {
      after.answers.emplace_back(std::move(done), Answer{writable, 0});
    } else {
      outstanding_calls_.emplace(request, std::move(done));
      if (std::holds_alternative<engine::event::Commit>(event)) commits_.insert(request);
      Enter(std::move(event), &after);
    }
  }
  Finish(std::move(after));
}

Status Node::CheckWritable(const engine::Event& event) const {
  const auto is_a_promise = [](const auto& of) {
    return engine::JournalUseOf<std::decay_t<decltype(of)>>().is_a_promise;
  };
  if (!read_only_ || !std::visit(is_a_promise, event)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("safe mode: nothing can be journaled: ", safe_mode_));
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

std::optional<engine::ObjectInfo> Node::Peek(const engine::event::StatObject& event) const {
  ReaderLock query(&query_mu_);
  return query_engine_ == nullptr ? std::nullopt : query_engine_->Peek(event);
}

void Node::Abandon(engine::RequestId request) {
  {
    MutexLock lock(&mu_);
    if (!outstanding_calls_.contains(request)) return;
  }
  Post(engine::event::CallerLeft{request});
}

void Node::Enter(engine::Event event, AfterUnlock* after) {
  const auto let_go = [&](bool full) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    engine::Outcome outcome = Apply(engine::event::JournalFull{full});
    StartActions(std::move(outcome.actions), after);
    return !outcome.facts.empty();
  };
  engine_->SetJournalRoom(journal_->used_bytes(), journal_->half_bytes());
  const auto help = engine_->JournalHelpFor(event);
  if (help != engine::Engine::JournalHelp::kNone) {
    journal_->MakeRoom(*engine_, help == engine::Engine::JournalHelp::kLetGo, let_go);
  }
  StartActions(Apply(std::move(event)).actions, after);
  if (journal_->NeedsRelief()) journal_->Relieve(*engine_, let_go);
  if (options_.check_invariants) {
    const std::string broken = engine_->CheckInvariants();
    CHECK(broken.empty()) << "engine: " << broken;
  }
}

engine::Outcome Node::Apply(engine::Event event) {
  WriterLock alone(&query_mu_);
  engine_->SetJournalRoom(journal_->used_bytes(), journal_->half_bytes());
  engine::Outcome outcome = engine_->Apply(rooms_.clock->Now(), std::move(event));
  if (rooms_.background != nullptr) rooms_.background->SetWriting(engine_->WritingBytes());
  journal_->Append(outcome.facts, *engine_);
  return outcome;
}

}  // namespace cairn::node
