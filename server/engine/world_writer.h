// A writer among as many as the step has. One process may be several: rank 5 of 8 where all save, and writer 1
// of 2 where two of them save a step by themselves.
#pragma once

#include <compare>
#include <cstdint>
#include <utility>

#include "common/keys.h"

namespace cairn::engine {

struct WorldWriter {
  int32_t world_size = 0;  // 0: an earlier version did not say
  Writer writer = 0;

  auto operator<=>(const WorldWriter&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const WorldWriter& w) {
    return H::combine(std::move(h), w.world_size, w.writer);
  }
};

// Which process is a writer of the attempt, and as which rank of its session: how far that has got counts
// (AttemptState::reached).
struct WriterRun {
  ProcessToken process;
  int32_t pid = 0;  // 0: not known
  Writer rank = 0;

  std::pair<ProcessToken, Writer> Seat() const { return {process, rank}; }
};

}  // namespace cairn::engine
