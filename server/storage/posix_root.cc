#include "server/storage/posix_root.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/match.h"
#include "common/keys.h"
#include "common/layout.h"
#include "server/storage/files.h"
#include "server/storage/owner.h"

namespace cairn::storage {
namespace {

constexpr unsigned kJobMode = 0700;
constexpr char kTemporarySuffix[] = ".tmp";

}  // namespace

StatusOr<Owner> PosixRoot::JobOwner(const std::string& job) const {
  CAIRN_RETURN_IF_ERROR(ValidateJob(job));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd directory, OpenAt(fd(), job, O_PATH | O_DIRECTORY));
  struct stat info = {};
  if (::fstat(directory.get(), &info) != 0) return ErrnoStatus(errno, job);
  return Owner{info.st_uid, info.st_gid};
}

Status PosixRoot::MakeJobDirectory(const std::string& job, Owner owner) const {
  {
    // Where users may write below the root, the owner makes it.
    CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
    const Status made = MakeDirectoryAt(fd(), job, kJobMode);
    if (!absl::IsPermissionDenied(made)) {
      CAIRN_RETURN_IF_ERROR(made);
      return Sync(fd());
    }
  }
  // Otherwise the daemon makes it, and gives it to the owner before it has its name: after a crash
  // in between, the job must not belong to the daemon's own user.
  const std::string temporary = absl::StrCat(kMetaDirectory, ".", job);
  CAIRN_RETURN_IF_ERROR(MakeDirectoryAt(fd(), temporary, kJobMode));
  {
    CAIRN_ASSIGN_OR_RETURN(const UniqueFd made, OpenDirectoryAt(fd(), temporary));
    // A crash leaves one that is the daemon's or the owner's. Another's was put there by whoever may
    // write below the root, with a job of his making in it.
    struct stat info = {};
    if (::fstat(made.get(), &info) != 0) return ErrnoStatus(errno, temporary);
    if (info.st_uid != ::geteuid() && info.st_uid != owner.uid) {
      return absl::PermissionDeniedError(absl::StrCat(options_.root, "/", temporary,
                                                      " belongs to uid ", info.st_uid,
                                                      ", the job to uid ", owner.uid));
    }
    if (::fchown(made.get(), owner.uid, owner.gid) != 0) {
      return ErrnoStatus(errno, absl::StrCat("giving ", job, " to uid ", owner.uid));
    }
  }
  const Status renamed = RenameAt(fd(), temporary, fd(), job, RENAME_NOREPLACE);
  if (absl::IsAlreadyExists(renamed)) {
    (void)UnlinkAt(fd(), temporary, /*is_directory=*/true);
  } else {
    CAIRN_RETURN_IF_ERROR(renamed);
  }
  return Sync(fd());
}

StatusOr<JobDirectories> PosixRoot::OpenJob(const std::string& job, Owner owner,
                                            bool create) const {
  JobDirectories at;
  at.path = absl::StrCat(options_.root, "/", job);
  StatusOr<Owner> found = JobOwner(job);
  if (absl::IsNotFound(found.status()) && create) {
    CAIRN_RETURN_IF_ERROR(MakeJobDirectory(job, owner));
    found = JobOwner(job);
  }
  CAIRN_RETURN_IF_ERROR(found.status());
  if (found->uid != owner.uid) {
    return absl::PermissionDeniedError(
        absl::StrCat(at.path, " belongs to uid ", found->uid, ", the job to uid ", owner.uid));
  }
  CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
  CAIRN_ASSIGN_OR_RETURN(at.job, OpenDirectoryAt(fd(), job));
  const auto open = [create](int parent, const char* name) {
    return create ? MakeDirectoriesAt(parent, name) : OpenDirectoryAt(parent, name);
  };
  CAIRN_ASSIGN_OR_RETURN(at.meta, open(at.job.get(), kMetaDirectory));
  CAIRN_ASSIGN_OR_RETURN(at.partial, open(at.meta.get(), "partial"));
  CAIRN_ASSIGN_OR_RETURN(at.publish, open(at.meta.get(), "publish"));
  CAIRN_ASSIGN_OR_RETURN(at.trash, open(at.meta.get(), "trash"));
  // Jobs of older versions lack it.
  CAIRN_ASSIGN_OR_RETURN(at.abandoned, MakeDirectoriesAt(at.meta.get(), "abandoned"));
  return at;
}

std::string PosixRoot::OwnPrefix() const { return absl::StrCat(absl::Hex(instance_), "-"); }

std::string PosixRoot::TemporaryName() {
  return absl::StrCat(OwnPrefix(), Next(), kTemporarySuffix);
}

Status PosixRoot::RemoveStale(int directory, const std::string& prefix) const {
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory));
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, kTemporarySuffix) || !absl::StartsWith(name, prefix) ||
        absl::StrContains(name, OwnPrefix())) {
      continue;
    }
    CAIRN_RETURN_IF_ERROR(RemoveFileAt(directory, name));
  }
  return absl::OkStatus();
}

}  // namespace cairn::storage
