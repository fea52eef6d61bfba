#include "server/storage/files.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_split.h"
#include "common/failpoint.h"
#include "common/mutex.h"
#include "glog/logging.h"

namespace cairn::storage {
namespace {

// Calls until it is not interrupted; 0 or the errno, that of the failpoint included.
template <typename Call>
int Try(Failpoint point, const Call& call) {
  if (const int error = ReachFailpoint(point); error != 0) return error;
  while (call() < 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

// The error of a call that the file system, or a filter of system calls, does not know.
bool IsUnknown(int error) {
  return error == EINVAL || error == EOPNOTSUPP || error == ENOSYS || error == EPERM;
}

bool IsDirectory(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
}

class LeftOut {
 public:
  void Take(int fd, absl::string_view call, int error, absl::string_view meaning) {
    MutexLock lock(&mu_);
    std::string& said = said_[std::string(call)];
    if (!said.empty()) return;
    std::error_code unread;
    const auto place = std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), unread);
    said = absl::StrCat(place.string(), ": ", ErrnoStatus(error, call).message(), "; ", meaning);
    LOG(WARNING) << "storage: " << said;
  }
  std::vector<std::string> All() {
    MutexLock lock(&mu_);
    std::vector<std::string> all;
    for (const auto& [call, said] : said_) all.push_back(said);
    return all;
  }

 private:
  Mutex mu_;  // a leaf
  std::map<std::string, std::string> said_ ABSL_GUARDED_BY(mu_);
};

LeftOut& left_out() {
  static LeftOut& all = *new LeftOut;
  return all;
}

// Which file a name stands for; nullopt when there is none.
using Inode = std::optional<std::pair<dev_t, ino_t>>;
Inode InodeAt(int directory, const std::string& name) {
  struct stat info = {};
  if (::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return std::pair(info.st_dev, info.st_ino);
}

Status RemoveTree(int directory, const std::string& name, int depth) {
  Status status = UnlinkAt(directory, name);
  if (status.ok() || absl::IsNotFound(status)) return absl::OkStatus();
  struct stat info = {};
  if (::fstatat(directory, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, name);
  }
  if (!S_ISDIR(info.st_mode)) return status;
  if (depth == 0) return absl::InternalError(absl::StrCat(name, ": is too deep to be ours"));
  {
    // Several daemons may empty one trash at the same time.
    const auto inner = OpenDirectoryAt(directory, name);
    if (absl::IsNotFound(inner.status())) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(inner.status());
    const auto names = ListDirectory(inner->get());
    if (absl::IsNotFound(names.status())) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(names.status());
    for (const std::string& entry : *names) {
      CAIRN_RETURN_IF_ERROR(RemoveTree(inner->get(), entry, depth - 1));
    }
  }
  status = UnlinkAt(directory, name, /*is_directory=*/true);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

}  // namespace

std::vector<std::string> CallsLeftOut() { return left_out().All(); }

PathParts SplitPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {"", path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

void AddDirectoriesOf(const std::string& path, std::set<std::string>* directories) {
  for (size_t slash = path.find('/'); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    directories->insert(path.substr(0, slash));
  }
}

StatusOr<UniqueFd> OpenAt(int directory, const std::string& path, int flags, unsigned mode) {
  if (const int error = ReachFailpoint(Failpoint::kStorageOpen); error != 0) {
    return ErrnoStatus(error, path);
  }
  return OpenBeneath(directory, path, flags, mode);
}

StatusOr<UniqueFd> OpenDirectoryAt(int directory, const std::string& path) {
  return OpenAt(directory, path, O_RDONLY | O_DIRECTORY);
}

Status MakeDirectoryAt(int directory, const std::string& name, unsigned mode) {
  const int error = Try(Failpoint::kStorageMakeDirectory,
                        [&] { return ::mkdirat(directory, name.c_str(), mode); });
  if (error == 0 || error == EEXIST) return absl::OkStatus();
  return ErrnoStatus(error, absl::StrCat("mkdir ", name));
}

StatusOr<UniqueFd> MakeDirectoriesAt(int directory, const std::string& path) {
  UniqueFd at;
  for (const std::string& component : std::vector<std::string>(absl::StrSplit(path, '/'))) {
    const int parent = at.valid() ? at.get() : directory;
    // Opening first mostly saves the mkdir, which would take the directory's lock.
    auto next = OpenDirectoryAt(parent, component);
    if (absl::IsNotFound(next.status())) {
      CAIRN_RETURN_IF_ERROR(MakeDirectoryAt(parent, component));
      next = OpenDirectoryAt(parent, component);
    }
    CAIRN_RETURN_IF_ERROR(next.status());
    at = *std::move(next);
  }
  return at;
}

Status Allocate(int fd, uint64_t length) {
  if (length == 0) return absl::OkStatus();
  const int error = Try(Failpoint::kStorageAllocate,
                        [&] { return ::fallocate(fd, 0, 0, static_cast<off_t>(length)); });
  if (error == 0) return absl::OkStatus();
  if (IsUnknown(error)) {
    left_out().Take(fd, "fallocate", error, "a full disk is met in the middle of a part");
    return absl::OkStatus();
  }
  return ErrnoStatus(error, absl::StrCat("fallocate of ", length, " bytes"));
}

Status WriteAt(int fd, const char* bytes, size_t length, uint64_t offset, bool* direct) {
  while (length > 0) {
    ssize_t put = -1;
    const int error = Try(Failpoint::kStorageWrite, [&] {
      put = ::pwrite(fd, bytes, length, static_cast<off_t>(offset));
      return put < 0 ? -1 : 0;
    });
    if (error == EINVAL && *direct) {
      // Some file systems take O_DIRECT at open and refuse it here.
      const int flags = ::fcntl(fd, F_GETFL);
      if (flags < 0 || ::fcntl(fd, F_SETFL, flags & ~O_DIRECT) != 0) {
        return ErrnoStatus(errno, "turning O_DIRECT off");
      }
      *direct = false;
      continue;
    }
    if (error != 0) return ErrnoStatus(error, absl::StrCat("pwrite at offset ", offset));
    bytes += put;
    offset += static_cast<uint64_t>(put);
    length -= static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

Status Truncate(int fd, uint64_t length) {
  const int error =
      Try(Failpoint::kStorageTruncate, [&] { return ::ftruncate(fd, static_cast<off_t>(length)); });
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "ftruncate");
}

Status Sync(int fd) {
  // Never twice on one description: after an error the kernel may call the same pages clean.
  int error = ReachFailpoint(Failpoint::kStorageSync);
  if (error == 0 && ::fsync(fd) != 0) error = errno;
  if (error == 0) return absl::OkStatus();
  if (IsUnknown(error) && IsDirectory(fd)) {
    left_out().Take(fd, "fsync of a directory", error,
                    "what is PERSISTED there may be gone when its file server lost power");
    return absl::OkStatus();
  }
  return ErrnoStatus(error, "fsync");
}

Status SyncDirectoryAt(int directory, const std::string& path) {
  if (path.empty() || path == ".") return Sync(directory);
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd fd, OpenDirectoryAt(directory, path));
  return Sync(fd.get());
}

Status Close(UniqueFd fd) {
  if (const int error = ReachFailpoint(Failpoint::kStorageClose); error != 0) {
    return ErrnoStatus(error, "close");
  }
  // Linux has closed it whatever it answers.
  return ::close(fd.Release()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, "close");
}

Status RenameAt(int from_directory, const std::string& from, int to_directory,
                const std::string& to, unsigned flags) {
  const Inode moved = InodeAt(from_directory, from);
  const auto rename = [&](unsigned with) {
    return Try(Failpoint::kStorageRename, [&] {
      const auto done = static_cast<int>(
          ::syscall(SYS_renameat2, from_directory, from.c_str(), to_directory, to.c_str(), with));
      const int lost = done == 0 ? ReachFailpoint(Failpoint::kStorageRenamed) : 0;
      if (lost != 0) errno = lost;
      return lost != 0 ? -1 : done;
    });
  };
  int error = flags == RENAME_EXCHANGE ? ReachFailpoint(Failpoint::kStorageExchange) : 0;
  if (error == 0) error = rename(flags);
  if (error == 0) return absl::OkStatus();
  if (moved && InodeAt(to_directory, to) == moved) return absl::OkStatus();
  if (flags != 0 && (error == EINVAL || error == ENOSYS || error == EOPNOTSUPP)) {
    if (flags == RENAME_EXCHANGE) {
      return absl::UnimplementedError(
          absl::StrCat("rename to ", to, ": this file system has no exchange"));
    }
    // A directory that is not empty is not replaced anyway.
    error = InodeAt(to_directory, to) ? EEXIST : rename(0);
    if (error != 0 && moved && InodeAt(to_directory, to) == moved) return absl::OkStatus();
  }
  // File systems name what stands in the way differently; callers see one name.
  if (error == ENOTEMPTY) return ErrnoStatus(EEXIST, absl::StrCat("rename to ", to));
  return error == 0 ? absl::OkStatus()
                    : ErrnoStatus(error, absl::StrCat("rename of ", from, " to ", to));
}

Status LinkAt(int from_directory, const std::string& from, int to_directory,
              const std::string& to) {
  const int error = Try(Failpoint::kStorageLink, [&] {
    return ::linkat(from_directory, from.c_str(), to_directory, to.c_str(), 0);
  });
  if (error == 0) return absl::OkStatus();
  const Inode linked = InodeAt(from_directory, from);
  if (linked && InodeAt(to_directory, to) == linked) return absl::OkStatus();
  // Another one has linked it, too, and removed it since.
  if (error == EEXIST && !linked) return ErrnoStatus(ENOENT, absl::StrCat("link of ", from));
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK) {
    return absl::UnimplementedError(
        absl::StrCat("link to ", to, ": this file system has no links"));
  }
  return ErrnoStatus(error, absl::StrCat("link of ", from, " to ", to));
}

StatusOr<int64_t> Touch(int directory) {
  const int error =
      Try(Failpoint::kStorageTouch, [&] { return ::futimens(directory, /*now*/ nullptr); });
  struct stat info = {};
  if (error != 0 || ::fstat(directory, &info) != 0) {
    return ErrnoStatus(error != 0 ? error : errno, "touching a directory");
  }
  return info.st_mtim.tv_sec;
}

Status UnlinkAt(int directory, const std::string& name, bool is_directory) {
  const int error = Try(Failpoint::kStorageUnlink, [&] {
    return ::unlinkat(directory, name.c_str(), is_directory ? AT_REMOVEDIR : 0);
  });
  return error == 0 ? absl::OkStatus() : ErrnoStatus(error, absl::StrCat("unlink ", name));
}

Status RemoveFileAt(int directory, const std::string& name) {
  const Status gone = UnlinkAt(directory, name);
  return absl::IsNotFound(gone) ? absl::OkStatus() : gone;
}

Status RemoveTreeAt(int directory, const std::string& name) {
  return RemoveTree(directory, name, kMaxTreeDepth);
}

}  // namespace cairn::storage
