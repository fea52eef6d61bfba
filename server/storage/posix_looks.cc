#include "server/storage/posix_looks.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "absl/strings/strip.h"
#include "common/layout.h"
#include "common/stored_checkpoint.h"
#include "server/storage/files.h"

namespace cairn::storage {

bool PosixLooks::Look(int directory, const std::string& name, Seen* seen) {
  struct stat info = {};
  if (::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return false;
  *seen = {name, info.st_ino, {info.st_ctim.tv_sec, info.st_ctim.tv_nsec}};
  return true;
}

bool PosixLooks::IsAsItWas(int directory, const Whole& whole) {
  return std::all_of(whole.begin(), whole.end(), [&](const Seen& was) {
    Seen is;
    return Look(directory, was.directory, &is) && is == was;
  });
}

void PosixLooks::DropDamaged(int root, const std::string& path, const std::string& job,
                             StoredJob* stored) {
  std::map<std::string, Whole> before, now;
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
    const std::string below(absl::StripPrefix(absl::StripPrefix(location, path), "/"));
    const auto directory = OpenBeneath(root, below, O_RDONLY | O_DIRECTORY);
    if (absl::IsNotFound(directory.status()))
      continue;  // it has moved on since; the next reading looks
    if (!directory.ok()) {
      stored->unread.push_back(
          {checkpoint.key.step, absl::StrCat(location, ": ", directory.status().message())});
      continue;
    }
    const auto was = before.find(location);
    if (was != before.end() && IsAsItWas(directory->get(), was->second)) {
      now.insert(*was);
      continue;
    }
    // The directories first: what changes while the files are looked at is looked at again.
    std::set<std::string> directories = {".", kMetaDirectory};
    for (const StoredPart& part : checkpoint.parts) {
      (void)ReadPart(
          directory->get(), part.manifest.writer, ManifestDetail::kSummary,
          [&](const ObjectEntry& object) { AddDirectoriesOf(object.name, &directories); });
    }
    Whole whole;
    bool all_seen = true;
    for (const std::string& inside : directories) {
      all_seen = Look(directory->get(), inside, &whole.emplace_back()) && all_seen;
    }
    std::vector<StoredPart> standing;
    bool unread = false;
    for (StoredPart& part : checkpoint.parts) {
      const Status files = CheckPartFiles(directory->get(), part);
      if (absl::IsDataLoss(files)) {
        const std::string why = absl::StrCat(location, ": ", files.message());
        stored->problems.push_back(why);
        if (checkpoint.damage.empty()) checkpoint.damage = why;
        continue;
      }
      if (!files.ok() && !std::exchange(unread, true)) {
        stored->unread.push_back(
            {checkpoint.key.step, absl::StrCat(location, ": ", files.message())});
      }
      standing.push_back(std::move(part));
    }
    checkpoint.parts = std::move(standing);
    if (checkpoint.Complete() && all_seen && !unread) now[location] = std::move(whole);
  }
  MutexLock lock(&mu_);
  whole_.erase(job);
  if (!now.empty()) whole_.emplace(job, std::move(now));
}

}  // namespace cairn::storage
