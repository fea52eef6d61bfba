// What status shows, and what the recorder asks for.
#include <algorithm>

#include "server/engine/impl.h"

namespace cairn::engine {

void Engine::Impl::On(const event::Status& event) {
  reply::Status status;
  status.budget_bytes = options_.budget_bytes;
  status.slab_bytes = ledger_.total();
  status.used_bytes = ledger_.bytes_in(SlabState::kInUse);
  status.free_bytes =
      ledger_.Room() + ledger_.bytes_in(SlabState::kFree) + ledger_.bytes_in(SlabState::kIdle);
  status.quarantined_bytes = ledger_.bytes_in(SlabState::kQuarantined);
  status.writing_bytes = writing_bytes_;
  status.prefault_done = ledger_.bytes_in(SlabState::kMaking) == 0;
  for (const auto& [id, session] : sessions_) {
    status.sessions.push_back({id, session->pid, session->uid, session->job, session->writer,
                               session->attempt, session->leased_bytes, session->leases.size(),
                               session->client});
  }
  for (const auto& [id, slab] : ledger_.slabs()) {
    if (slab.state != SlabState::kQuarantined) continue;
    std::set<int32_t> pids;
    HoldersOf(slab, /*readers_only=*/false, &pids);
    status.quarantined.push_back({id, slab.bytes, slab.since,
                                  std::vector<int32_t>(pids.begin(), pids.end()), slab.owner.job});
  }
  std::sort(status.quarantined.begin(), status.quarantined.end(),
            [](const auto& a, const auto& b) { return a.slab < b.slab; });
  for (const auto& [name, job] : jobs_) {
    if (!job->owned && job->sessions.empty()) continue;
    reply::JobStatus shown;
    shown.job = name;
    shown.owner_uid = job->owner_uid;
    shown.policy = job->policy;
    shown.attempt = job->attempts.empty() ? 0 : job->attempts.rbegin()->first;
    shown.persist_problem = job->persist_problem;
    if (const Checkpoint* newest = NewestOnLine(*job)) shown.latest = newest->key.step;
    for (const CheckpointId& id : job->persisted) {
      if (OnLine(*job->checkpoints.at(id))) {
        shown.latest_persisted = std::max(shown.latest_persisted, std::get<0>(id));
      }
    }
    for (const auto& [id, checkpoint] : job->checkpoints) {
      shown.resident_bytes += checkpoint->slab_bytes;
      if (!checkpoint->complete || checkpoint->persisted || !checkpoint->Obtainable()) continue;
      ++shown.unprotected_checkpoints;
      shown.unprotected_bytes += checkpoint->bytes;
    }
    status.jobs.push_back(std::move(shown));
  }
  status.counters = counters_;
  status.counters["waiting_callers"] = static_cast<int64_t>(parked_.size());
  status.counters["persists_under_way"] = static_cast<int64_t>(persists_.size());
  Answer(event.caller.request, Body(std::move(status)));
}

Engine::Description Engine::Impl::Describe(const std::string& name,
                                           const std::vector<CheckpointKey>& checkpoints) const {
  Description description;
  const Job* job = FindJob(name);
  if (job == nullptr) return description;
  if (job->owned) {
    description.job = fact::Job{job->name, job->owner_uid, job->owner_gid, job->policy};
  }
  for (const auto& [number, attempt] : job->attempts) {
    description.attempts.push_back({name, number, attempt.comes_from, attempt.unix_ms});
  }
  for (const CheckpointKey& key : checkpoints) {
    const auto at = job->checkpoints.find({key.step, key.attempt, key.revision});
    if (at == job->checkpoints.end()) {
      description.gone.push_back(key);
      continue;
    }
    const Checkpoint& checkpoint = *at->second;
    for (const auto& [writer, part] : checkpoint.parts) {
      if (!part->committed) continue;
      Description::Part described;
      described.committed = {part->key, checkpoint.world_size, part->manifest_extent,
                             part->manifest_bytes, part->digest};
      described.resident = part->manifest_resident;
      for (const auto& [object_name, object] : part->objects) {
        described.bytes += object->entry.length;
        ++described.objects;
        described.resident &= object->resident;
        described.broken |= object->broken && !checkpoint.persisted;
      }
      described.persisted = checkpoint.persisted;
      description.parts.push_back(std::move(described));
    }
    if (checkpoint.complete) description.complete.push_back(InfoOf(checkpoint));
  }
  return description;
}

}  // namespace cairn::engine
