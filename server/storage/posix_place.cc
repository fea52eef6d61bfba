#include "server/storage/posix_place.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "common/layout.h"
#include "common/stored_checkpoint.h"
#include "server/storage/files.h"

namespace cairn::storage {

namespace {

StatusOr<Place> LookOnce(int parent, const std::string& name, const std::string& path) {
  Place place;
  auto directory = OpenDirectoryAt(parent, name);
  if (absl::IsNotFound(directory.status())) return place;
  if (!directory.ok()) {
    // A file or a symbolic link: something is there, and it is not ours.
    struct stat info = {};
    if (::fstatat(parent, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 &&
        (!S_ISDIR(info.st_mode) || IsOfAnother(parent, name))) {
      place.kind = Place::Kind::kForeign;
      return place;
    }
    return directory.status();
  }
  place.directory = *std::move(directory);
  std::vector<std::string> problems, unread;  // the scan of the job reports them
  auto stored = ReadStoredCheckpoint(place.directory.get(), path, ManifestDetail::kSummary, {},
                                     &problems, &unread);
  // What cannot be told is never taken for a stranger's or for damaged.
  if (!unread.empty() && !IsOfAnother(parent, name)) {
    return absl::UnavailableError(unread.front());
  }
  if (stored.ok()) {
    place.kind = Place::Kind::kOurs;
    place.stored = *std::move(stored);
  } else if (!unread.empty() || absl::IsNotFound(stored.status()) ||
             absl::IsDataLoss(stored.status()) || absl::IsPermissionDenied(stored.status())) {
    place.kind = Place::Kind::kForeign;
  } else {
    // RESOURCE_EXHAUSTED is for a disk that is full.
    if (!absl::IsResourceExhausted(stored.status())) return stored.status();
    return absl::FailedPreconditionError(stored.status().message());
  }
  return place;
}

}  // namespace

StatusOr<Place> LookAt(int parent, const std::string& name, const std::string& path) {
  constexpr int kMaxLooks = 16;
  for (int look = 0; look < kMaxLooks; ++look) {
    CAIRN_ASSIGN_OR_RETURN(Place place, LookOnce(parent, name, path));
    // What lacks manifests may have been replaced, and be on its way out of the trash, while they
    // were read. Then it says nothing about the place.
    const bool whole = place.Ours() && place.stored.Complete();
    if (whole || !place.directory.valid() || StillStands(parent, name, place)) return place;
  }
  return absl::AbortedError(absl::StrCat(path, "/", name, " keeps changing"));
}

bool StillStands(int parent, const std::string& name, const Place& place) {
  struct stat opened = {}, named = {};
  return ::fstat(place.directory.get(), &opened) == 0 &&
         ::fstatat(parent, name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

StatusOr<bool> HoldsWhole(const Place& place, const CheckpointKey& key) {
  if (!place.Holds(key) || !place.stored.Complete()) return false;
  const Status files = CheckStoredFiles(place.directory.get(), place.stored);
  if (files.ok() || absl::IsDataLoss(files)) return files.ok();
  return files;
}

StatusOr<bool> PartStands(const Place& place, const PartToWrite& part) {
  if (!place.Ours()) return false;
  const std::string digest = ManifestDigest(part.encoded);
  for (const StoredPart& stored : place.stored.parts) {
    if (stored.manifest.writer != part.manifest->writer) continue;
    if (stored.digest == digest) return CheckPartFiles(place.directory.get(), stored).ok();
    return absl::AlreadyExistsError(
        absl::StrCat("writer ", part.manifest->writer,
                     " has another manifest in storage: ", stored.digest, ", not ", digest));
  }
  return false;
}

Status NotOurs(const JobDirectories& at, Step step) {
  return absl::AlreadyExistsError(
      absl::StrCat(at.path, "/", StepDirectory(step), " stands there and is not Cairn's"));
}

}  // namespace cairn::storage
