#include "server/node/node.h"

#include <algorithm>
#include <chrono>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "glog/logging.h"
#include "server/cache/cache.h"
#include "server/engine/engine.h"
#include "server/engine/journal_use.h"
#include "server/node/attached.h"
#include "server/node/background_gate.h"
#include "server/node/executor.h"
#include "server/node/found_parts.h"
#include "server/node/granter.h"
#include "server/node/journal_writer.h"
#include "server/node/lender.h"
#include "server/node/mover.h"
#include "server/node/persister.h"
#include "server/node/recovery.h"
#include "server/node/rows.h"
#include "server/node/storage_watch.h"
#include "server/node/storage_worker.h"
#include "server/node/verifier.h"
#include "server/storage/storage.h"

namespace cairn::node {
namespace {

// Of thousands a few and how many: a reader of the log that has stopped costs time for each line.
void LogSome(google::LogSeverity severity, absl::string_view what,
             const std::vector<std::string>& lines) {
  constexpr size_t kSome = 20;
  const auto log = [&](absl::string_view line) {
    LOG_AT_LEVEL(severity) << "recovery: " << what << line;
  };
  for (size_t i = 0; i < std::min(kSome, lines.size()); ++i) log(lines[i]);
  if (lines.size() > kSome) log(absl::StrCat("… and ", lines.size() - kSome, " more"));
}

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
    return RowsOf(node_.engine_->Describe(job, checkpoints), node_.options_.name,
                  &node_.row_sequence_);
  }
  bool KnowsAll(const std::string& job) override {
    if (node_.rooms_.storage == nullptr) return true;
    MutexLock lock(&node_.mu_);
    return node_.engine_->Describe(job, {}).scanned;
  }
  std::vector<catalog::Row> Gone(const std::string& job,
                                 const std::vector<CheckpointKey>& checkpoints) override {
    MutexLock lock(&node_.mu_);
    engine::Engine::Description gone;
    engine::Engine::Description all = node_.engine_->Describe(job, checkpoints);
    const bool storage = node_.rooms_.storage != nullptr;
    if (all.scanned || !storage) gone.gone = std::move(all.gone);
    // Of a job that the engine has forgotten it tells nothing.
    if (!storage && !all.job.has_value() && all.parts.empty() && all.complete.empty()) {
      gone.gone = checkpoints;
    }
    gone.writes_checkpoints = all.writes_checkpoints;
    return RowsOf(gone, node_.options_.name, &node_.row_sequence_);
  }

 private:
  Node& node_;
};

// --- start and stop

Node::Node(const Options& options, const Rooms& rooms, const Inherited& inherited)
    : options_(options),
      rooms_(rooms),
      restarts_(inherited.restarts),
      safe_mode_(inherited.safe_mode),
      gate_(std::make_shared<EventGate>([this](engine::Event event) { Post(std::move(event)); })),
      loops_(options.max_client_threads),
      stored_readers_(rooms.storage),
      sessions_(options.sessions, &loops_, rooms.holder,
                [this](SessionId session) { gate_->Post(engine::event::SessionEnded{session}); }),
      row_source_(std::make_unique<EngineRows>(this)),
      recorder_(options.recorder, rooms.open_catalog, rooms.clock, row_source_.get()),
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

Status Node::Recover(Inherited inherited) {
  started_unix_ms_ = rooms_.clock->UnixMillis();
  journal::Contents contents;
  CAIRN_ASSIGN_OR_RETURN(
      std::unique_ptr<journal::Journal> journal,
      journal::Journal::Open(std::move(inherited.journal), options_.journal, &contents));
  if (contents.torn_tail) LOG(WARNING) << "journal: dropped an incomplete last frame";
  for (const auto& [kind, count] : contents.skipped) {
    LOG(WARNING) << "journal: skipped " << count << " facts of kind " << kind
                 << ", which this build does not know and may do without";
  }

  record_secret_ = journal->nonce();
  engine::Recovered recovered;
  recovered.facts = std::move(contents.facts);
  const std::vector<SlabId> unread = RecoverSlabs(&inherited.slabs, &recovered);
  if (!contents.damage.ok()) {
    RecoverFromDamage(contents, journal.get(), &inherited, &recovered);
  }
  for (SlabId slab : unread) {
    if (!read_only_) rooms_.cache->Destroy(slab, [] {});
  }
  recovered.safe_mode = safe_mode_;
  // Before anything is asked of it.
  if (const std::string id = StorageOf(recovered.facts); rooms_.storage != nullptr && !id.empty()) {
    rooms_.storage->Expect(id);
  }
  RecoverTables(&recovered);
  RecoverSelf(&recovered);
  RecoverSessions(std::move(inherited.sessions), &recovered);
  const std::string summary =
      absl::StrCat("recovered ", recovered.held_slabs.size(), " slabs, ", recovered.tables.size(),
                   " parts, ", recovered.live_sessions.size(), " sessions");
  ReachFailpoint(Failpoint::kNodeRecover);

  AfterUnlock after;
  {
    MutexLock lock(&mu_);
    journal_ = std::make_unique<JournalWriter>(std::move(journal), options_.journal.bytes,
                                               /*writable=*/!read_only_);
    engine_ = std::make_unique<engine::Engine>(options_.engine);
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
  recorder_.Begin();
  if (restarts_ > 0) LOG(INFO) << summary;
  return absl::OkStatus();
}

// The facts are those before the damage: an earlier state than the memory that the keeper holds.
// It becomes the state to go on from, as a fresh snapshot, before anything acts on it. When that
// cannot be written, or must not, because another build wrote what cannot be read, this daemon only
// reads: it journals nothing, destroys nothing, and leaves alone what its facts do not know, so that
// the next daemon reads what this one read.
void Node::RecoverFromDamage(const journal::Contents& contents, journal::Journal* journal,
                             Inherited* inherited, engine::Recovered* recovered) {
  uint64_t held = 0;
  for (const HeldSlab& slab : inherited->slabs) held = std::max(held, slab.slab);
  for (const HeldSession& session : inherited->sessions) held = std::max(held, session.session);
  const size_t read = recovered->facts.size();
  size_t found = 0;
  // What another build wrote is left to it.
  if (absl::IsDataLoss(contents.damage)) {
    found = FindLostParts(contents, *inherited, recovered).size();
  }
  GoOnFromEarlierState(contents.behind, held, started_unix_ms_, &recovered->facts);
  const Status written = journal->Switch(recovered->facts);
  const std::string what = absl::StrCat(
      contents.damage.message(), "; ", read, " facts were read; what followed (at least ",
      contents.behind.size(), ") ", written.ok() ? "is lost" : "was not", "; ", found,
      " committed parts were found again");
  if (written.ok()) {
    lost_ = what;
    LOG(ERROR) << "recovery: " << what << "; every session is ended";
  } else {
    read_only_ = true;
    safe_mode_ = absl::StrCat(what, "; the journal stays as it is: ", written.message(),
                              safe_mode_.empty() ? "" : absl::StrCat("; ", safe_mode_));
    LOG(ERROR) << "recovery: " << safe_mode_;
  }
  // What they were lent since is not known (GoOnFromEarlierState).
  for (HeldSession& session : inherited->sessions) sessions_.Discard(std::move(session));
  inherited->sessions.clear();
}

// Committed parts whose facts lay behind the damage join the facts. Returns which.
std::vector<PartKey> Node::FindLostParts(const journal::Contents& contents,
                                         const Inherited& inherited, engine::Recovered* recovered) {
  const std::map<SlabId, uint64_t> readable(recovered->held_slabs.begin(),
                                            recovered->held_slabs.end());
  HeldMemory memory;
  for (const HeldSlab& slab : inherited.slabs) {
    if (readable.contains(slab.slab)) memory.slabs[slab.slab] = {slab.bytes, slab.use};
  }
  memory.read = [this](const ExtentRef& extent, uint64_t bytes) {
    return ReadExtent(extent, bytes);
  };
  memory.crcs = [this](const ExtentRef& extent, uint64_t length, uint32_t block_bytes) {
    return rooms_.cache->Crcs(extent, length, block_bytes);
  };
  JoinLosses(contents.behind, &recovered->facts);
  std::vector<std::string> problems;
  std::vector<std::string> of_known;  // RecoverTables tells them
  Status unknown;
  const auto tables = TablesOf(recovered->facts, memory.read, &of_known, &unknown);
  const std::vector<PartKey> found =
      JoinFoundParts(FindParts(memory, record_secret_, &problems), contents.behind, memory, tables,
                     &recovered->facts, &problems);
  std::vector<std::string> keys;
  for (const PartKey& part : found) keys.push_back(part.DebugString());
  LogSome(google::GLOG_INFO, "found again: ", keys);
  LogSome(google::GLOG_INFO, "left alone: ", problems);
  return found;
}

std::vector<SlabId> Node::RecoverSlabs(std::vector<HeldSlab>* slabs, engine::Recovered* recovered) {
  std::vector<SlabId> unread;
  for (HeldSlab& held : *slabs) {
    const Status adopted = rooms_.cache->Adopt(held.slab, held.bytes, std::move(held.fd));
    if (!adopted.ok()) {
      // The objects in this slab are lost; those in the others need not be.
      LOG(ERROR) << "recovery: " << adopted;
      unread.push_back(held.slab);
      continue;
    }
    recovered->held_slabs.emplace_back(held.slab, held.bytes);
  }
  return unread;
}

StatusOr<std::string> Node::ReadExtent(const ExtentRef& extent, uint64_t bytes) const {
  if (bytes > extent.length || extent.length > 2 * uint64_t{kMaxManifestBytes}) {
    return absl::DataLossError("it is longer than its place");
  }
  std::string buffer(extent.length, '\0');
  CAIRN_RETURN_IF_ERROR(rooms_.cache->Read(extent.slab, extent.offset, absl::MakeSpan(buffer)));
  return buffer;
}

void Node::RecoverTables(engine::Recovered* recovered) {
  const auto read = [this](const ExtentRef& extent, uint64_t bytes) {
    return ReadExtent(extent, bytes);
  };
  std::vector<std::string> problems;
  Status unknown;
  recovered->tables = TablesOf(recovered->facts, read, &problems, &unknown);
  LogSome(google::GLOG_ERROR, "", problems);
  if (unknown.ok()) return;
  // Another build's, as after a rollback: the parts are not known here, and must not be destroyed.
  read_only_ = true;
  safe_mode_ = absl::StrCat(unknown.message(), safe_mode_.empty() ? "" : "; ", safe_mode_);
  recovered->safe_mode = safe_mode_;
}

void Node::RecoverSessions(std::vector<HeldSession> sessions, engine::Recovered* recovered) {
  absl::flat_hash_map<SessionId, SessionInfo> begun = SessionsOf(recovered->facts);
  for (HeldSession& held : sessions) {
    const SessionId id = held.session;
    const auto it = begun.find(id);
    if (it == begun.end() || !PidfdAlive(held.pidfd.get())) {
      sessions_.Discard(std::move(held));
      continue;
    }
    const Status adopted = sessions_.Adopt(it->second, &held);
    if (!adopted.ok()) {
      LOG(ERROR) << "recovery: session " << id << ": " << adopted;
      sessions_.Discard(std::move(held));
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
  verifier_->Stop();
  StopRing();
  recorder_.Flush(/*deadline_ms=*/1000);
  recorder_.Stop();
  // Last: a thread that hangs in storage holds up what comes after it.
  persister_->Stop();
  storage_worker_->Stop();
  storage_watch_->Stop();
  stored_readers_.Stop();
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

Answer Node::Stat(engine::event::StatObject event) {
  if (auto info = Peek(event)) return Answer{engine::reply::Body(*std::move(info)), 0};
  return Call(std::move(event));
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
