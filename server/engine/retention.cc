// Two policies, both along the line: what leaves memory when memory is wanted (evict), and which
// files are deleted (delete). And what people decide: rm, pin.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/engine/impl.h"

namespace cairn::engine {
namespace {

constexpr MonotonicNanos kScanPatience = 10 * kNanosPerSecond;

}  // namespace

// --- evict

EvictClass Engine::Impl::ClassOf(const Checkpoint& checkpoint) const {
  const Job& job = *checkpoint.job;
  if (checkpoint.pinned || checkpoint.parts.empty()) return EvictClass::kKept;
  if (!checkpoint.complete) {
    for (const auto& [writer, part] : checkpoint.parts) {
      if (part->committing) return EvictClass::kKept;
    }
    // Fenced: it can never be complete.
    if (!job.attempts.empty() && checkpoint.key.attempt < job.attempts.rbegin()->first) {
      return EvictClass::kGarbage;
    }
    // Somebody may still be writing it.
    if (checkpoint.open_parts > 0 || !checkpoint.waiting_creates.empty()) return EvictClass::kKept;
    if (checkpoint.stored_whole && checkpoint.open_parts == 0) return EvictClass::kOwesNothing;
    const Checkpoint* newest = NewestOnLine(job);
    const bool left_behind = newest != nullptr && newest->key.attempt == checkpoint.key.attempt &&
                             newest->Id() > checkpoint.Id();
    return left_behind ? EvictClass::kGarbage : EvictClass::kKept;
  }
  if (Abandoned(checkpoint)) return EvictClass::kGarbage;
  if (&checkpoint == NewestOnLine(job)) {
    return job.writers == 0 && checkpoint.persisted ? EvictClass::kLastOfFinished
                                                    : EvictClass::kKept;
  }
  if (!checkpoint.counted && checkpoint.persisted == false && checkpoint.broken_objects == 0 &&
      checkpoint.absent == 0) {
    return EvictClass::kKept;  // not settled yet: it is being recovered
  }
  const bool owes = (checkpoint.owes || checkpoint.persisting) && !checkpoint.persisted;
  return owes ? EvictClass::kOwes : EvictClass::kOwesNothing;
}

// Keeps the index of what could be evicted, and its sums, in step with one checkpoint.
void Engine::Impl::Classify(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  const auto before = std::make_tuple(checkpoint->evict_class, checkpoint->counted_evictable,
                                      checkpoint->counted_evictable_mapped);
  Unindex(checkpoint);
  checkpoint->evict_class = ClassOf(*checkpoint);
  if (checkpoint->slab_bytes == checkpoint->locked_bytes) {
    checkpoint->evict_class = EvictClass::kKept;  // nothing to gain
  }
  if (checkpoint->evict_class != EvictClass::kKept) {
    checkpoint->counted_evictable = checkpoint->slab_bytes - checkpoint->locked_bytes;
    checkpoint->counted_evictable_mapped = checkpoint->mapped_bytes;
    evictable_[{checkpoint->evict_class, checkpoint->sequence}] = checkpoint;
    job->evictable.insert({checkpoint->evict_class, checkpoint->Id()});
    evictable_total_ += checkpoint->counted_evictable;
    evictable_mapped_total_ += checkpoint->counted_evictable_mapped;
    job->evictable_mapped += checkpoint->counted_evictable_mapped;
  }
  if (before != std::make_tuple(checkpoint->evict_class, checkpoint->counted_evictable,
                                checkpoint->counted_evictable_mapped)) {
    ++evictable_version_;
  }
}

void Engine::Impl::Unindex(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  if (checkpoint->evict_class == EvictClass::kKept) return;
  evictable_.erase({checkpoint->evict_class, checkpoint->sequence});
  job->evictable.erase({checkpoint->evict_class, checkpoint->Id()});
  evictable_total_ -= checkpoint->counted_evictable;
  evictable_mapped_total_ -= checkpoint->counted_evictable_mapped;
  job->evictable_mapped -= checkpoint->counted_evictable_mapped;
  checkpoint->evict_class = EvictClass::kKept;
  checkpoint->counted_evictable = checkpoint->counted_evictable_mapped = 0;
  ++evictable_version_;
}

// A slab's leases, pins or mapper changed: so did what evicting its user would give.
void Engine::Impl::Account(SlabRecord* slab) {
  Checkpoint* checkpoint = slab->user;
  if (checkpoint == nullptr) return;
  const bool locked = slab->Locked();
  const bool mapped = slab->mapper != 0 && !locked;
  if (locked == slab->counted_locked && mapped == slab->counted_mapped) return;
  if (slab->counted_locked) checkpoint->locked_bytes -= slab->bytes;
  if (slab->counted_mapped) checkpoint->mapped_bytes -= slab->bytes;
  slab->counted_locked = locked;
  slab->counted_mapped = mapped;
  if (locked) checkpoint->locked_bytes += slab->bytes;
  if (mapped) checkpoint->mapped_bytes += slab->bytes;
  Touch(checkpoint);
}

void Engine::Impl::UseSlab(Checkpoint* checkpoint, SlabRecord* slab) {
  if (++checkpoint->slabs[slab->id] > 1) return;
  slab->user = checkpoint;
  slab->counted_locked = slab->counted_mapped = false;
  checkpoint->slab_bytes += slab->bytes;
  Account(slab);
}

void Engine::Impl::LeaveSlab(Checkpoint* checkpoint, SlabRecord* slab) {
  const auto at = checkpoint->slabs.find(slab->id);
  if (--at->second > 0) return;
  checkpoint->slabs.erase(at);
  checkpoint->slab_bytes -= slab->bytes;
  if (slab->counted_locked) checkpoint->locked_bytes -= slab->bytes;
  if (slab->counted_mapped) checkpoint->mapped_bytes -= slab->bytes;
  slab->counted_locked = slab->counted_mapped = false;
  slab->user = nullptr;
}

// Takes what nobody holds of it out of memory. What is in storage too stays known; anything else is
// gone, and what a lease still holds of it lives as long as the lease.
void Engine::Impl::Evict(Checkpoint* checkpoint) {
  Count("evicted_checkpoints");
  if (checkpoint->evict_class == EvictClass::kOwes) Count("evicted_unpersisted");
  if (!checkpoint->persisted || checkpoint->deleting) {
    EraseCheckpoint(checkpoint);
    return;
  }
  DropMemory(checkpoint);
}

// Of a persisted checkpoint: what is leased or pinned stays.
void Engine::Impl::DropMemory(Checkpoint* checkpoint) {
  for (const auto& [writer, part] : checkpoint->parts) {
    bool left = false;
    for (const auto& [name, object] : part->objects) {
      if (!object->resident) continue;
      if (ledger_.Find(object->extent.slab)->Locked()) {
        left = true;
        continue;
      }
      FreeExtent(object.get());
    }
    if (!left) FreeManifest(part.get());
  }
  Touch(checkpoint);
}

// A full journal is memory that ran out, too: what superseded steps are told of there goes with
// them. A batch at a time; the node says so again while it is full.
void Engine::Impl::On(const event::JournalFull& event) {
  journal_full_ = event.full;
  if (!event.full) return;
  constexpr int kBatch = 64;
  for (int i = 0; i < kBatch; ++i) {
    Settle();
    if (evictable_.empty()) return;
    Evict(evictable_.begin()->second);
  }
}

// --- delete

// Files go only by an explicit keep_last: all but the newest so many on the line, those of
// keep_every, the newest complete one, and what is pinned.
void Engine::Impl::ApplyKeepPolicy(Job* job) {
  if (job->policy.keep_last <= 0 || !options_.storage) return;
  const Checkpoint* newest = NewestOnLine(*job);
  int64_t kept = 0;
  std::vector<Checkpoint*> surplus;
  for (auto at = job->persisted.rbegin(); at != job->persisted.rend(); ++at) {
    Checkpoint* checkpoint = job->checkpoints.at(*at).get();
    if (checkpoint->deleting || checkpoint->pinned || checkpoint == newest) {
      if (checkpoint == newest) ++kept;
      continue;
    }
    if (OnLine(*checkpoint)) {
      if (++kept <= job->policy.keep_last) continue;
    } else if (!Abandoned(*checkpoint)) {
      continue;
    }
    const int64_t every = job->policy.keep_every;
    if (every > 0 && checkpoint->key.step % every == 0 && OnLine(*checkpoint)) continue;
    surplus.push_back(checkpoint);
  }
  for (Checkpoint* checkpoint : surplus) DeleteFiles(checkpoint, /*tombstone=*/false);
}

void Engine::Impl::DeleteFiles(Checkpoint* checkpoint, bool tombstone) {
  checkpoint->deleting = true;
  const Job& job = *checkpoint->job;
  out_.actions.push_back(
      action::DeleteFiles{checkpoint->key, job.owner_uid, job.owner_gid, tombstone});
  Touch(checkpoint);
}

void Engine::Impl::On(const event::FilesDeleted& event) {
  Job* job = FindJob(event.checkpoint.job);
  Checkpoint* checkpoint = FindCheckpoint(event.checkpoint);
  if (event.status.ok()) {
    out_.facts.push_back(fact::FilesDeleted{event.checkpoint});
    Count("files_deleted");
  } else {
    Log(1, absl::StrCat("deleting the files of ", event.checkpoint.DebugString(),
                        " failed: ", event.status.message()));
  }
  // A scan that looked before may have brought it back meanwhile: files that are gone are gone.
  if (checkpoint != nullptr &&
      (checkpoint->deleting || (event.status.ok() && checkpoint->persisted))) {
    checkpoint->deleting = false;
    if (event.status.ok()) {
      checkpoint->persisted = false;
      job->persisted.erase(checkpoint->Id());
      checkpoint->directory.clear();
      if (!checkpoint->Resident() || checkpoint->parts.empty()) {
        EraseCheckpoint(checkpoint);
      } else {
        Touch(checkpoint);
      }
    } else {
      Touch(checkpoint);
    }
  }
  AnswerRemovals(event.checkpoint, event.status);
}

void Engine::Impl::AnswerRemovals(const CheckpointKey& key, const Status& status) {
  const auto at = removals_.find(key);
  if (at == removals_.end()) return;
  const std::set<RequestId> requests = at->second;
  for (RequestId request : requests) {
    AnswerParked(request, status.ok() ? StatusOr<Body>(Body(reply::Ok{}))
                                      : StatusOr<Body>(Annotate(status, "remove")));
  }
}

// --- rm and pin

void Engine::Impl::On(const event::Remove& event) {
  Job* job = Readable(event.caller, event.ref.job, event.deadline, event, /*scan=*/true);
  if (job == nullptr) return;
  const RequestId request = event.caller.request;
  Checkpoint* checkpoint = ForShow(*job, event.ref);
  if (checkpoint == nullptr) {
    return Answer(request, absl::NotFoundError(absl::StrCat("step: ", event.ref.step, " of job ",
                                                            job->name, " is unknown")));
  }
  if (checkpoint->pinned) {
    return Answer(request, absl::FailedPreconditionError(absl::StrCat(
                               "remove: ", checkpoint->key.DebugString(), " is pinned")));
  }
  const bool last_copy = checkpoint->complete && (!event.memory_only || !checkpoint->persisted);
  if (last_copy && !event.force) {
    return Answer(request,
                  absl::FailedPreconditionError(absl::StrCat(
                      "remove: ", checkpoint->key.DebugString(), " has no copy but ",
                      checkpoint->Resident() ? "in memory" : "",
                      checkpoint->Resident() && checkpoint->persisted ? " and " : "",
                      checkpoint->persisted ? "in storage" : "", "; say force to remove it")));
  }
  if (event.memory_only) {
    if (checkpoint->persisted) {
      DropMemory(checkpoint);
    } else {
      EraseCheckpoint(checkpoint);
    }
    return Answer(request, Body(reply::Ok{}));
  }

  // The fact first: it outlives a persist that ends later, and a restart before the files are gone.
  const Step step = checkpoint->key.step;
  const Attempt up_to = checkpoint->key.attempt;
  Attempt& removed = job->removed[step];
  removed = std::max(removed, up_to);
  out_.facts.push_back(fact::StepRemoved{job->name, step, removed});
  Count("removed_steps");
  std::vector<Checkpoint*> all;
  for (auto at = job->checkpoints.lower_bound({step, 0, 0});
       at != job->checkpoints.end() && std::get<0>(at->first) == step; ++at) {
    if (at->second->key.attempt <= up_to) all.push_back(at->second.get());
  }
  std::vector<CheckpointKey> files;
  for (Checkpoint* each : all) {
    const CheckpointKey key = each->key;
    const bool busy = each->persisting || each->deleting;
    if (each->persisted && !busy) {
      out_.actions.push_back(action::DeleteFiles{key, job->owner_uid, job->owner_gid, true});
    }
    if (each->persisted || busy) files.push_back(key);  // a persist is deleted when it has ended
    EraseCheckpoint(each);
  }
  if (files.empty()) return Answer(request, Body(reply::Ok{}));
  Parked* parked = Park(ParkedKind::kRemove, event.caller, job->name, event.deadline, event);
  if (parked == nullptr) return;
  for (const CheckpointKey& key : files) removals_[key].insert(request);
}

void Engine::Impl::On(const event::Pin& event) {
  Job* job = Readable(event.caller, event.ref.job, now_ + kScanPatience, event, /*scan=*/true);
  if (job == nullptr) return;
  const StatusOr<Checkpoint*> found = Resolve(*job, event.ref);
  if (!found.ok()) return Answer(event.caller.request, found.status());
  Checkpoint* checkpoint = *found;
  if (checkpoint->pinned != event.pinned) {
    checkpoint->pinned = event.pinned;
    out_.facts.push_back(fact::Pinned{checkpoint->key, event.pinned});
    Touch(checkpoint);
  }
  Answer(event.caller.request, Body(reply::Ok{}));
}

}  // namespace cairn::engine
