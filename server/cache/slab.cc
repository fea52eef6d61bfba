#include "server/cache/slab.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace cairn::cache {
namespace {

// Zeros to write; few enough to stay in the processor's second-level cache.
constexpr uint64_t kPopulateStepBytes = 256 << 10;
alignas(kPageBytes) constexpr char kZeros[kPopulateStepBytes] = {};

std::string ProcPath(int fd) { return absl::StrCat("/proc/self/fd/", fd); }

// O_NONBLOCK, because an open of a file under a lease would wait up to 45 s.
StatusOr<UniqueFd> Reopen(int fd, int access) {
  const int opened = ::open(ProcPath(fd).c_str(), access | O_NONBLOCK | O_CLOEXEC);
  if (opened < 0 && errno == EWOULDBLOCK) {
    return absl::UnavailableError("open of a slab: another process holds a file lease on it");
  }
  if (opened < 0) return ErrnoStatus(errno, "open of a slab through /proc/self/fd");
  return UniqueFd(opened);
}

Status ValidateBytes(uint64_t bytes) {
  if (bytes == 0 || bytes % kPageBytes != 0 || bytes > kMaxObjectBytes * 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("slab bytes: ", bytes, " is not a positive multiple of ", kPageBytes));
  }
  return absl::OkStatus();
}

StatusOr<struct flock> LeaseByte(LeaseId lease, short type) {
  if (lease >= static_cast<uint64_t>(std::numeric_limits<off_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease: ", lease, " is beyond the last byte a lock can stand at"));
  }
  struct flock lock = {};  // l_pid must be 0 for OFD locks
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(lease);
  lock.l_len = 1;
  return lock;
}

}  // namespace

StatusOr<std::shared_ptr<Slab>> Slab::Make(const std::string& name, uint64_t bytes) {
  CAIRN_RETURN_IF_ERROR(ValidateBytes(bytes));
  // The default mode lets every uid write; with 0644 another uid can reopen it only for reading.
  CAIRN_ASSIGN_OR_RETURN(UniqueFd first, MakeMemfd(name, bytes, 0644));
  CAIRN_ASSIGN_OR_RETURN(UniqueFd fd, Reopen(first.get(), O_RDWR));
  first.Reset();  // through this description Probe's answer would be inverted
  return std::shared_ptr<Slab>(new Slab(std::move(fd), bytes));
}

StatusOr<std::shared_ptr<Slab>> Slab::Adopt(UniqueFd fd, uint64_t bytes) {
  CAIRN_RETURN_IF_ERROR(ValidateBytes(bytes));
  struct stat stat = {};
  if (::fstat(fd.get(), &stat) != 0) return ErrnoStatus(errno, "fstat of a slab");
  if (static_cast<uint64_t>(stat.st_size) != bytes) {
    return absl::DataLossError(
        absl::StrCat("slab bytes: the memfd has ", stat.st_size, ", recorded are ", bytes));
  }
  // A daemon that was killed inside a probe has left its file lease on this description. Where
  // there is no lease, the kernel answers EAGAIN.
  if (::fcntl(fd.get(), F_SETLEASE, F_UNLCK) != 0 && errno != EAGAIN) {
    return ErrnoStatus(errno, "F_SETLEASE F_UNLCK on an adopted slab");
  }
  return std::shared_ptr<Slab>(new Slab(std::move(fd), bytes));
}

Status Slab::Populate(uint64_t offset, uint64_t length) {
  for (uint64_t done = 0; done < length;) {
    const uint64_t step = std::min(kPopulateStepBytes, length - done);
    CAIRN_RETURN_IF_ERROR(PwriteAll(fd_.get(), kZeros, step, offset + done));
    done += step;
  }
  return absl::OkStatus();
}

Status Slab::Read(uint64_t offset, absl::Span<char> into) const {
  const Status status = PreadAll(fd_.get(), into.data(), into.size(), offset);
  if (status.ok() || absl::IsDataLoss(status)) return status;
  return absl::DataLossError(status.message());  // EIO: the written bytes are lost
}

Status Slab::Write(uint64_t offset, absl::string_view bytes) {
  return PwriteAll(fd_.get(), bytes.data(), bytes.size(), offset);
}

Status Slab::Free() {
  if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                  static_cast<off_t>(bytes())) != 0) {
    return ErrnoStatus(errno, "punching out a slab");
  }
  return absl::OkStatus();
}

StatusOr<UniqueFd> Slab::Lend(LeaseId lease, bool writable) {
  CAIRN_ASSIGN_OR_RETURN(struct flock lock, LeaseByte(lease, F_RDLCK));
  MutexLock exclude(&open_or_probe_);
  CAIRN_ASSIGN_OR_RETURN(UniqueFd lent, Reopen(fd_.get(), writable ? O_RDWR : O_RDONLY));
  if (::fcntl(lent.get(), F_OFD_SETLK, &lock) != 0) {
    return ErrnoStatus(errno, absl::StrCat("locking byte ", lease, " of a lent slab"));
  }
  return lent;
}

StatusOr<bool> Slab::LeaseOpen(LeaseId lease) const {
  CAIRN_ASSIGN_OR_RETURN(struct flock lock, LeaseByte(lease, F_WRLCK));
  if (::fcntl(fd_.get(), F_OFD_GETLK, &lock) != 0) {
    return ErrnoStatus(errno, absl::StrCat("asking for the lock at byte ", lease));
  }
  return lock.l_type != F_UNLCK;
}

StatusOr<bool> Slab::Probe() {
  MutexLock exclude(&open_or_probe_);
  if (::fcntl(fd_.get(), F_SETLEASE, F_WRLCK) != 0) {
    if (errno == EAGAIN || errno == EBUSY) return false;
    return ErrnoStatus(errno, "F_SETLEASE F_WRLCK on a slab");
  }
  // A process that opens the file by path at this moment waits for the lease, and will have the
  // file open as soon as the lease is undone. F_GETLEASE then returns the type to which the kernel
  // wants the lease lowered, which is not F_WRLCK.
  const bool undisturbed = ::fcntl(fd_.get(), F_GETLEASE) == F_WRLCK;
  if (::fcntl(fd_.get(), F_SETLEASE, F_UNLCK) != 0) {
    return ErrnoStatus(errno, "F_SETLEASE F_UNLCK on a slab");
  }
  return undisturbed;
}

}  // namespace cairn::cache
