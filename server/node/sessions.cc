#include "server/node/sessions.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/failpoint.h"
#include "glog/logging.h"

namespace cairn::node {
namespace {

// What an epoll event is about: the kind in the top byte, a session's or a pending connection's
// number below.
enum Kind : uint64_t {
  kWake = 1,
  kListener = 2,
  kPending = 3,
  kChannel = 4,
  kPidfd = 5,
  kAttaches = 6
};
constexpr int kKindShift = 56;
constexpr uint64_t kNumberMask = (uint64_t{1} << kKindShift) - 1;

Status Add(int epoll, int fd, uint32_t events, Kind kind, uint64_t number) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = (uint64_t{kind} << kKindShift) | (number & kNumberMask);
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0) return ErrnoStatus(errno, "epoll_ctl");
  return absl::OkStatus();
}

bool SameSecret(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

// Whether `fd` is a pidfd of process `pid`, both as this PID namespace shows them (0: not visible).
// Only the fdinfo of a pidfd has a line "Pid:".
bool IsPidfdOf(int fd, int32_t pid) {
  StatusOr<std::string> info = ReadFile(absl::StrCat("/proc/self/fdinfo/", fd));
  if (!info.ok()) return false;
  for (absl::string_view line : absl::StrSplit(*info, '\n')) {
    int32_t shown = 0;
    if (absl::ConsumePrefix(&line, "Pid:")) return absl::SimpleAtoi(line, &shown) && shown == pid;
  }
  return false;
}

// One create may lend a thousand slabs before its client reads the first, and each message takes
// about 1 KiB of the buffer. Only root may exceed the system's limit (net.core.wmem_max).
void WidenChannel(int socket) {
  const int bytes = 16 << 20;
  if (setsockopt(socket, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof(bytes)) != 0) {
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
  }
}

// A new progress page, mapped and touched, so that it is charged to the daemon.
StatusOr<UniqueFd> MakeProgressPage(Mapping* mapped) {
  UniqueFd fd(memfd_create("cairn-progress", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus(errno, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(kPageBytes)) != 0) {
    return ErrnoStatus(errno, "ftruncate");
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus(errno, "F_ADD_SEALS");
  }
  CAIRN_ASSIGN_OR_RETURN(*mapped,
                         Mapping::Map(fd.get(), 0, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED));
  __atomic_store_n(reinterpret_cast<uint64_t*>(mapped->data()), kProgressMagic, __ATOMIC_RELAXED);
  return fd;
}

}  // namespace

std::string RandomSecret() {
  std::string secret(kSessionSecretBytes, '\0');
  CHECK_EQ(getrandom(secret.data(), secret.size(), 0), static_cast<ssize_t>(secret.size()));
  return secret;
}

struct Sessions::Channel {
  UniqueFd socket, pidfd, progress;
  Mapping page;
};

// The holder's answers, on their way to the polling thread. It belongs to the callbacks too: one of
// them may run when the sessions are no more.
class Sessions::Attaches {
 public:
  struct Answer {
    SessionId session = 0;
    std::shared_ptr<Channel> channel;
    Status held;
  };

  Attaches() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    CHECK(wake_.valid()) << "eventfd: errno " << errno;
  }
  int fd() const { return wake_.get(); }

  void Add(Answer answer) {
    MutexLock lock(&mu_);
    answers_.push_back(std::move(answer));
    const uint64_t one = 1;
    if (write(wake_.get(), &one, sizeof(one)) < 0) PLOG(ERROR) << "eventfd";
  }
  std::vector<Answer> Take() {
    MutexLock lock(&mu_);
    uint64_t count = 0;
    if (read(wake_.get(), &count, sizeof(count)) < 0 && errno != EAGAIN) PLOG(ERROR) << "eventfd";
    return std::exchange(answers_, {});
  }

 private:
  const UniqueFd wake_;
  Mutex mu_;
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mu_);
};

Sessions::Sessions(const SessionsOptions& options, SessionHolder* holder, Clock* clock,
                   std::function<void(SessionId)> ended)
    : options_(options),
      holder_(holder),
      clock_(clock),
      ended_(std::move(ended)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      attaches_(std::make_shared<Attaches>()) {
  CHECK(epoll_.valid() && wake_.valid()) << "epoll or eventfd: errno " << errno;
}

Status Sessions::Watch(SessionId session, const Channel& channel) {
  CAIRN_RETURN_IF_ERROR(
      node::Add(epoll_.get(), channel.socket.get(), EPOLLIN | EPOLLRDHUP, kChannel, session));
  return node::Add(epoll_.get(), channel.pidfd.get(), EPOLLIN, kPidfd, session);
}

Status Sessions::Adopt(SessionInfo info, HeldSession held) {
  auto channel = std::make_shared<Channel>();
  channel->socket = std::move(held.channel);
  channel->pidfd = std::move(held.pidfd);
  channel->progress = std::move(held.progress);
  CAIRN_ASSIGN_OR_RETURN(
      channel->page, Mapping::Map(channel->progress.get(), 0, kPageBytes, PROT_READ, MAP_SHARED));
  CAIRN_RETURN_IF_ERROR(Watch(info.id, *channel));
  MutexLock lock(&mu_);
  const SessionId id = info.id;
  records_[id] = Record{std::move(info), std::move(channel)};
  return absl::OkStatus();
}

Status Sessions::Start(UniqueFd fd_listener) {
  listener_ = std::move(fd_listener);
  CAIRN_RETURN_IF_ERROR(node::Add(epoll_.get(), wake_.get(), EPOLLIN, kWake, 0));
  CAIRN_RETURN_IF_ERROR(node::Add(epoll_.get(), attaches_->fd(), EPOLLIN, kAttaches, 0));
  if (listener_.valid()) {
    // The keeper and its next daemon share the listener and may take a connection first, so accept
    // must not block.
    const int flags = fcntl(listener_.get(), F_GETFL);
    if (flags < 0 || fcntl(listener_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
      return ErrnoStatus(errno, "fd listener");
    }
    CAIRN_RETURN_IF_ERROR(node::Add(epoll_.get(), listener_.get(), EPOLLIN, kListener, 0));
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void Sessions::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  const uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof(one)) < 0) PLOG(ERROR) << "eventfd";
  if (thread_.joinable()) thread_.join();
}

void Sessions::Add(SessionInfo info) {
  MutexLock lock(&mu_);
  const SessionId id = info.id;
  records_[id] = Record{std::move(info), nullptr};
}

StatusOr<SessionInfo> Sessions::Rejoin(SessionId session, absl::string_view secret,
                                       uint32_t uid) const {
  MutexLock lock(&mu_);
  auto it = records_.find(session);
  if (it == records_.end()) {
    return absl::NotFoundError(
        absl::StrCat("session: ", session, " has ended, or was never begun here"));
  }
  if (it->second.info.uid != uid || !SameSecret(it->second.info.secret, secret)) {
    return absl::PermissionDeniedError(
        absl::StrCat("session: ", session, " belongs to another process"));
  }
  return it->second.info;
}

bool Sessions::End(SessionId session) {
  std::shared_ptr<Channel> channel;
  {
    MutexLock lock(&mu_);
    auto it = records_.find(session);
    if (it == records_.end()) return false;
    channel = std::move(it->second.channel);
    records_.erase(it);
  }
  if (channel != nullptr) Close(session, *channel);
  return true;
}

bool Sessions::ConnectionClosed(SessionId session) {
  {
    MutexLock lock(&mu_);
    auto it = records_.find(session);
    if (it == records_.end()) return false;
    if (it->second.info.takes_fds && it->second.channel != nullptr) return false;
  }
  return End(session);
}

Status Sessions::Push(SessionId session, const FdLent& lent, int fd) const {
  std::shared_ptr<Channel> channel;
  {
    MutexLock lock(&mu_);
    auto it = records_.find(session);
    if (it == records_.end()) {
      return absl::UnavailableError(absl::StrCat("session: ", session, " has ended"));
    }
    channel = it->second.channel;
  }
  if (channel == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "session: ", session, " has no fd channel: attach to the fd socket named by hello first"));
  }
  return Annotate(SendMessage(channel->socket.get(), Encode(lent), {fd}, MSG_DONTWAIT),
                  "fd channel");
}

std::optional<ProgressPage> Sessions::Progress(SessionId session) const {
  std::shared_ptr<Channel> channel;
  {
    MutexLock lock(&mu_);
    auto it = records_.find(session);
    if (it == records_.end()) return std::nullopt;
    channel = it->second.channel;
  }
  if (channel == nullptr || !channel->page.valid()) return std::nullopt;
  return ReadProgressPage(channel->page.data());
}

std::optional<SessionInfo> Sessions::Find(SessionId session) const {
  MutexLock lock(&mu_);
  auto it = records_.find(session);
  if (it == records_.end()) return std::nullopt;
  return it->second.info;
}

void Sessions::EndByItself(SessionId session, const char* why) {
  std::optional<SessionInfo> info = Find(session);
  if (!End(session)) return;
  LOG(INFO) << "session " << session << " ended: " << why
            << (info->job.empty() ? "" : " job=" + info->job) << " pid=" << info->pid;
  ended_(session);
}

void Sessions::Run() {
  pthread_setname_np(pthread_self(), "sessions");
  constexpr int kEvents = 64;
  epoll_event events[kEvents];
  for (;;) {
    const int count = epoll_wait(epoll_.get(), events, kEvents, pending_.empty() ? -1 : 1000);
    if (count < 0 && errno != EINTR) {
      PLOG(FATAL) << "epoll_wait";
    }
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
    }
    for (int i = 0; i < count; ++i) {
      const uint64_t kind = events[i].data.u64 >> kKindShift;
      const uint64_t number = events[i].data.u64 & kNumberMask;
      switch (kind) {
        case kListener:
          Accept();
          break;
        case kPending:
          ReadPending(number);
          break;
        case kAttaches:
          CompleteAttaches();
          break;
        case kChannel:
          // A client sends nothing after attach: bytes end the session as EOF does.
          EndByItself(number, (events[i].events & EPOLLRDHUP) != 0 ? "its fd channel closed"
                                                                   : "unexpected message");
          break;
        case kPidfd:
          EndByItself(number, "its process is dead");
          break;
        default:
          break;
      }
    }
    ExpirePending();
  }
}

void Sessions::Accept() {
  for (;;) {
    UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
        // The connection stays in the backlog, and the next wait would return at once.
        LOG_EVERY_N(ERROR, 100) << "fd socket: no descriptor left to accept a client";
        usleep(10'000);
      }
      return;
    }
    if (pending_.size() >= options_.max_pending) {
      LOG_EVERY_N(WARNING, 100) << "fd socket: " << options_.max_pending
                                << " connections that have not attached; refusing one more";
      continue;
    }
    ucred credentials = {};
    socklen_t length = sizeof(credentials);
    if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) continue;
    const uint64_t number = next_pending_++;
    if (!node::Add(epoll_.get(), socket.get(), EPOLLIN | EPOLLRDHUP, kPending, number).ok()) {
      continue;
    }
    pending_[number] = Pending{std::move(socket), credentials.uid, credentials.pid,
                               clock_->Now() + options_.attach_timeout};
  }
}

void Sessions::ReadPending(uint64_t number) {
  auto it = pending_.find(number);
  if (it == pending_.end()) return;
  StatusOr<ReceivedMessage> message =
      ReceiveMessage(it->second.socket.get(), kFdChannelMaxMessage, MSG_DONTWAIT);
  Pending pending = std::move(it->second);
  pending_.erase(it);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pending.socket.get(), nullptr);
  if (!message.ok() || message->bytes.empty()) return;  // gone, or nonsense: closed here
  Status status = Attach(pending, *std::move(message));
  if (!status.ok()) {
    LOG(WARNING) << "fd channel refused: " << status;
    // Best effort: the connection closes either way.
    SendMessage(pending.socket.get(), Encode(FdAttached{status.code()}), {}, MSG_DONTWAIT)
        .IgnoreError();
  }
}

Status Sessions::Attach(Pending& pending, ReceivedMessage message) {
  CAIRN_ASSIGN_OR_RETURN(const FdAttach attach, DecodeFdAttach(message.bytes));
  if (message.fds.size() != 1 || !IsPidfdOf(message.fds[0].get(), pending.pid)) {
    return absl::InvalidArgumentError("attach carries the client's own pidfd, exactly one");
  }
  CAIRN_ASSIGN_OR_RETURN(const SessionInfo info,
                         Rejoin(attach.session, attach.secret, pending.uid));
  if (!info.takes_fds) {
    return absl::FailedPreconditionError("its hello said that this session takes no descriptors");
  }
  auto channel = std::make_shared<Channel>();
  CAIRN_ASSIGN_OR_RETURN(channel->progress, MakeProgressPage(&channel->page));
  channel->pidfd = std::move(message.fds[0]);
  channel->socket = std::move(pending.socket);
  WidenChannel(channel->socket.get());
  {
    MutexLock lock(&mu_);
    auto it = records_.find(info.id);
    if (it == records_.end() || it->second.channel != nullptr) {
      pending.socket = std::move(channel->socket);
      return absl::FailedPreconditionError(
          absl::StrCat("session: ", info.id, " has an fd channel already"));
    }
    it->second.channel = channel;
  }
  const int socket = channel->socket.get(), pidfd = channel->pidfd.get();
  const int progress = channel->progress.get();
  holder_->HoldSession(info.id, socket, pidfd, progress,
                       [attaches = attaches_, session = info.id, channel](Status held) {
                         attaches->Add({session, channel, std::move(held)});
                       });
  return absl::OkStatus();
}

void Sessions::CompleteAttaches() {
  for (Attaches::Answer& answer : attaches_->Take()) {
    CompleteAttach(answer.session, answer.channel, std::move(answer.held));
  }
}

// Once the client knows of the channel, its session outlives the daemon: the holder has it.
void Sessions::CompleteAttach(SessionId session, const std::shared_ptr<Channel>& channel,
                              Status held) {
  Status status = std::move(held);
  if (status.ok()) status = Watch(session, *channel);
  if (!Find(session).has_value()) {
    // The session ended meanwhile, perhaps before the holder and epoll knew the channel.
    return Close(session, *channel);
  }
  ReachFailpoint(Failpoint::kNodeAttached);
  if (status.ok()) {
    status = SendMessage(channel->socket.get(), Encode(FdAttached{}), {channel->progress.get()},
                         MSG_DONTWAIT);
  } else {
    // Best effort: the channel closes either way.
    SendMessage(channel->socket.get(), Encode(FdAttached{status.code()}), {}, MSG_DONTWAIT)
        .IgnoreError();
  }
  if (status.ok()) return;
  LOG(WARNING) << "session " << session << ": " << status;
  EndByItself(session, "its fd channel could not be set up");
}

// The holder has a dup of the socket: closing ours would tell the client nothing, and the holder's
// would keep the epoll entries alive.
void Sessions::Close(SessionId session, const Channel& channel) {
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, channel.socket.get(), nullptr);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, channel.pidfd.get(), nullptr);
  shutdown(channel.socket.get(), SHUT_RDWR);
  holder_->DropSession(session);
}

void Sessions::ExpirePending() {
  const MonotonicNanos now = clock_->Now();
  for (auto it = pending_.begin(); it != pending_.end();) {
    // Closing removes the socket from epoll: there is no dup of it.
    if (it->second.deadline <= now) {
      pending_.erase(it++);
    } else {
      ++it;
    }
  }
}

}  // namespace cairn::node
