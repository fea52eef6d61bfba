// What tests ask of a job's line besides the line itself, told from ComputeLine alone.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "common/line.h"

namespace cairn {

// The highest step of the line.
inline std::optional<LineStep> LatestOfLine(const History& history) {
  const std::vector<LineStep> line = ComputeLine(history);
  if (line.empty()) return std::nullopt;
  return line.back();
}

// Complete steps, newest revision of each, that are not on the line.
inline std::vector<LineStep> Abandoned(const History& history) {
  std::map<Step, LineStep> line;
  for (const LineStep& step : ComputeLine(history)) line[step.step] = step;
  std::vector<LineStep> abandoned;
  for (const auto& [number, attempt] : history.attempts) {
    for (const auto& [step, revision] : attempt.complete) {
      const LineStep own{step, number, revision};
      const auto kept = line.find(step);
      if (kept == line.end() || kept->second != own) abandoned.push_back(own);
    }
  }
  return abandoned;
}

}  // namespace cairn
