// A job's storage is read once in a daemon's life: when the job first matters. Until then, and when
// storage is away, memory answers alone.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/engine/impl.h"

namespace cairn::engine {
namespace {

// What memory can do or answer alone waits this long for storage to have its say.
constexpr MonotonicNanos kPatience = 2 * kNanosPerSecond;

}  // namespace

bool Engine::Impl::ScanKnown(const Job& job) const { return job.scan == ScanState::kScanned; }

bool Engine::Impl::ScanFirst(const Caller& caller, Job* job, MonotonicNanos deadline,
                             const Event& event, bool can_do_without) {
  if (ScanKnown(*job) || giving_up_scan_) return false;
  if (job->scan == ScanState::kFailed && now_ < job->scan_again) return false;
  StartScan(job);
  if (can_do_without) {
    // Storage that hangs costs this long once, not each caller anew.
    const MonotonicNanos until = job->scan_started + kPatience;
    if (now_ >= until) return false;
    deadline = std::min(deadline, until);
  }
  if (Park(ParkedKind::kScan, caller, job->name, deadline, event) != nullptr) {
    job->scan_waiters.insert(caller.request);
  }
  return true;
}

void Engine::Impl::StartScan(Job* job) {
  if (job->scan == ScanState::kScanning || job->scan == ScanState::kScanned) return;
  if (job->scan == ScanState::kFailed && now_ < job->scan_again) return;
  job->scan = ScanState::kScanning;
  job->scan_started = now_;
  out_.actions.push_back(action::ScanJob{job->name});
}

void Engine::Impl::On(const event::JobScanned& event) {
  Job* job = FindJob(event.job);
  if (job == nullptr || job->scan != ScanState::kScanning) return;
  if (event.stored.ok()) {
    job->scan = ScanState::kScanned;
    if (!job->owned) {
      job->owned = true;
      job->owner_uid = event.owner_uid;
      job->owner_gid = event.owner_gid;
      EmitJob(*job);
    } else if (job->owner_uid != event.owner_uid) {
      Log(2, absl::StrCat("job ", job->name, " is owned by uid ", job->owner_uid,
                          " in memory, its directory by uid ", event.owner_uid));
    }
    for (const std::string& problem : event.stored->problems) {
      Log(1, absl::StrCat("job ", job->name, " in storage: ", problem));
    }
    const Attempt newest = job->attempts.empty() ? 0 : job->attempts.rbegin()->first;
    for (const StoredCheckpoint& stored : event.stored->checkpoints) MergeStored(job, stored);
    RebuildLine(job);
    for (auto& [number, attempt] : job->attempts) {
      if (!attempt.provisional || attempt.chosen) continue;
      // It began while storage could not say what was there.
      attempt.provisional = false;
      const Step before = attempt.comes_from;
      attempt.comes_from = kNoStep;
      for (const auto& [step, checkpoint] : job->settled) {
        if (step >= attempt.first_step) break;
        if (checkpoint->key.attempt < number) attempt.comes_from = step;
      }
      if (attempt.comes_from == before) continue;
      out_.facts.push_back(
          fact::AttemptBegun{job->name, number, attempt.comes_from, attempt.unix_ms});
    }
    RebuildLine(job);
    if (!job->attempts.empty() && job->attempts.rbegin()->first != newest) FenceOlder(job);
    if (const Checkpoint* last = NewestOnLine(*job)) RememberSaves(*last);
  } else if (absl::IsNotFound(event.stored.status())) {
    job->scan = ScanState::kScanned;  // nothing there
  } else {
    job->scan = ScanState::kFailed;
    job->scan_problem = event.stored.status();
    job->scan_again = now_ + options_.persist_retry_min;
    Log(1, absl::StrCat("job ", job->name,
                        ": its storage cannot be read: ", event.stored.status().message()));
  }
  const std::set<RequestId> waiters = std::move(job->scan_waiters);
  job->scan_waiters.clear();
  for (RequestId request : waiters) {
    const std::unique_ptr<Parked> parked = Unpark(request);
    if (parked != nullptr) Dispatch(parked->event);
  }
  for (SessionId id : std::set<SessionId>(job->sessions)) {
    const Session& session = *sessions_.at(id);
    if (session.writer >= 0) Provision(job, id, session.writer, 2);
  }
  ApplyKeepPolicy(job);
  maybe_forget_.insert(job->name);
}

void Engine::Impl::MergeStored(Job* job, const StoredCheckpoint& stored) {
  const CheckpointKey& key = stored.key;
  job->greatest_attempt = std::max(job->greatest_attempt, key.attempt);
  if (stored.manifests.empty()) return;
  if (!job->attempts.contains(key.attempt)) {
    AttemptState attempt;
    attempt.attempt = key.attempt;
    attempt.comes_from = stored.manifests.front().comes_from;  // writer 0's, where it is there
    attempt.first_step = key.step;
    attempt.unix_ms = stored.manifests.front().created_unix_ms;
    out_.facts.push_back(
        fact::AttemptBegun{job->name, key.attempt, attempt.comes_from, attempt.unix_ms});
    job->attempts.emplace(key.attempt, std::move(attempt));
  } else if (stored.manifests.front().writer == 0) {
    AttemptState& attempt = job->attempts.at(key.attempt);
    if (attempt.provisional) attempt.comes_from = stored.manifests.front().comes_from;
  }
  if (!stored.Complete() || !stored.published) return;
  const auto removed = job->removed.find(key.step);
  if (removed != job->removed.end() && key.attempt <= removed->second) {
    // `rm` was decided; the daemon died before the files were gone.
    out_.actions.push_back(action::DeleteFiles{key, job->owner_uid, job->owner_gid, true});
    return;
  }
  const std::string digest = CheckpointDigest(stored.digests);
  if (Checkpoint* known = FindCheckpoint(key)) {
    if (!known->complete) return CompleteFromStorage(known, stored);
    if (known->digest != digest) {
      Log(2, absl::StrCat(key.DebugString(), " in storage is not the one in memory"));
      return;
    }
    if (!known->persisted) out_.facts.push_back(fact::Persisted{key, digest});
    known->persisted = true;
    known->directory = stored.directory;
    job->persisted.insert(known->Id());
    Unowe(known);
    Touch(known);
    return;
  }
  CompleteFromStorage(GetCheckpoint(job, key, stored.world_size), stored);
}

// Parts that memory lacks are as storage has them; those it has stay where they are.
void Engine::Impl::CompleteFromStorage(Checkpoint* checkpoint, const StoredCheckpoint& stored) {
  bool same = checkpoint->world_size == stored.world_size;
  for (size_t i = 0; same && i < stored.manifests.size(); ++i) {
    const auto known = checkpoint->parts.find(stored.manifests[i].writer);
    if (known == checkpoint->parts.end()) continue;
    same = known->second->committed && known->second->digest == stored.digests[i];
  }
  if (!same) {
    Log(1, absl::StrCat(checkpoint->key.DebugString(),
                        " is complete in storage, but being written here"));
    return;
  }
  Job* job = checkpoint->job;
  for (size_t i = 0; i < stored.manifests.size(); ++i) {
    const Manifest& manifest = stored.manifests[i];
    if (checkpoint->parts.contains(manifest.writer)) continue;
    Part* part = GetPart(checkpoint, manifest.writer);
    RestoreManifest(part, manifest, stored.digests[i]);
    --checkpoint->open_parts;
    ++checkpoint->committed;
    checkpoint->absent += part->objects.size() + 1;
    checkpoint->created_unix_ms = manifest.created_unix_ms;
  }
  checkpoint->complete = true;
  checkpoint->stored_whole = false;
  checkpoint->digest = CheckpointDigest(stored.digests);
  checkpoint->persisted = true;
  checkpoint->directory = stored.directory;
  job->incomplete.erase(checkpoint->Id());
  job->persisted.insert(checkpoint->Id());
  Touch(checkpoint);
}

// A part as its manifest tells it; none of it is in memory yet.
void Engine::Impl::RestoreManifest(Part* part, const Manifest& manifest,
                                   const std::string& digest) {
  for (const ObjectEntry& entry : manifest.objects) {
    const auto known = part->objects.find(entry.name);
    Object* object = known != part->objects.end() ? known->second.get() : NewObject(part, entry);
    object->entry = entry;
    object->sealed = true;
    object->session = 0;
  }
  part->committed = true;
  part->created_unix_ms = manifest.created_unix_ms;
  part->comes_from = manifest.comes_from;
  part->notes = manifest.notes;
  part->unknown = manifest.unknown;
  part->owner_uid = manifest.owner_uid;
  part->digest = digest;
}

}  // namespace cairn::engine
