#include "server/engine/evict_class.h"

#include <algorithm>

namespace cairn::engine {
namespace {

bool IsCommitting(const Checkpoint& checkpoint) {
  const auto& parts = checkpoint.content->parts;
  return std::any_of(parts.begin(), parts.end(),
                     [](const auto& part) { return part.second->manifest->committing; });
}

EvictClass ClassOfIncomplete(const Checkpoint& checkpoint, const Checkpoint* newest) {
  // Fenced: it can never be complete.
  const bool fenced = checkpoint.key.attempt < checkpoint.job->attempts->fence();
  // Somebody may still be writing it. (Of a fenced one only the parts are looked at, which may be many.)
  if (checkpoint.content->open_parts > 0 && (!fenced || IsCommitting(checkpoint))) {
    return EvictClass::kKept;
  }
  if (fenced) return EvictClass::kGarbage;
  if (!checkpoint.verdict->waiting.empty()) return EvictClass::kKept;
  if (checkpoint.files->stored_whole) return EvictClass::kOwesNothing;
  const bool left_behind = newest != nullptr && newest->key.attempt == checkpoint.key.attempt &&
                           newest->Id() > checkpoint.Id();
  return left_behind || GivenUp(checkpoint) ? EvictClass::kGarbage : EvictClass::kKept;
}

}  // namespace

bool GivenUp(const Checkpoint& checkpoint) {
  if (checkpoint.content->condemned) return true;
  if (checkpoint.content->open_parts > 0 || !checkpoint.verdict->waiting.empty()) return false;
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
    if (alone && world != attempt.worlds.end()) {
      writer = world->second.rank;
    } else if (!attempt.processes.contains(writer)) {
      return false;
    }
    if (refused || (!alone && attempt.ended.contains(writer))) return true;
    const auto reached = attempt.reached.find(writer);
    return reached != attempt.reached.end() && reached->second > std::pair(key.step, key.revision);
  };
  const auto& parts = checkpoint.content->parts;
  for (Writer writer = checkpoint.content->first_without; writer < checkpoint.content->world_size;
       ++writer) {
    if (!parts.contains(writer) && !has_left(writer)) return false;
  }
  return true;
}

EvictClass ClassOf(const Checkpoint& checkpoint, const Checkpoint* newest, bool abandoned) {
  if (*checkpoint.pinned || checkpoint.content->parts.empty()) return EvictClass::kKept;
  if (checkpoint.content->condemned) return EvictClass::kGarbage;
  if (!checkpoint.content->complete) return ClassOfIncomplete(checkpoint, newest);
  if (checkpoint.files->preparing) return EvictClass::kKept;  // it is about to be read
  if (abandoned) return EvictClass::kGarbage;
  const Files& files = *checkpoint.files;
  if (&checkpoint == newest) {
    const JobSessions& sessions = *checkpoint.job->sessions;
    const bool spared = files.persisted || files.given_up == sessions.finished;
    return sessions.writers == 0 && spared ? EvictClass::kLastOfFinished : EvictClass::kKept;
  }
  if (!checkpoint.standing->known_to_line && !files.persisted &&
      checkpoint.content->broken_objects == 0 && checkpoint.Resident()) {
    return EvictClass::kKept;  // not settled yet: it is being recovered
  }
  const bool owes = (files.owes || files.persisting || files.unconfirmed) && !files.persisted;
  return owes ? EvictClass::kOwes : EvictClass::kOwesNothing;
}

}  // namespace cairn::engine
