#include "common/layout.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/fd.h"

namespace cairn {
namespace {

constexpr char kManifestSuffix[] = ".manifest";
constexpr char kTombstonesSuffix[] = ".attempts";
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

// A small file of ours below `directory`, `path` beneath it. UNAVAILABLE: it stands there and cannot be
// read now. DATA_LOSS: what stands there is none of ours.
StatusOr<std::string> ReadSmallFile(int directory, const std::string& path, uint64_t max_bytes) {
  const auto fd = OpenBeneath(directory, path, O_RDONLY);
  if (!fd.ok()) return WhyNotOpened(directory, path, S_IFREG, fd.status());
  StatusOr<std::string> bytes = ReadRegularFile(fd->get(), max_bytes);
  if (bytes.ok()) return bytes;
  const bool not_ours = absl::IsInvalidArgument(bytes.status());
  return Status(not_ours ? absl::StatusCode::kDataLoss : absl::StatusCode::kUnavailable,
                bytes.status().message());
}

}  // namespace

std::string StepDirectory(Step step) { return absl::StrCat(step); }

std::string PartialDirectory(const CheckpointKey& checkpoint) {
  return absl::StrCat(kMetaDirectory, "/partial/", CheckpointName(checkpoint));
}

std::string AbandonedDirectory(const CheckpointKey& checkpoint) {
  return absl::StrCat(kMetaDirectory, "/abandoned/", CheckpointName(checkpoint));
}

std::string PartDirectory(Writer writer) {
  return absl::StrCat(kMetaDirectory, "/", kPartsDirectory, "/", writer);
}

std::string ManifestName(Writer writer) { return absl::StrCat(writer, kManifestSuffix); }

std::string ManifestFile(Writer writer) { return Join(kMetaDirectory, ManifestName(writer)); }

std::string NumberedName(const CheckpointKey& checkpoint, uint64_t n) {
  return absl::StrCat(CheckpointName(checkpoint), ".", n);
}

std::string TombstoneFile(Step step) { return absl::StrCat(kMetaDirectory, "/removed/", step); }

std::string LineRecordFile(Attempt number, LineRecordKind kind) {
  return absl::StrCat(kMetaDirectory, "/line/", LineRecordName(number, kind));
}

std::string TombstoneDirectory(Step step) {
  return absl::StrCat(TombstoneFile(step), kTombstonesSuffix);
}

Step ParseStepDirectory(absl::string_view name) {
  Step step = kNoStep;
  return ParseCanonical(name, &step) ? step : kNoStep;
}

Step ParseTombstones(absl::string_view name) {
  return ParseStepDirectory(absl::StripSuffix(name, kTombstonesSuffix));
}

Writer ParseManifestName(absl::string_view name) {
  Writer writer = 0;
  return absl::ConsumeSuffix(&name, kManifestSuffix) && ParseCanonical(name, &writer) ? writer : -1;
}

Writer ParsePartName(absl::string_view name) {
  Writer writer = 0;
  return ParseCanonical(name, &writer) ? writer : -1;
}

bool ParseCheckpointDirectory(absl::string_view name, CheckpointKey* checkpoint) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  uint64_t n = 0;
  return (parts.size() == 3 || (parts.size() == 4 && ParseCanonical(parts[3], &n))) &&
         ParseCanonical(parts[0], &checkpoint->step) &&
         ParseCanonical(parts[1], &checkpoint->attempt) && checkpoint->attempt > 0 &&
         ParseCanonical(parts[2], &checkpoint->revision);
}

bool IsUnread(const Status& status) {
  return absl::IsUnavailable(status) || absl::IsUnimplemented(status);
}

Status WhyNotOpened(int directory, const std::string& name, mode_t type, const Status& why) {
  struct stat info = {};
  if (absl::IsNotFound(why) ||
      (::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
       (info.st_mode & S_IFMT) != type)) {
    return why;
  }
  return absl::UnavailableError(why.message());
}

bool IsOfAnother(int directory, const std::string& name) {
  struct stat of_directory = {}, of_name = {};
  return ::fstat(directory, &of_directory) == 0 &&
         ::fstatat(directory, name.c_str(), &of_name, AT_SYMLINK_NOFOLLOW) == 0 &&
         of_directory.st_uid != of_name.st_uid;
}

StatusOr<AttemptRanges> ReadTombstones(int job_directory, Step step) {
  AttemptRanges removed;
  // The older version's file first: it goes once what it says stands among the others.
  const auto file = ReadSmallFile(job_directory, TombstoneFile(step), kMaxTombstoneBytes);
  if (file.ok()) {
    Attempt attempt = 0;
    absl::string_view text = *file;
    absl::ConsumeSuffix(&text, "\n");
    if (!ParseCanonical(text, &attempt) || attempt == 0) {
      return absl::DataLossError("is not the number of an attempt");
    }
    removed.Add(1, attempt);
  } else if (!Vanished(file.status())) {
    return file.status();
  }
  const auto directory =
      OpenBeneath(job_directory, TombstoneDirectory(step), O_RDONLY | O_DIRECTORY);
  if (Vanished(directory.status())) return removed;
  if (!directory.ok()) {
    return WhyNotOpened(job_directory, TombstoneDirectory(step), S_IFDIR, directory.status());
  }
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory->get()));
  for (const std::string& name : names) {
    AttemptRanges::Range range;
    if (ParseRangeName(name, &range)) removed.Add(range.first, range.last);
  }
  return removed;
}

StatusOr<LineRecord> ReadLineRecord(int job_directory, const std::string& job, Attempt number,
                                    LineRecordKind kind) {
  CAIRN_ASSIGN_OR_RETURN(
      const std::string bytes,
      ReadSmallFile(job_directory, LineRecordFile(number, kind), kMaxLineRecordBytes));
  CAIRN_ASSIGN_OR_RETURN(LineRecord record, DecodeLineRecord(bytes));
  if (record.job != job || record.number != number || record.kind != kind) {
    return absl::DataLossError(
        absl::StrCat("is ", LineRecordName(record.number, record.kind), " of job ", record.job));
  }
  return record;
}

namespace {

// Their numbers and kinds alone.
StatusOr<std::vector<LineRecord>> ListLineRecords(int job_directory) {
  std::vector<LineRecord> records;
  const auto directory =
      OpenBeneath(job_directory, Join(kMetaDirectory, "line"), O_RDONLY | O_DIRECTORY);
  if (Vanished(directory.status())) return records;
  CAIRN_RETURN_IF_ERROR(directory.status());
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory->get()));
  for (const std::string& name : names) {
    LineRecord record;
    if (ParseLineRecordName(name, &record.number, &record.kind)) {
      records.push_back(std::move(record));
    }
  }
  return records;
}

}  // namespace

StatusOr<LineNumbers> ReadLineNumbers(int job_directory) {
  CAIRN_ASSIGN_OR_RETURN(const auto records, ListLineRecords(job_directory));
  return NumbersOf(records);
}

StatusOr<LineAhead> ReadLineAhead(int job_directory, const std::string& job) {
  CAIRN_ASSIGN_OR_RETURN(const auto records, ListLineRecords(job_directory));
  LineAhead ahead;
  ahead.published = NumbersOf(records).published;
  for (const LineRecord& named : records) {
    if (named.kind == LineRecordKind::kOrigin || named.number <= ahead.published) continue;
    CAIRN_ASSIGN_OR_RETURN(LineRecord record,
                           ReadLineRecord(job_directory, job, named.number, named.kind));
    ahead.decisions.push_back(std::move(record));
  }
  return ahead;
}

Attempt DecisionThatNeeds(const std::vector<LineRecord>& decisions,
                          const CheckpointKey& checkpoint) {
  for (const LineRecord& decision : decisions) {
    for (const LineageEntry& entry : decision.lineage.entries) {
      if (entry.attempt == checkpoint.attempt && checkpoint.step <= entry.up_to) {
        return decision.number;
      }
    }
  }
  return 0;
}

}  // namespace cairn
