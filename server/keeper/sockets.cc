#include "server/keeper/sockets.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/directory.h"
#include "glog/logging.h"

namespace cairn::keeper {
namespace {

// Clients that connect while the daemon restarts wait in this queue.
constexpr int kBacklog = 1024;
// A killed keeper's daemon is killed with it (spawn.cc), but listens until the kernel has taken back what it mapped.
constexpr std::chrono::seconds kDyingLimit(60);

std::string FdChannelPath(const std::string& socket_path) {
  return absl::StrCat(socket_path, ".fd");
}

Status InUse(const std::string& path) {
  return absl::FailedPreconditionError(
      absl::StrCat("socket: ", path, " is in use by a running daemon"));
}

// Makes the socket's directory when it is missing, but none above it. A daemon whose socket stands in
// a directory that only its user may enter, as XDG_RUNTIME_DIR, is for that user alone.
Status MakeDirectory(const std::string& socket_path, const std::string& origin) {
  const std::string path = SplitDirectoryPath(socket_path).parent;
  const std::string what =
      origin.empty() ? "socket" : absl::StrCat("socket ", socket_path, " (", origin, ")");
  Status there = OpenDirectoryWarily(path).status();
  if (!absl::IsNotFound(there)) return Annotate(there, what);
  const DirectoryPath parts = SplitDirectoryPath(path);
  StatusOr<UniqueFd> parent = OpenDirectoryWarily(parts.parent);
  if (absl::IsNotFound(parent.status())) {
    return absl::NotFoundError(absl::StrCat(what, ": neither ", path, " nor ", parts.parent,
                                            " exists; only the last directory is made"));
  }
  if (!parent.ok()) return Annotate(parent.status(), what);
  struct stat around = {};
  if (::fstat(parent->get(), &around) != 0) return ErrnoStatus(errno, parts.parent);
  const mode_t mode = (around.st_mode & 0077) == 0 ? 0700 : 0755;
  // Not what umask happens to leave: clients of other users must be able to enter it.
  const StatusOr<bool> made = MakeDirectoryWithMode(parent->get(), parts.base, mode);
  if (absl::IsPermissionDenied(made.status())) {
    return absl::PermissionDeniedError(
        absl::StrCat(what, ": ", made.status().message(), " in ", parts.parent,
                     "; make it, or give `socket` a path in a directory of yours"));
  }
  if (!made.ok()) return Annotate(made.status(), what);
  return *made ? absl::OkStatus() : Annotate(OpenDirectoryWarily(path).status(), what);
}

StatusOr<UniqueFd> Lock(const std::string& path) {
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return ErrnoStatus(errno, absl::StrCat("socket: opening ", path));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return absl::FailedPreconditionError("locked");
    return ErrnoStatus(errno, absl::StrCat("socket: locking ", path));
  }
  return lock;
}

// Whether the process that listens at the other end of `socket`, a keeper, has ended: somebody else still has its socket.
bool ListenerEnded(int socket) {
  ucred listener = {};
  socklen_t length = sizeof(listener);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &listener, &length) != 0) return false;
  if (listener.pid <= 0) return false;  // of another PID namespace
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, listener.pid, 0)));
  if (!process.valid()) return errno == ESRCH;
  pollfd ended = {process.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) == 1;
}

// OK once nobody listens there: another program, or a daemon whose lock file was removed, may still do.
Status AwaitNoListener(const std::string& path, const sockaddr_un& address, int type) {
  const auto until = std::chrono::steady_clock::now() + kDyingLimit;
  while (true) {
    const UniqueFd caller(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!caller.valid()) return ErrnoStatus(errno, "socket");
    if (::connect(caller.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
        0) {
      return errno == ECONNREFUSED ? absl::OkStatus() : InUse(path);
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (!ListenerEnded(caller.get()) || left.count() <= 0) return InUse(path);
    LOG(WARNING) << "socket: who listened at " << path
                 << " has ended, and its daemon not yet; that is waited for";
    // It is hung up when the last one who listens has gone.
    pollfd closed = {caller.get(), 0, 0};
    ::poll(&closed, 1, static_cast<int>(left.count()));
  }
}

// Removes what a dead daemon left at `path`; the caller has the lock.
Status RemoveStale(const std::string& path, const sockaddr_un& address, int type) {
  struct stat stat = {};
  if (::lstat(path.c_str(), &stat) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, absl::StrCat("socket: ", path));
  }
  if (!S_ISSOCK(stat.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("socket: ", path, " exists and is not a socket"));
  }
  CAIRN_RETURN_IF_ERROR(AwaitNoListener(path, address, type));
  if (::unlink(path.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("socket: removing ", path));
  }
  return absl::OkStatus();
}

StatusOr<UniqueFd> ListenAt(const std::string& path, int type, uint32_t mode) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket: ", path, " has ", path.size(),
                                                   " bytes, the limit is ",
                                                   sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  CAIRN_RETURN_IF_ERROR(RemoveStale(path, address, type));
  UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "socket");
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("socket: binding ", path));
  }
  // Before listen, so that no client connects under the mode that umask happened to give.
  if (::chmod(path.c_str(), mode) != 0) {
    return ErrnoStatus(errno, absl::StrCat("socket.mode: of ", path));
  }
  if (::listen(socket.get(), kBacklog) != 0) {
    return ErrnoStatus(errno, absl::StrCat("socket: listening on ", path));
  }
  return socket;
}

}  // namespace

StatusOr<ListeningSockets> ListeningSockets::Listen(const std::string& socket_path, uint32_t mode,
                                                    const std::string& origin) {
  ListeningSockets sockets;
  CAIRN_RETURN_IF_ERROR(MakeDirectory(socket_path, origin));
  StatusOr<UniqueFd> lock = Lock(absl::StrCat(socket_path, ".lock"));
  if (absl::IsFailedPrecondition(lock.status())) return InUse(socket_path);
  if (!lock.ok()) return lock.status();
  sockets.lock_ = *std::move(lock);
  CAIRN_ASSIGN_OR_RETURN(sockets.thrift_, ListenAt(socket_path, SOCK_STREAM, mode));
  sockets.socket_path_ = socket_path;  // from here on there is something to remove
  CAIRN_ASSIGN_OR_RETURN(sockets.fd_channel_,
                         ListenAt(FdChannelPath(socket_path), SOCK_SEQPACKET, mode));
  return sockets;
}

ListeningSockets::~ListeningSockets() {
  if (thrift_.valid()) ::unlink(socket_path_.c_str());
  if (fd_channel_.valid()) ::unlink(FdChannelPath(socket_path_).c_str());
}

}  // namespace cairn::keeper
