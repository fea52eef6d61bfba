// In which order memory is given up: a pure function of what is known of a checkpoint.
//
// Alone a node knows all there is to know. In a ring it does not: a step that looks incomplete or fenced
// here may be complete with the others, and then this node's parts are of its last copies. So in a ring
//   * nothing is garbage that is not known to be complete nowhere: the members together say so, or
//     something protected supersedes it;
//   * what is complete goes only when something protected supersedes it, or, under pressure, when it is
//     neither protected, nor the target, nor the newest;
//   * parts kept for other members are never judged by this node's own line, and not at all unless the
//     members were heard a moment ago.
#pragma once

#include "server/engine/model.h"

namespace cairn::engine {

// Those that may be given up, the first to go first.
inline constexpr EvictClass kEvictClasses[] = {EvictClass::kGarbage, EvictClass::kOwesNothing,
                                               EvictClass::kOwes, EvictClass::kLastOfFinished};

// So long after it was heard a verdict of the job's home counts for what is kept for others.
inline constexpr MonotonicNanos kVerdictFresh = 3 * kNanosPerSecond;

// Of an incomplete one: nobody writes or asks for a part of it, and no writer that it lacks will
// bring its part: each has entered a later step or revision, was refused, has withdrawn, or ended. A
// writer that was never seen here may be on its way; the members together know.
bool GivenUp(const Checkpoint& checkpoint);

// The job has no writers, on this node or, as the ring said last, on others; and since when. 0: it had none yet.
bool IsOver(const Job& job);
MonotonicNanos OverSince(const Job& job);

// The newest of a job that is over, which no storage takes, was kept as long as it is to be (Persistence::OweFinished).
bool KeptLongEnough(const Checkpoint& checkpoint);

// The checkpoint that `id` names stands for all that `superseded` does: it is of a later life, or
// of the same and later in it.
bool Supersedes(const CheckpointId& id, const CheckpointId& superseded);

// Its loss on this node is no loss: the others have the replicas asked for, or storage has it.
bool IsProtected(const Checkpoint& checkpoint, int asked);

// How the job's line on this node sees it.
struct OnLine {
  const Checkpoint* newest = nullptr;  // of the line; nullptr when it has none
  bool abandoned = false;              // and for good: Standing::LeftBehind
};

// `ring`: what its members together say of the job; nullptr: the node is alone.
EvictClass ClassOf(const Checkpoint& checkpoint, const OnLine& line, const RingSays* ring);

}  // namespace cairn::engine
