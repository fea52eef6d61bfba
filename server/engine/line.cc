#include "server/engine/line.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace cairn::engine {

Step Line::Bound(Attempt besides) const {
  for (auto at = lives_.rbegin(); at != lives_.rend(); ++at) {
    if (!at->second.complete.empty()) break;
    if (at->second.origin.resumed && at->first != besides) return at->second.origin.step;
  }
  return std::numeric_limits<Step>::max();
}

std::optional<Attempt> Line::Head() const {
  for (auto at = lives_.rbegin(); at != lives_.rend(); ++at) {
    if (!at->second.complete.empty()) return at->first;
    if (at->second.origin.resumed) break;
  }
  return std::nullopt;
}

Line::Affected Line::SetAttempts(const std::map<Attempt, Origin>& origins) {
  bool moved = false;
  for (auto at = lives_.begin(); at != lives_.end();) {
    const bool gone = !origins.contains(at->first) && at->second.complete.empty();
    moved |= gone && at->second.origin.resumed;
    at = gone ? lives_.erase(at) : std::next(at);
  }
  for (const auto& [attempt, origin] : origins) {
    Life& life = lives_[attempt];
    const bool matters = !life.complete.empty() || life.origin.resumed || origin.resumed;
    moved |= matters && life.origin != origin;
    life.origin = origin;
  }
  return moved ? MakeStale() : Affected{};
}

Line::Affected Line::MakeStale() { return {.all = !std::exchange(stale_, true), .replaced = {}}; }

bool Line::MovesOrigin(const Life& life, Step step) {
  return life.origin.step == kUnknownStep && step <= life.complete.begin()->first;
}

Line::Affected Line::Add(const CheckpointId& id) {
  const auto& [step, attempt, revision] = id;
  const auto life = lives_.try_emplace(attempt).first;
  const bool first = life->second.complete.empty();
  life->second.complete[step].insert(revision);
  const bool newest = std::all_of(std::next(life), lives_.end(),
                                  [](const auto& later) { return later.second.complete.empty(); });
  // The attempt's first complete step cuts off what older ones did above the point it came from; a
  // late one of an older attempt may stand anywhere.
  if (first || !newest || MovesOrigin(life->second, step)) return MakeStale();
  if (stale_) return {};
  const auto [at, fresh] = settled_.emplace(step, id);
  if (fresh) return {};
  if (id < at->second) return {};
  return {.all = false, .replaced = std::exchange(at->second, id)};
}

Line::Affected Line::Remove(const CheckpointId& id) {
  const auto& [step, attempt, revision] = id;
  Life& life = lives_[attempt];
  if (const auto revisions = life.complete.find(step); revisions != life.complete.end()) {
    revisions->second.erase(revision);
    if (revisions->second.empty()) life.complete.erase(revisions);
  }
  if (stale_) return {};
  if (life.complete.empty() || MovesOrigin(life, step)) return MakeStale();
  const auto at = settled_.find(step);
  if (at == settled_.end() || at->second != id) return {};
  for (const auto& [other, of_other] : lives_) {
    if (of_other.complete.contains(step)) return MakeStale();
  }
  settled_.erase(at);
  return {};
}

std::optional<CheckpointId> Line::Newest() const {
  const auto above = Settled().upper_bound(Bound());
  if (above == Settled().begin()) return std::nullopt;
  return std::prev(above)->second;
}

std::optional<CheckpointId> Line::At(Step step, Attempt besides) const {
  if (step > Bound(besides)) return std::nullopt;
  const auto at = Settled().find(step);
  if (at == Settled().end()) return std::nullopt;
  return at->second;
}

std::optional<CheckpointId> Line::Next(Step after) const {
  const auto next = Settled().upper_bound(after);
  if (next == Settled().end() || next->first > Bound()) return std::nullopt;
  return next->second;
}

bool Line::Has(const CheckpointId& id) const { return At(id.step) == id; }

bool Line::Abandoned(const CheckpointId& id) const {
  const auto& [step, attempt, revision] = id;
  const auto life = lives_.find(attempt);
  if (life == lives_.end()) return false;
  const auto revisions = life->second.complete.find(step);
  if (revisions == life->second.complete.end() || !revisions->second.contains(revision)) {
    return false;
  }
  const auto at = Settled().find(step);
  if (at == Settled().end()) return true;
  // One that a later revision of its own attempt replaced is superseded, not abandoned.
  return at->second != id && at->second.attempt != attempt;
}

Step Line::ComesFrom(Step step) const {
  const Step bound = Bound();
  const auto above = step <= bound ? Settled().lower_bound(step) : Settled().upper_bound(bound);
  // With `step` above the bound the line ends at the bound; both stay below the first step.
  return above == Settled().begin() ? kNoStep : std::prev(above)->first;
}

Step Line::ComesFromBelow(Attempt attempt, Step first_step) const {
  Step from = kNoStep;
  for (const LineStep& step : ComputeLine(AttemptLines(attempt))) {
    if (step.step < first_step) from = step.step;
  }
  return from;
}

std::vector<AttemptLine> Line::AttemptLines(Attempt below) const {
  std::vector<AttemptLine> lines;
  for (const auto& [attempt, life] : lives_) {
    if (attempt >= below) break;
    AttemptLine line{attempt, life.origin.step, life.origin.resumed, {}};
    for (const auto& [step, revisions] : life.complete) line.complete[step] = *revisions.rbegin();
    lines.push_back(std::move(line));
  }
  return lines;
}

const std::map<Step, CheckpointId>& Line::Settled() const {
  if (!stale_) return settled_;  // several threads may read: nothing is written then
  stale_ = false;
  std::vector<AttemptLine> lines = AttemptLines(std::numeric_limits<Attempt>::max());
  std::erase_if(lines, [](const AttemptLine& line) { return line.complete.empty(); });
  settled_.clear();
  for (const LineStep& step : ComputeLine(lines)) {
    settled_[step.step] = {step.step, step.attempt, step.revision};
  }
  return settled_;
}

}  // namespace cairn::engine
