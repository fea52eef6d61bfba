#include "common/stored_job.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "common/layout.h"
#include "common/stored_checkpoint.h"

namespace cairn {
namespace {

constexpr uint64_t kSmallBytes = 256;  // about what a small record takes in memory

std::string JoinPath(absl::string_view directory, absl::string_view name) {
  return absl::StrCat(directory, "/", name);
}

class JobScan {
 public:
  JobScan(const std::string& root, const std::string& job, ManifestDetail detail,
          const StoredLimits& limits)
      : path_(JoinPath(root, job)), job_(job), detail_(detail), limits_(limits) {}

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
                        limits_.memory_bytes, " bytes of memory (storage.scan_memory)")});
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
        OpenBeneath(directory_.get(), JoinPath(kMetaDirectory, "removed"), O_RDONLY | O_DIRECTORY);
    if (absl::IsNotFound(directory.status())) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(directory.status());
    CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory->get()));
    std::set<Step> steps;
    for (const std::string& name : names) {
      steps.insert(ParseTombstones(name));
    }
    steps.erase(kNoStep);
    for (const Step step : steps) {
      if (!HasRoom(kSmallBytes)) return absl::OkStatus();
      StatusOr<AttemptRanges> removed = ReadTombstones(directory_.get(), step);
      if (removed.ok()) memory_ += removed->ranges().size() * sizeof(AttemptRanges::Range);
      if (removed.ok()) {
        if (!removed->empty()) found_.removed.steps[step] = *std::move(removed);
      } else {
        Problem(step, JoinPath(path_, TombstoneFile(step)), removed.status());
      }
    }
    return absl::OkStatus();
  }

  Status ScanLineRecords() {
    auto directory =
        OpenBeneath(directory_.get(), JoinPath(kMetaDirectory, "line"), O_RDONLY | O_DIRECTORY);
    if (absl::IsNotFound(directory.status())) return absl::OkStatus();
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
      } else if (!absl::IsNotFound(record.status())) {
        Problem(kNoStep, JoinPath(path_, LineRecordFile(number, kind)), record.status());
      }
    }
    return absl::OkStatus();
  }

  // False: what was found takes all the memory that there is for it, and the rest is not read.
  bool HasRoom(uint64_t more) {
    memory_ += more;
    if (memory_ <= limits_.memory_bytes) return true;
    SayUnread(
        kNoStep,
        absl::StrCat(path_, ": the decisions about its line, and its tombstones, take ",
                     "more than ", limits_.memory_bytes, " bytes of memory (storage.scan_memory)"));
    return false;
  }

  // Where a checkpoint was seen; a greater one tells more about where it is.
  enum class Sighting { kPartial, kAside, kInPlace };

  Status ScanMeta(absl::string_view which, Sighting sighting) {
    const std::string inside = JoinPath(kMetaDirectory, which);
    auto parent = OpenBeneath(directory_.get(), inside, O_RDONLY | O_DIRECTORY);
    if (absl::IsNotFound(parent.status())) return absl::OkStatus();
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
      auto stored =
          Look(parent->get(), name, step, JoinPath(path_, JoinPath(inside, name)), sighting);
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
      auto stored = Look(directory_.get(), name, step, JoinPath(path_, name), Sighting::kInPlace);
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
    if (OpenBeneath(directory.get(), JoinPath(name, kMetaDirectory), O_PATH | O_DIRECTORY).ok()) {
      jobs.push_back(name);
    }
  }
  return jobs;
}

}  // namespace cairn
