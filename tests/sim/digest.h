// One line per simulated life that says what the engine decided in it, so that two builds of the
// engine can be compared seed by seed without keeping their traces.
#pragma once

#include <cstdint>
#include <string>

#include "common/clock.h"
#include "server/engine/engine.h"

namespace cairn::engine {

// Facts and actions in the order in which the engine gave them, before any is carried out. Every
// value of theirs counts but a Log's. Words (the text of statuses, problems, counters' names) and
// the checksums of encoded manifests have a digest of their own: they may change where no decision
// does.
class LifeDigest {
 public:
  void Take(MonotonicNanos now, const Outcome& outcome);
  // "applies=… decisions=… words=…": both as 16 hex digits.
  std::string Line() const;

 private:
  int64_t applies_ = 0;
  uint64_t decisions_ = 0;
  uint64_t words_ = 0;
};

}  // namespace cairn::engine
