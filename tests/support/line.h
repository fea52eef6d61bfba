// What tests ask of a job's line besides the line itself, told from ComputeLine alone.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "common/line.h"

namespace cairn {

// The highest step of the line.
inline std::optional<LineStep> LatestOfLine(const std::vector<AttemptLine>& attempts) {
  const std::vector<LineStep> line = ComputeLine(attempts);
  if (line.empty()) return std::nullopt;
  return line.back();
}

// Where an attempt whose first step is `first_step` goes on from: the highest step of the line below
// it; kNoStep: from nothing.
inline Step ComesFrom(const std::vector<AttemptLine>& attempts, Step first_step) {
  Step from = kNoStep;
  for (const LineStep& step : ComputeLine(attempts)) {
    if (step.step < first_step) from = step.step;
  }
  return from;
}

// Complete steps that are not on the line of the attempts that completed something.
inline std::vector<LineStep> Abandoned(const std::vector<AttemptLine>& attempts) {
  std::vector<AttemptLine> settled;
  for (const AttemptLine& attempt : attempts) {
    if (!attempt.complete.empty()) settled.push_back(attempt);
  }
  std::map<Step, LineStep> line;
  for (const LineStep& step : ComputeLine(settled)) line[step.step] = step;
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
