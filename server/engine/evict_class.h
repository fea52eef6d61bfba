// In which order memory is given up: a pure function of what is known of a checkpoint.
#pragma once

#include "server/engine/model.h"

namespace cairn::engine {

// Those that may be given up, the first to go first.
inline constexpr EvictClass kEvictClasses[] = {EvictClass::kGarbage, EvictClass::kOwesNothing,
                                               EvictClass::kOwes, EvictClass::kLastOfFinished};

// Of an incomplete one: nobody writes or asks for a part of it, and no writer that it lacks will
// bring its part: each has entered a later step or revision, was refused, has withdrawn, or ended. A
// writer that was never seen here may be on its way.
bool GivenUp(const Checkpoint& checkpoint);

// `newest` of the job's line, nullptr when it has none; `abandoned` as the line says.
EvictClass ClassOf(const Checkpoint& checkpoint, const Checkpoint* newest, bool abandoned);

}  // namespace cairn::engine
