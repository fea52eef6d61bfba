#include "common/line.h"

#include <algorithm>
#include <iterator>
#include <optional>

namespace cairn {
namespace {

// Answers for one history. Where an attempt comes from that nobody knows follows from what is below it, so
// such lineages are resolved once each, from the lowest on: a job may have hundreds of them.
class Resolver {
 public:
  explicit Resolver(const History& history) : history_(history) {}

  std::vector<LineStep> Line(Attempt below) {
    std::map<Step, LineStep> line;
    // What the newer attempt has of a step stands before what an older one has of it.
    Visit(below, [&](Attempt attempt, Step up_to) {
      for (const auto& [step, revision] : history_.attempts.at(attempt).complete) {
        if (step > up_to) break;
        line.try_emplace(step, LineStep{step, attempt, revision});
      }
    });
    std::vector<LineStep> steps;
    steps.reserve(line.size());
    for (const auto& [step, entry] : line) steps.push_back(entry);
    return steps;
  }

  // Of what goes on from the highest checkpoint below `first_step` on that line.
  Lineage Below(Attempt below, Step first_step) {
    std::optional<LineStep> from;
    Visit(below, [&](Attempt attempt, Step up_to) {
      const auto& complete = history_.attempts.at(attempt).complete;
      auto above = complete.lower_bound(first_step);
      if (up_to < first_step) above = complete.upper_bound(up_to);
      if (above == complete.begin()) return;
      const auto& [step, revision] = *std::prev(above);
      if (!from.has_value() || step > from->step) from = LineStep{step, attempt, revision};
    });
    if (!from.has_value()) return {};
    return LineageFrom(from->step, from->attempt, Of(from->attempt));
  }

  Lineage Of(Attempt attempt) {
    const auto at = history_.attempts.find(attempt);
    if (at == history_.attempts.end()) return {};
    const AttemptLine& own = at->second;
    if (!own.lineage.open) return own.lineage;
    if (!own.lineage.Unknown()) return Closed(own.lineage, attempt);
    for (; next_ != history_.attempts.end() && next_->first <= attempt; ++next_) {
      const AttemptLine& unknown = next_->second;
      if (!unknown.lineage.Unknown()) continue;
      Step first = unknown.first;
      if (first == kNoStep && !unknown.complete.empty()) first = unknown.complete.begin()->first;
      resolved_[next_->first] = Below(next_->first, first);
    }
    return resolved_.at(attempt);
  }

  Lineage OfDecision(Attempt number) { return Closed(history_.decisions.at(number), number); }

 private:
  // What the line below `below` is made of, each with the step up to which it counts; attempts descend.
  template <class Take>
  void Visit(Attempt below, const Take& take) {
    const LineHead head = HeadOf(history_, below);
    if (head.number == 0) return;
    if (!head.decided) take(head.number, std::numeric_limits<Step>::max());
    const Lineage lineage = head.decided ? OfDecision(head.number) : Of(head.number);
    for (const LineageEntry& entry : lineage.entries) {
      if (entry.attempt >= head.number || !history_.attempts.contains(entry.attempt)) continue;
      take(entry.attempt, entry.up_to);
    }
  }

  // An open lineage goes on with that of its last attempt. Attempts descend, so this ends; files may say
  // anything: what does not go back in time, from `of` on, is not followed.
  Lineage Closed(Lineage lineage, Attempt of) {
    while (lineage.open && !lineage.entries.empty()) {
      const auto last = history_.attempts.find(lineage.entries.back().attempt);
      // Of an attempt that left nothing behind nothing can be learned any more.
      if (last == history_.attempts.end() || last->first >= of) {
        lineage.open = false;
        break;
      }
      const size_t before = lineage.entries.size();
      const Lineage& of_last = last->second.lineage;
      CloseWith(of_last.Unknown() ? Of(last->first) : of_last, &lineage);
      if (lineage.entries.size() == before) break;
    }
    return lineage;
  }

  const History& history_;
  std::map<Attempt, Lineage> resolved_;  // of those that are unknown, below next_
  std::map<Attempt, AttemptLine>::const_iterator next_ = history_.attempts.begin();
};

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
  return Resolver(history).Line(below);
}

Lineage LineageBelow(const History& history, Attempt below, Step first_step) {
  return Resolver(history).Below(below, first_step);
}

Lineage ResolveLineage(const History& history, Attempt attempt) {
  return Resolver(history).Of(attempt);
}

Lineage ResolveDecision(const History& history, Attempt number) {
  return Resolver(history).OfDecision(number);
}

}  // namespace cairn
