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
#include "server/node/mappers.h"
#include "server/node/recovery.h"

namespace cairn::node {
namespace {

// Leases of files in storage are the node's own: the engine's count up from 1 and never reach
// these.
constexpr LeaseId kStoredLease = LeaseId{1} << 62;

Status Stopping() { return absl::UnavailableError("the daemon is stopping"); }

// An object's bytes in a slab, for the persister.
class SlabSource : public storage::ObjectSource {
 public:
  SlabSource(cache::Cache* cache, const ExtentRef& extent) : cache_(cache), extent_(extent) {}

  Status Read(uint64_t offset, absl::Span<char> into) const override {
    return cache_->Read(extent_.slab, extent_.offset + offset, into);
  }

 private:
  cache::Cache* const cache_;
  const ExtentRef extent_;
};

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
    Take(engine_->Start(rooms_.clock->Now(), started_unix_ms_, std::move(recovered)), &own);
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
  WriterLock alone(&looking_mu_);
  return engine_->Apply(rooms_.clock->Now(), std::move(event));
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
  Journal(outcome.facts);
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

// --- requests

Status Node::LendTo(SessionId session, const engine::Lend& lend) {
  Status status;
  {
    ReachFailpoint(Failpoint::kNodeLend);
    StatusOr<UniqueFd> fd = rooms_.cache->Lend(lend.slab, lend.lease, lend.mode);
    status = fd.status();
    if (fd.ok()) {
      status = sessions_.Push(session, FdMessageType::kSlab, lend.lease, lend.slab, lend.slab_bytes,
                              fd->get());
    }
    ReachFailpoint(Failpoint::kNodeLent);
  }  // our end of the description is closed before the engine is told that nobody has it
  if (!status.ok()) Post(engine::event::LendFailed{lend.lease});
  return status;
}

Status Node::LendAll(const engine::Caller& caller, const engine::reply::Body& body) {
  Status first;
  if (const auto* created = std::get_if<engine::reply::Create>(&body)) {
    for (const engine::Lend& lend : created->lend) {
      if (first.ok()) {
        first = LendTo(caller.session, lend);
      } else {
        Post(engine::event::LendFailed{lend.lease});
      }
    }
  } else if (const auto* opened = std::get_if<engine::reply::Open>(&body)) {
    if (opened->lend.lease != 0) {
      const std::optional<SessionInfo> info = sessions_.Find(caller.session);
      // Without descriptors the lease alone counts: the bytes go in chunks.
      if (!info.has_value() || info->takes_fds) first = LendTo(caller.session, opened->lend);
    }
  }
  return first;
}

OpenAnswer Node::Open(engine::event::Open event) {
  const engine::Caller caller = event.caller;
  const std::string name = event.name;
  Answer answer = Call(std::move(event));
  OpenAnswer result;
  result.superseded_by = answer.superseded_by;
  if (!answer.body.ok()) {
    result.opened = answer.body.status();
    return result;
  }
  const std::optional<SessionInfo> info = sessions_.Find(caller.session);
  const bool takes_fds = info.has_value() && info->takes_fds;
  Opened opened;
  if (auto* memory = std::get_if<engine::reply::Open>(&*answer.body)) {
    opened.lease = memory->lend.lease;
    opened.slab = memory->extent.slab;
    opened.bytes = memory->lend.slab_bytes;
    opened.offset = memory->extent.offset;
    opened.checkpoint = std::move(memory->checkpoint);
    opened.object = std::move(memory->object);
    opened.exact = memory->exact;
    opened.fd_sent = takes_fds && memory->lend.lease != 0;
    result.opened = std::move(opened);
    return result;
  }
  auto* stored = std::get_if<engine::reply::OpenStored>(&*answer.body);
  if (stored == nullptr || rooms_.storage == nullptr) {
    result.opened = absl::InternalError("open was answered with something else");
    return result;
  }
  StatusOr<UniqueFd> file =
      rooms_.storage->Open(stored->checkpoint, name, storage::Owner{caller.uid, caller.gid});
  if (!file.ok()) {
    result.opened = Annotate(file.status(), stored->checkpoint.directory);
    return result;
  }
  struct stat attributes = {};
  if (fstat(file->get(), &attributes) != 0) {
    result.opened = ErrnoStatus(errno, name);
    return result;
  }
  opened.bytes = static_cast<uint64_t>(attributes.st_size);
  opened.checkpoint = stored->checkpoint.key;
  opened.object = std::move(stored->object);
  opened.exact = true;
  if (opened.bytes != opened.object.length) {
    result.opened = absl::DataLossError(
        absl::StrCat(stored->checkpoint.directory, "/", name, ": the file has ", opened.bytes,
                     " bytes, its manifest says ", opened.object.length));
    return result;
  }
  {
    MutexLock lock(&stored_mu_);
    opened.lease = kStoredLease | ++next_stored_;
  }
  if (takes_fds) {
    Status pushed = sessions_.Push(caller.session, FdMessageType::kFile, opened.lease, 0,
                                   opened.bytes, file->get());
    if (!pushed.ok()) {
      result.opened = pushed;
      return result;
    }
    opened.fd_sent = true;
  } else {
    constexpr size_t kMaxStored = 64;  // of one session
    MutexLock lock(&stored_mu_);
    size_t held = 0;
    for (const auto& [id, open] : stored_) held += open.session == caller.session ? 1 : 0;
    if (held >= kMaxStored) {
      result.opened = absl::ResourceExhaustedError(absl::StrCat(
          "open files in storage: ", held, " of this session, the limit is ", kMaxStored));
      return result;
    }
    stored_[opened.lease] = StoredOpen{caller.session, *std::move(file), opened.bytes};
  }
  result.opened = std::move(opened);
  return result;
}

Answer Node::Release(engine::event::Release event) {
  std::vector<LeaseId> in_memory;
  for (LeaseId lease : event.leases) {
    if ((lease & kStoredLease) == 0) {
      in_memory.push_back(lease);
      continue;
    }
    MutexLock lock(&stored_mu_);
    auto it = stored_.find(lease);
    if (it != stored_.end() && it->second.session == event.caller.session) stored_.erase(it);
  }
  if (in_memory.empty()) return Answer{engine::reply::Body(engine::reply::Ok{}), 0};
  event.leases = std::move(in_memory);
  return Call(std::move(event));
}

StatusOr<std::string> Node::ReadChunk(const engine::Caller& caller, LeaseId lease, uint64_t offset,
                                      uint64_t length) {
  std::string bytes(length, '\0');
  if ((lease & kStoredLease) != 0) {
    UniqueFd file;
    {
      MutexLock lock(&stored_mu_);
      auto it = stored_.find(lease);
      if (it == stored_.end() || it->second.session != caller.session) {
        return absl::NotFoundError(absl::StrCat("lease: ", lease, " is not this session's"));
      }
      if (offset > it->second.length || length > it->second.length - offset) {
        return absl::OutOfRangeError(absl::StrCat("offset: ", offset, " + ", length,
                                                  " is beyond the object's ", it->second.length));
      }
      CAIRN_ASSIGN_OR_RETURN(file, it->second.file.Dup());
    }
    CAIRN_RETURN_IF_ERROR(PreadAll(file.get(), bytes.data(), length, offset));
    return bytes;
  }
  Answer answer = Call(engine::event::LocateChunk{caller, lease, offset, length, /*write=*/false});
  if (!answer.body.ok()) return answer.body.status();
  const auto* chunk = std::get_if<engine::reply::Chunk>(&*answer.body);
  if (chunk == nullptr) return absl::InternalError("chunk was answered with something else");
  CAIRN_RETURN_IF_ERROR(
      rooms_.cache->Read(chunk->extent.slab, chunk->offset, absl::MakeSpan(bytes)));
  return bytes;
}

Status Node::WriteChunk(const engine::Caller& caller, LeaseId lease, uint64_t offset,
                        absl::string_view bytes) {
  engine::event::LocateChunk locate{caller, lease, offset, bytes.size(), /*write=*/true};
  Answer answer = Call(std::move(locate));
  if (!answer.body.ok()) return answer.body.status();
  const auto* chunk = std::get_if<engine::reply::Chunk>(&*answer.body);
  if (chunk == nullptr) return absl::InternalError("chunk was answered with something else");
  return rooms_.cache->Write(chunk->extent.slab, chunk->offset, bytes);
}

Node::Begun Node::Hello(engine::event::Hello event) {
  SessionInfo info;
  info.secret = event.secret = RandomSecret();
  info.uid = event.caller.uid;
  info.gid = event.caller.gid;
  info.pid = event.pid;
  info.job = event.job;
  info.attempt = event.attempt;
  info.writer = event.writer;
  info.world_size = event.world_size;
  info.local_writers = event.local_writers;
  info.takes_fds = event.takes_fds;
  info.client = event.client;
  info.connected_unix_ms = rooms_.clock->UnixMillis();
  Begun begun;
  Answer answer = Call(std::move(event));
  begun.superseded_by = answer.superseded_by;
  if (!answer.body.ok()) {
    begun.info = answer.body.status();
    return begun;
  }
  const auto* hello = std::get_if<engine::reply::Hello>(&*answer.body);
  if (hello == nullptr) {
    begun.info = absl::InternalError("hello was answered with something else");
    return begun;
  }
  info.id = hello->session;
  sessions_.Add(info);
  begun.info = std::move(info);
  return begun;
}

void Node::Goodbye(SessionId session) {
  if (sessions_.End(session)) Post(engine::event::SessionEnded{session});
  MutexLock lock(&stored_mu_);
  std::erase_if(stored_, [&](const auto& open) { return open.second.session == session; });
}

void Node::ConnectionClosed(SessionId session) {
  if (sessions_.ConnectionClosed(session)) Post(engine::event::SessionEnded{session});
  MutexLock lock(&stored_mu_);
  std::erase_if(stored_, [&](const auto& open) { return open.second.session == session; });
}

StatusOr<NodeState> Node::State(const engine::Caller& caller) {
  Answer answer = Call(engine::event::Status{caller});
  if (!answer.body.ok()) return answer.body.status();
  auto* status = std::get_if<engine::reply::Status>(&*answer.body);
  if (status == nullptr) return absl::InternalError("status was answered with something else");
  NodeState state;
  state.engine = std::move(*status);
  state.now = rooms_.clock->Now();
  state.started_unix_ms = started_unix_ms_;
  {
    MutexLock lock(&mu_);
    state.state = !options_.safe_mode.empty() ? absl::StrCat("safe mode: ", options_.safe_mode)
                  : draining_                 ? "draining"
                                              : "serving";
    state.engine.counters["journal_used_bytes"] = static_cast<int64_t>(journal_->used_bytes());
    state.engine.counters["waiting_calls"] = static_cast<int64_t>(waiters_.size());
  }
  for (engine::reply::SessionStatus& session : state.engine.sessions) {
    SessionState shown;
    if (std::optional<SessionInfo> info = sessions_.Find(session.session)) {
      shown.connected_unix_ms = info->connected_unix_ms;
    }
    if (std::optional<ProgressPage> page = sessions_.Progress(session.session)) {
      shown.writing_step = static_cast<Step>(page->step);
      shown.writing_total = page->bytes_total;
      shown.writing_done = page->bytes_done;
    }
    shown.status = std::move(session);
    state.sessions.push_back(std::move(shown));
  }
  state.engine.sessions.clear();
  AddMappers(&state.engine.quarantined);
  const cache::Counters cache = rooms_.cache->counters();
  std::map<std::string, int64_t>& counters = state.engine.counters;
  const auto put = [&counters](const char* name, uint64_t value) {
    counters[name] = static_cast<int64_t>(value);
  };
  put("slabs_made", cache.slabs_made);
  put("slabs_destroyed", cache.slabs_destroyed);
  put("bytes_faulted", cache.bytes_faulted);
  put("lends", cache.lends);
  put("probes", cache.probes);
  put("bad_reads", cache.bad_reads);
  if (rooms_.storage != nullptr) {
    const storage::Counters storage = rooms_.storage->counters();
    put("files_written", storage.files_written);
    put("file_bytes_written", storage.bytes_written);
    put("fsync_failures", storage.fsync_failures);
    put("file_rewrites", storage.rewrites);
    put("published", storage.published);
  }
  state.catalog = recorder_.State();
  return state;
}

// The engine knows sessions; who else has a slab (a forked child, say) only the kernel does.
void Node::AddMappers(std::vector<engine::reply::Quarantined>* quarantined) const {
  std::map<SlabId, uint64_t> inodes;
  std::set<uint64_t> wanted;
  for (const engine::reply::Quarantined& slab : *quarantined) {
    const StatusOr<uint64_t> inode = rooms_.cache->Inode(slab.slab);
    if (!inode.ok()) continue;
    inodes[slab.slab] = *inode;
    wanted.insert(*inode);
  }
  const std::map<uint64_t, std::set<int32_t>> mappers = FindMappers(wanted);
  for (engine::reply::Quarantined& slab : *quarantined) {
    const auto inode = inodes.find(slab.slab);
    if (inode == inodes.end()) continue;
    const auto found = mappers.find(inode->second);
    if (found == mappers.end()) continue;
    std::set<int32_t> pids(slab.pids.begin(), slab.pids.end());
    pids.insert(found->second.begin(), found->second.end());
    slab.pids.assign(pids.begin(), pids.end());
  }
}

// --- what executors do

void Node::Verify(const engine::action::Verify& action) {
  Status status;
  StatusOr<std::vector<uint32_t>> crcs =
      rooms_.cache->Crcs(action.extent, action.entry.length, action.entry.block_bytes);
  if (!crcs.ok()) {
    status = crcs.status();
  } else if (*crcs != action.entry.block_crcs) {
    size_t block = 0;
    while (block < crcs->size() && block < action.entry.block_crcs.size() &&
           (*crcs)[block] == action.entry.block_crcs[block]) {
      ++block;
    }
    status = absl::DataLossError(
        absl::StrCat("block ", block, " of \"", action.entry.name, "\" is not what was sealed"));
  }
  Post(engine::event::Verified{action.verification, std::move(status), rooms_.clock->UnixMillis()});
}

void Node::Persist(const engine::action::Persist& action) {
  const MonotonicNanos begin = rooms_.clock->Now();
  ReachFailpoint(Failpoint::kNodePersist);
  const storage::Owner owner{action.uid, action.gid};
  uint64_t bytes = 0;
  const auto write = [&]() -> Status {
    std::vector<std::unique_ptr<SlabSource>> sources;
    std::vector<storage::PartToWrite> parts;
    for (const engine::action::PersistPart& part : action.parts) {
      storage::PartToWrite to_write;
      to_write.manifest = &part.manifest;
      to_write.encoded = part.encoded;
      absl::flat_hash_map<absl::string_view, const engine::action::PersistObject*> placed;
      for (const engine::action::PersistObject& object : part.objects) {
        placed[object.entry.name] = &object;
      }
      for (const ObjectEntry& entry : part.manifest.objects) {
        const auto found = placed.find(entry.name);
        if (found == placed.end()) {
          return absl::InternalError(absl::StrCat("no extent of \"", entry.name, "\""));
        }
        sources.push_back(std::make_unique<SlabSource>(rooms_.cache, found->second->extent));
        to_write.sources.push_back(sources.back().get());
        bytes += entry.length;
      }
      parts.push_back(std::move(to_write));
    }
    CAIRN_RETURN_IF_ERROR(rooms_.storage->WriteParts(action.checkpoint, owner, parts));
    ReachFailpoint(Failpoint::kNodePublish);
    bool published = false;
    CAIRN_RETURN_IF_ERROR(rooms_.storage->Publish(action.checkpoint, owner, &published));
    ReachFailpoint(Failpoint::kNodePublished);
    if (!published) {
      return absl::FailedPreconditionError(
          "a newer checkpoint of that step stands in storage, or parts are missing there");
    }
    return absl::OkStatus();
  };
  Status status = write();
  if (status.ok()) {
    LOG(INFO) << "job=" << action.checkpoint.job << " step=" << action.checkpoint.step
              << " attempt=" << action.checkpoint.attempt << " persisted, " << bytes << " bytes in "
              << (rooms_.clock->Now() - begin) / kNanosPerMilli << " ms";
  }  // else the engine says so, once per problem
  const bool ok = status.ok();
  const CheckpointKey& done = action.checkpoint;
  Post(engine::event::Persisted{done, std::move(status)});
  if (!ok) return;
  // What this checkpoint replaced, or outlived unfinished.
  Status swept = rooms_.storage->Sweep(done.job, [&done](const CheckpointKey& other) {
    return other.step == done.step &&
           std::tie(other.attempt, other.revision) < std::tie(done.attempt, done.revision);
  });
  if (!swept.ok()) LOG(WARNING) << "job=" << done.job << " sweep: " << swept;
}

void Node::DeleteFiles(const engine::action::DeleteFiles& action) {
  ReachFailpoint(Failpoint::kNodeDelete);
  Status status =
      rooms_.storage->Delete(action.checkpoint, {action.uid, action.gid}, action.tombstone);
  ReachFailpoint(Failpoint::kNodeDeleted);
  if (!status.ok()) {
    LOG(WARNING) << "job=" << action.checkpoint.job << " step=" << action.checkpoint.step
                 << " files not deleted: " << status;
  }
  Post(engine::event::FilesDeleted{action.checkpoint, std::move(status)});
}

void Node::ScanJob(const engine::action::ScanJob& action) {
  // A session that only reads may have no job; the root itself is none.
  engine::event::JobScanned scanned{action.job,
                                    action.job.empty()
                                        ? StatusOr<StoredJob>(absl::NotFoundError("job: is empty"))
                                        : rooms_.storage->Read(action.job),
                                    0, 0};
  if (scanned.stored.ok()) {
    StatusOr<storage::Owner> owner = rooms_.storage->JobOwner(action.job);
    if (owner.ok()) {
      scanned.owner_uid = owner->uid;
      scanned.owner_gid = owner->gid;
    } else {
      scanned.stored = owner.status();
    }
  }
  Post(std::move(scanned));
}

void Node::RecordRows(const engine::action::Record& record) {
  if (!rooms_.open_catalog) return;
  engine::Engine::Description description = engine_->Describe(record.job, record.checkpoints);
  std::vector<catalog::Row> rows;
  if (description.job.has_value()) {
    const fact::Job& job = *description.job;
    rows.push_back(
        catalog::JobRow{job.job, job.owner_uid, job.owner_gid, job.policy, ++row_sequence_});
  }
  for (const fact::AttemptBegun& attempt : description.attempts) {
    rows.push_back(catalog::AttemptRow{attempt.job, attempt.attempt, attempt.comes_from,
                                       attempt.unix_ms, ++row_sequence_});
  }
  for (const engine::Engine::Description::Part& part : description.parts) {
    catalog::PartRow row;
    row.part = part.committed.part;
    row.world_size = part.committed.world_size;
    row.digest = part.committed.digest;
    row.bytes = part.bytes;
    row.objects = part.objects;
    row.resident = part.resident;
    row.persisted = part.persisted;
    row.broken = part.broken;
    row.removed = part.removed;
    row.holders = part.resident ? options_.name : "";
    row.sequence = ++row_sequence_;
    if (part.removed) {
      catalog::StepRow step;
      step.checkpoint = part.committed.part.checkpoint;
      step.world_size = part.committed.world_size;
      step.removed = true;
      step.sequence = ++row_sequence_;
      rows.push_back(std::move(step));
    }
    rows.push_back(std::move(row));
  }
  for (const engine::CheckpointInfo& info : description.complete) {
    catalog::StepRow step;
    step.checkpoint = info.key;
    step.world_size = info.world_size;
    step.digest = info.digest;
    step.completed_unix_ms = info.created_unix_ms;
    step.persisted = info.facts.persisted;
    step.sequence = ++row_sequence_;
    rows.push_back(std::move(step));
  }
  for (const CheckpointKey& gone : description.gone) {
    catalog::StepRow step;
    step.checkpoint = gone;
    step.removed = true;
    step.sequence = ++row_sequence_;
    rows.push_back(std::move(step));
  }
  recorder_.Put(std::move(rows));
}

}  // namespace cairn::node
