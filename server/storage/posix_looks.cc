#include "server/storage/posix_looks.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "absl/strings/strip.h"
#include "common/layout.h"
#include "common/stored_checkpoint.h"
#include "server/storage/files.h"
#include "server/storage/posix_read.h"

namespace cairn::storage {

bool PosixLooks::Look(int directory, const std::string& name, Seen* seen) {
  struct stat info = {};
  if (::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return false;
  *seen = {name, info.st_ino, {info.st_ctim.tv_sec, info.st_ctim.tv_nsec}};
  return true;
}

bool PosixLooks::IsAsItWas(int directory, const Whole& whole) {
  const std::vector<Seen>& before = whole.directories;
  return std::all_of(before.begin(), before.end(), [&](const Seen& was) {
    Seen is;
    return Look(directory, was.directory, &is) && is == was;
  });
}

std::optional<PosixLooks::Whole> PosixLooks::LookAt(int directory, const std::string& place,
                                                    const std::string& shown,
                                                    StoredCheckpoint* checkpoint,
                                                    std::vector<std::string>* problems,
                                                    std::vector<Unread>* unread) {
  // The directories first: what changes while the files are looked at is looked at again.
  std::set<std::string> directories = {".", kMetaDirectory};
  for (const StoredPart& part : checkpoint->parts) {
    (void)ReadPart(directory, part.manifest.writer, ManifestDetail::kSummary,
                   [&](const ObjectEntry& object) { AddDirectoriesOf(object.name, &directories); });
  }
  Whole whole{place, {}};
  bool all_seen = true;
  for (const std::string& inside : directories) {
    all_seen = Look(directory, inside, &whole.directories.emplace_back()) && all_seen;
  }
  std::vector<StoredPart> standing;
  bool not_read = false;
  for (StoredPart& part : checkpoint->parts) {
    const Status files = CheckPartFiles(directory, part);
    if (absl::IsDataLoss(files)) {
      const std::string why = absl::StrCat(shown, ": ", files.message());
      problems->push_back(why);
      if (checkpoint->damage.empty()) checkpoint->damage = why;
      continue;
    }
    if (!files.ok() && !std::exchange(not_read, true)) {
      unread->push_back({checkpoint->key.step, absl::StrCat(shown, ": ", files.message())});
    }
    standing.push_back(std::move(part));
  }
  checkpoint->parts = std::move(standing);
  if (!checkpoint->Complete() || !all_seen || not_read) return std::nullopt;
  return whole;
}

void PosixLooks::DropDamaged(int root, const std::string& path, const std::string& job,
                             StoredJob* stored) {
  OfJob before, now;
  {
    MutexLock lock(&mu_);
    if (const auto known = whole_.find(job); known != whole_.end()) before = known->second;
  }
  for (StoredCheckpoint& checkpoint : stored->checkpoints) {
    if (!checkpoint.published) continue;
    const std::string& location = checkpoint.location.text();
    if (!checkpoint.Complete()) {
      checkpoint.damage = absl::StrCat(location, ": of ", checkpoint.world_size, " writers ",
                                       checkpoint.parts.size(), " have a manifest there");
      continue;
    }
    const std::string place(absl::StripPrefix(absl::StripPrefix(location, path), "/"));
    const auto directory = OpenBeneath(root, place, O_RDONLY | O_DIRECTORY);
    if (absl::IsNotFound(directory.status()))
      continue;  // it has moved on since; the next reading looks
    if (!directory.ok()) {
      stored->unread.push_back(
          {checkpoint.key.step, absl::StrCat(location, ": ", directory.status().message())});
      continue;
    }
    const auto was = before.find(checkpoint.key);
    if (was != before.end() && was->second.place == place &&
        IsAsItWas(directory->get(), was->second)) {
      now.insert(*was);
      continue;
    }
    std::optional<Whole> whole =
        LookAt(directory->get(), place, location, &checkpoint, &stored->problems, &stored->unread);
    if (whole.has_value()) now[checkpoint.key] = *std::move(whole);
  }
  MutexLock lock(&mu_);
  whole_.erase(job);
  if (!now.empty()) whole_.emplace(job, std::move(now));
}

void PosixLooks::Forget(const CheckpointKey& checkpoint) {
  MutexLock lock(&mu_);
  const auto job = whole_.find(checkpoint.job);
  if (job == whole_.end()) return;
  job->second.erase(checkpoint);
  if (job->second.empty()) whole_.erase(job);
}

Status PosixLooks::Check(int root, const std::string& path, const CheckpointKey& checkpoint,
                         const StoredLimits& limits) {
  std::optional<Whole> before;
  {
    MutexLock lock(&mu_);
    const auto job = whole_.find(checkpoint.job);
    if (job != whole_.end()) {
      const auto at = job->second.find(checkpoint);
      if (at != job->second.end()) before = at->second;
    }
  }
  if (before.has_value()) {
    const auto directory = OpenBeneath(root, before->place, O_RDONLY | O_DIRECTORY);
    if (directory.ok() && IsAsItWas(directory->get(), *before)) return absl::OkStatus();
  }
  CAIRN_ASSIGN_OR_RETURN(StoredCheckpoint stored, ReadCheckpointBelow(root, checkpoint, limits));
  const std::string place = absl::StrCat(checkpoint.job, "/", stored.location.text());
  const std::string shown = absl::StrCat(path, "/", place);
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd directory,
                         OpenBeneath(root, place, O_RDONLY | O_DIRECTORY));
  std::vector<std::string> problems;
  std::vector<Unread> unread;
  std::optional<Whole> whole = LookAt(directory.get(), place, shown, &stored, &problems, &unread);
  if (!problems.empty()) return absl::DataLossError(problems.front());
  if (!unread.empty()) return absl::UnavailableError(unread.front().why);
  if (!whole.has_value()) return absl::UnavailableError(absl::StrCat(shown, ": changes"));
  MutexLock lock(&mu_);
  whole_[checkpoint.job][checkpoint] = *std::move(whole);
  return absl::OkStatus();
}

}  // namespace cairn::storage
