// What must hold between two events of what follows from everything else.
#include "absl/strings/str_cat.h"
#include "server/engine/evict_class.h"
#include "server/engine/own_parts.h"
#include "server/engine/standing.h"

namespace cairn::engine {

std::string Standing::CheckJob(const Job& job) const {
  if (job.standing->line.stale()) return absl::StrCat("job ", job.name, ": its line is stale");
  uint64_t mapped = 0, resident = 0;
  std::map<CheckpointId, uint64_t> unprotected;
  size_t classified = 0, in_memory = 0;
  for (const auto& [id, checkpoint] : job.steps->all) {
    const auto shown = [&of = checkpoint->key] { return of.DebugString(); };
    const CheckpointStanding& standing = *checkpoint->standing;
    if (standing.known_to_line != checkpoint->Obtainable()) {
      return shown() + ": the line does not know whether it can be had";
    }
    if (standing.place != PlaceOf(*checkpoint)) {
      return shown() + ": its place towards the line is not the one it has";
    }
    const Files& files = *checkpoint->files;
    const bool troubled = !files.persisted && !checkpoint->elsewhere->stored &&
                          checkpoint->Obtainable() && files.owes && !files.problem.ok();
    if (troubled != job.standing->troubled.contains(id)) {
      return shown() + ": does storage refuse it?";
    }
    HeldParts held;
    for (const auto& [writer, part] : checkpoint->content->parts) {
      if (HeldInMemory(*part)) ++held.Of(part->source->role);
    }
    if (held != standing.held) return shown() + ": its parts in memory are miscounted";
    resident += checkpoint->memory->slab_bytes;
    in_memory += checkpoint->InMemory() ? 1 : 0;
    if (!checkpoint->files->persisted && !checkpoint->elsewhere->stored &&
        checkpoint->Obtainable()) {
      unprotected[checkpoint->Id()] = checkpoint->content->bytes;
    }
    const Footprint& memory = *checkpoint->memory;
    const EvictClass due = ClassOf(*checkpoint);
    if (due != standing.evict_class &&
        (standing.evict_class != EvictClass::kKept || memory.slab_bytes > memory.locked_bytes)) {
      return absl::StrCat(shown(), ": evict class ", static_cast<int>(standing.evict_class),
                          " should be ", static_cast<int>(due));
    }
    if (standing.evict_class == EvictClass::kKept) continue;
    ++classified;
    mapped += memory.mapped_bytes;
    if (standing.gain.bytes != memory.slab_bytes - memory.locked_bytes ||
        standing.gain.mapped_bytes != memory.mapped_bytes ||
        standing.gain.uncharged_bytes != memory.uncharged_bytes ||
        standing.gain.record_bytes != checkpoint->manifests->record_bytes ||
        standing.gain.journal_bytes != checkpoint->content->journal_kept) {
      return shown() + ": what could be evicted of it is miscounted";
    }
  }
  if (classified != job.standing->evictable.size() ||
      mapped != job.standing->evictable_mapped_bytes) {
    return absl::StrCat("job ", job.name, ": what could be evicted is miscounted");
  }
  if (resident != job.standing->resident_bytes || in_memory != job.standing->in_memory ||
      unprotected != job.standing->unprotected) {
    return absl::StrCat("job ", job.name, ": its sums are not those of its checkpoints");
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
  Gain gain;
  std::map<uint32_t, Gain> of_users;
  size_t classified = 0, only_records = 0;
  for (const auto& [name, job] : jobs_.all()) {
    if (std::string problem = CheckJob(*job); !problem.empty()) return problem;
    for (const auto& [evict_class, id] : job->standing->evictable) {
      const Checkpoint& checkpoint = *CheckpointOf(*job, id);
      const CheckpointStanding& standing = *checkpoint.standing;
      ++classified;
      only_records += could_go_.only_records.count({evict_class, checkpoint.sequence});
      gain += standing.gain;
      of_users[job->owner->uid] += standing.gain;
    }
  }
  if (classified != could_go_.evictable.size() || gain != could_go_.gain ||
      only_records != could_go_.only_records.size() || of_users.size() != could_go_of_.size()) {
    return "what could be evicted is miscounted";
  }
  for (const auto& [uid, of_user] : of_users) {
    if (of_user != gain_of(uid)) return absl::StrCat("uid ", uid, ": what could go is miscounted");
  }
  return "";
}

}  // namespace cairn::engine
