// Owners of descriptors and mappings, and the system calls on them, with Status for errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/status.h"

namespace cairn {

// Owns a file descriptor; closes it once. Every descriptor Cairn makes is close-on-exec.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1);
  StatusOr<UniqueFd> Dup() const;  // the same open file description

 private:
  int fd_ = -1;
};

// One descriptor that several hold; the last of them closes it.
using SharedFd = std::shared_ptr<const UniqueFd>;

// Raises this process's soft limit of descriptors to the hard one. A node has one descriptor per
// slab and three per session; the usual soft limit of 1,024 exists for programs that use select.
void RaiseDescriptorLimit();

// A new memfd of `bytes` zeros that nobody can execute, resize or seal further (without F_SEAL_SEAL
// a borrower could add FUTURE_WRITE). A uid that is lent a descriptor may reopen it through /proc
// with the rights that `mode` gives it.
StatusOr<UniqueFd> MakeMemfd(const std::string& name, uint64_t bytes, unsigned mode);

// Owns a memory mapping of whole pages; always MADV_DONTDUMP.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), length_(std::exchange(other.length_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping() { Reset(); }

  // mmap of [offset, offset+length) of `fd`; `length` > 0. `protection` and `flags` as mmap(2).
  static StatusOr<Mapping> Map(int fd, uint64_t offset, uint64_t length, int protection, int flags);
  // The same of memory that another process has sent. INTERNAL, and nothing is mapped, unless it has
  // these bytes and is sealed against losing them: a touch beyond the end would be a SIGBUS.
  static StatusOr<Mapping> MapSealed(int fd, uint64_t offset, uint64_t length, int protection,
                                     int flags);
  static StatusOr<Mapping> Anonymous(uint64_t length);
  // A shared one's [offset, offset + length), of whole pages, at further addresses. No descriptor is needed.
  StatusOr<Mapping> Again(uint64_t offset, uint64_t length) const;
  // The pages of a shared one leave for other addresses, and what fills their page tables with them. Here is memory of
  // zeros from now on, private to this process. At every moment one of the two is here, so other threads may touch it
  // meanwhile, which holds after an error too.
  StatusOr<Mapping> MoveAway();

  char* data() const { return static_cast<char*>(data_); }
  uint64_t length() const { return length_; }
  bool valid() const { return data_ != nullptr; }
  void Reset();

 private:
  Mapping(void* data, uint64_t length) : data_(data), length_(length) {}
  void* data_ = nullptr;
  uint64_t length_ = 0;
};

// Waits until a read would not block, or the peer is gone. False when `timeout_ms` (-1: no limit) is
// over first; a signal starts it anew.
//
// Why not wait in recv: on a Unix socket that thread is also woken whenever its peer reads from the
// other direction, twice per call, and each time interrupts the other processor. A thread that waits
// here is woken only by what it waits for.
StatusOr<bool> WaitReadable(int fd, int timeout_ms);

// --- SOCK_SEQPACKET messages with descriptors

inline constexpr size_t kMaxFdsPerMessage = 253;  // the kernel's limit

// Sends one message; UNAVAILABLE when the peer is gone, RESOURCE_EXHAUSTED when it cannot be sent now:
// the socket is full and `flags` holds MSG_DONTWAIT, the kernel has no memory for it, or too many
// descriptors of this user are under way. Never raises SIGPIPE.
Status SendMessage(int socket, absl::string_view bytes, absl::Span<const int> fds, int flags = 0);

struct ReceivedMessage {
  std::string bytes;  // empty: the peer closed
  std::vector<UniqueFd> fds;
};
// Receives one message. INVALID_ARGUMENT when it was longer than `max_bytes` or lost descriptors,
// for which this process had no room. With `fds_lost`, a message that lost descriptors is returned
// all the same, without any, and *fds_lost is true.
StatusOr<ReceivedMessage> ReceiveMessage(int socket, size_t max_bytes, int flags = 0,
                                         bool* fds_lost = nullptr);

// Receives what has been sent to a socket that is shut down, and closes the descriptors among it.
void DropMessages(int socket);

// --- files

// Reads or writes everything, through EINTR and short counts.
Status PreadAll(int fd, void* buffer, size_t length, uint64_t offset);
Status PwriteAll(int fd, const void* buffer, size_t length, uint64_t offset);
StatusOr<std::string> ReadFile(const std::string& path);  // the whole of it, at most 1 GiB

// openat2 of `path` beneath `directory`. PERMISSION_DENIED when the path has a symbolic link in it or
// leads out. UNAVAILABLE when somebody's lease on the file is in the way. `flags` and `mode` as open(2).
// Never waits for the other end of a FIFO, nor for the holder of a lease.
StatusOr<UniqueFd> OpenBeneath(int directory, const std::string& path, int flags,
                               unsigned mode = 0);
// Names in a directory except "." and "..", in byte order.
StatusOr<std::vector<std::string>> ListDirectory(int directory);
// A regular file from its start. INVALID_ARGUMENT when it is not one, or longer than `max_bytes`.
StatusOr<std::string> ReadRegularFile(int fd, uint64_t max_bytes);

// The pidfd of a process; NOT_FOUND when there is no such process. PidfdAlive is false once it has
// exited.
StatusOr<UniqueFd> OpenPidfd(int pid);
bool PidfdAlive(int pidfd);

}  // namespace cairn
