#include "common/line.h"

#include <iterator>

namespace cairn {
namespace {

using Line = std::map<Step, LineStep>;

// What `attempt` makes of the line before it: nothing above the step it comes from, then its own
// steps, which replace older ones of the same number.
void Follow(const AttemptLine& attempt, Line* line) {
  Step comes_from = attempt.comes_from;
  if (comes_from == kUnknownStep) {
    const auto above = line->lower_bound(attempt.complete.begin()->first);
    comes_from = above == line->begin() ? kNoStep : std::prev(above)->first;
  }
  line->erase(line->upper_bound(comes_from), line->end());
  for (const auto& [step, revision] : attempt.complete) {
    (*line)[step] = LineStep{step, attempt.attempt, revision};
  }
}

}  // namespace

std::vector<LineStep> ComputeLine(const std::vector<AttemptLine>& attempts) {
  Line line;
  // An attempt that completed nothing cut nothing off for those after it: a later attempt may go on
  // from what it would have abandoned.
  const AttemptLine* head = nullptr;
  for (const AttemptLine& attempt : attempts) {
    if (!attempt.complete.empty()) Follow(attempt, &line);
    if (!attempt.complete.empty() || attempt.resumed) head = &attempt;
  }
  if (head != nullptr && head->complete.empty()) Follow(*head, &line);
  std::vector<LineStep> steps;
  steps.reserve(line.size());
  for (const auto& [step, entry] : line) steps.push_back(entry);
  return steps;
}

}  // namespace cairn
