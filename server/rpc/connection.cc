#include "server/rpc/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "proto/frame.h"

namespace cairn::rpc {
namespace {

// While the budget has no room for a message, and nothing else will tell when it has.
constexpr MonotonicNanos kAskBudgetAgain = 20 * kNanosPerMilli;

constexpr size_t kPieceBytes = 256 << 10;  // more than a Unix socket holds

// Where each loop receives: no connection keeps a buffer for a message that has not begun.
std::vector<char>& Scratch() {
  thread_local std::vector<char> scratch(Connection::kSmallMessage + kFrameHeaderBytes);
  return scratch;
}

}  // namespace

Connection::Connection(UniqueFd socket, const Credentials& credentials,
                       const ConnectionOptions& options, std::shared_ptr<node::EventLoop> loop,
                       ByteBudget* budget, Owner owner)
    : credentials_(credentials),
      options_(options),
      loop_(std::move(loop)),
      budget_(budget),
      owner_(std::move(owner)),
      socket_(std::move(socket)) {}

Connection::~Connection() { budget_->Give(credentials_.uid, reserved_); }

void Connection::Start() {
  interest_ = EPOLLIN | EPOLLRDHUP;
  auto watch = loop_->Add(socket_.get(), interest_, [self = shared_from_this()](uint32_t events) {
    self->OnEvents(events);
  });
  if (!watch.ok()) {
    Log(watch.status().message());
    Close();
    return;
  }
  watch_ = *watch;
  Arm();
}

void Connection::SetGreeted(bool greeted) { greeted_ = greeted; }

void Connection::Close() {
  if (!open()) return;
  const std::shared_ptr<Connection> self = shared_from_this();  // the watcher may hold the last
  loop_->Remove(watch_);
  socket_.Reset();
  budget_->Give(credentials_.uid, std::exchange(reserved_, 0));
  in_ = {};
  out_ = {};
  owner_.closed(this);
}

void Connection::Log(absl::string_view what) const {
  LOG_EVERY_N(WARNING, 20) << "client connection of pid " << credentials_.pid << ", uid "
                           << credentials_.uid << ": " << what;
}

void Connection::OnEvents(uint32_t events) {
  if (events == 0) {  // its time is up
    if (!busy_ && wanted() > kSmallMessage && reserved_ == 0) {
      ReadOn();
      return;
    }
    if (!in_.empty() || !out_.empty()) Log("its client stalls");
    Close();
    return;
  }
  if ((events & EPOLLOUT) != 0) Flush();
  if (!open()) return;
  if (busy_) {
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
      owner_.hung_up(this);
      Close();
    }
    return;
  }
  Read();
}

uint32_t Connection::wanted() const {
  if (in_.size() < kFrameHeaderBytes) return 0;
  return FrameLength(in_.data()) + kFrameHeaderBytes;
}

// One receive for each event: the connections of a loop take turns.
void Connection::Read() {
  const uint32_t whole = wanted();
  const bool long_one = whole > kSmallMessage;
  std::vector<char>& scratch = Scratch();
  char* into = scratch.data();
  size_t room = scratch.size();
  const size_t had = in_.size();
  if (long_one) {
    // It grows with what has come, not with what was announced.
    room = std::min<size_t>(whole - had, kPieceBytes);
    in_.resize(had + room);
    into = in_.data() + had;
  }
  const ssize_t got = recv(socket_.get(), into, room, MSG_DONTWAIT);
  if (long_one) in_.resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    Close();
    return;
  }
  Take(long_one ? absl::string_view() : absl::string_view(into, static_cast<size_t>(got)));
}

void Connection::Take(absl::string_view bytes) {
  const std::shared_ptr<Connection> self = shared_from_this();
  inside_ = true;
  std::string held;
  if (!in_.empty()) {
    in_.append(bytes.data(), bytes.size());
    if (in_.size() < std::max(kFrameHeaderBytes, wanted())) {
      inside_ = false;
      if (wanted() == 0 || CheckLength(wanted() - kFrameHeaderBytes)) ReadOn();
      return;
    }
    held = std::exchange(in_, {});
    bytes = held;
  }
  while (open() && !busy_ && TakeMessage(&bytes)) {
  }
  inside_ = false;
  if (!open()) return;
  in_.assign(bytes.data(), bytes.size());
  ReadOn();
}

bool Connection::TakeMessage(absl::string_view* bytes) {
  if (bytes->size() < kFrameHeaderBytes) return false;
  const uint32_t length = FrameLength(bytes->data());
  if (!CheckLength(length) || bytes->size() - kFrameHeaderBytes < length) return false;
  const absl::string_view message = bytes->substr(kFrameHeaderBytes, length);
  bytes->remove_prefix(kFrameHeaderBytes + length);
  busy_ = true;
  owner_.receive(this, message);
  return true;
}

bool Connection::CheckLength(uint32_t length) {
  const uint32_t limit = greeted_ ? options_.max_message_bytes : options_.max_first_message_bytes;
  if (length <= limit) return true;
  Log(absl::StrCat("a message of ", length, " bytes, the limit is ", limit,
                   greeted_ ? "" : " before hello"));
  Close();
  return false;
}

// What to wait for now.
void Connection::ReadOn() {
  const uint32_t whole = wanted();
  bool may_read = !busy_;
  if (may_read && whole > kSmallMessage && reserved_ == 0) {
    if (budget_->Take(credentials_.uid, whole)) {
      reserved_ = whole;
    } else {
      may_read = false;
    }
  }
  uint32_t interest = EPOLLRDHUP;
  if (may_read) interest |= EPOLLIN;
  if (!out_.empty()) interest |= EPOLLOUT;
  if (interest != interest_) {
    interest_ = interest;
    loop_->Change(watch_, interest);
  }
  Arm();
}

// When it is heard from again at the latest.
void Connection::Arm() {
  const MonotonicNanos now = RealClock()->Now();
  MonotonicNanos at = node::EventLoop::kNever;
  if (!busy_ && wanted() > kSmallMessage && reserved_ == 0) {
    at = now + kAskBudgetAgain;
  } else if (!out_.empty() || (!busy_ && (!in_.empty() || !greeted_))) {
    at = now + options_.stall_timeout_ms * kNanosPerMilli;
  }
  loop_->SetTime(watch_, at);
}

void Connection::Send(absl::string_view reply) {
  if (!open()) return;
  budget_->Give(credentials_.uid, std::exchange(reserved_, 0));
  ssize_t sent = send(socket_.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    Close();
    return;
  }
  sent = std::max<ssize_t>(sent, 0);
  out_.assign(reply.data() + sent, reply.size() - static_cast<size_t>(sent));
  out_begin_ = 0;
  busy_ = !out_.empty() || last_;
  if (out_.empty() && last_) {
    Close();
  } else if (!inside_ && !in_.empty() && !busy_) {
    Take(absl::string_view());
  } else if (!inside_) {
    ReadOn();
  }
}

void Connection::Flush() {
  const ssize_t sent = send(socket_.get(), out_.data() + out_begin_, out_.size() - out_begin_,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno != EAGAIN && errno != EINTR) Close();
    return;
  }
  out_begin_ += static_cast<size_t>(sent);
  if (out_begin_ < out_.size()) {
    ReadOn();
    return;
  }
  out_ = {};
  busy_ = false;
  if (last_) {
    Close();
  } else if (!in_.empty()) {
    Take(absl::string_view());
  } else {
    ReadOn();
  }
}

}  // namespace cairn::rpc
