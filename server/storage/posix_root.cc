#include "server/storage/posix_root.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "absl/strings/match.h"
#include "common/directory.h"
#include "common/keys.h"
#include "common/layout.h"
#include "server/storage/files.h"
#include "server/storage/owner.h"

namespace cairn::storage {
namespace {

constexpr unsigned kJobMode = 0700;
constexpr unsigned kRootMode = 0755;  // every user finds his jobs below it
constexpr char kTemporarySuffix[] = ".tmp";

}  // namespace

// --- the root

Status PosixRoot::Away(absl::string_view why) const {
  return absl::UnavailableError(absl::StrCat("storage.root ", options_.root, ": ", why));
}

std::string PosixRoot::expected() const {
  MutexLock lock(&mu_);
  return expected_;
}

void PosixRoot::Expect(const std::string& id) {
  MutexLock lock(&mu_);
  expected_ = id;
}

Status PosixRoot::MakeRoot() const {
  const DirectoryPath path = SplitDirectoryPath(options_.root);
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd way, OpenDirectoryWarily(path.parent));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd parent, OpenDirectoryAt(way.get(), "."));
  CAIRN_ASSIGN_OR_RETURN(const bool alone, IsEmptyDirectory(parent.get()));
  if (alone) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it is not made, because ", path.parent, " is empty, as a mount point is while ",
        "nothing is mounted there. Mount its file system, or `mkdir ", options_.root, "`"));
  }
  CAIRN_ASSIGN_OR_RETURN(const bool made,
                         MakeDirectoryWithMode(parent.get(), path.base, kRootMode));
  if (made) return Sync(parent.get());
  // Another daemon has made it at the same time; or a link stands there that leads nowhere.
  return OpenDirectoryAt(parent.get(), path.base).status();
}

StatusOr<PosixRoot::Found> PosixRoot::Look() const {
  constexpr int kFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  Found found;
  found.root = UniqueFd(::open(options_.root.c_str(), kFlags));
  if (!found.root.valid()) {
    const Status missing = ErrnoStatus(errno, "cannot be opened");
    if (!absl::IsNotFound(missing) || options_.require_marker || !expected().empty()) {
      return Away(missing.message());
    }
    const Status made = MakeRoot();
    if (!made.ok()) return Away(absl::StrCat(missing.message(), "; ", made.message()));
    found.root = UniqueFd(::open(options_.root.c_str(), kFlags));
    if (!found.root.valid()) return Away(ErrnoStatus(errno, "cannot be opened").message());
  }
  auto marker = ReadRootMarker(found.root.get());
  if (absl::IsNotFound(marker.status())) {
    if (const std::string known = expected(); !known.empty()) {
      return Away(absl::StrCat("has no ", kRootMarker, "; this node's storage has the identity ",
                               known, ". Is it not mounted?"));
    }
    if (options_.require_marker) {
      return Away(absl::StrCat(
          "has no ", kRootMarker, ", and storage.require_marker is set. Is it ",
          "not mounted? `cairn storage init ", options_.root, "` makes a new storage of it"));
    }
    const Status made = MakeRootMarker(found.root.get(), DrawRootId());
    if (!made.ok() && !absl::IsAlreadyExists(made)) return Away(made.message());
    marker = ReadRootMarker(found.root.get());
  }
  if (!marker.ok()) return Away(marker.status().message());
  found.identity = *std::move(marker);
  return found;
}

StatusOr<RootIdentity> PosixRoot::Identity() const {
  CAIRN_ASSIGN_OR_RETURN(Found found, Look());
  MutexLock lock(&mu_);
  if (expected_.empty()) expected_ = found.identity.id;
  return std::move(found.identity);
}

StatusOr<UniqueFd> PosixRoot::Enter() const {
  CAIRN_ASSIGN_OR_RETURN(Found found, Look());
  {
    MutexLock lock(&mu_);
    if (expected_.empty()) expected_ = found.identity.id;
    if (expected_ == found.identity.id) return std::move(found.root);
  }
  return Away(absl::StrCat("is another storage, with the identity ", found.identity.id,
                           "; this node's has ", expected()));
}

Status PosixRoot::StillThere(int entered) const {
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd now, Enter());
  struct stat was = {}, is = {};
  if (::fstat(entered, &was) != 0 || ::fstat(now.get(), &is) != 0) {
    return ErrnoStatus(errno, options_.root);
  }
  if (was.st_dev == is.st_dev && was.st_ino == is.st_ino) return absl::OkStatus();
  return Away("was replaced meanwhile");
}

// --- a job's directories

StatusOr<Owner> PosixRoot::JobOwner(int root, const std::string& job) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(job));
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd directory, OpenAt(root, job, O_PATH | O_DIRECTORY));
  struct stat info = {};
  if (::fstat(directory.get(), &info) != 0) return ErrnoStatus(errno, job);
  return Owner{info.st_uid, info.st_gid};
}

Status PosixRoot::MakeJobDirectory(int root, const std::string& job, Owner owner) const {
  {
    // Where users may write below the root, the owner makes it.
    CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
    const Status made = MakeDirectoryAt(root, job, kJobMode);
    if (!absl::IsPermissionDenied(made)) {
      CAIRN_RETURN_IF_ERROR(made);
      return Sync(root);
    }
  }
  // Otherwise the daemon makes it, and gives it to the owner before it has its name: after a crash
  // in between, the job must not belong to the daemon's own user.
  const std::string temporary = absl::StrCat(kMetaDirectory, ".", job);
  CAIRN_RETURN_IF_ERROR(MakeDirectoryAt(root, temporary, kJobMode));
  {
    CAIRN_ASSIGN_OR_RETURN(const UniqueFd made, OpenDirectoryAt(root, temporary));
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
  const Status renamed = RenameAt(root, temporary, root, job, RENAME_NOREPLACE);
  if (absl::IsAlreadyExists(renamed)) {
    (void)UnlinkAt(root, temporary, /*is_directory=*/true);
  } else {
    CAIRN_RETURN_IF_ERROR(renamed);
  }
  return Sync(root);
}

StatusOr<JobDirectories> PosixRoot::OpenJob(const std::string& job, Owner owner,
                                            bool create) const {
  JobDirectories at;
  at.path = absl::StrCat(options_.root, "/", job);
  CAIRN_ASSIGN_OR_RETURN(at.root, Enter());
  StatusOr<Owner> found = JobOwner(at.root.get(), job);
  if (absl::IsNotFound(found.status()) && create) {
    CAIRN_RETURN_IF_ERROR(MakeJobDirectory(at.root.get(), job, owner));
    found = JobOwner(at.root.get(), job);
  }
  CAIRN_RETURN_IF_ERROR(found.status());
  if (found->uid != owner.uid) {
    return absl::PermissionDeniedError(
        absl::StrCat(at.path, " belongs to uid ", found->uid, ", the job to uid ", owner.uid));
  }
  CAIRN_ASSIGN_OR_RETURN(const AsOwner as, AsOwner::Become(owner));
  CAIRN_ASSIGN_OR_RETURN(at.job, OpenDirectoryAt(at.root.get(), job));
  const auto open = [create](int parent, const char* name) {
    return create ? MakeDirectoriesAt(parent, name) : OpenDirectoryAt(parent, name);
  };
  CAIRN_ASSIGN_OR_RETURN(at.meta, open(at.job.get(), kMetaDirectory));
  CAIRN_ASSIGN_OR_RETURN(at.partial, open(at.meta.get(), "partial"));
  CAIRN_ASSIGN_OR_RETURN(at.publish, open(at.meta.get(), "publish"));
  CAIRN_ASSIGN_OR_RETURN(at.trash, open(at.meta.get(), "trash"));
  // Jobs of older versions lack these.
  CAIRN_ASSIGN_OR_RETURN(at.abandoned, MakeDirectoriesAt(at.meta.get(), "abandoned"));
  CAIRN_ASSIGN_OR_RETURN(at.writing, MakeDirectoriesAt(at.meta.get(), "writing"));
  return at;
}

std::string PosixRoot::OwnPrefix() const { return absl::StrCat(absl::Hex(instance_), "-"); }

std::string PosixRoot::TemporaryName() {
  return absl::StrCat(OwnPrefix(), Next(), kTemporarySuffix);
}

Status PosixRoot::RemoveStale(int directory, int64_t seconds) const {
  CAIRN_ASSIGN_OR_RETURN(const auto names, ListDirectory(directory));
  std::optional<int64_t> now;
  for (const std::string& name : names) {
    if (!absl::EndsWith(name, kTemporarySuffix) || absl::StartsWith(name, OwnPrefix())) continue;
    struct stat info = {};
    if (::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!now.has_value()) {
      CAIRN_ASSIGN_OR_RETURN(now, Touch(directory));
    }
    if (*now - info.st_mtim.tv_sec < seconds) continue;
    CAIRN_RETURN_IF_ERROR(RemoveFileAt(directory, name));
  }
  return absl::OkStatus();
}

}  // namespace cairn::storage
