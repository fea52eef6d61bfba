// One file: one class, whose state signals, deaths and messages share.
#include "server/keeper/keeper.h"

#include <errno.h>
#include <glog/logging.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <new>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/failpoint.h"
#include "server/journal/journal.h"
#include "server/keeper/config_check.h"
#include "server/keeper/death.h"
#include "server/keeper/held.h"
#include "server/keeper/process.h"
#include "server/keeper/sockets.h"
#include "server/keeper/spawn.h"
#include "server/keeper/wire.h"

namespace cairn::keeper {
namespace {

// A check that reads its file from a dead mount, a daemon that hangs: neither is waited for longer.
constexpr MonotonicNanos kCheckLimit = 10 * kNanosPerSecond;
constexpr MonotonicNanos kHandOverLimit = 10 * kNanosPerSecond;
constexpr MonotonicNanos kNever = std::numeric_limits<MonotonicNanos>::max();
// Between two tries of what failed for want of memory or descriptors.
constexpr int kPauseMillis = 10;

// Says it without needing memory. A reader of the log that is gone is no reason to do anything.
void SayOutOfMemory() {
  constexpr char kText[] = "keeper: out of memory; going on\n";
  if (::write(STDERR_FILENO, kText, sizeof(kText) - 1) < 0) return;
}

class Keeper {
 public:
  Keeper(const Options& options, ListeningSockets sockets, UniqueFd journal, UniqueFd black_box)
      : options_(options),
        sockets_(std::move(sockets)),
        journal_(std::move(journal)),
        black_box_(std::move(black_box)),
        daemon_command_(options.daemon_command),
        restart_(options.restart, clock_->Now()) {}

  int Run() {
    const Status status = TakeSignals();
    if (!status.ok()) {
      LOG(ERROR) << "keeper: " << status;
      return 1;
    }
    oom_score_ = ShieldFromOom();
    while (!exit_code_.has_value()) {
      try {
        HandleDeaths();
        if (exit_code_.has_value()) break;
        DoWhatIsDue();
        WaitAndHandle();
      } catch (const std::bad_alloc&) {
        // What was being done is done again, or given up by the one who asked for it.
        SayOutOfMemory();
        ::poll(nullptr, 0, kPauseMillis);
      }
    }
    // The signals stay blocked: one that arrived now would end this process before it returns the
    // daemon's exit code.
    return *exit_code_;
  }

 private:
  Status TakeSignals() {
    IgnoreStraySignals();
    sigset_t handled;
    sigemptyset(&handled);
    for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&handled, signal);
    if (::sigprocmask(SIG_BLOCK, &handled, nullptr) != 0) return ErrnoStatus(errno, "sigprocmask");
    signals_.Reset(::signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC));
    return signals_.valid() ? absl::OkStatus() : ErrnoStatus(errno, "signalfd");
  }

  // --- the daemon's lives

  void DoWhatIsDue() {
    const MonotonicNanos now = clock_->Now();
    if (check_.pid() != 0 && now >= check_.deadline()) check_.Kill();
    if (daemon_ == 0) {
      if (now >= restart_.start_at()) StartDaemon();
      return;
    }
    if (handing_over_) {
      if (now < hand_over_until_) return;
      hand_over_until_ = kNever;  // it dies when the kernel lets it
      LOG(WARNING) << "keeper: daemon " << daemon_ << " does not make room; it is killed";
      KillDaemon();
    } else if (!restart_.safe_mode().empty() && now >= restart_.safe_until() && !stopping_) {
      LOG(INFO) << "keeper: safe mode has lasted long enough";
      HandOver();
    }
  }

  void StartDaemon() {
    Status status;
    try {
      status = ForkDaemon();
      if (status.ok()) QueueInheritance();
    } catch (const std::bad_alloc&) {
      SayOutOfMemory();
      status = absl::ResourceExhaustedError("out of memory");
      KillDaemon();  // a child that waits for the rest of its inheritance
      if (daemon_ != 0) return;
    }
    if (!status.ok()) {
      link_.Reset();
      restart_.NotStarted(clock_->Now());
      LOG(ERROR) << "keeper: starting the daemon: " << status << "; next try in "
                 << (restart_.start_at() - clock_->Now()) / kNanosPerMilli << " ms";
      return;
    }
    restart_.Started();
    // Asked to stop while there was no daemon to persist what is held: now there is one.
    if (stop_owed_ != 0) ::kill(daemon_, std::exchange(stop_owed_, 0));
    SendQueued();
  }

  Status ForkDaemon() {
    if (forget_black_box_) {
      const Status forgotten = ForgetBlackBox(black_box_);
      LOG_IF(ERROR, !forgotten.ok()) << "keeper: black box: " << forgotten;
      forget_black_box_ = false;
    }
    CAIRN_ASSIGN_OR_RETURN(Child child, SpawnDaemon(daemon_command_, oom_score_));
    daemon_ = child.pid;
    link_ = std::move(child.link);
    LOG(INFO) << "keeper: daemon " << daemon_ << " started, after " << restart_.deaths()
              << " deaths, with " << held_.slabs() << " slabs and " << held_.sessions()
              << " sessions" << (restart_.safe_mode().empty() ? "" : "; in safe mode: ")
              << restart_.safe_mode();
    return absl::OkStatus();
  }

  void HandleDeath(const siginfo_t& death) {
    const pid_t pid = daemon_;
    // Everything that the daemon sent is in the queue by now. Read it before a new daemon inherits.
    queued_.clear();
    while (link_.valid() && ReceiveOne()) {
    }
    link_.Reset();
    queued_.clear();  // answers that nobody reads any more
    ::waitpid(pid, nullptr, 0);
    daemon_ = 0;

    const bool handed_over = std::exchange(handing_over_, false);
    const MonotonicNanos now = clock_->Now();
    const bool killed_here = std::exchange(killed_here_, false);
    // It may have had more to persist, and that is held here: another daemon is asked, once.
    const bool owes = (IsCrash(death) || HandsOver(death)) && !killed_here && !held_.empty();
    if (stopping_ && owes && !std::exchange(asked_another_, true)) stop_owed_ = SIGTERM;
    if (stopping_ && stop_owed_ == 0) {
      LOG(INFO) << "keeper: daemon " << pid << " ended with " << Describe(death);
      exit_code_ = ExitCode(death);
      return;
    }
    if (handed_over) {
      LOG(INFO) << "keeper: daemon " << pid << " has handed over, with " << Describe(death);
      restart_.LeaveSafeMode(now);
      return;
    }
    if (HandsOver(death)) {
      LOG(INFO) << "keeper: daemon " << pid << " wants the next one in its place";
      return restart_.Replace(now);
    }
    // A failpoint ends a process as a kill would.
    const bool by_itself = death.si_code == CLD_EXITED && death.si_status != kFailpointExitCode;
    if (by_itself && !served_ && restart_.deaths() == 0 && held_.empty()) {
      LOG(ERROR) << "keeper: daemon " << pid << " refused to start with " << Describe(death);
      exit_code_ = ExitCode(death);
      return;
    }
    restart_.Died(now, Describe(death));
    if (stop_owed_ != 0) restart_.StartNow(now);
    LOG(ERROR) << "keeper: daemon " << pid << " died with " << Describe(death) << "; next one in "
               << (restart_.start_at() - now) / kNanosPerMilli << " ms";
  }

  // Asks the daemon to let commits finish and to make room for the next one. No death: everything
  // is held here.
  void HandOver() {
    if (daemon_ == 0) return restart_.StartNow(clock_->Now());
    if (handing_over_) return;
    handing_over_ = true;
    hand_over_until_ = clock_->Now() + kHandOverLimit;
    ::kill(daemon_, SIGHUP);
  }

  // --- SIGHUP

  void HandleReload() {
    if (stopping_) return;
    if (check_.pid() != 0) {
      check_again_ = true;  // what that one reads may be older than this request
      return;
    }
    if (options_.check_command.empty()) {
      forget_black_box_ = true;
      return HandOver();
    }
    const Status status =
        check_.Start(options_.check_command, oom_score_, clock_->Now() + kCheckLimit);
    if (!status.ok()) LOG(ERROR) << "keeper: reload refused: the check did not start: " << status;
  }

  void HandleChecked(const siginfo_t& end) {
    StatusOr<std::vector<std::string>> arguments = check_.Finish(end);
    ::waitpid(end.si_pid, nullptr, 0);
    if (std::exchange(check_again_, false)) return HandleReload();
    if (stopping_) return;
    if (!arguments.ok()) {
      LOG(ERROR) << "keeper: reload refused, the daemon goes on as it is: "
                 << arguments.status().message();
      return;
    }
    KeepFixed(options_.fixed_arguments, daemon_command_, &*arguments);
    arguments->insert(arguments->begin(), daemon_command_.front());
    daemon_command_ = *std::move(arguments);
    LOG(INFO) << "keeper: the options are read anew; the daemon is replaced";
    restart_.Forget(clock_->Now());
    forget_black_box_ = true;  // the same holds for what it was reading when it died
    HandOver();
  }

  // --- what the daemon is told

  void QueueInheritance() {
    queued_.push_back(
        {Encode(MessageType::kBegin, {{static_cast<uint64_t>(restart_.deaths()), 0}},
                restart_.safe_mode()),
         {journal_.get(), sockets_.thrift(), sockets_.fd_channel(), black_box_.get()}});
    held_.AppendInheritance(&queued_);
  }

  void Answer(uint64_t request, const Status& status) {
    queued_.push_back({Encode(MessageType::kAnswer,
                              {{request, static_cast<uint64_t>(status.code())}}, status.message()),
                       {}});
    if (queued_.size() == 1) SendQueued();
  }

  void SendQueued() {
    size_t sent = 0;
    for (; !queued_.empty(); ++sent) {
      const Status status =
          SendMessage(link_.get(), queued_.front().bytes, queued_.front().fds, MSG_DONTWAIT);
      if (absl::IsResourceExhausted(status)) {
        // It goes on at POLLOUT; a little later when that was there and did not help.
        send_pause_ = sent == 0 && send_blocked_;
        send_blocked_ = true;
        return;
      }
      if (absl::IsUnavailable(status)) {
        queued_.clear();  // the daemon is dying; SIGCHLD follows
        break;
      }
      if (!status.ok()) {
        LOG(ERROR) << "keeper: telling daemon " << daemon_ << ": " << status;
        KillDaemon();
        break;
      }
      queued_.pop_front();
    }
    send_pause_ = send_blocked_ = false;
  }

  // --- what the daemon tells

  // One message, without waiting; false when there is none, or never again.
  bool ReceiveOne() {
    bool fds_lost = false;
    StatusOr<ReceivedMessage> received =
        ReceiveMessage(link_.get(), kMaxMessage, MSG_DONTWAIT, &fds_lost);
    if (absl::IsUnavailable(received.status())) {
      // The kernel reports once that the daemon died with answers unread, ahead of what it had sent.
      received = ReceiveMessage(link_.get(), kMaxMessage, MSG_DONTWAIT, &fds_lost);
    }
    if (absl::IsDeadlineExceeded(received.status())) return false;
    // The message stays in the queue. It is read after a pause (Run), be its sender alive or dead.
    if (absl::IsResourceExhausted(received.status())) throw std::bad_alloc();
    if (absl::IsUnavailable(received.status()) || (received.ok() && received->bytes.empty())) {
      link_.Reset();
      return false;
    }
    const Status status = received.ok() ? Handle(Decode(*std::move(received), fds_lost), fds_lost)
                                        : received.status();
    if (!status.ok()) {
      LOG(ERROR) << "keeper: daemon " << daemon_
                 << " sent a message that this keeper does not understand: " << status;
      KillDaemon();
      link_.Reset();
      return false;
    }
    return true;
  }

  Status Handle(StatusOr<Message> message, bool fds_lost) {
    if (!message.ok()) return message.status();
    if (message->version != kVersion) {
      return absl::UnimplementedError(
          absl::StrCat("version ", message->version, "; this keeper speaks ", kVersion));
    }
    const Item& item = message->items.front();
    switch (message->type) {
      case MessageType::kHoldSlab:
      case MessageType::kHoldSession:
        Answer(message->items[1].id, held_.Hold(&*message, fds_lost));
        return absl::OkStatus();
      case MessageType::kDropSlab:
        held_.DropSlab(item.id);
        return absl::OkStatus();
      case MessageType::kDropSession:
        held_.DropSession(item.id);
        return absl::OkStatus();
      case MessageType::kServing:
        served_ = true;
        return absl::OkStatus();
      default:
        return absl::InvalidArgumentError("a message that only the keeper sends");
    }
  }

  // --- the loop

  void WaitAndHandle() {
    pollfd polled[2] = {{signals_.get(), POLLIN, 0}, {link_.get(), 0, 0}};
    // While the inheritance is being sent nothing is read: a message could drop what it refers to.
    // While an answer is, neither: a daemon that reads no answers is not listened to.
    const bool sending = !queued_.empty();
    if (link_.valid() && !(sending && send_pause_)) polled[1].events = sending ? POLLOUT : POLLIN;
    if (::poll(polled, 2, TimeoutMillis()) < 0 && errno != EINTR) {
      LOG(ERROR) << "keeper: " << ErrnoStatus(errno, "poll");
      ::usleep(kPauseMillis * 1000);
    }
    if (link_.valid() && (polled[1].revents != 0 || send_pause_)) {
      if (sending) {
        SendQueued();
      } else {
        ReceiveOne();
      }
    }
    if ((polled[0].revents & POLLIN) != 0) HandleSignals();
  }

  // Until DoWhatIsDue has something to do.
  int TimeoutMillis() const {
    MonotonicNanos due = kNever;
    const MonotonicNanos now = clock_->Now();
    if (daemon_ == 0) {
      due = restart_.start_at();
    } else if (handing_over_) {
      due = hand_over_until_;
    } else if (!restart_.safe_mode().empty() && !stopping_) {
      due = restart_.safe_until();
    }
    if (check_.pid() != 0) due = std::min(due, check_.deadline());
    if (send_pause_) due = std::min(due, now + kPauseMillis * kNanosPerMilli);
    if (due == kNever) return -1;
    constexpr MonotonicNanos kLongest = 3600 * kNanosPerSecond;
    if (due <= now) return 0;
    return static_cast<int>(std::min(due - now, kLongest) / kNanosPerMilli) + 1;
  }

  void HandleSignals() {
    // First: a daemon that is dead cannot be asked for anything.
    HandleDeaths();
    signalfd_siginfo signal;
    while (!exit_code_.has_value() &&
           ::read(signals_.get(), &signal, sizeof(signal)) == sizeof(signal)) {
      if (signal.ssi_signo == SIGCHLD)
        continue;  // deaths are looked for in any case: signals merge
      if (signal.ssi_signo == SIGHUP) {
        HandleReload();
      } else {
        HandleStop(static_cast<int>(signal.ssi_signo));
      }
    }
  }

  void HandleDeaths() {
    siginfo_t death = {};
    while (::waitid(P_ALL, 0, &death, WEXITED | WNOHANG | WNOWAIT) == 0 && death.si_pid != 0) {
      if (death.si_pid == daemon_) {
        HandleDeath(death);
      } else if (death.si_pid == check_.pid()) {
        HandleChecked(death);
      } else {
        // As the first process of a container the keeper inherits orphans.
        ::waitpid(death.si_pid, nullptr, 0);
      }
      death = {};
    }
  }

  void HandleStop(int signal) {
    if (stopping_) {
      LOG(WARNING) << "keeper: asked to stop again; daemon " << daemon_ << " is killed";
      stop_owed_ = 0;
      if (daemon_ == 0) exit_code_ = 128 + signal;
      KillDaemon();
      return;
    }
    if (daemon_ == 0 && held_.empty()) {
      LOG(INFO) << "keeper: " << ::strsignal(signal) << " while no daemon runs";
      exit_code_ = 128 + signal;
      return;
    }
    stopping_ = true;
    if (daemon_ != 0 && !handing_over_) {
      ::kill(daemon_, signal);
      return;
    }
    // Only a daemon can persist what is held: the next one is told.
    stop_owed_ = signal;
    if (daemon_ == 0) restart_.StartNow(clock_->Now());
  }

  void KillDaemon() {
    queued_.clear();
    if (daemon_ == 0) return;
    killed_here_ = true;
    ::kill(daemon_, SIGKILL);
  }

  const Options options_;
  Clock* const clock_ = RealClock();
  const ListeningSockets sockets_;
  const UniqueFd journal_;
  const UniqueFd black_box_;
  UniqueFd signals_;
  std::string oom_score_;  // for the children; empty: the same as this process's

  Held held_;

  // The current daemon. link_ and daemon_ end separately: a daemon may close its end and live on
  // for a while.
  std::vector<std::string> daemon_command_;
  pid_t daemon_ = 0;  // 0: none
  UniqueFd link_;
  std::deque<Outgoing> queued_;  // the rest of its inheritance; then at most one answer
  bool send_blocked_ = false;    // the last try sent nothing
  bool send_pause_ = false;      // POLLOUT says nothing now
  bool served_ = false;          // some daemon did
  RestartPolicy restart_;

  bool handing_over_ = false;  // the daemon was asked to make room for the next one
  MonotonicNanos hand_over_until_ = 0;
  ConfigCheck check_;
  bool check_again_ = false;
  bool forget_black_box_ = false;  // before the next daemon starts

  bool stopping_ = false;       // by SIGTERM or SIGINT
  int stop_owed_ = 0;           // the signal, while there was no daemon that could heed it
  bool asked_another_ = false;  // to do it: the first one died of it
  bool killed_here_ = false;    // the daemon, by this keeper
  std::optional<int> exit_code_;
};

StatusOr<std::unique_ptr<Keeper>> MakeKeeper(const Options& options) {
  if (options.daemon_command.empty()) {
    return absl::InvalidArgumentError("daemon_command: empty");
  }
  RaiseDescriptorLimit();
  CAIRN_ASSIGN_OR_RETURN(
      ListeningSockets sockets,
      ListeningSockets::Listen(options.socket_path, options.socket_mode, options.socket_origin));
  journal::Options journal;
  journal.bytes = options.journal_bytes;
  CAIRN_ASSIGN_OR_RETURN(UniqueFd file, journal::Journal::MakeFile(journal));
  CAIRN_ASSIGN_OR_RETURN(UniqueFd black_box, MakeBlackBox());
  return std::make_unique<Keeper>(options, std::move(sockets), std::move(file),
                                  std::move(black_box));
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
