// One file: how names below a job are made, and how they are read back, change together.
#include "common/layout.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/fd.h"

namespace cairn {
namespace {

constexpr char kManifestSuffix[] = ".manifest";
constexpr char kTombstonesSuffix[] = ".attempts";
constexpr uint64_t kMaxTombstoneBytes = 64;
constexpr uint64_t kSmallBytes = 256;  // about what a small record takes in memory
constexpr size_t kMaxSaid = 1000;      // of what is wrong, one by one

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

// It may be there all the same: it could not be read, or is of a version that is not known.
bool IsUnread(const Status& status) {
  return absl::IsUnavailable(status) || absl::IsUnimplemented(status);
}

// What opening `name` below `directory` has said: UNAVAILABLE when something of this type stands there
// and the machine or its rights are why it could not be opened.
Status WhyNotOpened(int directory, const std::string& name, mode_t type, const Status& why) {
  struct stat info = {};
  if (Vanished(why) || (::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
                        (info.st_mode & S_IFMT) != type)) {
    return why;
  }
  return absl::UnavailableError(why.message());
}

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

// As ReadSmallFile.
StatusOr<StoredPart> ReadManifest(int directory, const std::string& name, ManifestDetail detail,
                                  uint64_t max_bytes, const EachObject& each_object) {
  const auto fd = OpenBeneath(directory, name, O_RDONLY);
  if (!fd.ok()) return WhyNotOpened(directory, name, S_IFREG, fd.status());
  StatusOr<StoredPart> part = ReadManifestFile(fd->get(), detail, max_bytes, each_object);
  if (part.ok() || absl::IsDataLoss(part.status()) || absl::IsUnimplemented(part.status()) ||
      absl::IsResourceExhausted(part.status())) {
    return part;
  }
  return absl::UnavailableError(part.status().message());
}

class JobScan {
 public:
  JobScan(const std::string& root, const std::string& job, ManifestDetail detail,
          const StoredLimits& limits)
      : path_(Join(root, job)), job_(job), detail_(detail), limits_(limits) {}

  StatusOr<StoredJob> Run(int root) {
    CAIRN_ASSIGN_OR_RETURN(directory_, OpenBeneath(root, job_, O_RDONLY | O_DIRECTORY));
    // In the order in which checkpoints move, so that one that moves meanwhile is seen at least
    // once: into their step's place, out of it again, and aside. The second look at a directory
    // reads only what is new there.
    CAIRN_RETURN_IF_ERROR(ScanTombstones());
    CAIRN_RETURN_IF_ERROR(ScanLineRecords());
    CAIRN_RETURN_IF_ERROR(ScanMeta("partial", Sighting::kPartial));
    CAIRN_RETURN_IF_ERROR(ScanMeta("abandoned", Sighting::kAside));
    CAIRN_RETURN_IF_ERROR(ScanMeta("publish", Sighting::kAside));
    CAIRN_RETURN_IF_ERROR(ScanSteps());
    CAIRN_RETURN_IF_ERROR(ScanMeta("publish", Sighting::kAside));
    CAIRN_RETURN_IF_ERROR(ScanMeta("abandoned", Sighting::kAside));
    Settle();
    if (left_out_ > 0) {
      found_.unread.push_back(
          {left_out_up_to_,
           absl::StrCat(path_, ": ", left_out_, " checkpoints up to step ", left_out_up_to_,
                        " are left out: what one reading of a job finds may take ",
                        limits_.memory_bytes, " bytes of memory")});
    }
    // The second look at a directory says again what the first one said.
    std::sort(found_.unread.begin(), found_.unread.end());
    found_.unread.erase(std::unique(found_.unread.begin(), found_.unread.end()),
                        found_.unread.end());
    return std::move(found_);
  }

 private:
  Status ScanTombstones() {
    auto directory =
        OpenBeneath(directory_.get(), Join(kMetaDirectory, "removed"), O_RDONLY | O_DIRECTORY);
    if (Vanished(directory.status())) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(directory.status());
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory->get()));
    std::set<Step> steps;
    for (const std::string& name : names) {
      steps.insert(ParseStepDirectory(absl::StripSuffix(name, kTombstonesSuffix)));
    }
    steps.erase(kNoStep);
    for (const Step step : steps) {
      if (!HasRoom(kSmallBytes)) return absl::OkStatus();
      StatusOr<AttemptRanges> removed = ReadTombstones(directory_.get(), step);
      if (removed.ok()) memory_ += removed->ranges().size() * sizeof(AttemptRanges::Range);
      if (removed.ok()) {
        if (!removed->empty()) found_.removed.steps[step] = *std::move(removed);
      } else {
        Problem(step, Join(path_, TombstoneFile(step)), removed.status());
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
      found_.line.Take(number, kind);
      if (!HasRoom(kSmallBytes)) return absl::OkStatus();
      StatusOr<LineRecord> record = ReadLineRecord(directory_.get(), job_, number, kind);
      if (record.ok()) {
        memory_ += record->lineage.entries.size() * sizeof(LineageEntry);
        struct stat info = {};
        if (kind == LineRecordKind::kOrigin &&
            ::fstatat(directory->get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0) {
          found_.written_unix_ms[number] = int64_t{info.st_mtim.tv_sec} * 1000;
        }
        found_.records.push_back(*std::move(record));
      } else if (!Vanished(record.status())) {
        Problem(kNoStep, Join(path_, LineRecordFile(number, kind)), record.status());
      }
    }
    return absl::OkStatus();
  }

  // False: what was found takes all the memory that there is for it, and the rest is not read.
  bool HasRoom(uint64_t more) {
    memory_ += more;
    if (memory_ <= limits_.memory_bytes) return true;
    SayUnread(kNoStep,
              absl::StrCat(path_, ": the decisions about its line, and its tombstones, take ",
                           "more than ", limits_.memory_bytes, " bytes of memory"));
    return false;
  }

  // Where a checkpoint was seen; a greater one tells more about where it is.
  enum class Sighting { kPartial, kAside, kInPlace };

  Status ScanMeta(absl::string_view which, Sighting sighting) {
    const std::string inside = Join(kMetaDirectory, which);
    auto parent = OpenBeneath(directory_.get(), inside, O_RDONLY | O_DIRECTORY);
    if (Vanished(parent.status())) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(parent.status());
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(parent->get()));
    std::vector<std::pair<Step, std::string>> newest_first;
    for (const std::string& name : names) {
      CheckpointKey named;
      if (ParseCheckpointDirectory(name, &named)) newest_first.emplace_back(named.step, name);
    }
    std::sort(newest_first.rbegin(), newest_first.rend());
    for (const auto& [step, name] : newest_first) {
      CheckpointKey named;
      ParseCheckpointDirectory(name, &named);
      named.job = job_;
      auto stored = Look(parent->get(), name, step, Join(path_, Join(inside, name)), sighting);
      if (!stored.has_value()) continue;
      // A partial directory only ever holds the checkpoint it is named after. Others may hold what
      // an exchange has brought there.
      if (sighting == Sighting::kPartial && !(stored->key == named)) {
        Say(absl::StrCat(stored->location.text(), ": holds manifests of ",
                         stored->key.DebugString()));
        continue;
      }
      Add(*std::move(stored), sighting);
    }
    return absl::OkStatus();
  }

  Status ScanSteps() {
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory_.get()));
    std::vector<std::pair<Step, std::string>> newest_first;
    for (const std::string& name : names) {
      const Step step = ParseStepDirectory(name);
      if (step != kNoStep) newest_first.emplace_back(step, name);
    }
    std::sort(newest_first.rbegin(), newest_first.rend());
    for (const auto& [step, name] : newest_first) {
      auto stored = Look(directory_.get(), name, step, Join(path_, name), Sighting::kInPlace);
      if (!stored.has_value()) continue;
      if (stored->key.step != step) {
        Say(absl::StrCat(stored->location.text(), ": holds manifests of ",
                         stored->key.DebugString()));
        continue;
      }
      Add(*std::move(stored), Sighting::kInPlace);
    }
    return absl::OkStatus();
  }

  std::optional<StoredCheckpoint> Look(int parent, const std::string& name, Step step,
                                       const std::string& path, Sighting sighting) {
    const auto directory = OpenBeneath(parent, name, O_RDONLY | O_DIRECTORY);
    // Other errors are the user's affair: ENOTDIR, for example, is a file with a number for a name.
    if (!directory.ok()) {
      const Status why = IsOfAnother(parent, name)
                             ? directory.status()
                             : WhyNotOpened(parent, name, S_IFDIR, directory.status());
      if (IsUnread(why) || absl::IsPermissionDenied(why)) Problem(step, path, why);
      return std::nullopt;
    }
    struct stat info = {};
    if (::fstat(directory->get(), &info) != 0) return std::nullopt;
    if (const auto seen = seen_.find(info.st_ino); seen != seen_.end()) {
      // It was read before. It is here now.
      if (const auto at = by_key_.find(seen->second); at != by_key_.end()) {
        at->second.first = sighting;
        at->second.second.published = sighting != Sighting::kPartial;
        at->second.second.location = Location(path);
      }
      return std::nullopt;
    }
    StoredLimits left = limits_;
    left.memory_bytes -= std::min(left.memory_bytes, memory_);
    std::vector<std::string> unread;
    auto stored =
        ReadStoredCheckpoint(directory->get(), path, detail_, left, &found_.problems, &unread);
    if (absl::IsResourceExhausted(stored.status())) {
      ++left_out_;
      left_out_up_to_ = std::max(left_out_up_to_, step);
      return std::nullopt;
    }
    const bool anothers = !unread.empty() && IsOfAnother(parent, name);
    for (std::string& why : unread) {
      if (anothers) {
        Say(std::move(why));
      } else {
        SayUnread(step, std::move(why));
      }
    }
    if (!stored.ok()) {
      if (absl::IsDataLoss(stored.status())) Problem(step, path, stored.status());
      return std::nullopt;
    }
    if (stored->key.job != job_) {
      Say(absl::StrCat(path, ": holds manifests of ", stored->key.DebugString()));
      return std::nullopt;
    }
    // One that still lacks parts may have got them, and its place, before the next look.
    if (stored->Complete()) seen_[info.st_ino] = stored->key;
    return *std::move(stored);
  }

  void Add(StoredCheckpoint stored, Sighting sighting) {
    if (found_.removed.Forbids(stored.key.step, stored.key.attempt)) return;
    stored.published = sighting != Sighting::kPartial;
    const CheckpointKey key = stored.key;
    const uint64_t memory = MemoryOf(stored);
    auto [at, is_new] = by_key_.try_emplace(key, sighting, StoredCheckpoint());
    if (!is_new && std::pair(at->second.second.Complete(), at->second.first) >
                       std::pair(stored.Complete(), sighting)) {
      return;
    }
    if (!is_new) memory_ -= MemoryOf(at->second.second);
    memory_ += memory;
    at->second = {sighting, std::move(stored)};
  }

  void Settle() {
    std::map<std::pair<Step, Attempt>, Revision> newest;  // that is published and complete
    for (const auto& [key, seen] : by_key_) {
      if (seen.second.published && seen.second.Complete()) {
        newest[{key.step, key.attempt}] = key.revision;  // ascending
      }
    }
    for (auto& [key, seen] : by_key_) {
      auto& [sighting, stored] = seen;
      const auto newer = newest.find({key.step, key.attempt});
      // What stands aside and is older than another revision of its attempt has been replaced.
      if (sighting == Sighting::kAside && newer != newest.end() && key.revision < newer->second) {
        continue;
      }
      if (!stored.conflict.empty()) {
        Say(absl::StrCat(stored.location.text(), ": in conflict: ", stored.conflict));
      }
      found_.checkpoints.push_back(std::move(stored));
    }
  }

  void Problem(Step step, const std::string& path, const Status& status) {
    std::string why = absl::StrCat(path, ": ", status.message());
    if (IsUnread(status)) {
      SayUnread(step, std::move(why));
    } else {
      Say(std::move(why));
    }
  }
  void Say(std::string why) {
    if (found_.problems.size() < kMaxSaid) found_.problems.push_back(std::move(why));
  }
  // Of many, the last stands for the others.
  void SayUnread(Step step, std::string why) {
    if (found_.unread.size() < kMaxSaid) {
      found_.unread.push_back({step, std::move(why)});
    } else if (Step& last = found_.unread.back().step; last != kNoStep) {
      last = step == kNoStep ? kNoStep : std::max(last, step);
    }
  }

  const std::string path_;
  const std::string job_;
  const ManifestDetail detail_;
  const StoredLimits limits_;
  uint64_t memory_ = 0;  // of what was read
  // Those that did not fit, lower ones than others of their directory.
  int64_t left_out_ = 0;
  Step left_out_up_to_ = kNoStep;
  UniqueFd directory_;
  StoredJob found_;
  std::map<CheckpointKey, std::pair<Sighting, StoredCheckpoint>> by_key_;
  std::map<ino_t, CheckpointKey> seen_;  // directories of complete ones; all on one file system
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

std::string AbandonedDirectory(const CheckpointKey& checkpoint) {
  return absl::StrCat(kMetaDirectory, "/abandoned/", CheckpointName(checkpoint));
}

std::string ManifestFile(Writer writer) {
  return absl::StrCat(kMetaDirectory, "/", writer, kManifestSuffix);
}

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

bool ParseCheckpointDirectory(absl::string_view name, CheckpointKey* checkpoint) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  uint64_t n = 0;
  return (parts.size() == 3 || (parts.size() == 4 && ParseCanonical(parts[3], &n))) &&
         ParseCanonical(parts[0], &checkpoint->step) &&
         ParseCanonical(parts[1], &checkpoint->attempt) && checkpoint->attempt > 0 &&
         ParseCanonical(parts[2], &checkpoint->revision);
}

namespace {

// By writer.
StatusOr<std::vector<std::pair<Writer, std::string>>> ListManifests(int meta) {
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(meta));
  std::vector<std::pair<Writer, std::string>> files;
  for (const std::string& name : names) {
    absl::string_view number = name;
    Writer writer = 0;
    if (absl::ConsumeSuffix(&number, kManifestSuffix) && ParseCanonical(number, &writer)) {
      files.emplace_back(writer, name);
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Each name of the parts whose manifests stand in `meta`, and of `others`; with the number of its part.
Status ForEachName(int meta, const std::vector<const StoredPart*>& parts,
                   const std::vector<const Manifest*>& others,
                   const std::function<void(size_t, const std::string&)>& each) {
  size_t at = 0;
  for (const StoredPart* part : parts) {
    const std::string file = absl::StrCat(part->manifest.writer, kManifestSuffix);
    const auto again = ReadManifest(meta, file, ManifestDetail::kSummary, kMaxManifestBytes,
                                    [&](const ObjectEntry& object) { each(at, object.name); });
    if (!again.ok() || again->digest != part->digest) {
      return absl::UnavailableError(absl::StrCat(file, ": changed while it was read"));
    }
    ++at;
  }
  for (const Manifest* other : others) {
    for (const ObjectEntry& object : other->objects) each(at, object.name);
    ++at;
  }
  return absl::OkStatus();
}

std::vector<const StoredPart*> PointersTo(const std::vector<StoredPart>& parts) {
  std::vector<const StoredPart*> pointers;
  for (const StoredPart& part : parts) pointers.push_back(&part);
  return pointers;
}

// As ConflictBelow; `names` has had the first pass.
StatusOr<std::string> ConflictOf(int meta, const std::vector<const StoredPart*>& parts,
                                 const std::vector<const Manifest*>& others, NamesSeen* names) {
  while (names->NextPass()) {
    CAIRN_RETURN_IF_ERROR(ForEachName(meta, parts, others,
                                      [&](size_t, const std::string& name) { names->Add(name); }));
  }
  if (names->too_many()) return std::string("it has more names than can be compared");
  std::vector<const Manifest*> together;
  for (const StoredPart* part : parts) together.push_back(&part->manifest);
  together.insert(together.end(), others.begin(), others.end());
  if (!names->may_conflict()) return ManifestConflict(together);
  // With the names alone that are in each other's way: of each part one, or two.
  std::map<size_t, Manifest> concerned;
  CAIRN_RETURN_IF_ERROR(ForEachName(meta, parts, others, [&](size_t of, const std::string& name) {
    if (!names->Concerns(name)) return;
    const auto [at, fresh] = concerned.try_emplace(of);
    if (fresh) {
      at->second = *together[of];
      at->second.objects.clear();
    }
    if (names->IsIt(name) || at->second.objects.empty()) {
      at->second.objects.push_back({.name = name});
    }
  }));
  for (const auto& [of, manifest] : concerned) together[of] = &manifest;
  return ManifestConflict(together);
}

}  // namespace

// One function: what is left of each bound passes from one manifest to the next.
StatusOr<StoredCheckpoint> ReadStoredCheckpoint(int directory, const std::string& path,
                                                ManifestDetail detail, const StoredLimits& limits,
                                                std::vector<std::string>* problems,
                                                std::vector<std::string>* unread) {
  const auto meta = OpenBeneath(directory, kMetaDirectory, O_RDONLY | O_DIRECTORY);
  if (!meta.ok()) {
    const Status why = WhyNotOpened(directory, kMetaDirectory, S_IFDIR, meta.status());
    if (!Vanished(why)) {
      (IsUnread(why) ? unread : problems)->push_back(absl::StrCat(path, ": ", why.message()));
    }
    return why;
  }
  const auto files = ListManifests(meta->get());
  if (!files.ok()) {
    unread->push_back(absl::StrCat(path, ": ", files.status().message()));
    return absl::UnavailableError(unread->back());
  }
  StoredCheckpoint stored;
  stored.location = Location(path);
  bool vanished = files->empty();
  const size_t unread_before = unread->size();
  uint64_t bytes_left =
      detail == ManifestDetail::kWhole ? limits.manifest_bytes : kMaxManifestBytes;
  uint64_t memory = MemoryOf(stored);
  NamesSeen names;
  const bool alone = files->size() == 1;
  for (const auto& [writer, name] : *files) {
    const auto problem = [&, &file = name](const Status& status) {
      std::vector<std::string>* const into = IsUnread(status) ? unread : problems;
      if (into->size() >= kMaxSaid) return;
      into->push_back(absl::StrCat(path, "/", kMetaDirectory, "/", file, ": ", status.message()));
    };
    if (memory > limits.memory_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, ": its manifests take more than ", limits.memory_bytes, " bytes"));
    }
    StatusOr<StoredPart> part =
        ReadManifest(meta->get(), name, detail, bytes_left, [&](const ObjectEntry& object) {
          if (!alone) names.Add(object.name);
        });
    if (Vanished(part.status())) {
      vanished = true;
      continue;
    }
    if (absl::IsResourceExhausted(part.status())) return Annotate(part.status(), path);
    if (part.ok() && part->manifest.writer != writer) {
      part = absl::DataLossError(absl::StrCat("is the manifest of writer ", part->manifest.writer));
    }
    if (!part.ok()) {
      problem(part.status());
      continue;
    }
    if (detail == ManifestDetail::kWhole) bytes_left -= part->manifest_bytes;
    memory += MemoryOf(*part);
    stored.parts.push_back(*std::move(part));
  }
  if (stored.parts.empty()) {
    if (unread->size() > unread_before) return absl::UnavailableError(unread->back());
    return vanished ? absl::NotFoundError(absl::StrCat(path, ": has no manifest"))
                    : absl::DataLossError("has no manifest that can be read");
  }
  stored.key = stored.parts.front().manifest.Checkpoint();
  stored.world_size = stored.parts.front().manifest.world_size;
  auto conflict = detail == ManifestDetail::kWhole
                      ? StatusOr<std::string>(PartConflict(stored.parts))
                      : ConflictOf(meta->get(), PointersTo(stored.parts), {}, &names);
  if (!conflict.ok()) {
    unread->push_back(absl::StrCat(path, ": ", conflict.status().message()));
    return conflict.status();
  }
  stored.conflict = *std::move(conflict);
  return stored;
}

StatusOr<std::string> ConflictBelow(int directory, const std::vector<const StoredPart*>& parts,
                                    const std::vector<const Manifest*>& others) {
  UniqueFd meta;
  if (!parts.empty()) {
    CAIRN_ASSIGN_OR_RETURN(meta, OpenBeneath(directory, kMetaDirectory, O_RDONLY | O_DIRECTORY));
  }
  NamesSeen names;
  CAIRN_RETURN_IF_ERROR(ForEachName(meta.get(), parts, others,
                                    [&](size_t, const std::string& name) { names.Add(name); }));
  return ConflictOf(meta.get(), parts, others, &names);
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

StatusOr<StoredJob> ReadStoredJob(const std::string& root, const std::string& job,
                                  ManifestDetail detail) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(job));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd directory, OpenRoot(root, O_PATH));
  return ReadStoredJobBelow(directory.get(), root, job, detail);
}

StatusOr<StoredJob> ReadStoredJobBelow(int root, const std::string& path, const std::string& job,
                                       ManifestDetail detail, const StoredLimits& limits) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(job));
  return JobScan(path, job, detail, limits).Run(root);
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
