#include "server/rpc/connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "proto/frame.h"

namespace cairn::rpc {
namespace {

// While the budget has no room for a message, and nothing else will tell when it has.
constexpr MonotonicNanos kAskBudgetAgain = 20 * kNanosPerMilli;

constexpr size_t kPieceBytes = 256 << 10;  // more than a Unix socket holds
constexpr int kMostStalls = 10;
// Thrift's frames have a signed length: what announces more than this is no frame.
constexpr uint32_t kMostDropped = std::numeric_limits<int32_t>::max();

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
      socket_(std::move(socket)),
      reserved_(std::make_shared<Reservation>(budget, credentials.uid)) {}

void Connection::Start() {
  interest_ = EPOLLIN | EPOLLRDHUP;
  auto watch = loop_->Add(socket_.get(), interest_,
                          [self = shared_from_this()](uint32_t events) { self->OnEvents(events); });
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
  in_ = {};
  too_long_.reset();
  out_ = {};
  then_ = nullptr;
  BeginNext();
  owner_.closed(this);
}

void Connection::Log(absl::string_view what) const {
  LOG_EVERY_N(WARNING, 20) << "client connection of pid " << credentials_.pid << ", uid "
                           << credentials_.uid << ": " << what;
}

void Connection::OnEvents(uint32_t events) {
  if (events == 0) {  // its time is up
    const bool in_time =
        RealClock()->Now() < begun_ + kMostStalls * options_.stall_timeout_ms * kNanosPerMilli;
    if (waits_for_budget_ && in_time) {
      ReadOn();
      return;
    }
    if (then_ && in_time) {
      AskForRoom();
      return;
    }
    if (!in_.empty() || too_long_.has_value() || !out_.empty()) Log("its client stalls");
    Close();
    return;
  }
  if ((events & EPOLLOUT) != 0) Flush();
  if (!open()) return;
  if (busy_ || waits_for_budget_) {
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) Close();
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
    // The buffer grows with what has come, not with what was announced.
    room = std::min<size_t>(whole - had, kPieceBytes);
    if (!HasRoom()) return ReadOn();
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
    const bool no_length = in_.size() < kFrameHeaderBytes;
    if (no_length || (FateOf(FrameLength(in_.data())) == Fate::kTaken && in_.size() < wanted())) {
      inside_ = false;
      return ReadOn();
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
  if (too_long_.has_value()) return Drop(bytes);
  if (bytes->size() < kFrameHeaderBytes) return false;
  const uint32_t length = FrameLength(bytes->data());
  switch (FateOf(length)) {
    case Fate::kTaken:
      break;
    case Fate::kDropped:
      bytes->remove_prefix(kFrameHeaderBytes);
      ForgetReservation();  // it takes no room, and waits for none
      too_long_ = TooLong{length, length, {}};
      return Drop(bytes);
    case Fate::kCut:
      Cut(length);
      return false;
  }
  if (bytes->size() - kFrameHeaderBytes < length) return false;
  const absl::string_view message = bytes->substr(kFrameHeaderBytes, length);
  bytes->remove_prefix(kFrameHeaderBytes + length);
  busy_ = true;
  if (length <= kSmallMessage) ForgetReservation();  // nobody holds it while its call waits
  owner_.receive(this, message);
  return true;
}

// A session's message that is too long is answered: for a client without descriptors the connection is
// its session. Whoever has not said hello loses nothing by being cut off.
Connection::Fate Connection::FateOf(uint32_t length) const {
  if (!greeted_) return length <= options_.max_first_message_bytes ? Fate::kTaken : Fate::kCut;
  if (length <= options_.max_message_bytes) return Fate::kTaken;
  return length <= kMostDropped ? Fate::kDropped : Fate::kCut;
}

void Connection::Cut(uint32_t length) {
  Log(absl::StrCat("a message of ", length, " bytes, the limit is ",
                   greeted_ ? options_.max_message_bytes : options_.max_first_message_bytes,
                   greeted_ ? "" : " before hello"));
  Close();
}

bool Connection::Drop(absl::string_view* bytes) {
  TooLong& message = *too_long_;
  const absl::string_view came = bytes->substr(0, message.left);
  const size_t kept = std::min(came.size(), kBeginBytes - message.begin.size());
  message.begin.append(came.data(), kept);
  message.left -= static_cast<uint32_t>(came.size());
  bytes->remove_prefix(came.size());
  if (message.left > 0) return false;
  const TooLong whole = std::move(message);
  too_long_.reset();
  busy_ = true;
  owner_.receive_too_long(this, whole.begin, whole.length);
  return true;
}

// What has come of a message is held until the rest comes, however short it is.
bool Connection::HasRoom() {
  return reserved_->TakeInTurn(std::max<uint64_t>(wanted(), in_.size()));
}

void Connection::WhenRoom(uint64_t bytes, std::function<void()> then) {
  room_ = reserved_->bytes() + bytes;
  then_ = std::move(then);
  AskForRoom();
}

void Connection::AskForRoom() {
  if (!reserved_->TakeInTurn(room_)) return Arm();
  const std::function<void()> then = std::exchange(then_, nullptr);
  Arm();
  then();
}

// What to wait for now.
void Connection::ReadOn() {
  // What came before its turn is held until then.
  if (busy_ && !in_.empty() && !reserved_->Cover(in_.size())) {
    Log("it sends on before it is answered, and there is no room for that");
    return Close();
  }
  const bool wants_more = !busy_ && !in_.empty();
  waits_for_budget_ = wants_more && !HasRoom();
  uint32_t interest = EPOLLRDHUP;
  if (!busy_ && !waits_for_budget_) interest |= EPOLLIN;
  if (!out_.empty()) interest |= EPOLLOUT;
  if (interest != interest_) {
    interest_ = interest;
    loop_->Change(watch_, interest);
  }
  Arm();
}

// When it is heard from again at the latest.
void Connection::Arm() {
  const bool begun = !in_.empty() || too_long_.has_value();
  const bool under_way = !out_.empty() || then_ || (!busy_ && (begun || !greeted_));
  if (!under_way) {
    begun_ = 0;
    loop_->SetTime(watch_, node::EventLoop::kNever);
    return;
  }
  const MonotonicNanos now = RealClock()->Now();
  const MonotonicNanos stall = options_.stall_timeout_ms * kNanosPerMilli;
  if (begun_ == 0) begun_ = now;
  const bool waits = waits_for_budget_ || then_;
  loop_->SetTime(watch_,
                 std::min(now + (waits ? kAskBudgetAgain : stall), begun_ + kMostStalls * stall));
}

void Connection::BeginNext() {
  begun_ = 0;
  ForgetReservation();
}

void Connection::ForgetReservation() {
  if (reserved_.use_count() == 1 && reserved_->empty()) return;
  reserved_ = std::make_shared<Reservation>(budget_, credentials_.uid);
}

void Connection::Send(absl::string_view reply) {
  if (!open()) return;
  ssize_t sent = send(socket_.get(), reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && errno != EAGAIN && errno != EINTR) {
    Close();
    return;
  }
  sent = std::max<ssize_t>(sent, 0);
  const size_t left = reply.size() - static_cast<size_t>(sent);
  if (left > 0 && !reserved_->Cover(left)) {
    Log("it does not take its answer, and there is no room for that");
    Close();
    return;
  }
  out_.assign(reply.data() + sent, left);
  out_begin_ = 0;
  begun_ = 0;
  if (!out_.empty()) {
    if (!inside_) ReadOn();
  } else {
    Sent();
  }
}

// All of the reply has left.
void Connection::Sent() {
  if (last_) {
    Close();
    return;
  }
  out_ = {};
  busy_ = false;
  BeginNext();
  if (inside_) return;  // Take goes on
  if (!in_.empty()) {
    // Not from here: who sends may be in the middle of the call that is answered.
    loop_->Post([self = shared_from_this()] {
      if (self->open() && !self->busy_) self->Take(absl::string_view());
    });
  }
  ReadOn();
}

void Connection::Flush() {
  if (out_.empty()) return;
  const ssize_t sent = send(socket_.get(), out_.data() + out_begin_, out_.size() - out_begin_,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0) {
    if (errno != EAGAIN && errno != EINTR) Close();
    return;
  }
  out_begin_ += static_cast<size_t>(sent);
  if (out_begin_ < out_.size()) {
    ReadOn();
  } else {
    Sent();
  }
}

}  // namespace cairn::rpc
