// What goes to storage, when, and what happens when storage says no.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/engine/impl.h"

namespace cairn::engine {
namespace {

constexpr MonotonicNanos kScanPatience = 10 * kNanosPerSecond;

}  // namespace

// --- what is due

// A checkpoint became complete, or the policy changed.
void Engine::Impl::ScheduleByPolicy(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  if (!options_.storage || checkpoint->persisted) return;
  switch (job->policy.mode) {
    case PersistMode::kOnDemand:
      if (!checkpoint->asked) Unowe(checkpoint);
      return;
    case PersistMode::kEvery:
      if (checkpoint->key.step % job->policy.every == 0) {
        Owe(checkpoint, /*asked=*/false);
      } else if (!checkpoint->asked) {
        Unowe(checkpoint);
      }
      return;
    case PersistMode::kNewest: {
      if (checkpoint != NewestOnLine(*job)) return;
      // Those before it that have not had their turn never will.
      const std::set<CheckpointId> owed = job->owed;
      for (const CheckpointId& id : owed) {
        Checkpoint* older = job->checkpoints.at(id).get();
        if (older == checkpoint || older->asked) continue;
        Unowe(older);
        older->skipped = true;
        Count("persists_skipped");
        Touch(older);
      }
      Owe(checkpoint, /*asked=*/false);
      return;
    }
  }
}

void Engine::Impl::Owe(Checkpoint* checkpoint, bool asked) {
  checkpoint->asked |= asked;
  if (checkpoint->persisted) return;
  checkpoint->owes = true;
  checkpoint->skipped = false;
  if (!checkpoint->persisting) {
    checkpoint->job->owed.insert(checkpoint->Id());
    owing_jobs_.insert(checkpoint->job->name);
  }
  Touch(checkpoint);
}

void Engine::Impl::Unowe(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  checkpoint->owes = false;
  job->owed.erase(checkpoint->Id());
  if (job->owed.empty()) owing_jobs_.erase(job->name);
}

// A step waits for room. The latest of a job without writers owes a file whatever the policy: once
// it is in storage, its memory can go.
void Engine::Impl::OweFinished() {
  if (!options_.storage) return;
  for (const auto& [name, job] : jobs_) {
    if (job->writers > 0) continue;
    Checkpoint* newest = NewestOnLine(*job);
    if (newest == nullptr || newest->persisted || newest->persisting || newest->owes ||
        newest->broken_objects > 0 || !newest->Resident()) {
      continue;
    }
    Owe(newest, /*asked=*/false);
  }
}

void Engine::Impl::On(const event::PersistNow& event) {
  Job* job = Readable(event.caller, event.ref.job, now_ + kScanPatience, event, /*scan=*/true);
  if (job == nullptr) return;
  const RequestId request = event.caller.request;
  if (!options_.storage) {
    return Answer(request, absl::FailedPreconditionError("persist: this daemon has no storage"));
  }
  const StatusOr<Checkpoint*> found = Resolve(*job, event.ref);
  if (!found.ok()) return Answer(request, found.status());
  if (!(*found)->persisted) {
    Owe(*found, /*asked=*/true);
    out_.facts.push_back(fact::PersistAsked{(*found)->key});
    job->persist_at = 0;  // somebody is there: try now
  }
  Answer(request, Body(reply::Ok{}));
}

// --- doing it

// Two generations of one step would meet at the same place.
bool Engine::Impl::StepBusy(const Job& job, const Checkpoint& checkpoint) const {
  if (job.persists == 0) return false;
  const Step step = checkpoint.key.step;
  for (auto at = job.checkpoints.lower_bound({step, 0, 0});
       at != job.checkpoints.end() && std::get<0>(at->first) == step; ++at) {
    if (at->second->persisting || at->second->deleting) return true;
  }
  return persists_.contains(checkpoint.key);
}

void Engine::Impl::RunPersists() {
  if (owing_jobs_.empty()) return;
  const std::set<std::string> owing = owing_jobs_;
  // One each in turn, so that a job with many does not starve the others.
  for (bool started = true; started;) {
    started = false;
    for (const std::string& name : owing) {
      if (static_cast<int>(persists_.size()) >= options_.max_persists) return;
      Job* job = FindJob(name);
      if (job == nullptr || job->owed.empty() || job->persist_at > now_) continue;
      Checkpoint* next = nullptr;
      if (draining_) {
        next = NewestOnLine(*job);
        if (next != nullptr && (!job->owed.contains(next->Id()) || StepBusy(*job, *next)))
          next = nullptr;
      } else {
        for (const CheckpointId& id : job->owed) {
          Checkpoint* checkpoint = job->checkpoints.at(id).get();
          if (StepBusy(*job, *checkpoint)) continue;
          if (next == nullptr || (checkpoint->asked && !next->asked)) next = checkpoint;
          if (next->asked) break;
        }
      }
      if (next == nullptr) continue;
      StartPersist(next);
      started = true;
    }
  }
}

void Engine::Impl::StartPersist(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  if (!checkpoint->complete || !checkpoint->Resident()) {  // what is not here cannot be written
    Unowe(checkpoint);
    checkpoint->asked = false;
    Touch(checkpoint);
    return;
  }
  action::Persist persist;
  persist.checkpoint = checkpoint->key;
  persist.uid = job->owner_uid;
  persist.gid = job->owner_gid;
  std::vector<SlabId>& pinned = persists_[checkpoint->key];
  for (const auto& [slab_id, extents] : checkpoint->slabs) pinned.push_back(slab_id);
  for (SlabId id : pinned) {
    SlabRecord* slab = ledger_.Find(id);
    ledger_.Pin(slab);
    Account(slab);
  }
  for (const auto& [writer, part] : checkpoint->parts) {
    action::PersistPart to_write;
    to_write.manifest = ManifestOf(*part);
    to_write.encoded = EncodeManifest(to_write.manifest);
    for (const auto& [name, object] : part->objects) {
      to_write.objects.push_back({object->entry, object->extent});
    }
    persist.parts.push_back(std::move(to_write));
  }
  checkpoint->persisting = true;
  ++job->persists;
  job->owed.erase(checkpoint->Id());
  if (job->owed.empty()) owing_jobs_.erase(job->name);
  Touch(checkpoint);
  out_.actions.push_back(std::move(persist));
}

void Engine::Impl::On(const event::Persisted& event) {
  const auto under_way = persists_.find(event.checkpoint);
  if (under_way == persists_.end()) return;
  const std::vector<SlabId> pinned = std::move(under_way->second);
  persists_.erase(under_way);
  for (SlabId id : pinned) {
    SlabRecord* slab = ledger_.Find(id);
    ledger_.Unpin(slab);
    Account(slab);
  }
  Job* job = FindJob(event.checkpoint.job);
  if (job == nullptr) return;
  --job->persists;
  Checkpoint* checkpoint = FindCheckpoint(event.checkpoint);

  if (!event.status.ok()) {
    Count("persists_failed");
    job->persist_wait =
        std::clamp(job->persist_wait * 2, options_.persist_retry_min, options_.persist_retry_max);
    job->persist_at = now_ + job->persist_wait;
    if (job->persist_problem != event.status.message()) {
      Log(1, absl::StrCat("persisting ", event.checkpoint.DebugString(),
                          " failed, trying again: ", event.status.message()));
    }
    job->persist_problem = std::string(event.status.message());
    if (checkpoint == nullptr) return AnswerRemovals(event.checkpoint, absl::OkStatus());
    checkpoint->persisting = false;
    if (absl::IsDataLoss(event.status)) {
      VerifyAll(checkpoint);  // find out which object it is
    }
    if (checkpoint->owes && !checkpoint->skipped) {
      job->owed.insert(checkpoint->Id());
      owing_jobs_.insert(job->name);
      // A newer one may have come meanwhile, whose turn it is now.
      if (job->policy.mode == PersistMode::kNewest && !checkpoint->asked) {
        if (Checkpoint* newest = NewestOnLine(*job)) ScheduleByPolicy(newest);
      }
    }
    Touch(checkpoint);
    return;
  }

  job->persist_wait = 0;
  job->persist_at = 0;
  job->persist_problem.clear();
  Count("persists");
  const auto removed = job->removed.find(event.checkpoint.step);
  if (removed != job->removed.end() && event.checkpoint.attempt <= removed->second) {
    // `rm` came while it was being written: it goes, and its files too.
    out_.actions.push_back(
        action::DeleteFiles{event.checkpoint, job->owner_uid, job->owner_gid, true});
    return;
  }
  if (checkpoint == nullptr) return;  // evicted meanwhile: a scan will find it
  checkpoint->persisting = false;
  checkpoint->owes = checkpoint->asked = false;
  checkpoint->persisted = true;
  job->persisted.insert(checkpoint->Id());
  if (!options_.storage_root.empty()) {
    checkpoint->directory = absl::StrCat(options_.storage_root, "/", job->name, "/",
                                         StepDirectory(checkpoint->key.step));
  }
  out_.facts.push_back(fact::Persisted{checkpoint->key, checkpoint->digest});
  // It took the place of older generations of its step.
  std::vector<Checkpoint*> replaced;
  for (auto at = job->checkpoints.lower_bound({checkpoint->key.step, 0, 0});
       at != job->checkpoints.end() && at->first < checkpoint->Id(); ++at) {
    if (at->second->persisted) replaced.push_back(at->second.get());
  }
  for (Checkpoint* older : replaced) {
    out_.facts.push_back(fact::FilesDeleted{older->key});
    older->persisted = false;
    older->directory.clear();
    job->persisted.erase(older->Id());
    if (!older->Resident()) {
      EraseCheckpoint(older);
    } else {
      Touch(older);
    }
  }
  Touch(checkpoint);
  ApplyKeepPolicy(job);
  Touch(checkpoint);
}

MonotonicNanos Engine::Impl::NextPersist() const {
  MonotonicNanos next = kNever;
  for (const std::string& name : owing_jobs_) {
    const Job* job = FindJob(name);
    if (job->persist_at > now_) next = std::min(next, job->persist_at);
  }
  return next;
}

// Storage read bytes that do not match: every object is checked, so that the bad one is known by
// name.
void Engine::Impl::VerifyAll(Checkpoint* checkpoint) {
  for (const auto& [writer, part] : checkpoint->parts) {
    for (const auto& [name, object] : part->objects) {
      if (object->resident && object->verification == 0) StartVerify(object.get());
    }
  }
}

// --- drain

void Engine::Impl::On(const event::Drain& event) {
  if (!draining_) {
    draining_ = true;
    drain_deadline_ = event.deadline;
    const std::map<uint64_t, RequestId> waiting = waiting_creates_;
    for (const auto& [order, request] : waiting) {
      const auto at = parked_.find(request);
      if (at == parked_.end()) continue;
      AnswerParked(request, absl::UnavailableError("draining: the daemon is stopping"));
    }
  }
  drain_deadline_ = std::min(drain_deadline_, event.deadline);
  if (!options_.storage) return;
  for (const auto& [name, job] : jobs_) {
    Checkpoint* newest = NewestOnLine(*job);
    if (newest == nullptr || newest->persisted || !newest->Resident()) continue;
    Owe(newest, /*asked=*/true);
    job->persist_at = 0;
  }
}

bool Engine::Impl::DrainWants(const Job& job) const {
  const Checkpoint* newest = NewestOnLine(job);
  return newest != nullptr && !newest->persisted && newest->owes;
}

void Engine::Impl::CheckDrained() {
  if (!draining_ || drained_) return;
  bool done = true;
  for (const auto& [name, job] : jobs_) {
    for (const CheckpointId& id : job->incomplete) {
      for (const auto& [writer, part] : job->checkpoints.at(id)->parts) done &= !part->committing;
    }
    // Under another policy a step that completes while we drain is owed as well.
    Checkpoint* newest = NewestOnLine(*job);
    if (options_.storage && newest != nullptr && !newest->persisted && !newest->owes &&
        newest->Resident() && !newest->broken_objects) {
      Owe(newest, /*asked=*/true);
    }
    if (options_.storage) done &= !DrainWants(*job);
  }
  if (!done && now_ < drain_deadline_) return RunPersists();
  drained_ = true;
  out_.actions.push_back(action::Drained{});
}

}  // namespace cairn::engine
