#include "server/keeper/link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "server/keeper/held.h"

namespace cairn::keeper {
namespace {

Status TakeSlabs(Message message, node::Inherited* inherited) {
  auto use = fact::SlabUse::kObjects;
  auto item = message.items.begin();
  if (message.version >= kUsesVersion) use = UseOf((item++)->id);
  for (UniqueFd& fd : message.fds) {
    inherited->slabs.push_back({item->id, item->value, std::move(fd), use});
    ++item;
  }
  return absl::OkStatus();
}

Status TakeSessions(Message message, node::Inherited* inherited) {
  auto next = message.fds.begin();
  for (const Item& item : message.items) {
    node::HeldSession& session = inherited->sessions.emplace_back();
    session.session = item.id;
    if ((item.value & kHasChannel) != 0) session.channel = std::move(*next++);
    if ((item.value & kHasPidfd) != 0) session.pidfd = std::move(*next++);
    if ((item.value & kHasProgress) != 0) session.progress = std::move(*next++);
  }
  return absl::OkStatus();
}

Status CheckComplete(const Message& end, const node::Inherited& inherited) {
  const Item& counts = end.items.front();
  if (!inherited.journal.valid() || counts.id != inherited.slabs.size() ||
      counts.value != inherited.sessions.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "keeper: promised ", counts.id, " slabs and ", counts.value, " sessions, sent ",
        inherited.slabs.size(), " and ", inherited.sessions.size()));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::unique_ptr<Link>> Link::Connect(int keeper_fd, node::Inherited* inherited) {
  UniqueFd socket(keeper_fd);
  if (::fcntl(keeper_fd, F_SETFD, FD_CLOEXEC) != 0) {
    return ErrnoStatus(errno, absl::StrCat("CAIRN_KEEPER_FD: ", keeper_fd));
  }
  uint16_t version = 0;
  while (true) {
    StatusOr<ReceivedMessage> received = ReceiveMessage(keeper_fd, kMaxMessage);
    if (!received.ok()) return Annotate(received.status(), "reading the inheritance");
    if (received->bytes.empty()) return absl::UnavailableError("keeper: it is gone");
    CAIRN_ASSIGN_OR_RETURN(Message message, Decode(*std::move(received)));
    if (version != 0 && message.version != version) {
      return absl::InvalidArgumentError(
          absl::StrCat("keeper: speaks versions ", version, " and ", message.version));
    }
    version = message.version;
    switch (message.type) {
      case MessageType::kBegin:
        inherited->restarts = static_cast<int>(message.items.front().id);
        inherited->safe_mode = std::move(message.text);
        inherited->journal = std::move(message.fds[0]);
        inherited->thrift_listener = std::move(message.fds[1]);
        inherited->fd_listener = std::move(message.fds[2]);
        if (message.fds.size() > 3) inherited->black_box = std::move(message.fds[3]);
        break;
      case MessageType::kSlabs:
        CAIRN_RETURN_IF_ERROR(TakeSlabs(std::move(message), inherited));
        break;
      case MessageType::kSessions:
        CAIRN_RETURN_IF_ERROR(TakeSessions(std::move(message), inherited));
        break;
      case MessageType::kEnd:
        CAIRN_RETURN_IF_ERROR(CheckComplete(message, *inherited));
        return std::unique_ptr<Link>(new Link(std::move(socket), version));
      default:
        return absl::InvalidArgumentError("keeper: a message that only a daemon sends");
    }
  }
}

Link::Link(UniqueFd socket, uint16_t version)
    : socket_(std::move(socket)),
      version_(version),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(wake_.valid()) << "eventfd: errno " << errno;
  if (version_ < kAnsweringVersion) {
    LOG(WARNING) << "the keeper speaks version " << version_ << " of its protocol, this build "
                 << kVersion << ": the keeper does not say when it has no room for a slab";
  }
  if (version_ < kUsesVersion) {
    LOG(WARNING) << "the keeper speaks version " << version_ << " of its protocol, this build "
                 << kVersion
                 << ": committed parts behind a damaged journal would not be found again";
  }
  if (version_ < kBlackBoxVersion) {
    LOG(WARNING) << "the keeper speaks version " << version_ << " of its protocol, this build "
                 << kVersion
                 << ": a job whose files end the daemon that reads them is not found out";
  }
  thread_ = std::thread([this] { Run(); });
}

Link::~Link() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
  FailAll(absl::UnavailableError("the daemon is stopping"));
}

// --- what is handed over

Status Link::Hold(SlabId slab, uint64_t bytes, fact::SlabUse use, int fd) {
  const auto answered = std::make_shared<std::promise<Status>>();
  const uint64_t told = version_ >= kUsesVersion ? static_cast<uint64_t>(use) : 0;
  Request(MessageType::kHoldSlab, {slab, bytes}, told, {fd}, MessageType::kDropSlab,
          [answered](Status status) { answered->set_value(std::move(status)); });
  return answered->get_future().get();
}

void Link::HoldSession(SessionId session, int channel, int pidfd, int progress,
                       std::function<void(Status)> done) {
  uint64_t which = 0;
  std::vector<int> fds;
  const auto add = [&](int fd, uint64_t bit) {
    if (fd < 0) return;
    which |= bit;
    fds.push_back(fd);
  };
  add(channel, kHasChannel);
  add(pidfd, kHasPidfd);
  add(progress, kHasProgress);
  Request(MessageType::kHoldSession, {session, which}, 0, std::move(fds), MessageType::kDropSession,
          std::move(done));
}

void Link::Drop(SlabId slab) { Tell(MessageType::kDropSlab, slab); }

void Link::DropSession(SessionId session) { Tell(MessageType::kDropSession, session); }

void Link::Serving() {
  if (version_ >= kAnsweringVersion) Tell(MessageType::kServing, 0);
}

void Link::Request(MessageType type, Item item, uint64_t detail, std::vector<int> fds,
                   MessageType undo, Done done) {
  if (version_ < kAnsweringVersion) {
    done(Annotate(SendMessage(socket_.get(), Encode(type, {item}, {}, version_), fds), "keeper"));
    return;
  }
  {
    MutexLock lock(&mu_);
    if (!gone_) {
      const uint64_t request = next_request_++;
      waiting_[request] = {RealClock()->Now() + kAnswerTimeout, undo, item.id, std::move(done)};
      Queue({request, Encode(type, {item, {request, detail}}, {}, version_), std::move(fds)});
      if (waiting_.size() == 1) Wake();  // the thread slept without a deadline
      return;
    }
  }
  done(absl::UnavailableError("keeper: it is gone"));
}

// Nobody waits for what is told. When the keeper is gone, so is everything that it held.
void Link::Tell(MessageType type, uint64_t id) {
  MutexLock lock(&mu_);
  if (!gone_) Queue({0, Encode(type, {{id, 0}}, {}, version_), {}});
}

void Link::Queue(Outgoing message) {
  outgoing_.push_back(std::move(message));
  if (outgoing_.size() > 1) return;  // the thread waits for room
  SendQueued();
  if (!outgoing_.empty()) Wake();
}

// False when nothing could be sent.
bool Link::SendQueued() {
  bool any = false;
  while (!outgoing_.empty()) {
    const Outgoing& next = outgoing_.front();
    const Status status = SendMessage(socket_.get(), next.bytes, next.fds, MSG_DONTWAIT);
    if (absl::IsResourceExhausted(status)) return any;
    // Other errors are the keeper's end; the thread sees it, too, and tells those who wait.
    any = true;
    outgoing_.pop_front();
  }
  return any;
}

// --- the thread

void Link::Run() {
  ::pthread_setname_np(::pthread_self(), "keeper-link");
  // The kernel may have no room though the socket is writable: then the next try is a little later.
  constexpr int kPauseMillis = 10;
  bool pause = false;
  while (true) {
    pollfd polled[2] = {{socket_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    int timeout_ms = -1;
    {
      MutexLock lock(&mu_);
      if (stopping_ || gone_) return;
      if (!waiting_.empty()) {
        const MonotonicNanos left = waiting_.begin()->second.deadline - RealClock()->Now();
        timeout_ms = left <= 0 ? 0 : static_cast<int>(left / kNanosPerMilli) + 1;
      }
      if (!outgoing_.empty() && !pause) polled[0].events |= POLLOUT;
      if (pause) timeout_ms = timeout_ms < 0 ? kPauseMillis : std::min(timeout_ms, kPauseMillis);
    }
    if (::poll(polled, 2, timeout_ms) < 0 && errno != EINTR) ::usleep(kPauseMillis * 1000);
    uint64_t woken = 0;
    if (polled[1].revents != 0 && ::read(wake_.get(), &woken, sizeof(woken)) < 0) {
      PLOG(ERROR) << "eventfd";
    }
    if ((polled[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0) Receive();
    {
      MutexLock lock(&mu_);
      const bool sending = pause || (polled[0].revents & POLLOUT) != 0;
      if (sending) pause = !SendQueued() && !outgoing_.empty();
    }
    FailLate();
  }
}

void Link::Receive() {
  while (true) {
    StatusOr<ReceivedMessage> received = ReceiveMessage(socket_.get(), kMaxMessage, MSG_DONTWAIT);
    if (absl::IsDeadlineExceeded(received.status())) return;
    if (absl::IsResourceExhausted(received.status())) {  // the message stays where it is
      absl::SleepFor(absl::Milliseconds(10));
      return;
    }
    if (received.ok() && !received->bytes.empty()) {
      StatusOr<Message> message = Decode(*std::move(received));
      if (message.ok() && message->type == MessageType::kAnswer) {
        Answered(*message);
      } else {
        LOG(ERROR) << "keeper: a message that is not an answer: " << message.status();
      }
      continue;
    }
    {
      MutexLock lock(&mu_);
      gone_ = true;
      outgoing_.clear();
    }
    return FailAll(absl::UnavailableError("keeper: it is gone"));
  }
}

void Link::Answered(const Message& answer) {
  const Item& item = answer.items.front();
  Done done;
  {
    MutexLock lock(&mu_);
    const auto found = waiting_.find(item.id);
    if (found == waiting_.end()) return;  // it came too late, and was dropped
    done = std::move(found->second.done);
    waiting_.erase(found);
  }
  done(item.value == 0 ? absl::OkStatus()
                       : Status(static_cast<absl::StatusCode>(item.value),
                                absl::StrCat("keeper: ", answer.text)));
}

// The keeper may still read what was sent: it is told to drop that.
void Link::FailLate() {
  std::vector<Done> late;
  {
    MutexLock lock(&mu_);
    const MonotonicNanos now = RealClock()->Now();
    while (!waiting_.empty() && waiting_.begin()->second.deadline <= now) {
      Waiting& waiting = waiting_.begin()->second;
      const uint64_t request = waiting_.begin()->first;
      const bool sent = std::erase_if(outgoing_, [request](const Outgoing& message) {
                          return message.request == request;
                        }) == 0;
      if (sent) Queue({0, Encode(waiting.undo, {{waiting.id, 0}}, {}, version_), {}});
      late.push_back(std::move(waiting.done));
      waiting_.erase(waiting_.begin());
    }
  }
  for (const Done& done : late) {
    done(absl::DeadlineExceededError(absl::StrCat("keeper: it has not answered within ",
                                                  kAnswerTimeout / kNanosPerSecond, " s")));
  }
}

void Link::FailAll(const Status& why) {
  std::map<uint64_t, Waiting> waiting;
  {
    MutexLock lock(&mu_);
    waiting.swap(waiting_);
  }
  for (const auto& [request, one] : waiting) one.done(why);
}

void Link::Wake() const {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof(one)) < 0) PLOG(ERROR) << "eventfd";
}

}  // namespace cairn::keeper
