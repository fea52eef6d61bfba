#include "tests/world/storage.h"

#include "absl/strings/str_cat.h"
#include "common/layout.h"

namespace cairn::world {

Status Storage::Here() const {
  return away ? absl::UnavailableError("storage: nothing stands at the root") : absl::OkStatus();
}

LineRecord Storage::Keep(Job* job, const LineRecord& record, int64_t unix_ms) {
  const auto [at, fresh] = job->records.try_emplace({record.number, record.kind}, record);
  if (record.kind == LineRecordKind::kResume) at->second = record;
  if (fresh && record.kind == LineRecordKind::kOrigin) job->recorded_at[record.number] = unix_ms;
  return at->second;
}

Status Storage::CheckTakes(const CheckpointKey& key) const {
  CAIRN_RETURN_IF_ERROR(Here());
  const auto at = jobs_.find(key.job);
  if (at == jobs_.end()) return absl::OkStatus();
  const Job& job = at->second;
  if (job.removed.Forbids(key.step, key.attempt)) {
    return absl::FailedPreconditionError("the step was removed");
  }
  for (const auto& [other, stored] : job.checkpoints) {
    if (other.step != key.step || other.attempt != key.attempt || !stored.published) continue;
    if (other.revision <= key.revision) continue;
    return absl::FailedPreconditionError("a newer revision of it stands in storage");
  }
  return absl::OkStatus();
}

StatusOr<bool> Storage::Write(const action::Persist& persist, int64_t unix_ms) {
  CAIRN_RETURN_IF_ERROR(CheckTakes(persist.checkpoint));
  if (persist.origin.has_value()) Keep(&jobs_[persist.origin->job], *persist.origin, unix_ms);
  int32_t world_size = 0;
  std::vector<StoredPart> parts;
  for (const auto& part : persist.parts) {
    world_size = part->head.world_size;
    parts.push_back({part->Whole(), ManifestDigest(EncodeManifest(*part))});
  }
  return Write(persist.checkpoint, world_size, std::move(parts));
}

StatusOr<bool> Storage::Write(const CheckpointKey& key, int32_t world_size,
                              std::vector<StoredPart> parts) {
  CAIRN_RETURN_IF_ERROR(CheckTakes(key));
  if (forgets) return true;
  Job& job = jobs_[key.job];
  Stored& stored = job.checkpoints[key];
  stored.world_size = world_size;
  for (StoredPart& part : parts) {
    const Writer writer = part.manifest.writer;
    stored.parts[writer] = std::move(part);
    stored.damaged.erase(writer);
  }
  if (!stored.published && static_cast<int32_t>(stored.parts.size()) == stored.world_size) {
    Publish(&job, key, &stored);
  }
  return stored.Whole();
}

void Storage::Damage(const PartKey& part) {
  Job& job = jobs_[part.checkpoint.job];
  const auto at = job.checkpoints.find(part.checkpoint);
  if (at != job.checkpoints.end()) at->second.damaged.insert(part.writer);
}

// One revision stays of each step and attempt.
void Storage::Publish(Job* job, const CheckpointKey& key, Stored* stored) {
  stored->published = true;
  std::erase_if(job->checkpoints, [&](const auto& at) {
    const CheckpointKey& other = at.first;
    return other.step == key.step && other.attempt == key.attempt && other.revision < key.revision;
  });
}

StatusOr<LineRecord> Storage::Write(const LineRecord& record, int64_t unix_ms) {
  CAIRN_RETURN_IF_ERROR(Here());
  return Keep(&jobs_[record.job], record, unix_ms);
}

LineNumbers Storage::NumbersIn(const Job& job) {
  LineNumbers numbers;
  for (const auto& [id, record] : job.records) numbers.Take(id.first, id.second);
  return numbers;
}

Status Storage::CheckNotNeeded(const Job& job, const action::DeleteFiles& deletion) {
  const LineNumbers numbers = NumbersIn(job);
  if (numbers.published > deletion.newest_known) {
    return absl::FailedPreconditionError("a life that the node does not know of has published");
  }
  std::vector<LineRecord> decisions;
  for (const auto& [id, record] : job.records) {
    const bool counts = id.second != LineRecordKind::kOrigin && id.first > numbers.published;
    if (counts) decisions.push_back(record);
  }
  if (DecisionThatNeeds(decisions, deletion.checkpoint) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError("a decision needs it");
}

Status Storage::CheckStays(const Job& job, const action::DeleteFiles& deletion) {
  if (!deletion.stays.has_value()) return absl::OkStatus();
  const auto at = job.checkpoints.find(*deletion.stays);
  if (at != job.checkpoints.end() && at->second.Whole()) return absl::OkStatus();
  return absl::FailedPreconditionError("the checkpoint that stays is not whole");
}

Status Storage::Delete(const action::DeleteFiles& deletion) {
  CAIRN_RETURN_IF_ERROR(Here());
  const CheckpointKey& key = deletion.checkpoint;
  Job& job = jobs_[key.job];
  if (!deletion.tombstone) {
    CAIRN_RETURN_IF_ERROR(CheckStays(job, deletion));
    CAIRN_RETURN_IF_ERROR(CheckNotNeeded(job, deletion));
    job.checkpoints.erase(key);
    return absl::OkStatus();
  }
  const Attempt first = deletion.this_attempt ? key.attempt : 1;
  job.removed.steps[key.step].Add(first, key.attempt);
  std::erase_if(job.checkpoints, [&](const auto& at) {
    return at.first.step == key.step && at.first.attempt >= first &&
           at.first.attempt <= key.attempt;
  });
  return absl::OkStatus();
}

Location Storage::LocationOf(const CheckpointKey& key) const {
  return Location(absl::StrCat(root.instance, "/", key.job, "/", key.step));
}

StoredCheckpoint Storage::Show(const CheckpointKey& key, const Stored& stored, bool whole) const {
  StoredCheckpoint shown;
  shown.key = key;
  shown.location = LocationOf(key);
  shown.world_size = stored.world_size;
  shown.published = stored.published;
  if (!stored.damaged.empty()) shown.damage = "a file is gone";
  for (const auto& [writer, part] : stored.parts) {
    if (stored.damaged.contains(writer)) continue;
    shown.parts.push_back(part);
    if (!whole) Summarize(&shown.parts.back());
  }
  return shown;
}

StatusOr<StoredJob> Storage::Scan(const std::string& name, int64_t unix_ms) const {
  CAIRN_RETURN_IF_ERROR(Here());
  const auto job = jobs_.find(name);
  if (job == jobs_.end()) return absl::NotFoundError("job: has no directory");
  StoredJob stored;
  for (const auto& [key, checkpoint] : job->second.checkpoints) {
    stored.checkpoints.push_back(Show(key, checkpoint, /*whole=*/false));
  }
  for (const auto& [id, record] : job->second.records) stored.records.push_back(record);
  stored.line = NumbersOf(stored.records);
  stored.removed = job->second.removed;
  stored.written_unix_ms = job->second.recorded_at;
  for (auto& [attempt, recorded_ms] : stored.written_unix_ms) recorded_ms -= look_older_ms;
  stored.now_unix_ms = unix_ms;
  return stored;
}

StatusOr<StoredCheckpoint> Storage::Read(const CheckpointKey& key) const {
  CAIRN_RETURN_IF_ERROR(Here());
  const auto job = jobs_.find(key.job);
  if (job == jobs_.end()) return absl::NotFoundError("job: has no directory");
  const auto at = job->second.checkpoints.find(key);
  if (at == job->second.checkpoints.end() || !at->second.damaged.empty()) {
    return absl::NotFoundError("step: has no directory, or not all files");
  }
  return Show(key, at->second, /*whole=*/true);
}

StatusOr<LineNumbers> Storage::Numbers(const std::string& name) const {
  CAIRN_RETURN_IF_ERROR(Here());
  const auto job = jobs_.find(name);
  if (job == jobs_.end()) return absl::NotFoundError("job: has no directory");
  return NumbersIn(job->second);
}

bool Storage::HasPart(const PartKey& part, const std::string& digest) const {
  const auto job = jobs_.find(part.checkpoint.job);
  if (job == jobs_.end()) return false;
  const auto at = job->second.checkpoints.find(part.checkpoint);
  if (at == job->second.checkpoints.end() || at->second.damaged.contains(part.writer)) return false;
  const auto stored = at->second.parts.find(part.writer);
  return stored != at->second.parts.end() && stored->second.digest == digest;
}

bool Storage::Published(const CheckpointKey& key) const {
  const auto job = jobs_.find(key.job);
  if (job == jobs_.end()) return false;
  const auto at = job->second.checkpoints.find(key);
  return at != job->second.checkpoints.end() && at->second.Whole();
}

std::vector<CheckpointKey> Storage::AllPublished() const {
  std::vector<CheckpointKey> all;
  for (const auto& [name, job] : jobs_) {
    for (const auto& [key, stored] : job.checkpoints) {
      if (stored.Whole()) all.push_back(key);
    }
  }
  return all;
}

bool Storage::Removed(const CheckpointKey& key) const {
  const auto job = jobs_.find(key.job);
  return job != jobs_.end() && job->second.removed.Forbids(key.step, key.attempt);
}

std::optional<int64_t> Storage::OriginRecordedMs(const std::string& name, Attempt attempt) const {
  const auto job = jobs_.find(name);
  if (job == jobs_.end()) return std::nullopt;
  const auto at = job->second.recorded_at.find(attempt);
  return at == job->second.recorded_at.end() ? std::nullopt : std::optional(at->second);
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

}  // namespace cairn::world
