#include "server/node/store_streams.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/codec.h"

namespace cairn::node {
namespace {

constexpr MonotonicNanos kPatience = 30 * kNanosPerSecond;  // with one answer
// In all: with this much from the beginning, and for each so many bytes a second more.
constexpr MonotonicNanos kPatienceInAll = 60 * kNanosPerSecond;
constexpr uint64_t kSlowestBytesPerSecond = 4 << 20;

Status Gone() { return absl::UnavailableError("stream: the writer has gone"); }

}  // namespace

Status StoreStream::Read(uint64_t index, uint64_t offset, absl::Span<char> into) {
  MutexLock lock(&mu_);
  if (failure_.ok()) failure_ = Ask(index, offset, into);
  return failure_;
}

Status StoreStream::Ask(uint64_t index, uint64_t offset, absl::Span<char> into) {
  if (!socket_.valid()) {
    return absl::UnavailableError(
        "stream: this session has none of that number; openStream gives one for each store");
  }
  std::string frame;
  AppendInteger<uint64_t>(&frame, index);
  AppendInteger<uint64_t>(&frame, offset);
  AppendInteger<uint64_t>(&frame, into.size());
  // The writer takes one frame before it sends its bytes: the buffer is empty, so this does not block.
  const ssize_t sent =
      ::send(socket_.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(frame.size())) return Gone();
  const MonotonicNanos begin = clock_->Now();
  const Status status = Receive(into);
  waited_ += clock_->Now() - begin;
  received_ += into.size();
  if (!status.ok()) return status;
  const MonotonicNanos most =
      kPatienceInAll +
      static_cast<MonotonicNanos>(received_ / kSlowestBytesPerSecond) * kNanosPerSecond;
  if (waited_ > most) {
    return absl::DeadlineExceededError(absl::StrCat("stream: the writer sent ", received_,
                                                    " bytes in ", waited_ / kNanosPerSecond, " s"));
  }
  return absl::OkStatus();
}

Status StoreStream::Receive(absl::Span<char> into) {
  const MonotonicNanos deadline = clock_->Now() + kPatience;
  while (!into.empty()) {
    const ssize_t n = ::recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
    if (n > 0) {
      into.remove_prefix(static_cast<size_t>(n));
      continue;
    }
    if (n == 0) return Gone();
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Gone();
    const MonotonicNanos left = deadline - clock_->Now();
    if (left <= 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("stream: the writer sent nothing for ", kPatience / kNanosPerSecond, " s"));
    }
    pollfd waits = {socket_.get(), POLLIN, 0};
    (void)::poll(&waits, 1, static_cast<int>(left / kNanosPerMilli) + 1);
  }
  return absl::OkStatus();
}

void StoreStream::HangUp() {
  if (socket_.valid()) (void)::shutdown(socket_.get(), SHUT_RDWR);
}

StatusOr<UniqueFd> StoreStreams::Open(SessionId session, LeaseId lease) {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  UniqueFd ours(ends[0]), theirs(ends[1]);
  MutexLock lock(&mu_);
  ForgetClosed();
  const auto first = open_.lower_bound({session, 0});
  const auto end = open_.lower_bound({session + 1, 0});
  if (static_cast<size_t>(std::distance(first, end)) >= kMostOfSession) open_.erase(first);
  open_[{session, lease}] = std::move(ours);
  return theirs;
}

UniqueFd StoreStreams::Take(SessionId session, LeaseId lease) {
  MutexLock lock(&mu_);
  const auto at = open_.find({session, lease});
  if (at == open_.end()) return UniqueFd();
  UniqueFd taken = std::move(at->second);
  open_.erase(at);
  return taken;
}

void StoreStreams::ForgetAll(SessionId session) {
  MutexLock lock(&mu_);
  open_.erase(open_.lower_bound({session, 0}), open_.lower_bound({session + 1, 0}));
}

// Of writers that have gone, or given theirs up.
void StoreStreams::ForgetClosed() {
  for (auto at = open_.begin(); at != open_.end();) {
    pollfd look = {at->second.get(), 0, 0};
    const bool closed = ::poll(&look, 1, 0) > 0 && (look.revents & (POLLHUP | POLLERR)) != 0;
    at = closed ? open_.erase(at) : std::next(at);
  }
}

}  // namespace cairn::node
