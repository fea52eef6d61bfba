#include "tests/year/storage.h"

#include "absl/strings/str_cat.h"

namespace cairn::year {

Status Storage::Here() const {
  return away ? absl::UnavailableError("storage: nothing stands at the root") : absl::OkStatus();
}

LineRecord Storage::Keep(Job* job, const LineRecord& record, int64_t unix_ms) {
  const auto [at, fresh] = job->records.try_emplace({record.number, record.kind}, record);
  if (record.kind == LineRecordKind::kResume) at->second = record;
  if (fresh && record.kind == LineRecordKind::kOrigin) job->recorded_at[record.number] = unix_ms;
  return at->second;
}

Status Storage::Publish(const engine::action::Persist& persist, int64_t unix_ms) {
  CAIRN_RETURN_IF_ERROR(Here());
  const CheckpointKey& key = persist.checkpoint;
  Job& job = jobs_[key.job];
  if (job.removed.Forbids(key.step, key.attempt)) {
    return absl::FailedPreconditionError("the step was removed");
  }
  if (persist.origin.has_value()) Keep(&job, *persist.origin, unix_ms);
  Stored stored;
  stored.summary.key = key;
  stored.summary.location = Location(absl::StrCat(key.job, "/", key.step));
  stored.summary.world_size = persist.parts.front()->head.world_size;
  stored.summary.published = true;
  for (const auto& part : persist.parts) {
    stored.summary.parts.push_back({part->Whole(), ManifestDigest(EncodeManifest(*part))});
    // A table of its own: the engine's is the engine's memory.
    stored.parts.push_back(TableOf(part->Whole(), {}));
    Summarize(&stored.summary.parts.back());
  }
  job.checkpoints[{key.step, key.attempt}] = std::move(stored);
  return absl::OkStatus();
}

StatusOr<LineRecord> Storage::Write(const LineRecord& record, int64_t unix_ms) {
  CAIRN_RETURN_IF_ERROR(Here());
  return Keep(&jobs_[record.job], record, unix_ms);
}

Status Storage::Delete(const engine::action::DeleteFiles& deletion) {
  CAIRN_RETURN_IF_ERROR(Here());
  const CheckpointKey& key = deletion.checkpoint;
  Job& job = jobs_[key.job];
  if (!deletion.tombstone) {
    const auto at = job.checkpoints.find({key.step, key.attempt});
    if (at != job.checkpoints.end() && at->second.summary.key == key) job.checkpoints.erase(at);
    return absl::OkStatus();
  }
  const Attempt first = deletion.this_attempt ? key.attempt : 1;
  job.removed.steps[key.step].Add(first, key.attempt);
  std::erase_if(job.checkpoints, [&](const auto& at) {
    const auto& [step, attempt] = at.first;
    return step == key.step && attempt >= first && attempt <= key.attempt;
  });
  return absl::OkStatus();
}

StatusOr<StoredJob> Storage::Scan(const std::string& name, int64_t unix_ms) const {
  CAIRN_RETURN_IF_ERROR(Here());
  const auto job = jobs_.find(name);
  if (job == jobs_.end()) return absl::NotFoundError("job: has no directory");
  StoredJob stored;
  for (const auto& [id, checkpoint] : job->second.checkpoints) {
    stored.checkpoints.push_back(checkpoint.summary);
  }
  for (const auto& [id, record] : job->second.records) stored.records.push_back(record);
  stored.line = NumbersOf(stored.records);
  stored.removed = job->second.removed;
  stored.written_unix_ms = job->second.recorded_at;
  stored.now_unix_ms = unix_ms;
  return stored;
}

StatusOr<StoredCheckpoint> Storage::Read(const CheckpointKey& key) const {
  CAIRN_RETURN_IF_ERROR(Here());
  const auto job = jobs_.find(key.job);
  if (job == jobs_.end()) return absl::NotFoundError("job: has no directory");
  const auto at = job->second.checkpoints.find({key.step, key.attempt});
  if (at == job->second.checkpoints.end() || !(at->second.summary.key == key)) {
    return absl::NotFoundError("step: has no directory");
  }
  StoredCheckpoint whole = at->second.summary;
  for (size_t i = 0; i < whole.parts.size(); ++i) {
    whole.parts[i].manifest = at->second.parts[i]->Whole();
  }
  return whole;
}

StatusOr<LineNumbers> Storage::Numbers(const std::string& name) const {
  CAIRN_RETURN_IF_ERROR(Here());
  const auto job = jobs_.find(name);
  if (job == jobs_.end()) return absl::NotFoundError("job: has no directory");
  LineNumbers numbers;
  for (const auto& [id, record] : job->second.records) numbers.Take(id.first, id.second);
  return numbers;
}

Storage::Files Storage::files() const {
  Files files;
  for (const auto& [name, job] : jobs_) {
    files.checkpoints += static_cast<int64_t>(job.checkpoints.size());
    files.records += static_cast<int64_t>(job.records.size());
    files.tombstones += static_cast<int64_t>(job.removed.steps.size());
  }
  return files;
}

}  // namespace cairn::year
