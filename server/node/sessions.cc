#include "server/node/sessions.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/failpoint.h"
#include "glog/logging.h"

namespace cairn::node {
namespace {

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

// Of what readers were sent about a thousand messages may lie in the channel: each open descriptor makes
// every further one of the same slab dearer, for the kernel goes through the locks of all.
constexpr int kMostUntakenBytes = 1 << 20;

// A message of the channel, as the kernel counts it.
constexpr int64_t kMessageBytes = 768;
// Descriptors that lie in channels count against one limit of the kernel's for all that the daemon sends, which is its
// limit of open ones (unix(7), ETOOMANYREFS): of half of that a user gets no more than a quarter of what is left.
constexpr rlim_t kMostDescriptors = 1 << 20;
constexpr int64_t kShareOfWhatIsLeft = 4;
// All of a user's channels are looked at when he seems to have too much, and so often at most.
constexpr MonotonicNanos kLookAgainAfter = 100 * kNanosPerMilli;

int64_t MostUntakenBytes() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = 1024;
  return static_cast<int64_t>(std::min(limit.rlim_cur, kMostDescriptors) / 2) * kMessageBytes;
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
  std::shared_ptr<EventLoop> loop;
  EventLoop::Watch socket_watch = 0, pidfd_watch = 0;  // the loop's

  // On the loop.
  void Unwatch() {
    loop->Remove(std::exchange(socket_watch, 0));
    loop->Remove(std::exchange(pidfd_watch, 0));
  }
};

struct Sessions::Pending {
  UniqueFd socket;
  Peer peer;
  std::shared_ptr<EventLoop> loop;
  EventLoop::Watch watch = 0;
  Sessions* sessions = nullptr;

  ~Pending() {
    MutexLock lock(&sessions->mu_);
    --sessions->pending_;
    const auto of_user = sessions->pending_of_user_.find(peer.uid);
    if (--of_user->second == 0) sessions->pending_of_user_.erase(of_user);
  }
};

Sessions::Sessions(const SessionsOptions& options, UserLoops* loops, SessionHolder* holder,
                   std::function<void(SessionId)> ended)
    : options_(options),
      loops_(loops),
      holder_(holder),
      ended_(std::move(ended)),
      most_untaken_(MostUntakenBytes()) {}

Status Sessions::Watch(SessionId session, const std::shared_ptr<Channel>& channel) {
  CAIRN_ASSIGN_OR_RETURN(channel->socket_watch,
                         channel->loop->Add(channel->socket.get(), EPOLLIN | EPOLLRDHUP,
                                            [this, session](uint32_t events) {
                                              // A client sends nothing after attach.
                                              EndByItself(session, (events & EPOLLRDHUP) != 0
                                                                       ? "its fd channel closed"
                                                                       : "unexpected message");
                                            }));
  CAIRN_ASSIGN_OR_RETURN(
      channel->pidfd_watch,
      channel->loop->Add(channel->pidfd.get(), EPOLLIN, [this, session](uint32_t) {
        EndByItself(session, "its process is dead");
      }));
  return absl::OkStatus();
}

Status Sessions::Adopt(SessionInfo info, HeldSession* held) {
  auto channel = std::make_shared<Channel>();
  CAIRN_ASSIGN_OR_RETURN(channel->page,
                         Mapping::Map(held->progress.get(), 0, kPageBytes, PROT_READ, MAP_SHARED));
  try {
    channel->loop = loops_->Of(info.uid);
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(e.what());
  }
  channel->socket = std::move(held->channel);
  channel->pidfd = std::move(held->pidfd);
  channel->progress = std::move(held->progress);
  const SessionId id = info.id;
  MutexLock lock(&mu_);
  records_[id] = Record{std::move(info), std::move(channel)};
  return absl::OkStatus();
}

Status Sessions::Start(UniqueFd fd_listener) {
  // Whatever has happened to a channel meanwhile is told from now on: there is an engine to hear it.
  std::vector<std::pair<SessionId, std::shared_ptr<Channel>>> adopted;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, record] : records_) {
      if (record.channel != nullptr) adopted.emplace_back(id, record.channel);
    }
  }
  for (const auto& one : adopted) {
    one.second->loop->Post([this, id = one.first, channel = one.second] {
      const Status watched = Watch(id, channel);
      if (!watched.ok()) EndByItself(id, "its fd channel cannot be watched");
    });
  }
  if (!fd_listener.valid()) return absl::OkStatus();
  acceptor_ = std::make_unique<Acceptor>(
      loops_->accepting(), "fd socket", std::move(fd_listener),
      [this](UniqueFd socket, const Peer& peer) { Accept(std::move(socket), peer); });
  acceptor_->Start();
  return absl::OkStatus();
}

void Sessions::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  acceptor_.reset();
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
    LookAt(&it->second);  // without its channel: nothing
    records_.erase(it);
  }
  if (channel != nullptr) Close(session, std::move(channel));
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

StatusOr<std::shared_ptr<Sessions::Channel>> Sessions::ChannelOf(SessionId session) const {
  MutexLock lock(&mu_);
  const auto it = records_.find(session);
  if (it == records_.end()) {
    return absl::UnavailableError(absl::StrCat("session: ", session, " has ended"));
  }
  if (it->second.channel == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "session: ", session, " has no fd channel: attach to the fd socket named by hello first"));
  }
  return it->second.channel;
}

void Sessions::LookAt(Record* record) {
  int bytes = 0;
  if (record->channel == nullptr || ioctl(record->channel->socket.get(), SIOCOUTQ, &bytes) != 0) {
    bytes = 0;
  }
  const int64_t more = bytes - record->untaken;
  if (more == 0) return;
  record->untaken = bytes;
  untaken_ += more;
  const auto of_user = untaken_of_user_.try_emplace(record->info.uid, 0).first;
  of_user->second += more;
  if (of_user->second == 0) untaken_of_user_.erase(of_user);
}

bool Sessions::UserTakesNone(uint32_t uid) const {
  const auto of_user = untaken_of_user_.find(uid);
  if (of_user == untaken_of_user_.end()) return false;
  return of_user->second > (most_untaken_ - untaken_) / kShareOfWhatIsLeft;
}

Status Sessions::CheckTaken(SessionId session) {
  CAIRN_RETURN_IF_ERROR(ChannelOf(session).status());
  MutexLock lock(&mu_);
  const auto it = records_.find(session);
  if (it == records_.end()) return absl::OkStatus();  // Push says it
  LookAt(&it->second);
  if (it->second.untaken > kMostUntakenBytes) {
    return absl::ResourceExhaustedError("fd channel: the client does not take what it was sent");
  }
  const uint32_t uid = it->second.info.uid;
  const MonotonicNanos now = RealClock()->Now();
  if (UserTakesNone(uid) && now - looked_at_all_ >= kLookAgainAfter) {
    looked_at_all_ = now;
    for (auto& [id, record] : records_) LookAt(&record);
  }
  if (!UserTakesNone(uid)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("fd channel: the clients of uid ", uid, " do not take what they were sent"));
}

Status Sessions::Push(SessionId session, const FdLent& lent, int fd) const {
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Channel> channel, ChannelOf(session));
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
  std::optional<SessionInfo> info;
  std::shared_ptr<Channel> channel;
  bool stopping = false;
  {
    MutexLock lock(&mu_);
    stopping = stopping_;
    const auto it = records_.find(session);
    if (it != records_.end()) {
      info = it->second.info;
      channel = it->second.channel;
    }
  }
  if (channel != nullptr) channel->Unwatch();  // what has happened would be told again and again
  if (stopping || !info.has_value() || !End(session)) return;
  LOG(INFO) << "session " << session << " ended: " << why
            << (info->job.empty() ? "" : " job=" + info->job) << " pid=" << info->pid;
  ended_(session);
}

void Sessions::Accept(UniqueFd socket, const Peer& peer) {
  const auto pending = [&]() -> std::shared_ptr<Pending> {
    MutexLock lock(&mu_);
    size_t& of_user = pending_of_user_[peer.uid];
    if (pending_ >= options_.max_pending || of_user >= options_.max_pending_of_user) {
      if (of_user == 0) pending_of_user_.erase(peer.uid);
      LOG_EVERY_N(WARNING, 100) << "fd socket: " << of_user << " connections of uid " << peer.uid
                                << " have not attached, " << pending_
                                << " in all; refusing one more";
      return nullptr;
    }
    ++of_user;
    ++pending_;
    auto one = std::make_shared<Pending>();
    one->sessions = this;
    one->peer = peer;
    return one;
  }();
  if (pending == nullptr) return loops_->Dispose(peer.uid, std::move(socket));
  try {
    pending->loop = loops_->Of(peer.uid);
  } catch (const std::system_error& e) {
    LOG_EVERY_N(ERROR, 100) << "fd socket: " << e.what();
    return loops_->Dispose(peer.uid, std::move(socket));
  }
  pending->socket = std::move(socket);
  pending->loop->Post([this, pending] {
    auto watch =
        pending->loop->Add(pending->socket.get(), EPOLLIN | EPOLLRDHUP,
                           [this, pending](uint32_t events) { OnPending(pending, events); });
    if (!watch.ok()) return;
    pending->watch = *watch;
    pending->loop->SetTime(*watch, RealClock()->Now() + options_.attach_timeout);
  });
}

void Sessions::OnPending(const std::shared_ptr<Pending>& pending, uint32_t events) {
  // The loop keeps the watcher, and so `pending`, while it runs.
  pending->loop->Remove(pending->watch);
  if (events == 0) return;  // its time is up: closed here
  StatusOr<ReceivedMessage> message =
      ReceiveMessage(pending->socket.get(), kFdChannelMaxMessage, MSG_DONTWAIT);
  if (!message.ok() || message->bytes.empty()) return;  // gone, or nonsense
  const Status status = Attach(pending, *std::move(message));
  if (status.ok()) return;
  LOG_EVERY_N(WARNING, 20) << "fd channel refused: " << status;
  // Best effort: the connection closes either way.
  SendMessage(pending->socket.get(), Encode(FdAttached{status.code()}), {}, MSG_DONTWAIT)
      .IgnoreError();
}

Status Sessions::Attach(const std::shared_ptr<Pending>& pending, ReceivedMessage message) {
  CAIRN_ASSIGN_OR_RETURN(const FdAttach attach, DecodeFdAttach(message.bytes));
  if (message.fds.size() != 1 || !IsPidfdOf(message.fds[0].get(), pending->peer.pid)) {
    return absl::InvalidArgumentError("attach carries the client's own pidfd, exactly one");
  }
  CAIRN_ASSIGN_OR_RETURN(const SessionInfo info,
                         Rejoin(attach.session, attach.secret, pending->peer.uid));
  if (!info.takes_fds) {
    return absl::FailedPreconditionError("its hello said that this session takes no descriptors");
  }
  auto channel = std::make_shared<Channel>();
  CAIRN_ASSIGN_OR_RETURN(channel->progress, MakeProgressPage(&channel->page));
  channel->pidfd = std::move(message.fds[0]);
  channel->socket = std::move(pending->socket);
  channel->loop = pending->loop;
  WidenChannel(channel->socket.get());
  {
    MutexLock lock(&mu_);
    auto it = records_.find(info.id);
    if (it == records_.end() || it->second.channel != nullptr) {
      pending->socket = std::move(channel->socket);
      return absl::FailedPreconditionError(
          absl::StrCat("session: ", info.id, " has an fd channel already"));
    }
    it->second.channel = channel;
  }
  const int socket = channel->socket.get(), pidfd = channel->pidfd.get();
  const int progress = channel->progress.get();
  // The holder may answer when this is no more: the loop has stopped by then, and forgets it.
  holder_->HoldSession(
      info.id, socket, pidfd, progress, [this, session = info.id, channel](Status held) {
        channel->loop->Post(
            [this, session, channel, held] { CompleteAttach(session, channel, held); });
      });
  return absl::OkStatus();
}

// Once the client knows of the channel, its session outlives the daemon: the holder has it.
void Sessions::CompleteAttach(SessionId session, const std::shared_ptr<Channel>& channel,
                              Status held) {
  Status status = std::move(held);
  if (status.ok()) status = Watch(session, channel);
  if (!Find(session).has_value()) {
    // The session ended meanwhile, perhaps before the holder and the loop knew the channel.
    return Close(session, channel);
  }
  ReachFailpoint(Failpoint::kNodeAttached);
  if (status.ok()) {
    status = SendMessage(channel->socket.get(), Encode(FdAttached{}), {channel->progress.get()},
                         MSG_DONTWAIT);
    if (status.ok()) return;
    LOG(WARNING) << "session " << session << ": " << status;
  } else {
    // The client is told that the log says why: it is there by then.
    LOG(WARNING) << "session " << session << ": " << status;
    // Best effort: the channel closes either way.
    SendMessage(channel->socket.get(), Encode(FdAttached{status.code()}), {}, MSG_DONTWAIT)
        .IgnoreError();
  }
  EndByItself(session, "its fd channel could not be set up");
}

// The holder has a dup of the socket, so that closing ours would tell the client nothing. What the
// client has sent is received, and so closed, on its user's loop: the holder must not be held up by it.
// Nor whoever ends the session: this is done later, also when it is the loop itself.
void Sessions::Close(SessionId session, std::shared_ptr<Channel> channel) {
  EventLoop* const loop = channel->loop.get();
  loop->Post([this, session, channel = std::move(channel)] {
    channel->Unwatch();
    shutdown(channel->socket.get(), SHUT_RDWR);
    DropMessages(channel->socket.get());
    holder_->DropSession(session);
  });
}

void Sessions::Discard(HeldSession held) {
  const auto channel = std::make_shared<HeldSession>(std::move(held));
  loops_->disposing()->Post([this, channel] {
    shutdown(channel->channel.get(), SHUT_RDWR);
    DropMessages(channel->channel.get());
    holder_->DropSession(channel->session);
  });
}

}  // namespace cairn::node
