#include "common/directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace cairn {
namespace {

constexpr int kMaxLinks = 40;  // as the kernel

// Puts the components of `path` on `to_go`, the first one last.
void PushComponents(const std::string& path, std::vector<std::string>* to_go) {
  const std::vector<std::string> components = absl::StrSplit(path, '/', absl::SkipEmpty());
  to_go->insert(to_go->end(), components.rbegin(), components.rend());
}

StatusOr<UniqueFd> OpenStart(const std::string& path) {
  const char* start = path[0] == '/' ? "/" : ".";
  UniqueFd opened(::open(start, O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!opened.valid()) return ErrnoStatus(errno, start);
  return opened;
}

// Where the symbolic link `name` in `directory` leads.
StatusOr<std::string> ReadTrustedLink(int directory, const std::string& name,
                                      const std::string& shown) {
  const UniqueFd link(::openat(directory, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct stat found = {}, around = {};
  if (!link.valid() || ::fstat(link.get(), &found) != 0 || ::fstat(directory, &around) != 0) {
    return ErrnoStatus(errno, shown);
  }
  if (!S_ISLNK(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(shown, " is not a directory"));
  }
  if ((around.st_mode & S_IWOTH) != 0 && found.st_uid != 0 && found.st_uid != ::geteuid() &&
      found.st_uid != around.st_uid) {
    return absl::PermissionDeniedError(
        absl::StrCat(shown, " is a symbolic link of uid ", found.st_uid,
                     " in a directory that everybody may write to, and is not followed"));
  }
  char target[PATH_MAX];
  const ssize_t length = ::readlinkat(link.get(), "", target, sizeof(target));
  if (length <= 0) return ErrnoStatus(length < 0 ? errno : ENOENT, shown);
  return std::string(target, static_cast<size_t>(length));
}

}  // namespace

DirectoryPath SplitDirectoryPath(const std::string& path) {
  const size_t last = path.find_last_not_of('/');
  if (last == std::string::npos) return {"/", ""};
  const size_t slash = path.rfind('/', last);
  if (slash == std::string::npos) return {".", path.substr(0, last + 1)};
  const size_t end = path.find_last_not_of('/', slash);
  return {end == std::string::npos ? "/" : path.substr(0, end + 1),
          path.substr(slash + 1, last - slash)};
}

StatusOr<UniqueFd> OpenDirectoryWarily(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(UniqueFd at, OpenStart(path));
  std::vector<std::string> to_go;
  PushComponents(path, &to_go);
  for (int links = 0; !to_go.empty();) {
    const std::string name = std::move(to_go.back());
    to_go.pop_back();
    // With O_DIRECTORY, what is mounted on demand is mounted.
    UniqueFd next(::openat(at.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (next.valid()) {
      at = std::move(next);
      continue;
    }
    const std::string shown =
        name == SplitDirectoryPath(path).base ? path : absl::StrCat(path, ", at \"", name, "\"");
    if (errno != ENOTDIR && errno != ELOOP) return ErrnoStatus(errno, shown);
    CAIRN_ASSIGN_OR_RETURN(const std::string target, ReadTrustedLink(at.get(), name, shown));
    if (++links > kMaxLinks) return ErrnoStatus(ELOOP, shown);
    if (target[0] == '/') {
      CAIRN_ASSIGN_OR_RETURN(at, OpenStart(target));
    }
    PushComponents(target, &to_go);
  }
  return at;
}

StatusOr<bool> IsEmptyDirectory(int directory) {
  // An open file description of its own: reading moves the position, which duplicates share.
  UniqueFd fd(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "opening a directory to read it");
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd.get()), &::closedir);
  if (stream == nullptr) return ErrnoStatus(errno, "fdopendir");
  fd.Release();
  errno = 0;
  for (const dirent* entry = nullptr; (entry = ::readdir(stream.get())) != nullptr;) {
    const absl::string_view name(entry->d_name);
    if (name != "." && name != "..") return false;
  }
  if (errno != 0) return ErrnoStatus(errno, "readdir");
  return true;
}

StatusOr<bool> MakeDirectoryWithMode(int parent, const std::string& name, unsigned mode) {
  if (::mkdirat(parent, name.c_str(), mode) != 0) {
    if (errno == EEXIST) return false;
    return ErrnoStatus(errno, absl::StrCat("making ", name));
  }
  // In a directory that others may write to, one of theirs may stand there by now.
  const UniqueFd made(
      ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat is = {};
  if (!made.valid() || ::fstat(made.get(), &is) != 0) return ErrnoStatus(errno, name);
  if (is.st_uid != ::geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat(name, " was replaced by a directory of uid ", is.st_uid));
  }
  if (::fchmod(made.get(), mode) != 0) return ErrnoStatus(errno, absl::StrCat("mode of ", name));
  return true;
}

}  // namespace cairn
