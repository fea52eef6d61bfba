#include "server/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/impl.h"

namespace cairn::engine {
namespace {

// Ids are set aside in the journal this many at a time, so that none is ever given twice.
constexpr uint64_t kIdsAtOnce = 4096;
// Manifests share slabs of this size: dozens of a usual job's.
constexpr uint64_t kManifestSlabBytes = 256 << 10;

}  // namespace

Status Options::Validate() const {
  const auto bad = [](absl::string_view what) { return absl::InvalidArgumentError(what); };
  if (budget_bytes < 16 * kPageBytes) {
    return bad(absl::StrCat("budget_bytes: ", budget_bytes, " is below ", 16 * kPageBytes));
  }
  uint64_t pool = 0;
  for (uint64_t bytes : pool_slabs) {
    if (bytes == 0 || bytes % kPageBytes != 0) {
      return bad(absl::StrCat("pool_slabs: ", bytes, " is no multiple of ", kPageBytes));
    }
    pool += bytes;
  }
  if (pool > budget_bytes) {
    return bad(absl::StrCat("pool_slabs: ", pool, " bytes exceed the budget of ", budget_bytes));
  }
  if (max_sessions < 1) return bad(absl::StrCat("max_sessions: ", max_sessions, " is below 1"));
  if (max_waiting < 1) return bad(absl::StrCat("max_waiting: ", max_waiting, " is below 1"));
  if (max_objects_per_step < 1) {
    return bad(absl::StrCat("max_objects_per_step: ", max_objects_per_step, " is below 1"));
  }
  if (max_persists < 1) return bad(absl::StrCat("max_persists: ", max_persists, " is below 1"));
  if (lease_seconds_without_fds <= 0 || probe_interval <= 0 || persist_retry_min <= 0) {
    return bad("intervals must be above 0");
  }
  if (persist_retry_max < persist_retry_min) {
    return bad("persist_retry_max is below persist_retry_min");
  }
  return absl::OkStatus();
}

Engine::Engine(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Engine::~Engine() = default;
Outcome Engine::Start(MonotonicNanos now, int64_t unix_ms, Recovered recovered) {
  return impl_->Start(now, unix_ms, std::move(recovered));
}
Outcome Engine::Apply(MonotonicNanos now, Event event) {
  return impl_->Apply(now, std::move(event));
}
std::optional<ObjectInfo> Engine::Peek(const event::StatObject& event) const {
  return impl_->Peek(event);
}
std::vector<Fact> Engine::Snapshot() const { return impl_->Snapshot(); }
Engine::Description Engine::Describe(const std::string& job,
                                     const std::vector<CheckpointKey>& checkpoints) const {
  return impl_->Describe(job, checkpoints);
}
std::string Engine::CheckInvariants() const { return impl_->CheckInvariants(); }

Engine::Impl::Impl(const Options& options)
    : options_(options),
      manifest_slab_bytes_(std::clamp(options.budget_bytes / 64 / kPageBytes * kPageBytes,
                                      kPageBytes, kManifestSlabBytes)),
      ledger_(options_, &out_) {}

// --- entry

Outcome Engine::Impl::Apply(MonotonicNanos now, Event event) {
  now_ = std::max(now_, now);
  ledger_.set_now(now_);
  if (now_ >= woken_for_) woken_for_ = kNever;
  Dispatch(event);
  return Finish();
}

void Engine::Impl::Dispatch(const Event& event) {
  std::visit([this](const auto& e) { On(e); }, event);
}

Outcome Engine::Impl::Finish() {
  ExpireLeases();
  ExpireParked();
  ledger_.ProbeDue();
  // Serving may change memory again; it ends because each round grants, refuses or frees something.
  for (int round = 0; round < 64; ++round) {
    const MemoryState now = MemoryNow();
    if (now == served_) break;
    served_ = now;
    RetryManifests();
    ServeWaiting();
  }
  RunPersists();
  CheckDrained();
  CheckWaits();
  Settle();
  for (auto& [job, keys] : to_record_) {
    out_.actions.push_back(
        action::Record{job, std::vector<CheckpointKey>(keys.begin(), keys.end())});
  }
  to_record_.clear();
  for (const std::string& name : std::exchange(maybe_forget_, {})) {
    if (Job* job = FindJob(name)) MaybeForgetJob(job);
  }
  EmitWake();
  return std::exchange(out_, {});
}

void Engine::Impl::Answer(RequestId request, StatusOr<Body> body, Attempt superseded_by) {
  action::Reply reply;
  reply.request = request;
  reply.body = std::move(body);
  reply.superseded_by = superseded_by;
  out_.actions.push_back(std::move(reply));
}

void Engine::Impl::Log(int severity, std::string message) {
  out_.actions.push_back(action::Log{severity, std::move(message)});
}

uint64_t Engine::Impl::NextId() {
  if (next_id_ >= ids_reserved_) {
    ids_reserved_ = next_id_ + kIdsAtOnce;
    out_.facts.push_back(fact::Incarnation{start_unix_ms_, ids_reserved_});
  }
  return next_id_++;
}

// --- parked callers

Parked* Engine::Impl::Park(ParkedKind kind, const Caller& caller, const std::string& job,
                           MonotonicNanos deadline, Event event) {
  if (static_cast<int64_t>(parked_.size()) >= options_.max_waiting) {
    Answer(caller.request, absl::ResourceExhaustedError(
                               absl::StrCat("waiting callers: ", parked_.size(), " is the limit")));
    return nullptr;
  }
  auto parked = std::make_unique<Parked>();
  parked->request = caller.request;
  parked->session = caller.session;
  parked->kind = kind;
  parked->job = job;
  parked->deadline = deadline;
  parked->event = std::move(event);
  deadlines_.insert({deadline, caller.request});
  if (Session* session = FindSession(caller.session)) session->parked.insert(caller.request);
  Parked* at = parked.get();
  parked_[caller.request] = std::move(parked);
  return at;
}

// Takes the caller out of every list it waits in.
std::unique_ptr<Parked> Engine::Impl::Unpark(RequestId request) {
  const auto at = parked_.find(request);
  if (at == parked_.end()) return nullptr;
  std::unique_ptr<Parked> parked = std::move(at->second);
  parked_.erase(at);
  deadlines_.erase({parked->deadline, request});
  maybe_forget_.insert(parked->job);
  if (Session* session = FindSession(parked->session)) session->parked.erase(request);
  Job* job = FindJob(parked->job);
  switch (parked->kind) {
    case ParkedKind::kScan:
      if (job != nullptr) job->scan_waiters.erase(request);
      break;
    case ParkedKind::kCreate: {
      ReleaseNeeds(parked.get());
      const auto order = create_order_.find(request);
      if (order != create_order_.end()) {
        waiting_creates_.erase(order->second);
        create_order_.erase(order);
      }
      if (job != nullptr) {
        const auto checkpoint = job->checkpoints.find(parked->checkpoint);
        if (checkpoint != job->checkpoints.end()) {
          checkpoint->second->waiting_creates.erase(request);
          Touch(checkpoint->second.get());
        }
      }
      break;
    }
    case ParkedKind::kOpen: {
      const auto verification = verifications_.find(parked->verification);
      if (verification != verifications_.end()) {
        std::vector<RequestId>& opens = verification->second.opens;
        opens.erase(std::remove(opens.begin(), opens.end(), request), opens.end());
      }
      break;
    }
    case ParkedKind::kWait:
      if (job != nullptr) job->waits.erase(request);
      break;
    case ParkedKind::kRemove:
      for (auto removal = removals_.begin(); removal != removals_.end();) {
        removal->second.erase(request);
        removal = removal->second.empty() ? removals_.erase(removal) : std::next(removal);
      }
      break;
    case ParkedKind::kCommit:
      if (Part* part = FindPart(parked->part)) {
        std::vector<RequestId>& waiting = part->committers;
        waiting.erase(std::remove(waiting.begin(), waiting.end(), request), waiting.end());
      }
      break;
  }
  return parked;
}

void Engine::Impl::AnswerParked(RequestId request, StatusOr<Body> body, Attempt superseded_by) {
  if (Unpark(request) != nullptr) Answer(request, std::move(body), superseded_by);
}

void Engine::Impl::ExpireParked() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_) {
    const RequestId request = deadlines_.begin()->second;
    const Parked& parked = *parked_.at(request);
    if (parked.kind == ParkedKind::kCreate) {
      Expired(parked);
      continue;
    }
    const std::unique_ptr<Parked> gone = Unpark(request);
    Expired(*gone);
  }
}

// What a caller hears whose time is up. Creates are still parked here: the whole step shares the
// verdict.
void Engine::Impl::Expired(const Parked& parked) {
  switch (parked.kind) {
    case ParkedKind::kScan:
      // Storage had its time; the event goes on with what memory knows.
      giving_up_scan_ = true;
      Dispatch(parked.event);
      giving_up_scan_ = false;
      return;
    case ParkedKind::kCreate: {
      Job* job = FindJob(parked.job);
      Checkpoint* checkpoint = job->checkpoints.at(parked.checkpoint).get();
      uint64_t wanted = 0;
      for (const Need& need : parked.needs) wanted += SlabBytesFor(need.bytes);
      const uint64_t shown =
          checkpoint->admission == Admission::kWaiting ? checkpoint->estimate : wanted;
      RefuseStep(checkpoint, FullStatus(*job, shown, "the deadline passed while the step waited"));
      return;
    }
    case ParkedKind::kOpen:
      Answer(parked.request,
             absl::DeadlineExceededError(absl::StrCat("open: ", parked.part.DebugString(), " ",
                                                      parked.name, " was still being verified")));
      return;
    case ParkedKind::kWait: {
      const auto& wait = std::get<event::Wait>(parked.event);
      Answer(parked.request,
             absl::DeadlineExceededError(absl::StrCat(
                 "wait: job ", parked.job,
                 wait.ref.step == kNoStep ? std::string() : absl::StrCat(" step ", wait.ref.step),
                 " did not reach ", LevelName(wait.level), " by the deadline")));
      return;
    }
    case ParkedKind::kRemove:
      Answer(parked.request,
             absl::DeadlineExceededError(
                 "remove: decided and remembered, but its files are not deleted yet"));
      return;
    case ParkedKind::kCommit:
      Answer(parked.request, absl::ResourceExhaustedError(
                                 "commit: no memory for the manifest; the objects are kept, the "
                                 "call can be repeated"));
      return;
  }
}

// --- timers

void Engine::Impl::EmitWake() {
  MonotonicNanos next = ledger_.next_probe();
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  if (!lease_expiry_.empty()) next = std::min(next, lease_expiry_.begin()->first);
  next = std::min(next, NextPersist());
  if (draining_ && !drained_) next = std::min(next, drain_deadline_);
  if (next == kNever) return;
  next = std::max(next, now_ + 1);
  if (next == woken_for_) return;
  woken_for_ = next;
  out_.actions.push_back(action::WakeAt{next});
}

}  // namespace cairn::engine
