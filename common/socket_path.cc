#include "common/socket_path.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace cairn {
namespace {

// The same under XDG_RUNTIME_DIR as under /run.
constexpr char kBelowRuntimeDir[] = "/cairn/cairn.sock";

Status CheckRuntimeDir(const SocketUser& user) {
  const auto unusable = [&user](const std::string& why) {
    return absl::FailedPreconditionError(
        absl::StrCat("XDG_RUNTIME_DIR is not used: ", user.runtime_dir, " ", why));
  };
  if (user.runtime_dir[0] != '/') return unusable("is not an absolute path");
  struct stat found = {};
  if (::stat(user.runtime_dir.c_str(), &found) != 0) {
    return Annotate(ErrnoStatus(errno, user.runtime_dir), "XDG_RUNTIME_DIR is not used");
  }
  if (!S_ISDIR(found.st_mode)) return unusable("is not a directory");
  if (found.st_uid != user.uid) {
    return unusable(absl::StrCat("belongs to uid ", found.st_uid, ", this is uid ", user.uid));
  }
  if ((found.st_mode & 0022) != 0) return unusable("can be written by other users");
  return absl::OkStatus();
}

}  // namespace

SocketUser ThisProcess() {
  const char* runtime_dir = std::getenv("XDG_RUNTIME_DIR");
  return {::geteuid(), runtime_dir != nullptr ? runtime_dir : ""};
}

StatusOr<std::string> OwnSocketPath(const SocketUser& user) {
  if (user.uid == 0) return absl::NotFoundError("root's daemon is the machine's");
  if (user.runtime_dir.empty()) return absl::NotFoundError("XDG_RUNTIME_DIR is not set");
  const Status usable = CheckRuntimeDir(user);
  if (!usable.ok()) return absl::FailedPreconditionError(usable.message());
  return user.runtime_dir + kBelowRuntimeDir;
}

std::string ClientSocketPath(const SocketUser& user) {
  const StatusOr<std::string> own = OwnSocketPath(user);
  struct stat found = {};
  if (own.ok() && ::lstat(own->c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) return *own;
  return kDefaultSocketPath;
}

}  // namespace cairn
