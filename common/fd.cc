#include "common/fd.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#ifndef MREMAP_DONTUNMAP  // Linux 5.7, of shared mappings 5.13
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MFD_NOEXEC_SEAL  // Linux 6.3; glibc 2.36 does not know it yet
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace cairn {
namespace {

constexpr uint64_t kMaxReadFile = uint64_t{1} << 30;

// Space for the descriptors of one message, aligned as the kernel wants it.
union ControlBuffer {
  cmsghdr header;
  char bytes[CMSG_SPACE(kMaxFdsPerMessage * sizeof(int))];
};

bool PeerIsGone(int error) {
  return error == EPIPE || error == ECONNRESET || error == ENOTCONN || error == ECONNREFUSED;
}

}  // namespace

void UniqueFd::Reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

StatusOr<UniqueFd> UniqueFd::Dup() const {
  const int fd = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return ErrnoStatus(errno, "fcntl(F_DUPFD_CLOEXEC)");
  return UniqueFd(fd);
}

void RaiseDescriptorLimit() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

StatusOr<UniqueFd> MakeMemfd(const std::string& name, uint64_t bytes, unsigned mode) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(::memfd_create(name.c_str(), kFlags | MFD_NOEXEC_SEAL));
  if (!fd.valid() && errno == EINVAL) fd.Reset(::memfd_create(name.c_str(), kFlags));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("memfd_create of ", name));
  if (::fchmod(fd.get(), mode) != 0) return ErrnoStatus(errno, absl::StrCat("fchmod of ", name));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("ftruncate of ", name, " to ", bytes, " bytes"));
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, absl::StrCat("sealing ", name));
  }
  return fd;
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    length_ = std::exchange(other.length_, 0);
  }
  return *this;
}

StatusOr<Mapping> Mapping::Map(int fd, uint64_t offset, uint64_t length, int protection,
                               int flags) {
  void* data = ::mmap(nullptr, length, protection, flags, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mmap of ", length, " bytes at offset ", offset));
  }
  Mapping mapping(data, length);
  if (::madvise(data, length, MADV_DONTDUMP) != 0) {
    return ErrnoStatus(errno, "madvise(MADV_DONTDUMP)");
  }
  return mapping;
}

StatusOr<Mapping> Mapping::MapSealed(int fd, uint64_t offset, uint64_t length, int protection,
                                     int flags) {
  // In this order: what is sealed keeps the size that it has.
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InternalError("a descriptor was sent that is not sealed against shrinking");
  }
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, "fstat");
  const auto size = static_cast<uint64_t>(info.st_size);
  if (offset > size || length > size - offset) {
    return absl::InternalError(absl::StrCat("a descriptor of ", size, " bytes was sent for ",
                                            length, " at offset ", offset));
  }
  return Map(fd, offset, length, protection, flags);
}

StatusOr<Mapping> Mapping::Anonymous(uint64_t length) {
  return Map(-1, 0, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
}

StatusOr<Mapping> Mapping::Again(uint64_t offset, uint64_t length) const {
  // With 0 as the old size: see mremap(2).
  void* data = ::mremap(this->data() + offset, 0, length, MREMAP_MAYMOVE);
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mremap of ", length, " bytes at offset ", offset));
  }
  return Mapping(data, length);
}

StatusOr<Mapping> Mapping::MoveAway() {
  // Where the addresses agree below this, whole page tables move instead of their entries: a thousandth of the time.
  constexpr uint64_t kPageTable = 2 << 20;
  constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  constexpr int kTo = MREMAP_MAYMOVE | MREMAP_FIXED;
  // First all that may be refused.
  CAIRN_ASSIGN_OR_RETURN(Mapping zeros, Map(-1, 0, length_, PROT_READ | PROT_WRITE, kNothing));
  CAIRN_ASSIGN_OR_RETURN(Mapping room, Map(-1, 0, length_ + kPageTable, PROT_NONE, kNothing));
  const uint64_t before =
      (reinterpret_cast<uintptr_t>(data_) - reinterpret_cast<uintptr_t>(room.data_)) % kPageTable;
  char* const to = room.data() + before;
  if (::mremap(data_, length_, length_, kTo | MREMAP_DONTUNMAP, to) == MAP_FAILED &&
      ::mremap(data_, 0, length_, kTo, to) == MAP_FAILED) {  // Linux before 5.13
    return ErrnoStatus(errno, absl::StrCat("mremap of ", length_, " bytes"));
  }
  // The ends of the room are left over.
  if (before > 0) ::munmap(room.data_, before);
  if (before < kPageTable) ::munmap(to + length_, kPageTable - before);
  room.data_ = to;
  room.length_ = length_;
  if (::mremap(zeros.data_, length_, length_, kTo, data_) == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mremap of ", length_, " bytes over a mapping"));
  }
  zeros.data_ = nullptr;
  return room;
}

void Mapping::Reset() {
  if (data_ != nullptr) ::munmap(data_, length_);
  data_ = nullptr;
  length_ = 0;
}

Status SendMessage(int socket, absl::string_view bytes, absl::Span<const int> fds, int flags) {
  if (fds.size() > kMaxFdsPerMessage) {
    return absl::InvalidArgumentError(
        absl::StrCat("sendmsg: ", fds.size(), " descriptors, the limit is ", kMaxFdsPerMessage));
  }
  iovec vector = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  ControlBuffer control;
  if (!fds.empty()) {
    std::memset(&control, 0, sizeof(control));
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(socket, &message, flags | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) {
    if (errno == EAGAIN || errno == ENOBUFS) {
      return absl::ResourceExhaustedError("sendmsg: the peer does not read");
    }
    if (errno == ENOMEM || errno == ETOOMANYREFS) {
      return absl::ResourceExhaustedError(absl::StrCat("sendmsg: ", std::strerror(errno)));
    }
    if (PeerIsGone(errno)) return absl::UnavailableError("sendmsg: the peer is gone");
    return ErrnoStatus(errno, "sendmsg");
  }
  if (static_cast<size_t>(sent) != bytes.size()) {
    return absl::InternalError(
        absl::StrCat("sendmsg: sent ", sent, " of ", bytes.size(), " bytes"));
  }
  return absl::OkStatus();
}

StatusOr<ReceivedMessage> ReceiveMessage(int socket, size_t max_bytes, int flags, bool* fds_lost) {
  if (fds_lost != nullptr) *fds_lost = false;
  ReceivedMessage received;
  received.bytes.resize(max_bytes);
  received.fds.reserve(kMaxFdsPerMessage);  // no memory is needed once the kernel has given them
  iovec vector = {received.bytes.data(), max_bytes};
  ControlBuffer control;
  msghdr message = {};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  ssize_t got;
  do {
    got = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno == EAGAIN) return absl::DeadlineExceededError("recvmsg: nothing has come");
    if (errno == ENOMEM || errno == ENOBUFS) {
      return absl::ResourceExhaustedError(absl::StrCat("recvmsg: ", std::strerror(errno)));
    }
    if (PeerIsGone(errno)) return absl::UnavailableError("recvmsg: the peer is gone");
    return ErrnoStatus(errno, "recvmsg");
  }
  // Taken before the message is checked: one that is refused must not leak its descriptors.
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received.fds.emplace_back(fd);
    }
  }
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("recvmsg: a message is longer than ", max_bytes, " bytes"));
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    if (fds_lost == nullptr) {
      return absl::InvalidArgumentError("recvmsg: descriptors of a message were lost");
    }
    *fds_lost = true;
    received.fds.clear();
  }
  received.bytes.resize(static_cast<size_t>(got));
  return received;
}

StatusOr<bool> WaitReadable(int fd, int timeout_ms) {
  pollfd waiting = {fd, POLLIN, 0};
  int ready = -1;
  do {
    ready = ::poll(&waiting, 1, timeout_ms);
  } while (ready < 0 && errno == EINTR);
  if (ready < 0) return ErrnoStatus(errno, "poll");
  return ready > 0;
}

void DropMessages(int socket) {
  // With credentials an empty message has something that the end has not.
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
  int errors = 0;
  constexpr int kMaxErrors = 3;  // one is that the peer has closed with something unread
  while (true) {
    char byte = 0;
    iovec bytes = {&byte, sizeof(byte)};
    alignas(cmsghdr) char
        control[CMSG_SPACE(sizeof(int) * kMaxFdsPerMessage) + CMSG_SPACE(sizeof(ucred))];
    msghdr message = {};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) {
      if (errno == EAGAIN || ++errors > kMaxErrors) return;
      continue;
    }
    if (got == 0 && message.msg_controllen == 0) return;
    for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
      if (at->cmsg_level != SOL_SOCKET || at->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (at->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(at) + i * sizeof(int), sizeof(fd));
        ::close(fd);
      }
    }
  }
}

Status PreadAll(int fd, void* buffer, size_t length, uint64_t offset) {
  char* at = static_cast<char*>(buffer);
  while (length > 0) {
    const ssize_t got = ::pread(fd, at, length, static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, absl::StrCat("pread at offset ", offset));
    }
    if (got == 0) {
      return absl::DataLossError(
          absl::StrCat("pread: the file ends at ", offset, ", ", length, " bytes too early"));
    }
    at += got;
    offset += static_cast<uint64_t>(got);
    length -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

Status PwriteAll(int fd, const void* buffer, size_t length, uint64_t offset) {
  const char* at = static_cast<const char*>(buffer);
  while (length > 0) {
    const ssize_t put = ::pwrite(fd, at, length, static_cast<off_t>(offset));
    if (put < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, absl::StrCat("pwrite at offset ", offset));
    }
    at += put;
    offset += static_cast<uint64_t>(put);
    length -= static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

StatusOr<std::string> ReadFile(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  // st_size says nothing here: it is 0 for files of /proc.
  std::string bytes;
  constexpr size_t kPiece = 64 << 10;
  while (true) {
    const size_t before = bytes.size();
    bytes.resize(before + kPiece);
    const ssize_t got = ::read(fd.get(), bytes.data() + before, kPiece);
    if (got < 0 && errno != EINTR) return ErrnoStatus(errno, path);
    bytes.resize(before + static_cast<size_t>(got > 0 ? got : 0));
    if (got == 0) return bytes;
    if (bytes.size() > kMaxReadFile) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, ": is longer than the limit ", kMaxReadFile));
    }
  }
}

StatusOr<UniqueFd> OpenBeneath(int directory, const std::string& path, int flags, unsigned mode) {
  open_how how = {};
  how.flags = static_cast<unsigned>(flags | O_CLOEXEC);
  // O_PATH goes with none of the others, and opening with it never waits.
  if ((flags & O_PATH) == 0) how.flags |= O_NONBLOCK | O_NOCTTY;
  how.mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? mode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  long fd;
  // EXDEV is also the answer when the directory that was just found is renamed out of `directory`
  // before the look-up ends, and EAGAIN may be one to a rename. Another look then says what stands
  // there now.
  int looks = 0;
  constexpr int kMaxLooks = 16;
  do {
    fd = ::syscall(SYS_openat2, directory, path.c_str(), &how, sizeof(how));
  } while (fd < 0 &&
           (errno == EINTR || ((errno == EAGAIN || errno == EXDEV) && ++looks < kMaxLooks)));
  if (fd < 0) {
    if (errno == ELOOP || errno == EXDEV) {
      return absl::PermissionDeniedError(
          absl::StrCat(path, ": leads through a symbolic link or out of its directory"));
    }
    if (errno == EAGAIN) {
      // Its holder has as long as the kernel gives it (45 s); nobody else waits for that here.
      return absl::UnavailableError(
          absl::StrCat(path, ": another process holds a lease on it (F_SETLEASE)"));
    }
    return ErrnoStatus(errno, path);
  }
  return UniqueFd(static_cast<int>(fd));
}

StatusOr<std::vector<std::string>> ListDirectory(int directory) {
  // An open file description of its own: reading moves the position, which duplicates share.
  UniqueFd fd(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, "opening a directory to list it");
  std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(fd.get()), &::closedir);
  if (stream == nullptr) return ErrnoStatus(errno, "fdopendir");
  fd.Release();
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) {
      if (errno != 0) return ErrnoStatus(errno, "readdir");
      break;
    }
    const absl::string_view name(entry->d_name);
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

StatusOr<std::string> ReadRegularFile(int fd, uint64_t max_bytes) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, "fstat");
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError("is not a regular file");
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", size, " bytes, the limit is ", max_bytes));
  }
  std::string bytes(size, '\0');
  CAIRN_RETURN_IF_ERROR(PreadAll(fd, bytes.data(), size, 0));
  return bytes;
}

StatusOr<UniqueFd> OpenPidfd(int pid) {
  const long fd = ::syscall(SYS_pidfd_open, pid, 0u);  // close-on-exec by itself
  if (fd < 0) {
    if (errno == ESRCH) return absl::NotFoundError(absl::StrCat("process ", pid, " is gone"));
    return ErrnoStatus(errno, absl::StrCat("pidfd_open(", pid, ")"));
  }
  return UniqueFd(static_cast<int>(fd));
}

bool PidfdAlive(int pidfd) {
  pollfd poll_fd = {pidfd, POLLIN, 0};
  int ready;
  do {
    ready = ::poll(&poll_fd, 1, 0);
  } while (ready < 0 && errno == EINTR);
  return ready == 0;
}

}  // namespace cairn
