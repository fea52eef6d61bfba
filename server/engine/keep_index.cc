#include "server/engine/keep_index.h"

#include <utility>

namespace cairn::engine {

void KeepIndex::SetPolicy(const JobPolicy& policy) {
  if (policy.keep_last == keep_last_ && policy.keep_every == keep_every_) return;
  keep_last_ = policy.keep_last;
  keep_every_ = policy.keep_every;
  newest_.clear();
  surplus_.clear();
  of_keep_every_.clear();
  for (const auto& [id, seen] : seen_) {
    if (seen.counted && seen.on_line) Add(id);
  }
}

void KeepIndex::Put(const CheckpointId& id, const Seen& seen) {
  const auto at = seen_.find(id);
  const Seen before = at == seen_.end() ? Seen() : at->second;
  if (seen == before) return;
  Count(id.attempt, before, -1);
  Count(id.attempt, seen, 1);
  if (before.counted && before.on_line) Drop(id);
  if (seen.counted && seen.on_line) Add(id);
  if (before.counted && before.abandoned) abandoned_.erase(id);
  if (seen.counted && seen.abandoned) abandoned_.insert(id);
  if (seen.persisted) {
    seen_[id] = seen;
  } else {
    seen_.erase(id);
  }
}

void KeepIndex::Count(Attempt attempt, const Seen& seen, int64_t by) {
  if (!seen.persisted) return;
  if (!seen.deleting) files_ += by;
  OfAttempt& count = attempts_[attempt];
  count.files += by;
  if (seen.on_line) count.on_line += by;
  if (count.files == 0) attempts_.erase(attempt);
}

std::set<CheckpointId>& KeepIndex::PastNewest(const CheckpointId& id) {
  return keep_every_ > 0 && id.step % keep_every_ == 0 ? of_keep_every_ : surplus_;
}

void KeepIndex::Add(const CheckpointId& id) {
  newest_.insert(id);
  if (keep_last_ <= 0 || static_cast<int64_t>(newest_.size()) <= keep_last_) return;
  const CheckpointId lowest = newest_.extract(newest_.begin()).value();
  PastNewest(lowest).insert(lowest);
}

void KeepIndex::Drop(const CheckpointId& id) {
  if (newest_.erase(id) == 0) {
    PastNewest(id).erase(id);
    return;
  }
  // The highest of what is past them comes up.
  std::set<CheckpointId>* from = nullptr;
  for (std::set<CheckpointId>* past : {&surplus_, &of_keep_every_}) {
    if (past->empty()) continue;
    if (from == nullptr || *past->rbegin() > *from->rbegin()) from = past;
  }
  if (from != nullptr) newest_.insert(from->extract(std::prev(from->end())).value());
}

}  // namespace cairn::engine
