#include "common/line.h"

#include <algorithm>
#include <iterator>

namespace cairn {
namespace {

// An open lineage goes on with that of its last attempt. Attempts descend, so this ends.
Lineage Closed(const History& history, Lineage lineage) {
  while (lineage.open && !lineage.entries.empty()) {
    const auto last = history.attempts.find(lineage.entries.back().attempt);
    // Of an attempt that left nothing behind nothing can be learned any more.
    if (last == history.attempts.end()) {
      lineage.open = false;
      break;
    }
    const size_t before = lineage.entries.size();
    const Lineage& of_last = last->second.lineage;
    CloseWith(of_last.Unknown() ? ResolveLineage(history, last->first) : of_last, &lineage);
    if (lineage.entries.size() == before) break;
  }
  return lineage;
}

Lineage LineageOfHead(const History& history, const LineHead& head) {
  return head.decided ? ResolveDecision(history, head.number)
                      : ResolveLineage(history, head.number);
}

}  // namespace

LineHead HeadOf(const History& history, Attempt below) {
  LineHead head;
  for (auto at = std::make_reverse_iterator(history.attempts.lower_bound(below));
       at != history.attempts.rend(); ++at) {
    if (at->second.complete.empty()) continue;
    head.number = at->first;
    break;
  }
  const auto decision = history.decisions.lower_bound(below);
  if (decision != history.decisions.begin() && std::prev(decision)->first > head.number) {
    head = {std::prev(decision)->first, /*decided=*/true};
  }
  return head;
}

std::vector<LineStep> ComputeLine(const History& history, Attempt below) {
  const LineHead head = HeadOf(history, below);
  if (head.number == 0) return {};
  std::map<Step, LineStep> line;
  // What the newer attempt has of a step stands before what an older one has of it.
  const auto add = [&](Attempt attempt, Step up_to) {
    const auto at = history.attempts.find(attempt);
    if (at == history.attempts.end()) return;
    for (const auto& [step, revision] : at->second.complete) {
      if (step > up_to) break;
      line.try_emplace(step, LineStep{step, attempt, revision});
    }
  };
  if (!head.decided) add(head.number, std::numeric_limits<Step>::max());
  for (const LineageEntry& entry : LineageOfHead(history, head).entries) {
    if (entry.attempt < head.number) add(entry.attempt, entry.up_to);
  }
  std::vector<LineStep> steps;
  steps.reserve(line.size());
  for (const auto& [step, entry] : line) steps.push_back(entry);
  return steps;
}

Lineage LineageBelow(const History& history, Attempt below, Step first_step) {
  const std::vector<LineStep> line = ComputeLine(history, below);
  const auto above = std::partition_point(line.begin(), line.end(),
                                          [&](const LineStep& at) { return at.step < first_step; });
  if (above == line.begin()) return {};
  const LineStep& from = *std::prev(above);
  return LineageFrom(from.step, from.attempt, ResolveLineage(history, from.attempt));
}

Lineage ResolveLineage(const History& history, Attempt attempt) {
  const auto at = history.attempts.find(attempt);
  if (at == history.attempts.end()) return {};
  const AttemptLine& own = at->second;
  if (!own.lineage.open) return own.lineage;
  if (!own.lineage.Unknown()) return Closed(history, own.lineage);
  Step first = own.first;
  if (first == kNoStep && !own.complete.empty()) first = own.complete.begin()->first;
  return LineageBelow(history, attempt, first);
}

Lineage ResolveDecision(const History& history, Attempt number) {
  return Closed(history, history.decisions.at(number));
}

}  // namespace cairn
