// One file: a whole back end, call by call beside the contract.
#include "tests/storage/memory_storage.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"

namespace cairn::storage {
namespace {

constexpr int64_t kSweepAgeMillis = 60'000;
constexpr int64_t kKeepMillis = 3'600'000;

class MemoryReader final : public Reader {
 public:
  explicit MemoryReader(std::shared_ptr<const std::string> bytes) : bytes_(std::move(bytes)) {}

  uint64_t length() const override { return bytes_->size(); }
  Status ReadAt(uint64_t offset, absl::Span<char> into) const override {
    CAIRN_RETURN_IF_ERROR(CheckWithinObject(offset, into.size(), bytes_->size()));
    std::copy_n(bytes_->data() + offset, into.size(), into.data());
    return absl::OkStatus();
  }
  std::optional<int> Descriptor() const override { return std::nullopt; }

 private:
  const std::shared_ptr<const std::string> bytes_;
};

// The object's bytes, each block checked against its checksum.
StatusOr<std::string> Copy(const ObjectEntry& entry, const ObjectSource& source) {
  std::string bytes(entry.length, '\0');
  for (uint64_t block = 0; block < BlockCount(entry.length, entry.block_bytes); ++block) {
    const uint64_t offset = block * entry.block_bytes;
    const uint64_t length = std::min<uint64_t>(entry.block_bytes, entry.length - offset);
    CAIRN_RETURN_IF_ERROR(
        Annotate(source.Read(offset, absl::MakeSpan(bytes.data() + offset, length)), entry.name));
    if (block >= entry.block_crcs.size() ||
        Crc32c(0, bytes.data() + offset, length) != entry.block_crcs[block]) {
      return absl::DataLossError(
          absl::StrCat(entry.name, ": block ", block, " is not what was sealed"));
    }
  }
  return bytes;
}

}  // namespace

// --- MemoryStore

MemoryStore::Checkpoint* MemoryStore::Job::FindPublished(const CheckpointKey& key) {
  const auto standing = published.find(key.step);
  if (standing != published.end() && standing->second.key == key) return &standing->second;
  const auto aside = abandoned.find(key);
  return aside == abandoned.end() ? nullptr : &aside->second;
}

bool MemoryStore::Job::Replaced(const CheckpointKey& key) const {
  const auto newer = [&key](const CheckpointKey& other) {
    return other.step == key.step && other.attempt == key.attempt && other.revision > key.revision;
  };
  const auto standing = published.find(key.step);
  return (standing != published.end() && newer(standing->second.key)) ||
         std::any_of(abandoned.begin(), abandoned.end(),
                     [&](const auto& aside) { return newer(aside.first); });
}

void MemoryStore::Job::Publish(Checkpoint checkpoint) {
  const CheckpointKey key = checkpoint.key;
  const auto [standing, free] = published.try_emplace(key.step);
  if (free || standing->second.key.attempt <= key.attempt) {
    std::swap(standing->second, checkpoint);
  }
  if (!free && checkpoint.key.attempt != standing->second.key.attempt) {
    abandoned.insert_or_assign(checkpoint.key, std::move(checkpoint));
  }
  std::erase_if(abandoned, [&](const auto& aside) { return Replaced(aside.first); });
}

MemoryStore::Checkpoint* MemoryStore::Find(const CheckpointKey& key) {
  const auto job = jobs_.find(key.job);
  if (job == jobs_.end()) return nullptr;
  if (Checkpoint* published = job->second.FindPublished(key)) return published;
  const auto unpublished = job->second.unpublished.find(key);
  return unpublished == job->second.unpublished.end() ? nullptr : &unpublished->second;
}

std::shared_ptr<const std::string>* MemoryStore::FindObject(const CheckpointKey& key,
                                                            const std::string& object) {
  Checkpoint* checkpoint = Find(key);
  if (checkpoint == nullptr) std::abort();  // the test is wrong
  for (auto& [writer, part] : checkpoint->parts) {
    const auto found = part.objects.find(object);
    if (found != part.objects.end()) return &found->second;
  }
  std::abort();
}

void MemoryStore::Truncate(const CheckpointKey& checkpoint, const std::string& object,
                           uint64_t length) {
  MutexLock lock(&mu_);
  std::shared_ptr<const std::string>* bytes = FindObject(checkpoint, object);
  *bytes = std::make_shared<const std::string>((*bytes)->substr(0, length));
}

void MemoryStore::Remove(const CheckpointKey& checkpoint, const std::string& object) {
  MutexLock lock(&mu_);
  FindObject(checkpoint, object)->reset();
}

void MemoryStore::Replace(const std::string& id) {
  MutexLock lock(&mu_);
  standing_ = id;
}

void MemoryStore::PutBack() {
  MutexLock lock(&mu_);
  standing_ = id_;
}

void MemoryStore::Age(const CheckpointKey& checkpoint, int seconds) {
  MutexLock lock(&mu_);
  Checkpoint* found = Find(checkpoint);
  if (found == nullptr) std::abort();  // the test is wrong
  found->changed_unix_ms -= int64_t{1000} * seconds;
}

CheckpointKey MemoryStore::InPlace(const std::string& job, Step step) {
  MutexLock lock(&mu_);
  const auto at = jobs_.find(job);
  if (at != jobs_.end()) {
    const auto standing = at->second.published.find(step);
    if (standing != at->second.published.end()) return standing->second.key;
  }
  return {job, step, 0, -1};
}

// --- MemoryStorage

class MemoryStorage final : public Storage {
 public:
  explicit MemoryStorage(std::shared_ptr<MemoryStore> store) : store_(std::move(store)) {}

  StatusOr<RootIdentity> Identity() override;
  void Expect(const std::string& id) override;
  Status WriteParts(const CheckpointKey& checkpoint, Owner owner,
                    const std::vector<PartToWrite>& parts) override;
  StatusOr<LineRecord> WriteLineRecord(const LineRecord& record, Owner owner) override;
  StatusOr<Published> Publish(const CheckpointKey& checkpoint, Owner owner) override;
  Status Reinstate(const CheckpointKey& checkpoint, Owner owner) override;
  Status Sweep(const std::string& job, const SweepRules& rules) override;
  using Storage::Delete;
  Status Delete(const CheckpointKey& checkpoint, Owner owner, DeleteKind kind,
                const Chosen& chosen) override;
  StatusOr<StoredJob> Read(const std::string& job) override;
  StatusOr<LineNumbers> ReadLineNumbers(const std::string& job) override;
  StatusOr<std::vector<std::string>> Jobs() override;
  StatusOr<Owner> JobOwner(const std::string& job) override;
  StatusOr<std::unique_ptr<Reader>> Open(const StoredCheckpoint& checkpoint, absl::string_view name,
                                         Owner reader) override;
  Counters counters() const override;

 private:
  using Part = MemoryStore::Part;
  using Checkpoint = MemoryStore::Checkpoint;
  using Job = MemoryStore::Job;

  static Location LocationOf(const CheckpointKey& key, bool published) {
    return Location(
        absl::StrCat(published ? "memory:" : "memory, unpublished:", key.DebugString()));
  }
  static StoredCheckpoint Describe(const Checkpoint& checkpoint, bool published);
  // DATA_LOSS when an object of the part is missing or has another length than its manifest says.
  static Status CheckObjects(const Part& part);
  static StatusOr<bool> PartStands(const Checkpoint& checkpoint, const PartToWrite& part);
  static Status CheckOwner(const std::string& name, const Job& job, Owner owner);

  Status CheckThere() ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_->mu_);
  // Those of `parts` that are not stored whole; nothing when the step was removed, the parts are in
  // conflict, or another manifest of a writer stands.
  StatusOr<std::vector<const PartToWrite*>> FindMissing(const CheckpointKey& key, Owner owner,
                                                        const std::vector<PartToWrite>& parts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_->mu_);

  const std::shared_ptr<MemoryStore> store_;
  std::string expected_ ABSL_GUARDED_BY(store_->mu_);  // empty: none has been met
  std::atomic<uint64_t> objects_{0}, bytes_{0}, published_{0};
};

StatusOr<RootIdentity> MemoryStorage::Identity() {
  MutexLock lock(&store_->mu_);
  if (store_->standing_.empty()) return absl::UnavailableError("memory: nothing stands there");
  if (expected_.empty()) expected_ = store_->standing_;
  return RootIdentity{store_->standing_, store_->standing_};
}

void MemoryStorage::Expect(const std::string& id) {
  MutexLock lock(&store_->mu_);
  expected_ = id;
}

Status MemoryStorage::CheckThere() {
  if (expected_.empty()) expected_ = store_->standing_;
  if (!expected_.empty() && expected_ == store_->standing_) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("memory: \"", store_->standing_, "\" stands there, not \"", expected_, "\""));
}

Status MemoryStorage::CheckObjects(const Part& part) {
  for (const ObjectEntry& entry : part.stored.manifest.objects) {
    const std::shared_ptr<const std::string>& bytes = part.objects.at(entry.name);
    if (bytes == nullptr) return absl::DataLossError(absl::StrCat(entry.name, ": is gone"));
    if (bytes->size() != entry.length) {
      return absl::DataLossError(
          absl::StrCat(entry.name, ": has ", bytes->size(), " bytes, not ", entry.length));
    }
  }
  return absl::OkStatus();
}

StatusOr<bool> MemoryStorage::PartStands(const Checkpoint& checkpoint, const PartToWrite& part) {
  const auto stored = checkpoint.parts.find(part.manifest->writer);
  if (stored == checkpoint.parts.end()) return false;
  if (stored->second.stored.digest != ManifestDigest(part.encoded)) {
    return absl::AlreadyExistsError(
        absl::StrCat("writer ", part.manifest->writer, " has another manifest in storage"));
  }
  return CheckObjects(stored->second).ok();
}

Status MemoryStorage::CheckOwner(const std::string& name, const Job& job, Owner owner) {
  if (job.owner.uid == owner.uid) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(name, " belongs to uid ", job.owner.uid, " in storage, not to uid ", owner.uid));
}

StoredCheckpoint MemoryStorage::Describe(const Checkpoint& checkpoint, bool published) {
  StoredCheckpoint stored;
  stored.key = checkpoint.key;
  stored.location = LocationOf(checkpoint.key, published);
  stored.published = published;
  for (const auto& [writer, part] : checkpoint.parts) stored.parts.push_back(part.stored);
  stored.world_size = stored.parts.front().manifest.world_size;
  stored.conflict = PartConflict(stored.parts);
  return stored;
}

StatusOr<std::vector<const PartToWrite*>> MemoryStorage::FindMissing(
    const CheckpointKey& key, Owner owner, const std::vector<PartToWrite>& parts) {
  CAIRN_RETURN_IF_ERROR(CheckThere());
  std::vector<const PartToWrite*> missing;
  for (const PartToWrite& part : parts) missing.push_back(&part);
  const auto at = store_->jobs_.find(key.job);
  if (at != store_->jobs_.end()) {
    CAIRN_RETURN_IF_ERROR(CheckOwner(key.job, at->second, owner));
    if (at->second.Removed(key)) {
      return absl::FailedPreconditionError(
          absl::StrCat(key.DebugString(), ": the step was removed"));
    }
    if (at->second.Replaced(key)) {
      return absl::FailedPreconditionError(
          absl::StrCat(key.DebugString(), ": a newer revision has replaced it"));
    }
  }
  std::vector<const Manifest*> together;
  if (const Checkpoint* stored = store_->Find(key)) {
    missing.clear();
    for (const auto& [writer, part] : stored->parts) together.push_back(&part.stored.manifest);
    for (const PartToWrite& part : parts) {
      CAIRN_ASSIGN_OR_RETURN(const bool stands, PartStands(*stored, part));
      if (!stands) missing.push_back(&part);
    }
  }
  for (const PartToWrite* part : missing) {
    const Writer writer = part->manifest->writer;
    std::erase_if(together, [writer](const Manifest* m) { return m->writer == writer; });
    together.push_back(part->manifest);
  }
  const std::string conflict = ManifestConflict(together);
  if (!conflict.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("in conflict: ", conflict));
  }
  return missing;
}

Status MemoryStorage::WriteParts(const CheckpointKey& checkpoint, Owner owner,
                                 const std::vector<PartToWrite>& parts) {
  CAIRN_RETURN_IF_ERROR(CheckPartsAreOf(checkpoint, parts));
  std::vector<const PartToWrite*> missing;
  {
    MutexLock lock(&store_->mu_);
    CAIRN_ASSIGN_OR_RETURN(missing, FindMissing(checkpoint, owner, parts));
  }
  std::vector<Part> copies;
  for (const PartToWrite* part : missing) {
    Part& copy = copies.emplace_back();
    copy.stored = {*part->manifest, ManifestDigest(part->encoded)};
    for (size_t i = 0; i < part->sources.size(); ++i) {
      const ObjectEntry& entry = part->manifest->objects[i];
      CAIRN_ASSIGN_OR_RETURN(std::string bytes, Copy(entry, *part->sources[i]));
      copy.objects[entry.name] = std::make_shared<const std::string>(std::move(bytes));
      ++objects_;
      bytes_ += entry.length;
    }
  }
  MutexLock lock(&store_->mu_);
  // Others may have written, published or removed meanwhile.
  CAIRN_RETURN_IF_ERROR(FindMissing(checkpoint, owner, parts).status());
  if (copies.empty()) return absl::OkStatus();
  Job& job = store_->jobs_.try_emplace(checkpoint.job, Job{owner}).first->second;
  Checkpoint* stored = store_->Find(checkpoint);
  if (stored == nullptr) {
    stored = &job.unpublished[checkpoint];
    stored->key = checkpoint;
  }
  for (Part& copy : copies) {
    const Writer writer = copy.stored.manifest.writer;
    stored->parts.insert_or_assign(writer, std::move(copy));
  }
  stored->changed_unix_ms = store_->clock_->UnixMillis();
  return absl::OkStatus();
}

StatusOr<Published> MemoryStorage::Publish(const CheckpointKey& checkpoint, Owner owner) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(checkpoint.job));
  MutexLock lock(&store_->mu_);
  CAIRN_RETURN_IF_ERROR(CheckThere());
  const Published lacks_parts{std::nullopt, /*lacks_parts=*/true};
  const Published stands{LocationOf(checkpoint, /*published=*/true)};
  const auto at = store_->jobs_.find(checkpoint.job);
  if (at == store_->jobs_.end()) return lacks_parts;
  Job& job = at->second;
  CAIRN_RETURN_IF_ERROR(CheckOwner(checkpoint.job, job, owner));
  if (job.Removed(checkpoint)) return Published();
  if (job.FindPublished(checkpoint) != nullptr) return stands;
  const auto unpublished = job.unpublished.find(checkpoint);
  const bool replaced = job.Replaced(checkpoint);
  if (unpublished == job.unpublished.end()) return replaced ? Published() : lacks_parts;
  const StoredCheckpoint stored = Describe(unpublished->second, /*published=*/false);
  if (!stored.conflict.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("in conflict: ", stored.conflict));
  }
  if (!stored.Complete()) return replaced ? Published() : lacks_parts;
  for (const auto& [writer, part] : unpublished->second.parts) {
    CAIRN_RETURN_IF_ERROR(CheckObjects(part));
  }
  if (!replaced) {
    job.Publish(std::move(unpublished->second));
    ++published_;
  }
  job.unpublished.erase(unpublished);
  return replaced ? Published() : stands;
}

Status MemoryStorage::Reinstate(const CheckpointKey& checkpoint, Owner owner) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(checkpoint.job));
  const auto not_found =
      absl::NotFoundError(absl::StrCat(checkpoint.DebugString(), ": is not in storage"));
  MutexLock lock(&store_->mu_);
  CAIRN_RETURN_IF_ERROR(CheckThere());
  const auto at = store_->jobs_.find(checkpoint.job);
  if (at == store_->jobs_.end()) return not_found;
  Job& job = at->second;
  CAIRN_RETURN_IF_ERROR(CheckOwner(checkpoint.job, job, owner));
  if (job.Replaced(checkpoint)) {
    return absl::FailedPreconditionError(
        absl::StrCat(checkpoint.DebugString(), ": a newer revision has replaced it"));
  }
  if (job.FindPublished(checkpoint) == nullptr) return not_found;
  const auto aside = job.abandoned.find(checkpoint);
  if (aside == job.abandoned.end()) return absl::OkStatus();  // it stands there
  for (const auto& [writer, part] : aside->second.parts) CAIRN_RETURN_IF_ERROR(CheckObjects(part));
  Checkpoint chosen = std::move(aside->second);
  job.abandoned.erase(aside);
  const auto [standing, free] = job.published.try_emplace(checkpoint.step);
  std::swap(standing->second, chosen);
  if (!free) job.abandoned.insert_or_assign(chosen.key, std::move(chosen));
  return absl::OkStatus();
}

Status MemoryStorage::Sweep(const std::string& job, const SweepRules& rules) {
  MutexLock lock(&store_->mu_);
  CAIRN_RETURN_IF_ERROR(CheckThere());
  const auto at = store_->jobs_.find(job);
  if (at == store_->jobs_.end()) return absl::OkStatus();
  const int64_t now = store_->clock_->UnixMillis();
  std::erase_if(at->second.unpublished, [&](const auto& entry) {
    const auto& [key, checkpoint] = entry;
    const bool useless = at->second.Removed(key) || (rules.superseded && rules.superseded(key));
    if (!useless && (!rules.wanted || rules.wanted(key))) return false;
    const int64_t keep = useless || rules.full ? kSweepAgeMillis : kKeepMillis;
    return now - checkpoint.changed_unix_ms >= keep;
  });
  return absl::OkStatus();
}

Status MemoryStorage::Delete(const CheckpointKey& checkpoint, Owner owner, DeleteKind kind,
                             const Chosen& chosen) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(checkpoint.job));
  MutexLock lock(&store_->mu_);
  CAIRN_RETURN_IF_ERROR(CheckThere());
  const bool for_good = kind != DeleteKind::kFiles;
  if (for_good) store_->jobs_.try_emplace(checkpoint.job, Job{owner});
  const auto at = store_->jobs_.find(checkpoint.job);
  if (at == store_->jobs_.end()) return absl::OkStatus();
  Job& job = at->second;
  if (!for_good && chosen.stays.has_value()) {
    const auto at_step = job.published.find(chosen.stays->step);
    const bool in_place = at_step != job.published.end() && at_step->second.key == *chosen.stays;
    if (!in_place && !job.abandoned.contains(*chosen.stays)) {
      return absl::FailedPreconditionError("the one that stays is not published");
    }
  }
  if (!for_good) {
    Attempt published = 0;
    for (const auto& [id, record] : job.records) {
      if (id.second == LineRecordKind::kOrigin) published = std::max(published, id.first);
    }
    if (published > chosen.newest_known)
      return absl::FailedPreconditionError("another life may need it");
    for (const auto& [id, record] : job.records) {
      if (id.second == LineRecordKind::kOrigin || id.first <= published) continue;
      for (const LineageEntry& entry : record.lineage.entries) {
        if (entry.attempt == checkpoint.attempt && checkpoint.step <= entry.up_to) {
          return absl::FailedPreconditionError("a decision needs it");
        }
      }
    }
  }
  CAIRN_RETURN_IF_ERROR(CheckOwner(checkpoint.job, job, owner));
  if (for_good) {
    AttemptRanges removed = job.removed.steps[checkpoint.step];
    removed.Add(kind == DeleteKind::kUpToAttempt ? 1 : checkpoint.attempt, checkpoint.attempt);
    if (removed.ranges().size() > kMaxRemovedRanges) {
      return absl::ResourceExhaustedError("too many ranges of attempts were removed of this step");
    }
    job.removed.steps[checkpoint.step] = std::move(removed);
    std::erase_if(job.unpublished, [&](const auto& entry) { return job.Removed(entry.first); });
  }
  const auto meant = [&](const CheckpointKey& key) {
    return key == checkpoint || (for_good && job.Removed(key));
  };
  std::erase_if(job.abandoned, [&](const auto& entry) { return meant(entry.first); });
  std::erase_if(job.published, [&](const auto& entry) { return meant(entry.second.key); });
  return absl::OkStatus();
}

StatusOr<LineRecord> MemoryStorage::WriteLineRecord(const LineRecord& record, Owner owner) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(record.job));
  MutexLock lock(&store_->mu_);
  CAIRN_RETURN_IF_ERROR(CheckThere());
  Job& job = store_->jobs_.try_emplace(record.job, Job{owner}).first->second;
  CAIRN_RETURN_IF_ERROR(CheckOwner(record.job, job, owner));
  const auto [at, fresh] = job.records.try_emplace({record.number, record.kind}, record);
  if (record.kind == LineRecordKind::kResume) at->second = record;
  return at->second;
}

StatusOr<StoredJob> MemoryStorage::Read(const std::string& job) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(job));
  MutexLock lock(&store_->mu_);
  CAIRN_RETURN_IF_ERROR(CheckThere());
  const auto at = store_->jobs_.find(job);
  if (at == store_->jobs_.end()) return absl::NotFoundError(absl::StrCat(job, ": is not stored"));
  StoredJob found;
  for (const auto& [step, checkpoint] : at->second.published) {
    found.checkpoints.push_back(Describe(checkpoint, /*published=*/true));
  }
  for (const auto& [key, checkpoint] : at->second.abandoned) {
    found.checkpoints.push_back(Describe(checkpoint, /*published=*/true));
  }
  for (const auto& [key, checkpoint] : at->second.unpublished) {
    if (!at->second.Removed(key)) {
      found.checkpoints.push_back(Describe(checkpoint, /*published=*/false));
    }
  }
  std::sort(found.checkpoints.begin(), found.checkpoints.end(),
            [](const StoredCheckpoint& a, const StoredCheckpoint& b) { return a.key < b.key; });
  found.removed = at->second.removed;
  for (const auto& [id, record] : at->second.records) found.records.push_back(record);
  return found;
}

StatusOr<std::vector<std::string>> MemoryStorage::Jobs() {
  MutexLock lock(&store_->mu_);
  CAIRN_RETURN_IF_ERROR(CheckThere());
  std::vector<std::string> jobs;
  for (const auto& [name, job] : store_->jobs_) jobs.push_back(name);
  return jobs;
}

StatusOr<LineNumbers> MemoryStorage::ReadLineNumbers(const std::string& job) {
  CAIRN_ASSIGN_OR_RETURN(const StoredJob stored, Read(job));
  return NumbersOf(stored.records);
}

StatusOr<Owner> MemoryStorage::JobOwner(const std::string& job) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(job));
  MutexLock lock(&store_->mu_);
  CAIRN_RETURN_IF_ERROR(CheckThere());
  const auto at = store_->jobs_.find(job);
  if (at == store_->jobs_.end()) return absl::NotFoundError(absl::StrCat(job, ": is not stored"));
  return at->second.owner;
}

StatusOr<std::unique_ptr<Reader>> MemoryStorage::Open(const StoredCheckpoint& checkpoint,
                                                      absl::string_view name, Owner reader) {
  CAIRN_ASSIGN_OR_RETURN(const StoredObject object, FindObject(checkpoint, name));
  const std::string what = absl::StrCat(checkpoint.key.DebugString(), " ", name);
  MutexLock lock(&store_->mu_);
  CAIRN_RETURN_IF_ERROR(CheckThere());
  const auto at = store_->jobs_.find(checkpoint.key.job);
  if (at == store_->jobs_.end()) return absl::NotFoundError(absl::StrCat(what, ": is not stored"));
  if (reader.uid != 0) {
    CAIRN_RETURN_IF_ERROR(CheckOwner(checkpoint.key.job, at->second, reader));
  }
  const Checkpoint* stored = store_->Find(checkpoint.key);
  const Part* part = nullptr;
  if (stored != nullptr) {
    const auto found = stored->parts.find(object.part->manifest.writer);
    if (found != stored->parts.end()) part = &found->second;
  }
  if (part == nullptr || part->stored.digest != object.part->digest) {
    return absl::NotFoundError(absl::StrCat(what, ": is no longer in storage"));
  }
  const std::shared_ptr<const std::string>& bytes = part->objects.at(object.entry->name);
  if (bytes == nullptr) return absl::DataLossError(absl::StrCat(what, ": is gone"));
  if (bytes->size() != object.entry->length) {
    return absl::DataLossError(
        absl::StrCat(what, ": has ", bytes->size(), " bytes, not ", object.entry->length));
  }
  return std::make_unique<MemoryReader>(bytes);
}

Counters MemoryStorage::counters() const {
  Counters now;
  now.objects_written = objects_;
  now.bytes_written = bytes_;
  now.published = published_;
  return now;
}

std::unique_ptr<Storage> MakeMemoryStorage(std::shared_ptr<MemoryStore> store) {
  return std::make_unique<MemoryStorage>(std::move(store));
}

}  // namespace cairn::storage
