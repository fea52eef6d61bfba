#include "common/layout.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/fd.h"

namespace cairn {
namespace {

constexpr char kManifestSuffix[] = ".manifest";
constexpr uint64_t kMaxTombstoneBytes = 64;

std::string CheckpointName(const CheckpointKey& checkpoint) {
  return absl::StrCat(checkpoint.step, ".", checkpoint.attempt, ".", checkpoint.revision);
}

// A number exactly as StrCat writes it: no sign, no leading zeros.
template <typename Number>
bool ParseCanonical(absl::string_view text, Number* number) {
  return absl::SimpleAtoi(text, number) && *number >= 0 && absl::StrCat(*number) == text;
}

std::string Join(absl::string_view directory, absl::string_view name) {
  return absl::StrCat(directory, "/", name);
}

// A name may vanish between listing and opening it; for the scan that is not an error.
bool Vanished(const Status& status) { return absl::IsNotFound(status); }

class JobScan {
 public:
  JobScan(const std::string& root, const std::string& job) : path_(Join(root, job)), job_(job) {}

  StatusOr<StoredJob> Run(int root) {
    CAIRN_ASSIGN_OR_RETURN(directory_, OpenBeneath(root, job_, O_RDONLY | O_DIRECTORY));
    // In the order in which checkpoints move, so that one that moves meanwhile is seen at least
    // once.
    CAIRN_RETURN_IF_ERROR(ScanTombstones());
    CAIRN_RETURN_IF_ERROR(ScanLineRecords());
    CAIRN_RETURN_IF_ERROR(ScanMeta("partial", /*published=*/false));
    CAIRN_RETURN_IF_ERROR(ScanMeta("publish", /*published=*/true));
    CAIRN_RETURN_IF_ERROR(ScanSteps());
    Settle();
    return std::move(found_);
  }

 private:
  Status ScanTombstones() {
    auto directory =
        OpenBeneath(directory_.get(), Join(kMetaDirectory, "removed"), O_RDONLY | O_DIRECTORY);
    if (Vanished(directory.status())) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(directory.status());
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory->get()));
    for (const std::string& name : names) {
      const Step step = ParseStepDirectory(name);
      if (step == kNoStep) continue;
      const StatusOr<Attempt> attempt = ReadTombstone(directory_.get(), step);
      if (attempt.ok()) {
        if (*attempt > 0) found_.removed[step] = *attempt;
      } else {
        Problem(Join(path_, TombstoneFile(step)), attempt.status());
      }
    }
    return absl::OkStatus();
  }

  Status ScanLineRecords() {
    auto directory =
        OpenBeneath(directory_.get(), Join(kMetaDirectory, "line"), O_RDONLY | O_DIRECTORY);
    if (Vanished(directory.status())) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(directory.status());
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory->get()));
    for (const std::string& name : names) {
      Attempt number = 0;
      LineRecordKind kind = LineRecordKind::kResume;
      if (!ParseLineRecordName(name, &number, &kind)) continue;
      StatusOr<LineRecord> record = ReadLineRecord(directory_.get(), job_, number, kind);
      if (record.ok()) {
        found_.records.push_back(*std::move(record));
      } else if (!Vanished(record.status())) {
        Problem(Join(path_, LineRecordFile(number, kind)), record.status());
      }
    }
    return absl::OkStatus();
  }

  Status ScanMeta(absl::string_view which, bool published) {
    const std::string inside = Join(kMetaDirectory, which);
    auto parent = OpenBeneath(directory_.get(), inside, O_RDONLY | O_DIRECTORY);
    if (Vanished(parent.status())) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(parent.status());
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(parent->get()));
    for (const std::string& name : names) {
      CheckpointKey named;
      if (!ParseCheckpointDirectory(name, &named)) continue;
      named.job = job_;
      auto stored = Look(parent->get(), name, Join(path_, Join(inside, name)));
      if (!stored.has_value()) continue;
      // A partial directory only ever holds the checkpoint it is named after. publish/ may hold an
      // older checkpoint on its way to the trash, under the name of the one that replaced it.
      if (!published && !(stored->key == named)) {
        found_.problems.push_back(absl::StrCat(stored->location.text(), ": holds manifests of ",
                                               stored->key.DebugString()));
        continue;
      }
      stored->published = published;
      Add(*std::move(stored));
    }
    return absl::OkStatus();
  }

  Status ScanSteps() {
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory_.get()));
    for (const std::string& name : names) {
      const Step step = ParseStepDirectory(name);
      if (step == kNoStep) continue;
      auto stored = Look(directory_.get(), name, Join(path_, name));
      if (!stored.has_value()) continue;
      if (stored->key.step != step) {
        found_.problems.push_back(absl::StrCat(stored->location.text(), ": holds manifests of ",
                                               stored->key.DebugString()));
        continue;
      }
      stored->published = true;
      in_place_[step] = stored->key;
      Add(*std::move(stored));
    }
    return absl::OkStatus();
  }

  std::optional<StoredCheckpoint> Look(int parent, const std::string& name,
                                       const std::string& path) {
    const auto directory = OpenBeneath(parent, name, O_RDONLY | O_DIRECTORY);
    // Other errors are the user's affair: ENOTDIR, for example, is a file with a number for a name.
    if (!directory.ok()) {
      if (absl::IsPermissionDenied(directory.status())) Problem(path, directory.status());
      return std::nullopt;
    }
    auto stored = ReadStoredCheckpoint(directory->get(), path, &found_.problems);
    if (!stored.ok()) {
      if (!Vanished(stored.status())) Problem(path, stored.status());
      return std::nullopt;
    }
    if (stored->key.job != job_) {
      found_.problems.push_back(
          absl::StrCat(path, ": holds manifests of ", stored->key.DebugString()));
      return std::nullopt;
    }
    return *std::move(stored);
  }

  void Add(StoredCheckpoint stored) {
    const auto removed = found_.removed.find(stored.key.step);
    if (removed != found_.removed.end() && stored.key.attempt <= removed->second) return;
    auto [at, is_new] = by_key_.try_emplace(stored.key, std::move(stored));
    // A later sighting is further along: what was partial has been published meanwhile.
    if (!is_new) at->second = std::move(stored);
  }

  void Settle() {
    for (auto& [key, stored] : by_key_) {
      const auto in_place = in_place_.find(key.step);
      const bool aside =
          stored.published && in_place != in_place_.end() && !(in_place->second == key);
      // A checkpoint that stands aside and is older than the one in place has been replaced.
      if (aside && std::tie(key.attempt, key.revision) <
                       std::tie(in_place->second.attempt, in_place->second.revision)) {
        continue;
      }
      if (!stored.conflict.empty()) {
        found_.problems.push_back(
            absl::StrCat(stored.location.text(), ": in conflict: ", stored.conflict));
      }
      found_.checkpoints.push_back(std::move(stored));
    }
  }

  void Problem(const std::string& path, const Status& status) {
    found_.problems.push_back(absl::StrCat(path, ": ", status.message()));
  }

  const std::string path_;
  const std::string job_;
  UniqueFd directory_;
  StoredJob found_;
  std::map<CheckpointKey, StoredCheckpoint> by_key_;
  std::map<Step, CheckpointKey> in_place_;
};

// `access` is O_RDONLY to list the root, or O_PATH to open what is below it, which takes no right
// to list.
StatusOr<UniqueFd> OpenRoot(const std::string& root, int access) {
  // The operator has named the root: its path alone may lead through symbolic links.
  UniqueFd fd(::open(root.c_str(), access | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("storage root ", root));
  return fd;
}

}  // namespace

std::string StepDirectory(Step step) { return absl::StrCat(step); }

std::string PartialDirectory(const CheckpointKey& checkpoint) {
  return absl::StrCat(kMetaDirectory, "/partial/", CheckpointName(checkpoint));
}

std::string PublishDirectory(const CheckpointKey& checkpoint) {
  return absl::StrCat(kMetaDirectory, "/publish/", CheckpointName(checkpoint));
}

std::string ManifestFile(Writer writer) {
  return absl::StrCat(kMetaDirectory, "/", writer, kManifestSuffix);
}

std::string TrashName(const CheckpointKey& checkpoint, uint64_t n) {
  return absl::StrCat(CheckpointName(checkpoint), ".", n);
}

std::string TombstoneFile(Step step) { return absl::StrCat(kMetaDirectory, "/removed/", step); }

std::string LineRecordFile(Attempt number, LineRecordKind kind) {
  return absl::StrCat(kMetaDirectory, "/line/", LineRecordName(number, kind));
}

Step ParseStepDirectory(absl::string_view name) {
  Step step = kNoStep;
  return ParseCanonical(name, &step) ? step : kNoStep;
}

bool ParseCheckpointDirectory(absl::string_view name, CheckpointKey* checkpoint) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  uint64_t n = 0;
  return (parts.size() == 3 || (parts.size() == 4 && ParseCanonical(parts[3], &n))) &&
         ParseCanonical(parts[0], &checkpoint->step) &&
         ParseCanonical(parts[1], &checkpoint->attempt) && checkpoint->attempt > 0 &&
         ParseCanonical(parts[2], &checkpoint->revision);
}

StatusOr<StoredCheckpoint> ReadStoredCheckpoint(int directory, const std::string& path,
                                                std::vector<std::string>* problems) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd meta,
                         OpenBeneath(directory, kMetaDirectory, O_RDONLY | O_DIRECTORY));
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(meta.get()));
  std::vector<std::pair<Writer, std::string>> files;
  for (const std::string& name : names) {
    absl::string_view number = name;
    Writer writer = 0;
    if (absl::ConsumeSuffix(&number, kManifestSuffix) && ParseCanonical(number, &writer)) {
      files.emplace_back(writer, name);
    }
  }
  std::sort(files.begin(), files.end());

  StoredCheckpoint stored;
  stored.location = Location(path);
  bool vanished = files.empty();
  for (const auto& [writer, name] : files) {
    const auto problem = [&, &file = name](const Status& status) {
      problems->push_back(
          absl::StrCat(path, "/", kMetaDirectory, "/", file, ": ", status.message()));
    };
    const auto fd = OpenBeneath(meta.get(), name, O_RDONLY);
    if (Vanished(fd.status())) {
      vanished = true;
      continue;
    }
    const StatusOr<std::string> bytes =
        fd.ok() ? ReadRegularFile(fd->get(), kMaxManifestBytes) : fd.status();
    if (!bytes.ok()) {
      problem(bytes.status());
      continue;
    }
    StatusOr<Manifest> manifest = DecodeManifest(*bytes);
    if (!manifest.ok()) {
      problem(manifest.status());
      continue;
    }
    if (manifest->writer != writer) {
      problem(absl::DataLossError(absl::StrCat("is the manifest of writer ", manifest->writer)));
      continue;
    }
    stored.parts.push_back({*std::move(manifest), ManifestDigest(*bytes)});
  }
  if (stored.parts.empty()) {
    return vanished ? absl::NotFoundError(absl::StrCat(path, ": has no manifest"))
                    : absl::DataLossError("has no manifest that can be read");
  }
  stored.key = stored.parts.front().manifest.Checkpoint();
  stored.world_size = stored.parts.front().manifest.world_size;
  stored.conflict = PartConflict(stored.parts);
  return stored;
}

StatusOr<Attempt> ReadTombstone(int job_directory, Step step) {
  const auto fd = OpenBeneath(job_directory, TombstoneFile(step), O_RDONLY);
  if (Vanished(fd.status())) return 0;
  CAIRN_RETURN_IF_ERROR(fd.status());
  CAIRN_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(fd->get(), kMaxTombstoneBytes));
  Attempt attempt = 0;
  absl::string_view text = bytes;
  absl::ConsumeSuffix(&text, "\n");
  if (!ParseCanonical(text, &attempt) || attempt == 0) {
    return absl::DataLossError("is not the number of an attempt");
  }
  return attempt;
}

StatusOr<LineRecord> ReadLineRecord(int job_directory, const std::string& job, Attempt number,
                                    LineRecordKind kind) {
  const auto fd = OpenBeneath(job_directory, LineRecordFile(number, kind), O_RDONLY);
  CAIRN_RETURN_IF_ERROR(fd.status());
  CAIRN_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(fd->get(), kMaxLineRecordBytes));
  CAIRN_ASSIGN_OR_RETURN(LineRecord record, DecodeLineRecord(bytes));
  if (record.job != job || record.number != number || record.kind != kind) {
    return absl::DataLossError(absl::StrCat("is ", LineRecordName(record.number, record.kind),
                                            " of job ", record.job));
  }
  return record;
}

StatusOr<StoredJob> ReadStoredJob(const std::string& root, const std::string& job) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(job));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd directory, OpenRoot(root, O_PATH));
  return ReadStoredJobBelow(directory.get(), root, job);
}

StatusOr<StoredJob> ReadStoredJobBelow(int root, const std::string& path, const std::string& job) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(job));
  return JobScan(path, job).Run(root);
}

StatusOr<std::vector<std::string>> ListStoredJobs(const std::string& root) {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd directory, OpenRoot(root, O_RDONLY));
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory.get()));
  std::vector<std::string> jobs;
  for (const std::string& name : names) {
    if (!ValidateJob(name).ok()) continue;
    // A job that may not be looked into is left out, like one that is not there.
    if (OpenBeneath(directory.get(), Join(name, kMetaDirectory), O_PATH | O_DIRECTORY).ok()) {
      jobs.push_back(name);
    }
  }
  return jobs;
}

}  // namespace cairn
