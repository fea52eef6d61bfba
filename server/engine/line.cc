#include "server/engine/line.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace cairn::engine {

// --- what is told

Line::Affected Line::SetAttempts(const std::map<Attempt, Origin>& origins,
                                 const std::map<Attempt, Lineage>& decisions) {
  bool moved = decisions != decisions_;
  decisions_ = decisions;
  for (auto at = lives_.begin(); at != lives_.end();) {
    const bool gone = !origins.contains(at->first) && at->second.complete.empty();
    moved |= gone && derived_;  // it may have closed another's lineage
    at = gone ? lives_.erase(at) : std::next(at);
  }
  for (const auto& [attempt, origin] : origins) {
    Life& life = lives_[attempt];
    // What an attempt without a complete step came from may still close another's lineage.
    moved |= life.origin != origin && (!life.complete.empty() || derived_);
    life.origin = origin;
  }
  return moved ? MakeStale() : Affected{};
}

Line::Affected Line::MakeStale() { return {.all = !std::exchange(stale_, true), .replaced = {}}; }

Line::Affected Line::Add(const CheckpointId& id) {
  const auto& [step, attempt, revision] = id;
  lives_[attempt].complete[step].insert(revision);
  if (stale_) return {};
  if (derived_ || (attempt == head_.number && head_.decided)) return MakeStale();
  if (attempt > head_.number) {
    if (!GoesOnFromAll(attempt)) return MakeStale();
    reach_[head_.number] = settled_.rbegin()->first;
    reach_[attempt] = std::numeric_limits<Step>::max();
    head_ = {attempt, false};
  }
  if (step > Reach(attempt)) return {};
  const auto [at, fresh] = settled_.emplace(step, id);
  if (fresh) return {};
  // What the newer attempt has of a step stands before what an older one has.
  if (std::tie(attempt, revision) < std::tie(at->second.attempt, at->second.revision)) return {};
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
  if (derived_ || (attempt == head_.number && !head_.decided && life.complete.empty())) {
    return MakeStale();
  }
  const auto at = settled_.find(step);
  if (at == settled_.end() || at->second != id) return {};
  for (const auto& [older, reach] : reach_) {
    const auto of_older = lives_.find(older);
    if (step <= reach && of_older != lives_.end() && of_older->second.complete.contains(step)) {
      return MakeStale();
    }
  }
  settled_.erase(at);
  return {};
}

// A life that resumes from the newest checkpoint leaves the whole line as it is.
bool Line::GoesOnFromAll(Attempt attempt) const {
  const Lineage& lineage = lives_.at(attempt).origin.lineage;
  if (lineage.open || head_.decided || settled_.empty()) return false;
  std::map<Attempt, Step> reach = reach_;
  reach[head_.number] = settled_.rbegin()->first;
  size_t same = 0;
  for (const LineageEntry& entry : lineage.entries) {
    const auto at = reach.find(entry.attempt);
    if (at == reach.end() || at->second != entry.up_to) return false;
    ++same;
  }
  return same == reach.size();
}

// --- what it comes to

Step Line::Reach(Attempt attempt) const {
  const auto reach = reach_.find(attempt);
  return reach == reach_.end() ? kNoStep : reach->second;
}

const std::map<Step, CheckpointId>& Line::Settled() const {
  if (stale_) Build();  // else several threads may read: nothing is written then
  return settled_;
}

void Line::Build() const {
  stale_ = false;
  const History history = ToHistory();
  head_ = HeadOf(history);
  reach_.clear();
  settled_.clear();
  derived_ = false;
  if (head_.number == 0) return;
  derived_ = head_.decided ? decisions_.at(head_.number).open
                           : lives_.at(head_.number).origin.lineage.open;
  const Lineage lineage = head_.decided ? ResolveDecision(history, head_.number)
                                        : ResolveLineage(history, head_.number);
  for (const LineageEntry& entry : lineage.entries) {
    if (entry.attempt < head_.number) reach_[entry.attempt] = entry.up_to;
  }
  if (!head_.decided) reach_[head_.number] = std::numeric_limits<Step>::max();
  for (const LineStep& step : ComputeLine(history)) {
    settled_.emplace_hint(settled_.end(), step.step,
                          CheckpointId{step.step, step.attempt, step.revision});
  }
}

LineHead Line::Head() const {
  Settled();
  return head_;
}

std::optional<CheckpointId> Line::Newest() const {
  if (Settled().empty()) return std::nullopt;
  return settled_.rbegin()->second;
}

std::optional<CheckpointId> Line::At(Step step) const {
  const auto at = Settled().find(step);
  if (at == settled_.end()) return std::nullopt;
  return at->second;
}

std::optional<CheckpointId> Line::AtBelow(Step step, Attempt below) const {
  for (const LineStep& on_line : ComputeLine(ToHistory(), below)) {
    if (on_line.step == step) return CheckpointId{step, on_line.attempt, on_line.revision};
  }
  return std::nullopt;
}

std::optional<CheckpointId> Line::Next(Step after) const {
  const auto next = Settled().upper_bound(after);
  if (next == settled_.end()) return std::nullopt;
  return next->second;
}

bool Line::Abandoned(const CheckpointId& id) const {
  const auto& [step, attempt, revision] = id;
  const auto life = lives_.find(attempt);
  if (life == lives_.end()) return false;
  const auto revisions = life->second.complete.find(step);
  if (revisions == life->second.complete.end() || !revisions->second.contains(revision)) {
    return false;
  }
  // One that a later revision of its own attempt replaced is superseded, not abandoned.
  const std::optional<CheckpointId> on_line = At(step);
  return !on_line.has_value() || on_line->attempt != attempt;
}

Lineage Line::LineageBelow(Step first_step) const {
  const auto above = Settled().lower_bound(first_step);
  return above == settled_.begin() ? Lineage() : LineageOf(std::prev(above)->second);
}

Lineage Line::LineageOf(const CheckpointId& id) const {
  const auto life = lives_.find(id.attempt);
  const bool known = life != lives_.end() && !life->second.origin.lineage.open;
  return LineageFrom(id.step, id.attempt,
                     known ? life->second.origin.lineage : ResolveLineage(ToHistory(), id.attempt));
}

History Line::ToHistory() const {
  History history;
  history.decisions = decisions_;
  for (const auto& [attempt, life] : lives_) {
    AttemptLine& line = history.attempts[attempt];
    line.first = life.origin.first;
    line.lineage = life.origin.lineage;
    for (const auto& [step, revisions] : life.complete) {
      line.complete.emplace_hint(line.complete.end(), step, *revisions.rbegin());
    }
  }
  return history;
}

}  // namespace cairn::engine
