// Owners of what the kernel hands out.
#pragma once

#include <cstddef>
#include <cstdint>
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

// Lets this process open as many descriptors as it may. A node has one for each slab and three for
// a session; the usual soft limit of 1,024 is for programs that use select.
void RaiseDescriptorLimit();

// A new memfd of `bytes` zeros that nobody can execute, resize, or seal further (without
// F_SEAL_SEAL a borrower could add FUTURE_WRITE). `mode` matters because any uid that is lent a
// descriptor may reopen it through /proc with that.
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
  static StatusOr<Mapping> Anonymous(uint64_t length);

  char* data() const { return static_cast<char*>(data_); }
  uint64_t length() const { return length_; }
  bool valid() const { return data_ != nullptr; }
  void Reset();

 private:
  Mapping(void* data, uint64_t length) : data_(data), length_(length) {}
  void* data_ = nullptr;
  uint64_t length_ = 0;
};

// Waits until a read would not block, or the peer is gone; false when `timeout_ms` (-1: none) is
// over first, counted anew from a signal.
//
// A thread that waits in recv on a Unix socket is also woken whenever its peer takes something out
// of the other direction: twice per call, at the price of an interrupt to the other processor each
// time. One that waits here is woken by what it waits for.
StatusOr<bool> WaitReadable(int fd, int timeout_ms);

// --- SOCK_SEQPACKET messages with descriptors

inline constexpr size_t kMaxFdsPerMessage = 253;  // the kernel's limit

// Sends one message; UNAVAILABLE when the peer is gone, RESOURCE_EXHAUSTED when the socket is full
// and `flags` holds MSG_DONTWAIT. Never raises SIGPIPE.
Status SendMessage(int socket, absl::string_view bytes, absl::Span<const int> fds, int flags = 0);

struct ReceivedMessage {
  std::string bytes;  // empty: the peer closed
  std::vector<UniqueFd> fds;
};
// Receives one message of at most `max_bytes`; INVALID_ARGUMENT when it was longer or lost
// descriptors.
StatusOr<ReceivedMessage> ReceiveMessage(int socket, size_t max_bytes, int flags = 0);

// --- files

// Reads or writes everything, through EINTR and short counts.
Status PreadAll(int fd, void* buffer, size_t length, uint64_t offset);
Status PwriteAll(int fd, const void* buffer, size_t length, uint64_t offset);
StatusOr<std::string> ReadFile(const std::string& path);  // whole; at most 1 GiB

// openat2 of `path` beneath `directory`, through no symbolic link: PERMISSION_DENIED where one
// stands or the path leads out. `flags` and `mode` as open(2); a FIFO never makes it wait.
StatusOr<UniqueFd> OpenBeneath(int directory, const std::string& path, int flags,
                               unsigned mode = 0);
// Names in a directory but for "." and "..", in byte order.
StatusOr<std::vector<std::string>> ListDirectory(int directory);
// The rest of a regular file of at most `max_bytes`; INVALID_ARGUMENT for anything else.
StatusOr<std::string> ReadRegularFile(int fd, uint64_t max_bytes);

// pidfd of a process; NOT_FOUND when it is gone. PidfdAlive is false once it has exited.
StatusOr<UniqueFd> OpenPidfd(int pid);
bool PidfdAlive(int pidfd);

}  // namespace cairn
