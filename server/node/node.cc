#include "server/node/node.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/failpoint.h"
#include "glog/logging.h"
#include "server/node/recovery.h"
#include "server/node/rows.h"

namespace cairn::node {
namespace {

Status Stopping() { return absl::UnavailableError("the daemon is stopping"); }

}  // namespace

class Node::Gate {
 public:
  explicit Gate(Node* node) : node_(node) {}

  void Post(engine::Event event) {
    Node* node = nullptr;
    {
      MutexLock lock(&mu_);
      node = node_;
      if (node == nullptr) return;
      ++inside_;
    }
    node->Post(std::move(event));
    MutexLock lock(&mu_);
    if (--inside_ == 0) left_.NotifyAll();
  }
  // Nobody is inside when this returns, and nobody will be.
  void Close() {
    MutexLock lock(&mu_);
    node_ = nullptr;
    while (inside_ > 0) left_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar left_;
  Node* node_ ABSL_GUARDED_BY(mu_);
  int inside_ ABSL_GUARDED_BY(mu_) = 0;
};

// --- start and stop

Node::Node(const Options& options, const Rooms& rooms)
    : options_(options),
      rooms_(rooms),
      gate_(std::make_shared<Gate>(this)),
      sessions_(options.sessions, rooms.holder, rooms.clock,
                [this](SessionId session) { Post(engine::event::SessionEnded{session}); }),
      recorder_(options.recorder, rooms.open_catalog),
      verifier_("verifier", options.verify_threads),
      persister_("persister", rooms.storage == nullptr ? 0 : options.engine.max_persists),
      storage_("storage", rooms.storage == nullptr ? 0 : 1) {}

StatusOr<std::unique_ptr<Node>> Node::Start(const Options& options, const Rooms& rooms,
                                            Inherited inherited) {
  CAIRN_RETURN_IF_ERROR(options.engine.Validate());
  CAIRN_RETURN_IF_ERROR(options.journal.Validate());
  auto node = std::unique_ptr<Node>(new Node(options, rooms));
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
  for (Inherited::HeldSlab& held : inherited.slabs) {
    Status adopted = rooms_.cache->Adopt(held.slab, held.bytes, std::move(held.fd));
    if (!adopted.ok()) {
      // Its objects are lost; the others need not be.
      LOG(ERROR) << "recovery: " << adopted;
      rooms_.cache->Destroy(held.slab, [] {});
      continue;
    }
    recovered.held_slabs.emplace_back(held.slab, held.bytes);
  }
  std::vector<std::string> problems;
  recovered.manifests = ManifestsOf(
      contents.facts,
      [this](const ExtentRef& extent, uint64_t bytes) -> StatusOr<std::string> {
        if (bytes > extent.length || bytes > kMaxManifestBytes) {
          return absl::DataLossError("it is longer than its place");
        }
        std::string buffer(bytes, '\0');
        CAIRN_RETURN_IF_ERROR(
            rooms_.cache->Read(extent.slab, extent.offset, absl::MakeSpan(buffer)));
        return buffer;
      },
      &problems);
  for (const std::string& problem : problems) LOG(ERROR) << "recovery: " << problem;

  absl::flat_hash_map<SessionId, SessionInfo> sessions = SessionsOf(contents.facts);
  for (HeldSession& held : inherited.sessions) {
    const SessionId id = held.session;
    auto it = sessions.find(id);
    if (it == sessions.end() || !PidfdAlive(held.pidfd.get())) {
      rooms_.holder->DropSession(id);
      continue;
    }
    Status adopted = sessions_.Adopt(it->second, std::move(held));
    if (!adopted.ok()) {
      LOG(ERROR) << "recovery: session " << id << ": " << adopted;
      rooms_.holder->DropSession(id);
      continue;
    }
    recovered.live_sessions.push_back(id);
  }
  const size_t live = recovered.live_sessions.size();
  const size_t manifests = recovered.manifests.size();
  const size_t slabs = recovered.held_slabs.size();
  ReachFailpoint(Failpoint::kNodeRecover);

  std::vector<Own> own;
  {
    MutexLock lock(&mu_);
    journal_ = std::move(journal);
    engine_ = std::make_unique<engine::Engine>(options_.engine);
    // Versions of catalog rows: seconds since the epoch, then a count, so that a later daemon's
    // win.
    row_sequence_ = (started_unix_ms_ / 1000) << 32;
    recovered.facts = std::move(contents.facts);
    recovered.safe_mode = options_.safe_mode;
    engine::Outcome started =
        engine_->Start(rooms_.clock->Now(), started_unix_ms_, std::move(recovered));
    Journal(started.facts);
    Take(std::move(started), &own);
    WriterLock alone(&looking_mu_);
    looked_at_ = engine_.get();
  }
  ReachFailpoint(Failpoint::kNodeRecovered);
  timer_ = std::thread([this] { RunTimer(); });
  CarryOut(std::move(own));
  CAIRN_RETURN_IF_ERROR(sessions_.Start(std::move(inherited.fd_listener)));
  if (options_.restarts > 0) {
    LOG(INFO) << "recovered " << slabs << " slabs, " << manifests << " manifests, " << live
              << " sessions";
  }
  return absl::OkStatus();
}

void Node::Stop() {
  if (stopped_) return;
  stopped_ = true;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    for (auto& [request, waiter] : waiters_) {
      waiter->answer.body = Stopping();
      waiter->done = true;
      waiter->wake.NotifyOne();
    }
    waiters_.clear();
    drained_wake_.NotifyAll();
  }
  {
    MutexLock lock(&timer_mu_);
    timer_stopping_ = true;
    timer_wake_.NotifyAll();
  }
  gate_->Close();
  if (timer_.joinable()) timer_.join();
  sessions_.Stop();
  persister_.Stop();
  storage_.Stop();
  verifier_.Stop();
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

Answer Node::CallEvent(const engine::Caller& caller, engine::Event event) {
  Waiter waiter;
  std::vector<Own> own;
  bool done = false;
  {
    MutexLock lock(&mu_);
    if (stopping_) return Answer{Stopping(), 0};
    waiters_.emplace(caller.request, &waiter);
    Enter(std::move(event), &own);
    done = waiter.done;
  }
  CarryOut(std::move(own));
  if (!done) {
    MutexLock lock(&mu_);
    while (!waiter.done) waiter.wake.Wait(&mu_);
  }
  ReachFailpoint(Failpoint::kNodeReply);
  if (waiter.answer.body.ok()) {
    Status lent = LendAll(caller, *waiter.answer.body);
    if (!lent.ok()) waiter.answer.body = lent;
  }
  return std::move(waiter.answer);
}

void Node::Post(engine::Event event) {
  std::vector<Own> own;
  {
    MutexLock lock(&mu_);
    // After Stop nothing may leave: the facts would outlive the answers.
    if (stopping_) return;
    Enter(std::move(event), &own);
  }
  CarryOut(std::move(own));
}

Answer Node::Stat(engine::event::StatObject event) {
  {
    ReaderLock look(&looking_mu_);
    if (looked_at_ != nullptr) {
      if (std::optional<engine::ObjectInfo> info = looked_at_->Peek(event)) {
        return Answer{engine::reply::Body(*std::move(info)), 0};
      }
    }
  }
  return Call(std::move(event));
}

engine::Outcome Node::Apply(engine::Event event) {
  // Until the facts are journaled: who looks is answered, and no answer may be forgotten.
  WriterLock alone(&looking_mu_);
  engine::Outcome outcome = engine_->Apply(rooms_.clock->Now(), std::move(event));
  Journal(outcome.facts);
  return outcome;
}

void Node::Enter(engine::Event event, std::vector<Own>* own) {
  Take(Apply(std::move(event)), own);
  if (journal_full_ || journal_->Full()) RelieveJournal(own);
  if (options_.check_invariants) {
    const std::string broken = engine_->CheckInvariants();
    CHECK(broken.empty()) << "engine: " << broken;
  }
}

void Node::Journal(const std::vector<Fact>& facts) {
  if (facts.empty()) return;
  ReachFailpoint(Failpoint::kNodeApplied);
  const Status appended = journal_->Append(facts);
  // Half of what a snapshot freed must be used before the next: a large state is not written out
  // for every few facts.
  const bool due = journal_->WantsSnapshot() && journal_->used_bytes() >= 2 * snapshot_bytes_;
  if (!appended.ok() || due) {
    // The engine's state already holds these facts, so its snapshot does.
    const Status switched = SwitchJournal();
    // Neither half takes what has been decided. Nothing of it has left; a new daemon decides anew
    // from what is journaled.
    CHECK(appended.ok() || switched.ok())
        << "journal: " << appended << "; with a snapshot: " << switched;
  }
  ReachFailpoint(Failpoint::kNodeJournaled);
}

Status Node::SwitchJournal() {
  ReachFailpoint(Failpoint::kNodeSwitch);
  const Status switched = journal_->Switch(engine_->Snapshot());
  ReachFailpoint(Failpoint::kNodeSwitched);
  if (switched.ok()) snapshot_bytes_ = journal_->used_bytes();
  return switched;
}

// Once per event while the journal is full: the engine lets go of a batch, and a snapshot without
// it may have room again. So a job with very many small steps goes on, at the price of the oldest.
void Node::RelieveJournal(std::vector<Own>* own) {
  const uint64_t gain = options_.journal.bytes / 32;
  if (!journal_full_ && journal_->used_bytes() >= snapshot_bytes_ + gain) {
    // What has ended since the last snapshot may be all it takes.
    if (SwitchJournal().ok() && !journal_->Full()) return;
  }
  if (journal_->Full()) {
    journal_full_ = true;
    engine::Outcome outcome = Apply(engine::event::JournalFull{true});
    const bool let_go = !outcome.facts.empty();
    Take(std::move(outcome), own);
    if (!let_go || !SwitchJournal().ok() || journal_->Full()) return;
  }
  journal_full_ = false;
  Take(Apply(engine::event::JournalFull{false}), own);
}

void Node::Take(engine::Outcome outcome, std::vector<Own>* own) {
  namespace action = engine::action;
  for (engine::Action& any : outcome.actions) {
    if (auto* reply = std::get_if<action::Reply>(&any)) {
      auto it = waiters_.find(reply->request);
      if (it == waiters_.end()) continue;
      Waiter* waiter = it->second;
      waiters_.erase(it);
      waiter->answer = Answer{std::move(reply->body), reply->superseded_by};
      waiter->done = true;
      waiter->wake.NotifyOne();
    } else if (auto* make = std::get_if<action::MakeSlab>(&any)) {
      const SlabId slab = make->slab;
      rooms_.cache->Make(slab, make->bytes, make->urgent, [gate = gate_, slab](Status status) {
        gate->Post(engine::event::SlabMade{slab, std::move(status)});
      });
    } else if (auto* hurry = std::get_if<action::HurrySlab>(&any)) {
      rooms_.cache->Hurry(hurry->slab);
    } else if (auto* destroy = std::get_if<action::DestroySlab>(&any)) {
      const SlabId slab = destroy->slab;
      rooms_.cache->Destroy(
          slab, [gate = gate_, slab] { gate->Post(engine::event::SlabDestroyed{slab}); });
    } else if (auto* verify = std::get_if<action::Verify>(&any)) {
      verifier_.Add([this, a = std::move(*verify)] { Verify(a); });
    } else if (auto* persist = std::get_if<action::Persist>(&any)) {
      auto shared = std::make_shared<action::Persist>(std::move(*persist));
      persister_.Add([this, shared] { Persist(*shared); });
    } else if (auto* remove = std::get_if<action::DeleteFiles>(&any)) {
      storage_.Add([this, a = std::move(*remove)] { DeleteFiles(a); });
    } else if (auto* scan = std::get_if<action::ScanJob>(&any)) {
      storage_.Add([this, a = std::move(*scan)] { ScanJob(a); });
    } else if (auto* record = std::get_if<action::Record>(&any)) {
      RecordRows(*record);
    } else if (auto* wake = std::get_if<action::WakeAt>(&any)) {
      MutexLock lock(&timer_mu_);
      timer_at_ = wake->at;
      timer_wake_.NotifyOne();
    } else if (std::holds_alternative<action::Drained>(any)) {
      drained_ = true;
      drained_wake_.NotifyAll();
    } else if (auto* write = std::get_if<action::WriteManifest>(&any)) {
      own->push_back(std::move(*write));
    } else if (auto* probe = std::get_if<action::ProbeSlab>(&any)) {
      own->push_back(std::move(*probe));
    } else if (auto* end = std::get_if<action::EndSession>(&any)) {
      own->push_back(*end);
    } else if (auto* log = std::get_if<action::Log>(&any)) {
      own->push_back(std::move(*log));
    }
  }
}

void Node::RecordRows(const engine::action::Record& record) {
  if (!rooms_.open_catalog) return;
  recorder_.Put(
      RowsOf(engine_->Describe(record.job, record.checkpoints), options_.name, &row_sequence_));
}

void Node::CarryOut(std::vector<Own> own) {
  namespace action = engine::action;
  for (Own& any : own) {
    if (auto* write = std::get_if<action::WriteManifest>(&any)) {
      ReachFailpoint(Failpoint::kNodeManifest);
      Status status = rooms_.cache->Write(write->extent.slab, write->extent.offset, write->bytes);
      ReachFailpoint(Failpoint::kNodeManifestWritten);
      Post(engine::event::ManifestWritten{write->part, std::move(status)});
    } else if (auto* probe = std::get_if<action::ProbeSlab>(&any)) {
      engine::event::SlabProbed probed;
      probed.slab = probe->slab;
      for (LeaseId lease : probe->leases) {
        const StatusOr<bool> open = rooms_.cache->LeaseOpen(probe->slab, lease);
        if (open.ok() && !*open) probed.ended.push_back(lease);
      }
      const StatusOr<bool> free = rooms_.cache->Probe(probe->slab);
      probed.free = free.ok() && *free;
      if (!free.ok()) {
        LOG_EVERY_N(ERROR, 100) << "slab " << probe->slab << ": " << free.status();
      }
      Post(std::move(probed));
    } else if (auto* end = std::get_if<action::EndSession>(&any)) {
      sessions_.End(end->session);
    } else if (auto* log = std::get_if<action::Log>(&any)) {
      if (log->severity >= 2) {
        LOG(ERROR) << log->message;
      } else if (log->severity == 1) {
        LOG(WARNING) << log->message;
      } else {
        LOG(INFO) << log->message;
      }
    }
  }
}

void Node::RunTimer() {
  pthread_setname_np(pthread_self(), "timer");
  for (;;) {
    {
      MutexLock lock(&timer_mu_);
      for (;;) {
        if (timer_stopping_) return;
        if (timer_at_ == 0) {
          timer_wake_.Wait(&timer_mu_);
          continue;
        }
        const MonotonicNanos left = timer_at_ - rooms_.clock->Now();
        if (left <= 0) break;
        timer_wake_.WaitUntil(&timer_mu_,
                              std::chrono::steady_clock::now() + std::chrono::nanoseconds(left));
      }
      timer_at_ = 0;
    }
    Post(engine::event::Tick{});
  }
}

}  // namespace cairn::node
