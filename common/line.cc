#include "common/line.h"

#include <iterator>

namespace cairn {
namespace {

using Line = std::map<Step, LineStep>;

// What `attempt` makes of the line before it: nothing above the step it comes from, then its own
// steps, which also stand for older ones of the same number.
void Follow(const AttemptLine& attempt, Line* line) {
  line->erase(line->upper_bound(attempt.comes_from), line->end());
  for (const auto& [step, revision] : attempt.complete) {
    (*line)[step] = LineStep{step, attempt.attempt, revision};
  }
}

// The line as attempts with a complete step left it. One that completed nothing cut nothing off: a
// later attempt may go on from what it would have abandoned.
Line SettledLine(const std::vector<AttemptLine>& attempts) {
  Line line;
  for (const AttemptLine& attempt : attempts) {
    if (!attempt.complete.empty()) Follow(attempt, &line);
  }
  return line;
}

Line CurrentLine(const std::vector<AttemptLine>& attempts) {
  Line line = SettledLine(attempts);
  // The newest attempt counts from its first create, so that a restart after a chosen rollback does
  // not jump ahead again.
  if (!attempts.empty() && attempts.back().complete.empty()) Follow(attempts.back(), &line);
  return line;
}

}  // namespace

std::vector<LineStep> ComputeLine(const std::vector<AttemptLine>& attempts) {
  std::vector<LineStep> steps;
  for (const auto& [step, entry] : CurrentLine(attempts)) steps.push_back(entry);
  return steps;
}

std::optional<LineStep> LatestOfLine(const std::vector<AttemptLine>& attempts) {
  const Line line = CurrentLine(attempts);
  if (line.empty()) return std::nullopt;
  return line.rbegin()->second;
}

Step ComesFrom(const std::vector<AttemptLine>& attempts, Step first_step) {
  const Line line = CurrentLine(attempts);
  const auto at = line.lower_bound(first_step);
  return at == line.begin() ? kNoStep : std::prev(at)->first;
}

std::vector<LineStep> Abandoned(const std::vector<AttemptLine>& attempts) {
  const Line line = SettledLine(attempts);
  std::vector<LineStep> abandoned;
  for (const AttemptLine& attempt : attempts) {
    for (const auto& [step, revision] : attempt.complete) {
      const LineStep own{step, attempt.attempt, revision};
      const auto kept = line.find(step);
      if (kept == line.end() || kept->second != own) abandoned.push_back(own);
    }
  }
  return abandoned;
}

}  // namespace cairn
