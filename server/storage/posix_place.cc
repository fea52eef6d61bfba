#include "server/storage/posix_place.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
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

Status CheckFile(int directory, const StoredPart& part, const ObjectEntry& object) {
  const auto damaged = [&](absl::string_view why) {
    return absl::DataLossError(
        absl::StrCat("file ", object.name, " of writer ", part.manifest.writer, " ", why));
  };
  const auto fd = OpenPartFile(directory, part, object.name, O_PATH);
  if (!fd.ok()) return damaged(fd.status().message());
  struct stat info = {};
  if (::fstat(fd->get(), &info) != 0) return ErrnoStatus(errno, object.name);
  if (!S_ISREG(info.st_mode)) return damaged("is not a file");
  if (static_cast<uint64_t>(info.st_size) != object.length) {
    return damaged(absl::StrCat("has ", info.st_size, " bytes, not ", object.length));
  }
  return absl::OkStatus();
}

Status CheckPart(const Place& place, const StoredPart& part) {
  const Writer writer = part.manifest.writer;
  Status files;
  const auto check = [&](const ObjectEntry& object) {
    if (files.ok()) files = CheckFile(place.directory.get(), part, object);
  };
  CAIRN_ASSIGN_OR_RETURN(const StoredPart read,
                         ReadPart(place.directory.get(), writer, ManifestDetail::kSummary, check));
  if (read.digest != part.digest) {
    return absl::DataLossError(absl::StrCat(ManifestFile(writer), " is another than before"));
  }
  return files;
}

Status CheckParts(const Place& place) {
  for (const StoredPart& part : place.stored.parts) {
    CAIRN_RETURN_IF_ERROR(CheckPart(place, part));
  }
  return absl::OkStatus();
}

StatusOr<bool> PartStands(const Place& place, const PartToWrite& part) {
  if (!place.Ours()) return false;
  const std::string digest = ManifestDigest(part.encoded);
  for (const StoredPart& stored : place.stored.parts) {
    if (stored.manifest.writer != part.manifest->writer) continue;
    if (stored.digest == digest) {
      const auto& objects = part.manifest->objects;
      return std::all_of(objects.begin(), objects.end(), [&](const ObjectEntry& object) {
        return CheckFile(place.directory.get(), stored, object).ok();
      });
    }
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
