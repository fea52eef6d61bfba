#include "server/engine/evict_class.h"

#include <algorithm>
#include <tuple>

namespace cairn::engine {
namespace {

bool IsCommitting(const Checkpoint& checkpoint) {
  const auto& parts = checkpoint.content->parts;
  return std::any_of(parts.begin(), parts.end(),
                     [](const auto& part) { return part.second->manifest->committing; });
}

bool IsFenced(const Checkpoint& checkpoint) {
  return checkpoint.key.attempt < checkpoint.job->attempts->fence();
}

// Somebody may still be writing it. (Of a fenced one only the parts are looked at, which may be many.)
bool IsBeingWritten(const Checkpoint& checkpoint) {
  return checkpoint.content->open_parts > 0 && (!IsFenced(checkpoint) || IsCommitting(checkpoint));
}

EvictClass ClassOfIncomplete(const Checkpoint& checkpoint, const Checkpoint* newest) {
  if (IsBeingWritten(checkpoint)) return EvictClass::kKept;
  if (IsFenced(checkpoint)) return EvictClass::kGarbage;  // it can never be complete
  if (!checkpoint.verdict->waiting.empty()) return EvictClass::kKept;
  if (checkpoint.files->stored_whole) return EvictClass::kOwesNothing;
  const bool left_behind = newest != nullptr && newest->key.attempt == checkpoint.key.attempt &&
                           newest->Id() > checkpoint.Id();
  return left_behind || GivenUp(checkpoint) ? EvictClass::kGarbage : EvictClass::kKept;
}

bool OwesFile(const Checkpoint& checkpoint) {
  const Files& files = *checkpoint.files;
  return (files.owes || files.persisting || files.unconfirmed) && !files.persisted &&
         !checkpoint.elsewhere->stored;
}

EvictClass ClassOfSuperseded(const Checkpoint& checkpoint) {
  return OwesFile(checkpoint) ? EvictClass::kOwes : EvictClass::kOwesNothing;
}

// Files may have lost something since they were written: they were looked at since the job is over.
bool StoredAndOver(const Checkpoint& checkpoint) {
  const Job& job = *checkpoint.job;
  return checkpoint.files->persisted && IsOver(job) && job.scan->read >= OverSince(job);
}

EvictClass ClassOfNewest(const Checkpoint& checkpoint) {
  return StoredAndOver(checkpoint) || KeptLongEnough(checkpoint) ? EvictClass::kLastOfFinished
                                                                 : EvictClass::kKept;
}

EvictClass ClassAlone(const Checkpoint& checkpoint, const OnLine& line) {
  if (!checkpoint.content->complete) return ClassOfIncomplete(checkpoint, line.newest);
  if (checkpoint.files->preparing) return EvictClass::kKept;  // it is about to be read
  if (line.abandoned) return EvictClass::kGarbage;
  if (&checkpoint == line.newest) return ClassOfNewest(checkpoint);
  if (!checkpoint.standing->known_to_line && !checkpoint.files->persisted &&
      checkpoint.content->broken_objects == 0 && checkpoint.Resident()) {
    return EvictClass::kKept;  // not settled yet: it is being recovered
  }
  return ClassOfSuperseded(checkpoint);
}

// --- in a ring

bool SupersededByProtected(const Checkpoint& checkpoint, const RingSays& ring) {
  return ring.protect.has_value() && Supersedes(*ring.protect, checkpoint.Id());
}

bool ProtectedOrTarget(const Checkpoint& checkpoint, const RingSays& ring) {
  return ring.protect == checkpoint.Id() || ring.target == checkpoint.Id();
}

// It was protected once; or this node's backups have its part of it, and some member that another one heard may know
// it as protected. Where it lacks parts or copies now, those that have them may only be cut off.
bool MayBeSafe(const Checkpoint& checkpoint, const RingSays& ring) {
  const CheckpointKey& key = checkpoint.key;
  const bool all_heard = ring.fresh && ring.final;
  const bool may = std::pair(key.attempt, key.step) == ring.safe ||
                   *checkpoint.copied == Copied::kJustGiven ||
                   (*checkpoint.copied == Copied::kMaybe && !all_heard);
  return may && !SupersededByProtected(checkpoint, ring);
}

// Parts of other members: their owners decide, or something protected that was told of a moment ago.
EvictClass ClassOfReplicas(const Checkpoint& checkpoint, const RingSays& ring) {
  if (!ring.fresh || IsBeingWritten(checkpoint)) return EvictClass::kKept;
  if (ProtectedOrTarget(checkpoint, ring) || MayBeSafe(checkpoint, ring)) return EvictClass::kKept;
  if (!checkpoint.Complete() && checkpoint.elsewhere->hopeless) return EvictClass::kGarbage;
  if (!SupersededByProtected(checkpoint, ring)) return EvictClass::kKept;
  return ClassOfSuperseded(checkpoint);
}

// This node's own parts of a step that is complete nowhere, as far as was heard.
EvictClass ClassOfOwnIncomplete(const Checkpoint& checkpoint, const OnLine& line,
                                const RingSays& ring) {
  if (IsBeingWritten(checkpoint) || MayBeSafe(checkpoint, ring)) return EvictClass::kKept;
  // All its writers are here, or one of them never commits: no other member can know better.
  const StepContent& content = *checkpoint.content;
  const bool all_are_here = checkpoint.verdict->local_writers >= content.world_size &&
                            checkpoint.standing->held.fetched == 0;
  if (all_are_here || content.open_parts > 0) return ClassOfIncomplete(checkpoint, line.newest);
  if (!checkpoint.verdict->waiting.empty()) return EvictClass::kKept;
  return GivenUp(checkpoint) || SupersededByProtected(checkpoint, ring) ? EvictClass::kGarbage
                                                                        : EvictClass::kKept;
}

EvictClass ClassOfAbandoned(const Checkpoint& checkpoint, const RingSays& ring) {
  // Until the life that left it has something protected of its own, the newest that is protected stays.
  const bool left_for_good =
      ring.protect.has_value() && ring.protect->attempt > checkpoint.key.attempt;
  return ring.left == checkpoint.Id() && !left_for_good ? EvictClass::kKept : EvictClass::kGarbage;
}

// This node's own parts of one that is complete, here or with the others.
EvictClass ClassOfOwnComplete(const Checkpoint& checkpoint, const OnLine& line,
                              const RingSays& ring) {
  if (checkpoint.files->preparing) return EvictClass::kKept;  // it is about to be read
  if (&checkpoint == line.newest) return ClassOfNewest(checkpoint);
  if (ProtectedOrTarget(checkpoint, ring) || MayBeSafe(checkpoint, ring)) return EvictClass::kKept;
  if (line.abandoned) return ClassOfAbandoned(checkpoint, ring);
  const bool after_newest =
      line.newest == nullptr || !Supersedes(line.newest->Id(), checkpoint.Id());
  if (SupersededByProtected(checkpoint, ring)) return ClassOfSuperseded(checkpoint);
  // It cannot be had now, and may come back; or a decision has left it, and something protected is to come of that.
  const bool left = ring.left == checkpoint.Id();
  if (line.newest == nullptr || (after_newest && (left || !checkpoint.Obtainable()))) {
    return EvictClass::kKept;
  }
  // It owes replicas, unless none are asked for: then to be superseded by what is complete is enough.
  return ring.asked > 0 ? EvictClass::kOwes : ClassOfSuperseded(checkpoint);
}

EvictClass ClassInRing(const Checkpoint& checkpoint, const OnLine& line, const RingSays& ring) {
  const HeldParts& held = checkpoint.standing->held;
  // Where two owners keep each other's parts, each would wait for the other to let go first.
  const bool last = &checkpoint == line.newest && held.own > 0 && ring.fresh;
  if (held.replicas > 0 && !(last && StoredAndOver(checkpoint))) {
    return ClassOfReplicas(checkpoint, ring);
  }
  if (held.own == 0) return EvictClass::kOwesNothing;  // somebody loaded it here
  return checkpoint.Complete() ? ClassOfOwnComplete(checkpoint, line, ring)
                               : ClassOfOwnIncomplete(checkpoint, line, ring);
}

}  // namespace

bool GivenUp(const Checkpoint& checkpoint) {
  if (checkpoint.content->condemned) return true;
  if (checkpoint.content->open_parts > 0 || !checkpoint.verdict->waiting.empty()) return false;
  if (checkpoint.elsewhere->complete) return false;
  if (checkpoint.elsewhere->hopeless) return true;
  const CheckpointKey& key = checkpoint.key;
  const auto begun = checkpoint.job->attempts->begun.find(key.attempt);
  if (begun == checkpoint.job->attempts->begun.end()) return false;
  const AttemptState& attempt = begun->second;
  const bool refused = attempt.refused.contains({key.step, key.revision});
  const bool all_are_here = checkpoint.verdict->local_writers >= checkpoint.content->world_size;
  const auto world = attempt.worlds.find(key.step);
  const bool alone = checkpoint.content->world_size == 1;
  const auto has_left = [&](Writer writer) {
    if (attempt.withdrawn.contains({key.step, key.revision, writer})) return true;
    if (refused && all_are_here) return true;
    const bool of_rank = alone && world != attempt.worlds.end();
    const auto run = attempt.Find({checkpoint.content->world_size, writer});
    if (!of_rank && run == attempt.processes.end()) return false;
    if (refused || (!alone && attempt.ended.contains(run->first))) return true;
    const auto reached = attempt.reached.find(
        of_rank ? std::pair(world->second.process, world->second.rank) : run->second.Seat());
    return reached != attempt.reached.end() && reached->second > std::pair(key.step, key.revision);
  };
  const auto& parts = checkpoint.content->parts;
  for (Writer writer = checkpoint.content->first_without; writer < checkpoint.content->world_size;
       ++writer) {
    if (!parts.contains(writer) && !has_left(writer)) return false;
  }
  return true;
}

bool IsOver(const Job& job) { return job.sessions->writers == 0 && job.verdict->saving.empty(); }

MonotonicNanos OverSince(const Job& job) {
  return std::max(job.sessions->finished, job.verdict->saved_at);
}

bool KeptLongEnough(const Checkpoint& checkpoint) {
  const Job& job = *checkpoint.job;
  return IsOver(job) && checkpoint.files->given_up == OverSince(job);
}

bool Supersedes(const CheckpointId& id, const CheckpointId& superseded) {
  return std::tie(superseded.attempt, superseded.step, superseded.revision) <
         std::tie(id.attempt, id.step, id.revision);
}

bool IsProtected(const Checkpoint& checkpoint, int asked) {
  const Elsewhere& elsewhere = *checkpoint.elsewhere;
  return checkpoint.files->persisted || elsewhere.stored ||
         (asked > 0 && elsewhere.replicas >= asked);
}

EvictClass ClassOf(const Checkpoint& checkpoint, const OnLine& line, const RingSays* ring) {
  if (*checkpoint.pinned || checkpoint.content->parts.empty()) return EvictClass::kKept;
  if (checkpoint.content->condemned) return EvictClass::kGarbage;
  return ring == nullptr ? ClassAlone(checkpoint, line) : ClassInRing(checkpoint, line, *ring);
}

}  // namespace cairn::engine
