#include "server/engine/standing.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/evict_class.h"

namespace cairn::engine {
namespace {

std::map<Attempt, Line::Origin> OriginsOf(const JobAttempts& attempts) {
  std::map<Attempt, Line::Origin> origins;
  for (const auto& [number, attempt] : attempts.begun) {
    origins[number] = {attempt.first_step, attempt.lineage};
  }
  return origins;
}

std::map<Attempt, Lineage> DecisionsOf(const JobAttempts& attempts) {
  std::map<Attempt, Lineage> decisions;
  for (const auto& [number, decision] : attempts.decisions) decisions[number] = decision.lineage;
  return decisions;
}

}  // namespace

// --- settling

void Standing::SettleChanges() {
  if (settling_) return;
  settling_ = true;
  while (!changes_.Empty()) {
    // The line first, for the classes depend on it; settling it may touch more.
    for (size_t i = 0; i < changes_.checkpoints().size(); ++i) {
      SettleLine(changes_.checkpoints()[i]);
    }
    for (Job* job : changes_.TakeJobs()) SettleJob(job);
    for (Checkpoint* checkpoint : changes_.TakeCheckpoints()) {
      SettleClass(checkpoint);
      SettleShown(checkpoint);
    }
  }
  settling_ = false;
}

// The checkpoint came to be obtainable, or ceased to be.
void Standing::SettleLine(Checkpoint* checkpoint) {
  const bool obtainable = checkpoint->Obtainable();
  if (obtainable == checkpoint->standing->known_to_line) return;
  checkpoint->standing.Edit().known_to_line = obtainable;
  Job* job = checkpoint->job;
  SettleAttempts(job);
  Line& line = job->standing.Edit().line;
  Affect(job, obtainable ? line.Add(checkpoint->Id()) : line.Remove(checkpoint->Id()));
  job->Touch();
}

void Standing::SettleAttempts(Job* job) {
  if (job->attempts->line_version == job->standing->line_version) return;
  JobStanding& standing = job->standing.Edit();
  standing.line_version = job->attempts->line_version;
  Affect(job, standing.line.SetAttempts(OriginsOf(*job->attempts), DecisionsOf(*job->attempts)));
}

void Standing::Affect(Job* job, const Line::Affected& affected) {
  if (affected.all) {
    for (const auto& [id, checkpoint] : job->steps->all) checkpoint->Touch();
  } else if (affected.replaced.has_value()) {
    CheckpointOf(*job, *affected.replaced)->Touch();
  }
}

// The newest of the line has a class of its own, and it decides about incomplete ones.
void Standing::SettleJob(Job* job) {
  SettleAttempts(job);
  JobStanding& seen = job->standing.Edit();
  const std::optional<CheckpointId> id = seen.line.Newest();
  Checkpoint* newest = id.has_value() ? CheckpointOf(*job, *id) : nullptr;
  const bool has_writers = job->sessions->writers > 0;
  const Attempt attempt = job->attempts->fence();
  const bool moved = newest != seen.newest || attempt != seen.attempt;
  if (moved || has_writers != seen.has_writers) {
    ++version_;  // a finished job's latest may make room now, whatever its class
    if (seen.newest != nullptr) seen.newest->Touch();
    if (newest != nullptr) newest->Touch();
    for (const CheckpointId& other : job->steps->incomplete) CheckpointOf(*job, other)->Touch();
  }
  if (moved || *job->owner != seen.owner) waits_to_check_.insert(job->name);
  seen.newest = newest;
  seen.has_writers = has_writers;
  seen.attempt = attempt;
  seen.owner = *job->owner;
}

// Keeps the index of what could be evicted, and its sums, in step with one checkpoint.
void Standing::SettleClass(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  const CheckpointStanding before = *checkpoint->standing;
  Unindex(checkpoint);
  const Footprint& memory = *checkpoint->memory;
  CheckpointStanding& standing = checkpoint->standing.Edit();
  const bool gains = memory.slab_bytes != memory.locked_bytes;
  standing.evict_class =
      gains ? ClassOf(*checkpoint, Newest(*job), LeftBehind(*checkpoint)) : EvictClass::kKept;
  if (standing.evict_class != EvictClass::kKept) {
    standing.evictable_bytes = memory.slab_bytes - memory.locked_bytes;
    standing.evictable_mapped_bytes = memory.mapped_bytes;
    evictable_[{standing.evict_class, checkpoint->sequence}] = checkpoint;
    evictable_bytes_ += standing.evictable_bytes;
    evictable_mapped_bytes_ += standing.evictable_mapped_bytes;
    JobStanding& of_job = job->standing.Edit();
    of_job.evictable.insert({standing.evict_class, checkpoint->Id()});
    of_job.evictable_mapped_bytes += standing.evictable_mapped_bytes;
  }
  if (standing.evict_class != before.evict_class ||
      standing.evictable_bytes != before.evictable_bytes ||
      standing.evictable_mapped_bytes != before.evictable_mapped_bytes) {
    ++version_;
  }
}

void Standing::Unindex(Checkpoint* checkpoint) {
  CheckpointStanding& standing = checkpoint->standing.Edit();
  if (standing.evict_class == EvictClass::kKept) return;
  JobStanding& of_job = checkpoint->job->standing.Edit();
  evictable_.erase({standing.evict_class, checkpoint->sequence});
  evictable_bytes_ -= standing.evictable_bytes;
  evictable_mapped_bytes_ -= standing.evictable_mapped_bytes;
  of_job.evictable.erase({standing.evict_class, checkpoint->Id()});
  of_job.evictable_mapped_bytes -= standing.evictable_mapped_bytes;
  standing.evict_class = EvictClass::kKept;
  standing.evictable_bytes = standing.evictable_mapped_bytes = 0;
}

void Standing::SettleShown(Checkpoint* checkpoint) {
  Shown shown;
  shown.committed = checkpoint->content->committed;
  shown.absent = checkpoint->content->absent + checkpoint->absent_manifests->count;
  shown.broken_objects = checkpoint->content->broken_objects;
  shown.complete = checkpoint->content->complete;
  shown.resident = checkpoint->content->complete && checkpoint->Resident();
  shown.obtainable = checkpoint->Obtainable();
  shown.persisted = checkpoint->files->persisted;
  shown.pinned = *checkpoint->pinned;
  const Files& files = *checkpoint->files;
  const bool due = ((files.owes || files.persisting) && !files.parked) || files.unconfirmed;
  CheckpointStanding& standing = checkpoint->standing.Edit();
  const std::string& job = checkpoint->key.job;
  if (shown != standing.shown) to_record_[job].insert(checkpoint->key);
  if (shown != standing.shown || due != standing.shown_due) waits_to_check_.insert(job);
  standing.shown = shown;
  standing.shown_due = due;
}

void Standing::Forget(Checkpoint* checkpoint) {
  Settle();
  Job* job = checkpoint->job;
  waits_to_check_.insert(job->name);
  if (checkpoint->standing->shown != Shown{}) to_record_[job->name].insert(checkpoint->key);
  Unindex(checkpoint);
  ++version_;
  JobStanding& standing = job->standing.Edit();
  if (checkpoint->standing->known_to_line) {
    checkpoint->standing.Edit().known_to_line = false;
    Affect(job, standing.line.Remove(checkpoint->Id()));
  }
  if (standing.newest == checkpoint) standing.newest = nullptr;
  changes_.Forget(checkpoint);
  job->Touch();
}

// --- the line

LineHead Standing::Head(const Job& job) const {
  Settle();
  return job.standing->line.Head();
}

Checkpoint* Standing::Newest(const Job& job) const {
  Settle();
  const std::optional<CheckpointId> id = job.standing->line.Newest();
  return id.has_value() ? CheckpointOf(job, *id) : nullptr;
}

Checkpoint* Standing::At(const Job& job, Step step) const {
  Settle();
  const std::optional<CheckpointId> id = job.standing->line.At(step);
  return id.has_value() ? CheckpointOf(job, *id) : nullptr;
}

Checkpoint* Standing::AtBelow(const Job& job, Step step, Attempt below) const {
  Settle();
  const std::optional<CheckpointId> id = job.standing->line.AtBelow(step, below);
  return id.has_value() ? CheckpointOf(job, *id) : nullptr;
}

Checkpoint* Standing::Next(const Job& job, Step after) const {
  Settle();
  const std::optional<CheckpointId> id = job.standing->line.Next(after);
  return id.has_value() ? CheckpointOf(job, *id) : nullptr;
}

bool Standing::OnLine(const Checkpoint& checkpoint) const {
  Settle();
  return checkpoint.job->standing->line.Has(checkpoint.Id());
}

bool Standing::Abandoned(const Checkpoint& checkpoint) const {
  Settle();
  return checkpoint.job->standing->line.Abandoned(checkpoint.Id());
}

bool Standing::LeftBehind(const Checkpoint& checkpoint) const {
  return Abandoned(checkpoint) && !checkpoint.job->standing->line.Head().decided;
}

Lineage Standing::LineageBelow(const Job& job, Step first_step) const {
  Settle();
  return job.standing->line.LineageBelow(first_step);
}

Lineage Standing::LineageOf(const Checkpoint& checkpoint) const {
  Settle();
  return checkpoint.job->standing->line.LineageOf(checkpoint.Id());
}

Lineage Standing::Resolved(const Job& job, Attempt attempt) const {
  Settle();
  return ResolveLineage(job.standing->line.ToHistory(), attempt);
}

// --- what could be evicted

Checkpoint* Standing::FirstEvictable(EvictClass evict_class, bool soft, const Job* only,
                                     const Job* except) const {
  Settle();
  for (const bool partly : {false, true}) {
    for (auto at = evictable_.lower_bound({evict_class, 0});
         at != evictable_.end() && at->first.first == evict_class; ++at) {
      Checkpoint* checkpoint = at->second;
      if ((checkpoint->memory->locked_bytes > 0) != partly) continue;
      if ((only != nullptr && checkpoint->job != only) || checkpoint->job == except) continue;
      const uint64_t mapped = checkpoint->standing->evictable_mapped_bytes;
      if (soft ? mapped == 0 : checkpoint->standing->evictable_bytes == mapped) continue;
      return checkpoint;
    }
  }
  return nullptr;
}

Checkpoint* Standing::FirstEvictable() const {
  Settle();
  return evictable_.empty() ? nullptr : evictable_.begin()->second;
}

const std::set<std::pair<EvictClass, CheckpointId>>& Standing::EvictableOf(const Job& job) const {
  Settle();
  return job.standing->evictable;
}

uint64_t Standing::evictable_bytes() const {
  Settle();
  return evictable_bytes_;
}

uint64_t Standing::evictable_mapped_bytes() const {
  Settle();
  return evictable_mapped_bytes_;
}

uint64_t Standing::version() const {
  Settle();
  return version_;
}

std::set<std::string> Standing::TakeWaitsToCheck() {
  Settle();
  return std::exchange(waits_to_check_, {});
}

std::map<std::string, std::set<CheckpointKey>> Standing::TakeToRecord() {
  Settle();
  return std::exchange(to_record_, {});
}

// --- invariants

std::string Standing::CheckJob(const Job& job) const {
  if (job.standing->line.stale()) return absl::StrCat("job ", job.name, ": its line is stale");
  uint64_t mapped = 0;
  size_t classified = 0;
  for (const auto& [id, checkpoint] : job.steps->all) {
    const std::string shown = checkpoint->key.DebugString();
    const CheckpointStanding& standing = *checkpoint->standing;
    if (standing.known_to_line != checkpoint->Obtainable()) {
      return shown + ": the line does not know whether it can be had";
    }
    const Footprint& memory = *checkpoint->memory;
    const EvictClass due = ClassOf(*checkpoint, Newest(job), LeftBehind(*checkpoint));
    if (due != standing.evict_class &&
        (standing.evict_class != EvictClass::kKept || memory.slab_bytes > memory.locked_bytes)) {
      return absl::StrCat(shown, ": evict class ", static_cast<int>(standing.evict_class),
                          " should be ", static_cast<int>(due));
    }
    if (standing.evict_class == EvictClass::kKept) continue;
    ++classified;
    mapped += memory.mapped_bytes;
    if (standing.evictable_bytes != memory.slab_bytes - memory.locked_bytes ||
        standing.evictable_mapped_bytes != memory.mapped_bytes) {
      return shown + ": what could be evicted of it is miscounted";
    }
  }
  if (classified != job.standing->evictable.size() ||
      mapped != job.standing->evictable_mapped_bytes) {
    return absl::StrCat("job ", job.name, ": what could be evicted is miscounted");
  }
  return CheckLine(job);
}

// The line is what common/line.h makes of the job's attempts and of its checkpoints.
std::string Standing::CheckLine(const Job& job) const {
  History history;
  history.decisions = DecisionsOf(*job.attempts);
  for (const auto& [number, origin] : OriginsOf(*job.attempts)) {
    history.attempts[number] = {origin.first, origin.lineage, {}};
  }
  // Ids ascend, so the last revision stays.
  for (const auto& [id, checkpoint] : job.steps->all) {
    if (!checkpoint->Obtainable()) continue;
    history.attempts.at(id.attempt).complete[id.step] = id.revision;
  }
  std::vector<LineStep> line;
  for (std::optional<CheckpointId> id = job.standing->line.Next(kNoStep); id.has_value();
       id = job.standing->line.Next(id->step)) {
    line.push_back({id->step, id->attempt, id->revision});
  }
  if (line == ComputeLine(history)) return "";
  return absl::StrCat("job ", job.name, ": its line is not that of its checkpoints");
}

std::string Standing::CheckInvariants() const {
  if (!changes_.Empty()) return "something was changed and has not settled";
  uint64_t bytes = 0, mapped = 0;
  size_t classified = 0;
  for (const auto& [name, job] : jobs_.all()) {
    if (std::string problem = CheckJob(*job); !problem.empty()) return problem;
    for (const auto& [evict_class, id] : job->standing->evictable) {
      const CheckpointStanding& standing = *CheckpointOf(*job, id)->standing;
      ++classified;
      bytes += standing.evictable_bytes;
      mapped += standing.evictable_mapped_bytes;
    }
  }
  if (classified != evictable_.size() || bytes != evictable_bytes_ ||
      mapped != evictable_mapped_bytes_) {
    return "what could be evicted is miscounted";
  }
  return "";
}

}  // namespace cairn::engine
