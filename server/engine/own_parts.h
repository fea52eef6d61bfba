// Which parts a node answers for. Beside those of its own writers it may hold others': replicas that their
// owners asked for, and what somebody loaded here; and of what lies in storage it knows everybody's. Only
// its own are written to storage and to the catalog, and only they count for the steps of its writers.
#pragma once

#include "server/engine/model.h"
#include "server/engine/ring.h"

namespace cairn::engine {

// All of it lies in memory here.
inline bool WholeInMemory(const Part& part) {
  return part.content->committed && part.manifest->resident && part.content->absent == 0;
}

// Something of it does, or it is being written.
inline bool HeldInMemory(const Part& part) {
  return !part.content->committed || part.manifest->resident || !part.content->slabs.empty();
}

// One of this node's writers committed it, or writes it; alone it is nobody else's. Of one that is in storage
// alone nothing tells whose it is but the writers that ran here.
inline bool IsOwn(const Part& part, const RingOptions& ring) {
  if (ring.Alone()) return true;
  const PartSource& source = *part.source;
  if (source.role != PartRole::kOwn) return false;
  if (source.owner != kNoRank) return source.owner == ring.rank;
  if (HeldInMemory(part)) return true;
  const auto& begun = part.checkpoint->job->attempts->begun;
  const auto attempt = begun.find(part.key.checkpoint.attempt);
  return attempt != begun.end() &&
         attempt->second.Find({part.checkpoint->content->world_size, part.key.writer}) !=
             attempt->second.processes.end();
}

}  // namespace cairn::engine
