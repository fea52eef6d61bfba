#include "tests/sim/storage.h"

#include <utility>

namespace cairn::engine::sim {
Status Storage::Publish(StoredCheckpoint checkpoint) {
  const CheckpointKey key = checkpoint.key;
  if (tombstones_[key.job].Forbids(key.step, key.attempt)) {
    return absl::FailedPreconditionError("the step was removed");
  }
  if (lie_ == Lie::kStorageForgets) return absl::OkStatus();
  auto& steps = steps_[key.job];
  const auto there = steps.find({key.step, key.attempt});
  if (there != steps.end() && there->second.key.revision > key.revision) {
    return absl::FailedPreconditionError("a newer revision of it stands in storage");
  }
  if (there != steps.end()) replaced_.insert(there->second.key);
  steps[{key.step, key.attempt}] = std::move(checkpoint);
  deleting_.erase(key);
  replaced_.erase(key);
  return absl::OkStatus();
}

LineRecord Storage::WriteLineRecord(const LineRecord& record) {
  auto& records = records_[record.job];
  const auto [at, fresh] = records.try_emplace({record.number, record.kind}, record);
  if (record.kind == LineRecordKind::kResume) at->second = record;
  if (fresh && record.kind == LineRecordKind::kOrigin) {
    origins_written_ms_[record.job][record.number] = UnixMs();
  }
  return at->second;
}

void Storage::Delete(const action::DeleteFiles& deletion) {
  const CheckpointKey& key = deletion.checkpoint;
  auto& steps = steps_[key.job];
  if (!deletion.tombstone) {
    const auto there = steps.find({key.step, key.attempt});
    if (there != steps.end() && there->second.key == key) steps.erase(there);
    return;
  }
  const Attempt first = deletion.this_attempt ? key.attempt : 1;
  tombstones_[key.job].steps[key.step].Add(first, key.attempt);
  std::erase_if(steps, [&](const auto& at) {
    const auto& [step, attempt] = at.first;
    if (step != key.step || attempt < first || attempt > key.attempt) return false;
    deleting_.insert(at.second.key);
    return true;
  });
}

StatusOr<StoredJob> Storage::Scan(const std::string& job) const {
  const auto steps = steps_.find(job);
  const auto records = records_.find(job);
  if (steps == steps_.end() && records == records_.end()) {
    return absl::NotFoundError("job: has no directory");
  }
  StoredJob stored;
  stored.now_unix_ms = UnixMs();
  if (const auto written = origins_written_ms_.find(job); written != origins_written_ms_.end()) {
    stored.written_unix_ms = written->second;
    for (auto& [attempt, unix_ms] : stored.written_unix_ms) {
      if (lie_ == Lie::kRecordsLookOld) unix_ms -= 2 * kDayMs;
    }
  }
  if (steps != steps_.end()) {
    for (const auto& [id, checkpoint] : steps->second) stored.checkpoints.push_back(checkpoint);
  }
  if (records != records_.end()) {
    for (const auto& [id, record] : records->second) stored.records.push_back(record);
  }
  if (const auto removed = tombstones_.find(job); removed != tombstones_.end()) {
    stored.removed = removed->second;
  }
  return stored;
}

std::optional<int64_t> Storage::OriginRecordedMs(const std::string& job, Attempt attempt) const {
  const auto of_job = origins_written_ms_.find(job);
  if (of_job == origins_written_ms_.end()) return std::nullopt;
  const auto at = of_job->second.find(attempt);
  return at == of_job->second.end() ? std::nullopt : std::optional(at->second);
}

LineNumbers Storage::NumbersOf(const std::string& job) const {
  LineNumbers numbers;
  const auto records = records_.find(job);
  if (records == records_.end()) return numbers;
  for (const auto& [id, record] : records->second) numbers.Take(id.first, id.second);
  return numbers;
}

Status Storage::CheckNotNeeded(const action::DeleteFiles& deletion) const {
  const auto records = records_.find(deletion.checkpoint.job);
  if (deletion.tombstone || records == records_.end()) return absl::OkStatus();
  const LineNumbers numbers = NumbersOf(deletion.checkpoint.job);
  if (numbers.published > deletion.newest_known) {
    return absl::FailedPreconditionError("a life that the node does not know of has published");
  }
  std::vector<LineRecord> decisions;
  for (const auto& [id, record] : records->second) {
    const bool counts = id.second != LineRecordKind::kOrigin && id.first > numbers.published;
    if (counts) decisions.push_back(record);
  }
  if (DecisionThatNeeds(decisions, deletion.checkpoint) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError("a decision needs it");
}

const StoredCheckpoint* Storage::Find(const CheckpointKey& key) const {
  const auto job = steps_.find(key.job);
  if (job == steps_.end()) return nullptr;
  const auto at = job->second.find({key.step, key.attempt});
  return at == job->second.end() || !(at->second.key == key) ? nullptr : &at->second;
}

}  // namespace cairn::engine::sim
