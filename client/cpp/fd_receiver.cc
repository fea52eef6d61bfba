#include "client/cpp/fd_receiver.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "client/cpp/process.h"
#include "common/fd_channel.h"

namespace cairn::client {
namespace {

constexpr absl::Duration kAttachPatience = absl::Seconds(3);

StatusOr<bool> Readable(int fd, absl::Duration timeout) {
  const int64_t ms = absl::ToInt64Milliseconds(absl::Ceil(timeout, absl::Milliseconds(1)));
  return WaitReadable(fd, static_cast<int>(std::clamp<int64_t>(ms, 0, 1'000'000)));
}

// A daemon that breaks the protocol is broken: the caller did nothing wrong.
Status Broken(const Status& status) { return absl::InternalError(status.message()); }

}  // namespace

StatusOr<std::unique_ptr<FdReceiver>> FdReceiver::Attach(const std::string& path, SessionId session,
                                                         const std::string& secret,
                                                         MonotonicNanos deadline,
                                                         UniqueFd* progress) {
  const StatusOr<std::string> attach = Encode(FdAttach{session, secret});
  if (!attach.ok()) return Broken(attach.status());

  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return absl::InternalError(absl::StrCat("fd channel: unusable path \"", path, "\""));
  }
  memcpy(address.sun_path, path.data(), path.size());
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return ErrnoStatus(errno, "socket");
  const int64_t left = std::max<int64_t>(absl::ToInt64Microseconds(TimeLeft(deadline)), 1000);
  const timeval tv = {left / 1'000'000, left % 1'000'000};
  setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    const int error = errno;
    const std::string what = absl::StrCat("fd channel at ", path);
    if (error == ENOENT || error == ECONNREFUSED || error == EAGAIN) {
      return absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
    }
    return ErrnoStatus(error, what);
  }
  CAIRN_ASSIGN_OR_RETURN(UniqueFd pidfd, OpenPidfd(getpid()));
  const int fd = pidfd.get();
  CAIRN_RETURN_IF_ERROR(
      Annotate(SendMessage(socket.get(), *attach, absl::MakeConstSpan(&fd, 1)), "fd channel"));
  // A daemon that dies now leaves its end with the keeper: neither an answer nor EOF would come.
  const MonotonicNanos patience = std::min(deadline, DeadlineAfter(kAttachPatience));
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(const bool readable, Readable(socket.get(), TimeLeft(patience)));
    if (readable) break;
    if (TimeLeft(patience) == absl::ZeroDuration()) {
      return absl::UnavailableError(absl::StrCat("fd channel at ", path, ": no answer in time"));
    }
  }
  CAIRN_ASSIGN_OR_RETURN(ReceivedMessage message,
                         ReceiveMessage(socket.get(), kFdChannelMaxMessage));
  if (message.bytes.empty()) {
    return absl::UnavailableError(absl::StrCat("fd channel at ", path, " was closed"));
  }
  const StatusOr<FdAttached> attached = DecodeFdAttached(message.bytes);
  if (!attached.ok()) return Broken(attached.status());
  if (attached->code == absl::StatusCode::kNotFound) {
    // A session without a channel does not outlive its daemon; another hello begins a new one.
    return absl::UnavailableError(
        absl::StrCat("fd channel at ", path, ": the daemon was replaced since hello"));
  }
  if (attached->code != absl::StatusCode::kOk) {
    return Status(attached->code, absl::StrCat("fd channel at ", path,
                                               " refused this session; the node's log says why"));
  }
  if (message.fds.size() == 1) *progress = std::move(message.fds[0]);
  return std::unique_ptr<FdReceiver>(new FdReceiver(std::move(socket)));
}

Status FdReceiver::Drain() {
  for (;;) {
    StatusOr<ReceivedMessage> message =
        ReceiveMessage(socket_.get(), kFdChannelMaxMessage, MSG_DONTWAIT);
    if (!message.ok()) {
      // Nothing more has come.
      if (absl::IsDeadlineExceeded(message.status())) return absl::OkStatus();
      return Annotate(message.status(), "fd channel");
    }
    if (message->bytes.empty()) return absl::UnavailableError("fd channel: closed by the daemon");
    const StatusOr<FdLent> lent = DecodeFdLent(message->bytes);
    if (!lent.ok()) return Broken(lent.status());
    if (message->fds.size() != 1) {
      return absl::ResourceExhaustedError(
          "fd channel: a message came without its descriptor (is this process out of "
          "descriptors?)");
    }
    ReceivedFd received;
    received.fd = std::move(message->fds[0]);
    received.lease = lent->lease;
    received.slab = lent->slab;
    received.bytes = lent->bytes;
    waiting_[lent->lease] = std::move(received);
  }
}

StatusOr<ReceivedFd> FdReceiver::Take(LeaseId lease, MonotonicNanos deadline) {
  // Another thread may receive the descriptor that this one waits for, so each looks again soon.
  constexpr absl::Duration kLookAgain = absl::Milliseconds(5);
  for (;;) {
    {
      MutexLock lock(&mu_);
      // Receive everything, even when the descriptor is here already: a repeated call is sent it
      // twice, and the second one, left behind, would look like another call's.
      const Status drained = Drain();
      const auto found = waiting_.find(lease);
      if (found != waiting_.end()) {
        ReceivedFd out = std::move(found->second);
        waiting_.erase(found);
        return out;
      }
      CAIRN_RETURN_IF_ERROR(drained);
    }
    const absl::Duration left = TimeLeft(deadline);
    if (left == absl::ZeroDuration()) {
      return absl::UnavailableError(
          absl::StrCat("the daemon named lease ", lease, " but its descriptor did not come"));
    }
    CAIRN_RETURN_IF_ERROR(Readable(socket_.get(), std::min(left, kLookAgain)).status());
  }
}

bool FdReceiver::HasStrays() {
  MutexLock lock(&mu_);
  return !waiting_.empty();
}

std::vector<ReceivedFd> FdReceiver::TakeStrays() {
  MutexLock lock(&mu_);
  std::vector<ReceivedFd> out;
  for (auto& [lease, fd] : waiting_) out.push_back(std::move(fd));
  waiting_.clear();
  return out;
}

void FdReceiver::HangUp() { (void)::shutdown(socket_.get(), SHUT_RDWR); }

}  // namespace cairn::client
