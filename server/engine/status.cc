#include "server/engine/status.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/engine/describing.h"
#include "server/engine/evict_class.h"
#include "server/engine/keep_plan.h"
#include "server/engine/refusals.h"

namespace cairn::engine {
namespace {

bool IsShown(uint32_t uid, const event::Status& asked) {
  return asked.of_all || uid == asked.caller.uid;
}

// A job without an owner is whose sessions are in it.
bool IsShown(const StatusSources& from, const Job& job, const event::Status& asked) {
  if (job.owner->owned) return asked.of_all || Jobs::CheckAccess(job, asked.caller).ok();
  const std::set<SessionId>& sessions = job.sessions->all;
  return std::any_of(sessions.begin(), sessions.end(), [&](SessionId id) {
    const Session* session = from.sessions.Find(id);
    return session != nullptr && IsShown(session->uid, asked);
  });
}

std::vector<reply::SessionStatus> SessionsOf(const StatusSources& from,
                                             const event::Status& asked) {
  std::vector<reply::SessionStatus> sessions;
  for (const auto& [id, session] : from.sessions.all()) {
    if (!IsShown(session->uid, asked)) continue;
    sessions.push_back({id, session->pid, session->uid, session->job, session->writer,
                        session->attempt, from.leases.BytesOf(id), from.leases.CountOf(id),
                        session->client});
  }
  return sessions;
}

std::vector<reply::Quarantined> QuarantinedOf(const StatusSources& from,
                                              const event::Status& asked) {
  std::vector<reply::Quarantined> quarantined;
  for (const SlabId id : from.ledger.quarantined()) {
    const SlabRecord& slab = *from.ledger.Find(id);
    if (!IsShown(slab.owner.uid, asked)) continue;
    std::set<int32_t> pids;
    from.leases.HoldersOf(slab, /*readers_only=*/false, &pids);
    quarantined.push_back({id, slab.bytes, slab.since,
                           std::vector<int32_t>(pids.begin(), pids.end()), slab.owner.job});
  }
  return quarantined;
}

// The newest that is in storage or, as the ring says now, has its replicas.
std::optional<CheckpointId> SafeOf(const StatusSources& from, const Job& job) {
  std::optional<CheckpointId> safe;
  const JobVerdictHeard& verdict = *job.verdict;
  const Checkpoint* copied =
      verdict.protect.has_value() ? CheckpointOf(job, *verdict.protect) : nullptr;
  if (copied != nullptr && from.cluster.verdicts().Known(job) &&
      IsProtected(*copied, verdict.asked)) {
    safe = verdict.protect;
  }
  const Checkpoint* stored = from.standing.NewestPersisted(job);
  if (stored != nullptr && (!safe.has_value() || Supersedes(stored->Id(), *safe))) {
    safe = stored->Id();
  }
  return safe;
}

reply::JobStatus StatusOfJob(const StatusSources& from, const Job& job) {
  const Standing& standing = from.standing;
  reply::JobStatus shown;
  shown.job = job.name;
  shown.owner_uid = job.owner->uid;
  shown.policy = job.owner->policy;
  shown.attempt = job.attempts->newest();
  shown.persist_problem = job.files->problem;  // of storage, else that of a step
  if (const Checkpoint* newest = standing.Newest(job)) shown.latest = newest->key.step;
  if (const Checkpoint* newest = standing.NewestPersisted(job)) {
    shown.latest_persisted = newest->key.step;
  }
  const std::set<CheckpointId>& troubled = job.standing->troubled;
  if (shown.persist_problem.empty() && !troubled.empty()) {
    shown.persist_problem = PersistProblem(*CheckpointOf(job, *troubled.begin()));
  }
  shown.resident_bytes = job.standing->resident_bytes;
  // Steps that a safe one supersedes are not needed.
  const std::optional<CheckpointId> safe = SafeOf(from, job);
  for (const auto& [id, bytes] : job.standing->unprotected) {
    if (safe == id || (safe.has_value() && Supersedes(*safe, id))) continue;
    ++shown.unprotected_checkpoints;
    shown.unprotected_bytes += bytes;
  }
  shown.deletable_checkpoints = PlanDeletions(job, from.options, standing, from.out.now()).all;
  const JobRefusals& refusals = Refusals::Of(job);
  shown.refused_saves = refusals.saves;
  shown.last_refusal = refusals.why;
  shown.last_refusal_unix_ms = refusals.unix_ms;
  shown.ring = from.cluster.StatusOf(job);
  shown.failed_persists = job.files->failed;
  shown.last_failed_persist_unix_ms = job.files->failed_unix_ms;
  return shown;
}

// Complete, in memory, in no storage, and no member has a copy.
bool OnlyHere(const Checkpoint& checkpoint) {
  return checkpoint.Resident() && !checkpoint.files->persisted &&
         checkpoint.elsewhere->replicas == 0;
}

// Of each job the newest step, what is pinned, and what is to be written to storage. Older steps than these are nobody's
// loss. A part that a writer has not committed yet will be only here, too.
void AddOnlyHere(const StatusSources& from, reply::Status* status) {
  constexpr size_t kNamed = 16;
  const auto add = [status](const std::string& what) {
    ++status->only_here_count;
    if (status->only_here.size() < kNamed) status->only_here.push_back(what);
  };
  for (const auto& [name, job] : from.jobs.all()) {
    const Checkpoint* newest = from.standing.Newest(*job);
    // Whether a step of several nodes is complete, and copied, only a verdict says.
    const bool unheard = !from.options.ring.Alone() && job->standing->resident_bytes > 0 &&
                         !from.cluster.verdicts().Known(*job);
    if (newest == nullptr) {
      if (unheard) add(name);
    } else if (unheard || OnlyHere(*newest)) {
      add(absl::StrCat(name, "/", newest->key.step));
    }
    std::set<CheckpointId> others = *job->pins;
    others.insert(job->files->owed.begin(), job->files->owed.end());
    for (const CheckpointId& id : others) {
      const Checkpoint* checkpoint = CheckpointOf(*job, id);
      if (checkpoint == nullptr || checkpoint == newest || !checkpoint->Complete()) continue;
      if (OnlyHere(*checkpoint)) add(absl::StrCat(name, "/", checkpoint->key.step));
    }
  }
}

}  // namespace

reply::Status StatusOf(const StatusSources& from, const event::Status& asked) {
  const Ledger& ledger = from.ledger;
  reply::Status status;
  status.budget_bytes = from.options.budget_bytes;
  status.slab_bytes = ledger.total();
  status.used_bytes = ledger.bytes_in(SlabState::kInUse);
  status.free_bytes =
      ledger.UnusedBudget() + ledger.bytes_in(SlabState::kFree) + ledger.bytes_in(SlabState::kIdle);
  status.quarantined_bytes = ledger.bytes_in(SlabState::kQuarantined);
  status.writing_bytes = from.parts.writing_bytes();
  status.prefault_done = ledger.bytes_in(SlabState::kMaking) == 0;
  status.storage_id = from.storage_root.id();
  status.storage_problem = from.mode.storage_problem;
  status.sessions = SessionsOf(from, asked);
  status.quarantined = QuarantinedOf(from, asked);
  for (const auto& [name, job] : from.jobs.all()) {
    if (!IsShown(from, *job, asked)) continue;
    status.jobs.push_back(StatusOfJob(from, *job));
  }
  status.leaving = from.mode.leaving;
  if (status.leaving || !from.mode.superseded.empty()) AddOnlyHere(from, &status);
  status.ring = from.cluster.Status();
  std::erase_if(status.ring.fetching,
                [&](const reply::FetchStatus& fetch) { return !IsShown(fetch.uid, asked); });
  status.counters = from.out.counters();
  status.counters["waiting_callers"] = static_cast<int64_t>(from.callers.size());
  status.counters["storage_away"] = from.options.storage && !from.mode.storage_here ? 1 : 0;
  status.counters["persists_under_way"] = static_cast<int64_t>(from.persistence.under_way());
  // The caller's own part of what is limited for each user.
  const uint32_t uid = asked.caller.uid;
  status.counters["user_memory_bytes"] = static_cast<int64_t>(ledger.held_by(uid));
  status.counters["user_memory_most_bytes"] = static_cast<int64_t>(from.options.MemoryOf(uid));
  status.counters["user_slabs"] = ledger.slabs_of(uid);
  status.counters["user_sessions"] = from.sessions.users().Of(uid);
  status.counters["user_jobs"] = from.jobs.owned().Of(uid);
  status.counters["user_leases"] = from.leases.readers().Of(uid);
  status.counters["user_waiting"] = from.callers.users().Of(uid);
  return status;
}

}  // namespace cairn::engine
