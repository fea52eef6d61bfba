#include "server/keeper/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/failpoint.h"
#include "server/journal/journal.h"
#include "server/keeper/sockets.h"
#include "server/keeper/wire.h"
#include "server/node/inherited.h"

extern char** environ;

namespace cairn::keeper {
namespace {

constexpr MonotonicNanos kDeathWindow = 60 * kNanosPerSecond;
constexpr MonotonicNanos kFirstBackoff = 100 * kNanosPerMilli;
constexpr MonotonicNanos kLongestBackoff = 5 * kNanosPerSecond;
constexpr char kFdVariable[] = "CAIRN_KEEPER_FD";
constexpr int kCannotExec = 127;  // as a shell says it

int ExitCode(const siginfo_t& death) {
  return death.si_code == CLD_EXITED ? death.si_status : 128 + death.si_status;
}

std::string Describe(const siginfo_t& death) {
  if (death.si_code == CLD_EXITED) return absl::StrCat("exit code ", death.si_status);
  return absl::StrCat("signal ", death.si_status, " (", ::strsignal(death.si_status), ")");
}

class Keeper {
 public:
  Keeper(const Options& options, ListeningSockets sockets, UniqueFd journal)
      : options_(options), sockets_(std::move(sockets)), journal_(std::move(journal)) {}

  int Run() {
    const Status status = TakeSignals();
    if (!status.ok()) {
      LOG(ERROR) << "keeper: " << status;
      return 1;
    }
    restart_at_ = clock_->Now();
    while (!exit_code_.has_value()) {
      if (daemon_ == 0 && clock_->Now() >= restart_at_) StartDaemon();
      WaitAndHandle();
    }
    // The signals stay blocked: one that arrived now would end this process before it returns the
    // daemon's exit code.
    return *exit_code_;
  }

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<int> fds;  // owned by slabs_ and sessions_, which do not change before it is sent
  };

  Status TakeSignals() {
    sigset_t handled;
    sigemptyset(&handled);
    for (int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&handled, signal);
    if (::sigprocmask(SIG_BLOCK, &handled, &mask_before_) != 0) {
      return ErrnoStatus(errno, "sigprocmask");
    }
    signals_.Reset(::signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC));
    return signals_.valid() ? absl::OkStatus() : ErrnoStatus(errno, "signalfd");
  }

  // --- the daemon's lives

  void StartDaemon() {
    const Status status = ForkDaemon();
    if (status.ok()) {
      QueueInheritance();
      SendQueued();
      return;
    }
    LOG(ERROR) << "keeper: starting the daemon: " << status;
    restart_at_ = clock_->Now() + kLongestBackoff;
  }

  Status ForkDaemon() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
      return ErrnoStatus(errno, "socketpair");
    }
    link_.Reset(ends[0]);
    UniqueFd child_end(ends[1]);

    // Everything that allocates memory happens before the fork.
    std::vector<char*> arguments;
    for (const std::string& argument : options_.daemon_command) {
      arguments.push_back(const_cast<char*>(argument.c_str()));
    }
    arguments.push_back(nullptr);
    std::string variable = absl::StrCat(kFdVariable, "=", child_end.get());
    std::vector<char*> environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (absl::string_view(*entry).substr(0, variable.find('=') + 1) !=
          absl::string_view(variable).substr(0, variable.find('=') + 1)) {
        environment.push_back(*entry);
      }
    }
    environment.push_back(variable.data());
    environment.push_back(nullptr);

    const pid_t keeper = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) return ErrnoStatus(errno, "fork");
    if (pid == 0) BecomeDaemon(keeper, child_end.get(), arguments.data(), environment.data());
    daemon_ = pid;
    LOG(INFO) << "keeper: daemon " << pid << " started, after " << restarts_ << " deaths, with "
              << slabs_.size() << " slabs and " << sessions_.size() << " sessions"
              << (safe_mode_.empty() ? "" : "; in safe mode: ") << safe_mode_;
    return absl::OkStatus();
  }

  [[noreturn]] void BecomeDaemon(pid_t keeper, int link, char** arguments,
                                 char** environment) const {
    // A daemon that outlived its keeper would go on without what the keeper held, and not know it.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != keeper) ::_exit(kCannotExec);
    // In a group of its own: a terminal's Ctrl-C goes to the keeper alone, which forwards it once.
    ::setpgid(0, 0);
    ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
    ::fcntl(link, F_SETFD, 0);
    ::execve(arguments[0], arguments, environment);
    const char* const reason = ::strerror(errno);
    for (const char* part :
         {"keeper: cannot execute ", const_cast<const char*>(arguments[0]), ": ", reason, "\n"}) {
      if (::write(STDERR_FILENO, part, ::strlen(part)) < 0) break;
    }
    ::_exit(kCannotExec);
  }

  void HandleDeath(const siginfo_t& death) {
    const pid_t pid = daemon_;
    // Everything that the daemon sent is in the queue by now. Read it before a new daemon inherits.
    queued_.clear();
    while (link_.valid() && ReceiveOne()) {
    }
    link_.Reset();
    ::waitpid(pid, nullptr, 0);
    daemon_ = 0;

    // A failpoint ends a process as a kill would.
    const bool by_itself = death.si_code == CLD_EXITED && death.si_status != kFailpointExitCode;
    if (stopping_ || (by_itself && death.si_status == 0)) {
      LOG(INFO) << "keeper: daemon " << pid << " ended with " << Describe(death);
      exit_code_ = ExitCode(death);
      return;
    }
    if (by_itself && restarts_ == 0 && slabs_.empty() && sessions_.empty()) {
      LOG(ERROR) << "keeper: daemon " << pid << " refused to start with " << Describe(death);
      exit_code_ = ExitCode(death);
      return;
    }
    ++restarts_;
    const MonotonicNanos now = clock_->Now();
    deaths_.push_back(now);
    while (deaths_.front() <= now - kDeathWindow) deaths_.pop_front();
    restart_at_ = now + Backoff();
    safe_mode_.clear();
    if (static_cast<int>(deaths_.size()) >= options_.deaths_before_safe_mode) {
      safe_mode_ = absl::StrCat("the daemon died ", deaths_.size(),
                                " times within a minute, last with ", Describe(death));
    }
    LOG(ERROR) << "keeper: daemon " << pid << " died with " << Describe(death) << "; next one in "
               << (restart_at_ - now) / kNanosPerMilli << " ms";
  }

  MonotonicNanos Backoff() const {
    if (deaths_.size() <= 1) return 0;
    MonotonicNanos backoff = kFirstBackoff;
    for (size_t i = 2; i < deaths_.size() && backoff < kLongestBackoff; ++i) backoff *= 2;
    return std::min(backoff, kLongestBackoff);
  }

  // --- what the daemon is told

  void QueueInheritance() {
    queued_.push_back(
        {Encode(MessageType::kBegin, {{static_cast<uint64_t>(restarts_), 0}}, safe_mode_),
         {journal_.get(), sockets_.thrift(), sockets_.fd_channel()}});
    std::vector<Item> items;
    std::vector<int> fds;
    const auto flush = [&](MessageType type) {
      if (items.empty()) return;
      queued_.push_back({Encode(type, items), std::move(fds)});
      items.clear();
      fds.clear();
    };
    for (const auto& [id, slab] : slabs_) {
      if (fds.size() + 1 > kMaxFdsPerMessage) flush(MessageType::kSlabs);
      items.push_back({id, slab.bytes});
      fds.push_back(slab.fd.get());
    }
    flush(MessageType::kSlabs);
    for (const auto& [id, session] : sessions_) {
      if (fds.size() + kFdsPerSession > kMaxFdsPerMessage || items.size() >= kMaxFdsPerMessage) {
        flush(MessageType::kSessions);
      }
      uint64_t which = 0;
      const auto add = [&](const UniqueFd& fd, uint64_t bit) {
        if (!fd.valid()) return;
        which |= bit;
        fds.push_back(fd.get());
      };
      add(session.channel, kHasChannel);
      add(session.pidfd, kHasPidfd);
      add(session.progress, kHasProgress);
      items.push_back({id, which});
    }
    flush(MessageType::kSessions);
    queued_.push_back({Encode(MessageType::kEnd, {{slabs_.size(), sessions_.size()}}), {}});
  }

  void SendQueued() {
    while (!queued_.empty()) {
      const Status status =
          SendMessage(link_.get(), queued_.front().bytes, queued_.front().fds, MSG_DONTWAIT);
      if (absl::IsResourceExhausted(status)) return;  // goes on at POLLOUT
      if (absl::IsUnavailable(status)) {
        queued_.clear();  // the daemon is dying; SIGCHLD follows
        return;
      }
      if (!status.ok()) {
        LOG(ERROR) << "keeper: handing daemon " << daemon_ << " what it inherits: " << status;
        KillDaemon();
        return;
      }
      queued_.pop_front();
    }
  }

  // --- what the daemon tells

  // One message, without waiting; false when there is none, or never again.
  bool ReceiveOne() {
    StatusOr<ReceivedMessage> received = ReceiveMessage(link_.get(), kMaxMessage, MSG_DONTWAIT);
    if (absl::IsDeadlineExceeded(received.status())) return false;
    if (absl::IsUnavailable(received.status()) || (received.ok() && received->bytes.empty())) {
      link_.Reset();
      return false;
    }
    if (absl::IsInvalidArgument(received.status())) {
      // A hand-over that did not fit the keeper's descriptor table. The daemon goes on; the next one
      // inherits one slab or session less.
      LOG(ERROR) << "keeper: lost what daemon " << daemon_ << " handed over: " << received.status();
      return true;
    }
    const Status status = received.ok() ? Handle(Decode(*std::move(received))) : received.status();
    if (!status.ok()) {
      LOG(ERROR) << "keeper: daemon " << daemon_
                 << " sent a message that this keeper does not understand: " << status;
      KillDaemon();
      link_.Reset();
      return false;
    }
    return true;
  }

  Status Handle(StatusOr<Message> message) {
    if (!message.ok()) return message.status();
    if (message->items.empty()) return absl::InvalidArgumentError("a message without items");
    const Item& item = message->items.front();
    switch (message->type) {
      case MessageType::kHoldSlab:
        slabs_[item.id] = {item.id, item.value, std::move(message->fds.front())};
        return absl::OkStatus();
      case MessageType::kDropSlab:
        slabs_.erase(item.id);
        return absl::OkStatus();
      case MessageType::kHoldSession: {
        auto fd = message->fds.begin();
        node::HeldSession& session = sessions_[item.id];
        session = {};
        session.session = item.id;
        if ((item.value & kHasChannel) != 0) session.channel = std::move(*fd++);
        if ((item.value & kHasPidfd) != 0) session.pidfd = std::move(*fd++);
        if ((item.value & kHasProgress) != 0) session.progress = std::move(*fd++);
        return absl::OkStatus();
      }
      case MessageType::kDropSession:
        // A bare close would tell the client nothing while the daemon has a descriptor of it too.
        if (const auto found = sessions_.find(item.id); found != sessions_.end()) {
          if (found->second.channel.valid()) ::shutdown(found->second.channel.get(), SHUT_RDWR);
          sessions_.erase(found);
        }
        return absl::OkStatus();
      default:
        return absl::InvalidArgumentError("a message that only the keeper sends");
    }
  }

  // --- the loop

  void WaitAndHandle() {
    pollfd polled[2] = {{signals_.get(), POLLIN, 0}, {link_.get(), 0, 0}};
    // While the inheritance is being sent nothing is read: a message could drop what it refers to.
    if (link_.valid()) polled[1].events = queued_.empty() ? POLLIN : POLLOUT;
    if (::poll(polled, 2, TimeoutMillis()) < 0 && errno != EINTR) {
      LOG(ERROR) << "keeper: " << ErrnoStatus(errno, "poll");
    }
    if (link_.valid() && polled[1].revents != 0) {
      if (!queued_.empty()) {
        SendQueued();
      } else {
        ReceiveOne();
      }
    }
    if ((polled[0].revents & POLLIN) != 0) HandleSignals();
  }

  int TimeoutMillis() const {
    if (daemon_ != 0) return -1;
    const MonotonicNanos left = restart_at_ - clock_->Now();
    return left <= 0 ? 0 : static_cast<int>(left / kNanosPerMilli) + 1;
  }

  void HandleSignals() {
    signalfd_siginfo signal;
    while (::read(signals_.get(), &signal, sizeof(signal)) == sizeof(signal)) {
      if (signal.ssi_signo == SIGCHLD) continue;  // deaths are looked for below: signals merge
      HandleStop(static_cast<int>(signal.ssi_signo));
    }
    siginfo_t death = {};
    while (::waitid(P_ALL, 0, &death, WEXITED | WNOHANG | WNOWAIT) == 0 && death.si_pid != 0) {
      if (death.si_pid == daemon_) {
        HandleDeath(death);
      } else {
        // As the first process of a container the keeper inherits orphans.
        ::waitpid(death.si_pid, nullptr, 0);
      }
      death = {};
    }
  }

  void HandleStop(int signal) {
    if (daemon_ == 0) {
      LOG(INFO) << "keeper: " << ::strsignal(signal) << " while no daemon runs";
      exit_code_ = 128 + signal;
      return;
    }
    if (stopping_) {
      LOG(WARNING) << "keeper: asked to stop again; daemon " << daemon_ << " is killed";
      KillDaemon();
      return;
    }
    stopping_ = true;
    ::kill(daemon_, signal);
  }

  void KillDaemon() {
    queued_.clear();
    if (daemon_ != 0) ::kill(daemon_, SIGKILL);
  }

  const Options options_;
  Clock* const clock_ = RealClock();
  const ListeningSockets sockets_;
  const UniqueFd journal_;
  UniqueFd signals_;
  sigset_t mask_before_ = {};

  // What is held.
  std::map<SlabId, node::HeldSlab> slabs_;
  std::map<SessionId, node::HeldSession> sessions_;

  // The current daemon. link_ and daemon_ end separately: a daemon may close its end and live on
  // for a while.
  pid_t daemon_ = 0;  // 0: none
  UniqueFd link_;
  std::deque<Outgoing> queued_;  // the rest of its inheritance
  MonotonicNanos restart_at_ = 0;

  int restarts_ = 0;
  std::deque<MonotonicNanos> deaths_;  // those of the last minute
  std::string safe_mode_;
  bool stopping_ = false;  // a signal was forwarded
  std::optional<int> exit_code_;
};

StatusOr<std::unique_ptr<Keeper>> MakeKeeper(const Options& options) {
  if (options.daemon_command.empty()) {
    return absl::InvalidArgumentError("daemon_command: empty");
  }
  RaiseDescriptorLimit();
  CAIRN_ASSIGN_OR_RETURN(ListeningSockets sockets,
                         ListeningSockets::Listen(options.socket_path, options.socket_mode));
  journal::Options journal;
  journal.bytes = options.journal_bytes;
  CAIRN_ASSIGN_OR_RETURN(UniqueFd file, journal::Journal::MakeFile(journal));
  return std::make_unique<Keeper>(options, std::move(sockets), std::move(file));
}

}  // namespace

int Run(const Options& options) {
  const StatusOr<std::unique_ptr<Keeper>> keeper = MakeKeeper(options);
  if (!keeper.ok()) {
    LOG(ERROR) << "keeper: " << keeper.status();
    return 1;
  }
  return (*keeper)->Run();
}

}  // namespace cairn::keeper
