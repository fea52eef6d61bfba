#include "tests/sim/storage.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace cairn::engine::sim {
namespace {

bool NewerOfSameStep(const CheckpointKey& a, const CheckpointKey& than) {
  return a.job == than.job && a.step == than.step &&
         std::tie(a.attempt, a.revision) > std::tie(than.attempt, than.revision);
}

}  // namespace

Status Storage::Publish(StoredCheckpoint checkpoint) {
  const CheckpointKey key = checkpoint.key;
  const std::map<Step, Attempt>& removed = tombstones_[key.job];
  if (const auto at = removed.find(key.step); at != removed.end() && key.attempt <= at->second) {
    return absl::FailedPreconditionError("the step was removed");
  }
  if (forgets_) return absl::OkStatus();
  std::map<Step, StoredCheckpoint>& steps = steps_[key.job];
  const auto there = steps.find(key.step);
  if (there != steps.end() && NewerOfSameStep(there->second.key, key)) {
    return absl::FailedPreconditionError("a newer checkpoint of that step stands in storage");
  }
  if (there != steps.end()) replaced_.insert(there->second.key);
  steps[key.step] = std::move(checkpoint);
  deleting_.erase(key);
  replaced_.erase(key);
  return absl::OkStatus();
}

LineRecord Storage::WriteLineRecord(const LineRecord& record) {
  auto& records = records_[record.job];
  const auto [at, fresh] = records.try_emplace({record.number, record.kind}, record);
  if (record.kind == LineRecordKind::kResume) at->second = record;
  return at->second;
}

void Storage::Delete(const CheckpointKey& key, bool tombstone) {
  if (tombstone) {
    Attempt& attempt = tombstones_[key.job][key.step];
    attempt = std::max(attempt, key.attempt);
  }
  std::map<Step, StoredCheckpoint>& steps = steps_[key.job];
  const auto there = steps.find(key.step);
  if (there != steps.end() && there->second.key == key) steps.erase(there);
}

StatusOr<StoredJob> Storage::Scan(const std::string& job) const {
  const auto steps = steps_.find(job);
  const auto records = records_.find(job);
  if (steps == steps_.end() && records == records_.end()) {
    return absl::NotFoundError("job: has no directory");
  }
  StoredJob stored;
  if (steps != steps_.end()) {
    for (const auto& [step, checkpoint] : steps->second) stored.checkpoints.push_back(checkpoint);
  }
  if (records != records_.end()) {
    for (const auto& [id, record] : records->second) stored.records.push_back(record);
  }
  if (const auto removed = tombstones_.find(job); removed != tombstones_.end()) {
    for (const auto& [step, attempt] : removed->second) stored.removed.steps[step].Add(1, attempt);
  }
  return stored;
}

const StoredCheckpoint* Storage::Find(const CheckpointKey& key) const {
  const auto job = steps_.find(key.job);
  if (job == steps_.end()) return nullptr;
  const auto at = job->second.find(key.step);
  return at == job->second.end() || !(at->second.key == key) ? nullptr : &at->second;
}

}  // namespace cairn::engine::sim
