#include "server/engine/evict_class.h"

namespace cairn::engine {
namespace {

EvictClass ClassOfIncomplete(const Checkpoint& checkpoint, const Checkpoint* newest) {
  for (const auto& [writer, part] : checkpoint.content->parts) {
    if (part->manifest->committing) return EvictClass::kKept;
  }
  // Fenced: it can never be complete.
  if (checkpoint.key.attempt < checkpoint.job->attempts->fence()) return EvictClass::kGarbage;
  // Somebody may still be writing it.
  if (checkpoint.content->open_parts > 0 || !checkpoint.verdict->waiting.empty()) {
    return EvictClass::kKept;
  }
  if (checkpoint.files->stored_whole) return EvictClass::kOwesNothing;
  const bool left_behind = newest != nullptr && newest->key.attempt == checkpoint.key.attempt &&
                           newest->Id() > checkpoint.Id();
  return left_behind ? EvictClass::kGarbage : EvictClass::kKept;
}

}  // namespace

EvictClass ClassOf(const Checkpoint& checkpoint, const Checkpoint* newest, bool abandoned) {
  if (*checkpoint.pinned || checkpoint.content->parts.empty()) return EvictClass::kKept;
  if (!checkpoint.content->complete) return ClassOfIncomplete(checkpoint, newest);
  if (abandoned) return EvictClass::kGarbage;
  const Files& files = *checkpoint.files;
  if (&checkpoint == newest) {
    return checkpoint.job->sessions->writers == 0 && files.persisted ? EvictClass::kLastOfFinished
                                                                     : EvictClass::kKept;
  }
  if (!checkpoint.standing->known_to_line && !files.persisted &&
      checkpoint.content->broken_objects == 0 && checkpoint.Resident()) {
    return EvictClass::kKept;  // not settled yet: it is being recovered
  }
  const bool owes = (files.owes || files.persisting || files.unconfirmed) && !files.persisted;
  return owes ? EvictClass::kOwes : EvictClass::kOwesNothing;
}

}  // namespace cairn::engine
