#include "server/engine/job_record.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace cairn::engine {
namespace {

auto TieOf(const JobPolicy& policy) {
  return std::tie(policy.mode, policy.every, policy.keep_last, policy.keep_every, policy.readers,
                  policy.replicas);
}

// How much a lineage knows.
int Knows(const Lineage& lineage) {
  if (!lineage.open) return 2;
  return lineage.Unknown() ? 0 : 1;
}

// Of two that know as much, the one that is encoded lower: what is closed has one value, so that is only so
// that all choose alike.
const Lineage& Better(const Lineage& a, const Lineage& b) {
  if (Knows(a) != Knows(b)) return Knows(a) > Knows(b) ? a : b;
  return EncodeLineage(a) <= EncodeLineage(b) ? a : b;
}

// The lesser of those that are known.
template <typename T>
T LeastKnown(T a, T b, T unknown) {
  if (a == unknown || b == unknown) return a == unknown ? b : a;
  return std::min(a, b);
}

JobRecord::Origin Join(const JobRecord::Origin& a, const JobRecord::Origin& b) {
  return {LeastKnown(a.first, b.first, kNoStep), Better(a.lineage, b.lineage),
          LeastKnown<int64_t>(a.unix_ms, b.unix_ms, 0)};
}

JobRecord::Decision Join(const JobRecord::Decision& a, const JobRecord::Decision& b) {
  if (a == b) return a;
  const auto key = [](const JobRecord::Decision& decision) {
    return std::tuple(decision.stamp, decision.unix_ms, EncodeLineage(decision.lineage));
  };
  return key(a) < key(b) ? b : a;
}

JobRecord::Pin Join(const JobRecord::Pin& a, const JobRecord::Pin& b) {
  return std::tie(a.stamp, a.pinned) < std::tie(b.stamp, b.pinned) ? b : a;
}

template <typename Map>
void JoinMaps(const Map& others, Map* map) {
  for (const auto& [key, value] : others) {
    const auto [at, fresh] = map->try_emplace(key, value);
    if (!fresh) at->second = Join(at->second, value);
  }
}

template <typename Map>  // or a set
void KeepNewest(size_t most, Map* map) {
  while (map->size() > most) map->erase(map->begin());
}

size_t CountRanges(const RemovedSteps& removed) {
  size_t count = 0;
  for (const auto& [step, ranges] : removed.steps) count += ranges.ranges().size();
  return count;
}

Status Full(absl::string_view job, absl::string_view what, size_t are, size_t most) {
  return absl::ResourceExhaustedError(
      absl::StrCat("job ", job, ": ", are, " ", what, " are recorded, the limit is ", most));
}

Stamp Next(const Stamp& before, Rank by) { return {before.version + 1, by}; }

}  // namespace

std::map<Attempt, Lineage> JobRecord::Decided() const {
  std::map<Attempt, Lineage> decided;
  for (const auto& [id, decision] : decisions) decided[id.first] = decision.lineage;
  return decided;
}

// --- decisions of this member

StatusOr<bool> JobRecord::SetOwner(const Owner& its) {
  if (owner.has_value() && owner->uid != its.uid) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job, ": its owner is uid ", owner->uid, ", not ", its.uid));
  }
  if (owner.has_value()) return false;
  owner = its;
  return true;
}

bool JobRecord::SetPolicy(const JobPolicy& its, Rank by) {
  if (policy_stamp.version > 0 && policy == its) return false;
  policy = its;
  policy_stamp = Next(policy_stamp, by);
  return true;
}

bool JobRecord::NoteAttempt(Attempt attempt, const Origin& origin) {
  if (attempt <= removed_up_to) return false;
  const auto [at, fresh] = attempts.try_emplace(attempt, origin);
  if (!fresh) {
    Origin joined = Join(at->second, origin);
    if (joined == at->second) return false;
    at->second = std::move(joined);
  }
  KeepNewest(kMostRecordAttempts, &attempts);
  return attempts.contains(attempt);
}

bool JobRecord::Decide(const LineRecord& decided, int64_t unix_ms, Rank by) {
  if (decided.kind == LineRecordKind::kOrigin) {
    return NoteAttempt(decided.number, {kNoStep, decided.lineage, unix_ms});
  }
  if (decided.number <= removed_up_to) return false;
  const DecisionId id(decided.number, decided.kind);
  const auto [at, fresh] = decisions.try_emplace(id);
  if (!fresh && at->second.lineage == decided.lineage) return false;
  at->second = {decided.lineage, unix_ms, Next(at->second.stamp, by)};
  KeepNewest(kMostRecordDecisions, &decisions);
  return decisions.contains(id);
}

StatusOr<bool> JobRecord::SetPinned(const CheckpointId& id, bool pinned, Rank by) {
  const auto at = pins.find(id);
  if (at == pins.end() ? !pinned : at->second.pinned == pinned) return false;
  if (Forbids(id.step, id.attempt)) {
    return absl::NotFoundError(
        absl::StrCat("job ", job, ": step ", id.step, " of attempt ", id.attempt, " was removed"));
  }
  if (at == pins.end()) {
    if (pins.size() >= kMostRecordPins) {
      return Full(job, "pins, with those that were taken back,", pins.size(), kMostRecordPins);
    }
    pins[id] = {pinned, Next({}, by)};
  } else {
    at->second = {pinned, Next(at->second.stamp, by)};
  }
  return true;
}

bool JobRecord::Ask(const CheckpointId& id) {
  if (Forbids(id.step, id.attempt) || !asked.insert(id).second) return false;
  KeepNewest(kMostRecordAsked, &asked);
  return asked.contains(id);
}

StatusOr<bool> JobRecord::Remove(Step step, Attempt first, Attempt last) {
  first = std::max(first, removed_up_to + 1);
  if (first > last) return false;
  const auto before = removed.steps.find(step);
  AttemptRanges ranges = before == removed.steps.end() ? AttemptRanges() : before->second;
  if (ranges.Covers({first, last})) return false;
  const size_t were = ranges.ranges().size();
  ranges.Add(first, last);
  const size_t are = CountRanges(removed) - were + ranges.ranges().size();
  if (ranges.ranges().size() > kMaxRemovedRanges) {
    return Full(job, absl::StrCat("ranges of removed attempts of step ", step), were,
                kMaxRemovedRanges);
  }
  if (are > kMostRecordRanges) {
    return Full(job, "ranges of removed attempts", are - 1, kMostRecordRanges);
  }
  removed.steps[step] = std::move(ranges);
  Tidy();
  return true;
}

bool JobRecord::RemoveAll(Attempt up_to) {
  if (up_to <= removed_up_to) return false;
  removed_up_to = up_to;
  Tidy();
  return true;
}

bool JobRecord::NoteProtected(Attempt attempt, Step step) {
  if (attempt <= removed_up_to || std::pair(attempt, step) <= highest_protected) return false;
  highest_protected = {attempt, step};
  return true;
}

bool IsLater(const JobPolicy& a, const Stamp& said_a, const JobPolicy& b, const Stamp& said_b) {
  return std::tuple(said_b, TieOf(b)) < std::tuple(said_a, TieOf(a));
}

// --- what others decided

StatusOr<bool> JobRecord::Merge(const JobRecord& other) {
  JobRecord both = *this;
  if (other.owner.has_value()) {
    both.owner = owner.has_value() ? std::min(*owner, *other.owner) : *other.owner;
  }
  if (IsLater(other.policy, other.policy_stamp, policy, policy_stamp)) {
    both.policy = other.policy;
    both.policy_stamp = other.policy_stamp;
  }
  JoinMaps(other.attempts, &both.attempts);
  JoinMaps(other.decisions, &both.decisions);
  JoinMaps(other.pins, &both.pins);
  both.asked.insert(other.asked.begin(), other.asked.end());
  for (const auto& [step, ranges] : other.removed.steps) both.removed.steps[step].Add(ranges);
  both.removed_up_to = std::max(removed_up_to, other.removed_up_to);
  both.highest_protected = std::max(highest_protected, other.highest_protected);
  both.Tidy();
  if (both.pins.size() > 2 * kMostRecordPins) {
    return Full(job, "pins of several members", both.pins.size(), 2 * kMostRecordPins);
  }
  if (const size_t ranges = CountRanges(both.removed); ranges > 2 * kMostRecordRanges) {
    return Full(job, "ranges of removed attempts of several members", ranges,
                2 * kMostRecordRanges);
  }
  if (both == *this) return false;
  *this = std::move(both);
  return true;
}

bool JobRecord::IsTidy() const {
  JobRecord tidied = *this;
  tidied.Tidy();
  return tidied == *this;
}

void JobRecord::Tidy() {
  if (removed_up_to > 0) {
    attempts.erase(attempts.begin(), attempts.upper_bound(removed_up_to));
    std::erase_if(decisions, [&](const auto& it) { return it.first.first <= removed_up_to; });
    for (auto& [step, ranges] : removed.steps) {
      AttemptRanges above;
      for (const AttemptRanges::Range& range : ranges.ranges()) {
        const Attempt first = std::max(range.first, removed_up_to + 1);
        if (first <= range.last) above.Add(first, range.last);
      }
      ranges = std::move(above);
    }
    std::erase_if(removed.steps, [](const auto& it) { return it.second.empty(); });
    if (highest_protected.first <= removed_up_to) highest_protected = {0, kNoStep};
  }
  std::erase_if(pins, [&](const auto& it) { return Forbids(it.first.step, it.first.attempt); });
  KeepNewest(kMostRecordAsked, &asked);
  KeepNewest(kMostRecordAttempts, &attempts);
  KeepNewest(kMostRecordDecisions, &decisions);
}

}  // namespace cairn::engine
