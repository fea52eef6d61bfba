// The line of a job: which complete checkpoints count, across restarts that may have gone back.
// Pure; the engine uses it, and so does the reader of bare storage when no daemon runs.
//
// Each attempt goes on from one step of the line before it (`comes_from`). The head is the newest
// attempt that has something to show: a complete step, or its owner's word where it goes on from
// (`resumed`). The line is the head's own complete steps and, up to the one it comes from, the line
// before it. `latest` is its highest step. An attempt that has nothing to show moves nothing,
// whatever it began, and however many of them there are in a row. Once an attempt has a complete
// step, what older attempts did above the point it came from is abandoned.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "common/keys.h"

namespace cairn {

struct LineStep {
  Step step = kNoStep;
  Attempt attempt = 0;
  Revision revision = 0;  // the newest complete revision
  bool operator==(const LineStep&) const = default;
};

struct AttemptLine {
  Attempt attempt = 0;
  // kNoStep: goes on from nothing. kUnknownStep: from the highest step of the line before it that is
  // below its own lowest complete one, as far as that line is known.
  Step comes_from = kNoStep;
  bool resumed = false;               // its owner said so
  std::map<Step, Revision> complete;  // its complete steps, newest complete revision of each
};

// `attempts` in ascending order, those that were resumed and have not begun included. The result
// ascends by step, one entry per step.
std::vector<LineStep> ComputeLine(const std::vector<AttemptLine>& attempts);

}  // namespace cairn
