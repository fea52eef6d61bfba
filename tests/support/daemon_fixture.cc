#include "tests/support/daemon_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "common/fd.h"
#include "tests/support/await.h"

namespace cairn::testing {
namespace {

std::string Program() {
  if (const char* folder = std::getenv("CAIRN_BIN")) return std::string(folder) + "/cairnd";
  return CAIRN_CAIRND_PATH;
}

Status WaitGone(pid_t pid, const UniqueFd& pidfd, absl::Duration timeout) {
  pollfd poll_fd = {pidfd.get(), POLLIN, 0};
  const int n = poll(&poll_fd, 1, static_cast<int>(absl::ToInt64Milliseconds(Patient(timeout))));
  if (n > 0) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("pid ", pid, " still runs"));
}

}  // namespace

Daemon::Daemon(const DaemonOptions& options, std::string folder)
    : options_(options), folder_(std::move(folder)) {}

StatusOr<std::unique_ptr<Daemon>> Daemon::Prepare(const DaemonOptions& options, std::string base) {
  if (base.empty()) {
    const char* temporary = std::getenv("TMPDIR");
    base = temporary != nullptr ? temporary : "/tmp";
  }
  std::string name = base + "/cairn-test-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) return ErrnoStatus(errno, name);
  std::unique_ptr<Daemon> daemon(new Daemon(options, name));
  std::filesystem::create_directory(daemon->storage());
  return daemon;
}

StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const DaemonOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Daemon> daemon, Prepare(options));
  CAIRN_RETURN_IF_ERROR(daemon->StartAgain());
  return daemon;
}

Daemon::~Daemon() {
  (void)KillEverything();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

Status Daemon::StartAgain() {
  CAIRN_RETURN_IF_ERROR(Exec());
  return WaitServing();
}

Status Daemon::Exec() {
  std::vector<std::string> words = {Program(),
                                    "--socket=" + socket(),
                                    absl::StrCat("--memory.budget=", options_.budget_bytes),
                                    "--persist.mode=" + options_.persist,
                                    "--catalog.path=" + folder_ + "/catalog.db",
                                    "--journal.bytes=16MiB"};
  if (options_.storage) words.push_back("--storage.root=" + storage());
  if (!options_.failpoints.empty()) words.push_back("--test.failpoints=" + options_.failpoints);
  words.insert(words.end(), options_.flags.begin(), options_.flags.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  UniqueFd log(
      open((folder_ + "/cairnd.log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!log.valid()) return ErrnoStatus(errno, folder_ + "/cairnd.log");
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (strncmp(*entry, "CAIRN", 5) != 0) environment.push_back(*entry);
  }
  environment.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);  // a test that crashes leaves nothing running
    dup2(log.get(), STDOUT_FILENO);
    dup2(log.get(), STDERR_FILENO);
    execve(argv[0], argv.data(), environment.data());
    _exit(127);
  }
  keeper_ = pid;
  return absl::OkStatus();
}

client::ConnectOptions Daemon::Client(const std::string& job, Attempt attempt, Writer writer,
                                      int32_t world_size) const {
  client::ConnectOptions options;
  options.socket = socket();
  options.job = job;
  options.attempt = attempt;
  options.writer = writer;
  options.world_size = world_size;
  return options;
}

StatusOr<std::string> Daemon::StatusJson() const {
  client::ConnectOptions options;
  options.socket = socket();
  options.takes_fds = false;
  CAIRN_ASSIGN_OR_RETURN(auto session, client::Session::Connect(options));
  return session->StatusJson();
}

Status Daemon::WaitServing(absl::Duration timeout) const {
  client::ConnectOptions options;
  options.socket = socket();
  options.takes_fds = false;
  options.timeout = absl::Milliseconds(500);
  Status connected;
  bool ended = false;
  const bool over = Await(
      [&] {
        siginfo_t info = {};
        ended = waitid(P_PID, keeper_, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
        if (!ended) connected = client::Session::Connect(options).status();
        return ended || connected.ok();
      },
      absl::ToChronoNanoseconds(timeout));
  if (ended) return absl::UnavailableError(absl::StrCat(Program(), " ended: ", LogTail()));
  if (over) return absl::OkStatus();
  return Annotate(connected, absl::StrCat("cairnd does not serve: ", LogTail()));
}

StatusOr<pid_t> Daemon::daemon_pid() const {
  std::ifstream children(absl::StrCat("/proc/", keeper_, "/task/", keeper_, "/children"));
  pid_t pid = -1;
  if (!(children >> pid)) return absl::NotFoundError("the keeper has no child");
  return pid;
}

Status Daemon::KillDaemon() {
  CAIRN_ASSIGN_OR_RETURN(const pid_t pid, daemon_pid());
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd pidfd, OpenPidfd(pid));
  if (kill(pid, SIGKILL) != 0) return ErrnoStatus(errno, "kill");
  return WaitGone(pid, pidfd, absl::Seconds(30));
}

StatusOr<int> Daemon::Stop(absl::Duration timeout) {
  if (keeper_ < 0) return absl::FailedPreconditionError("not running");
  CAIRN_ASSIGN_OR_RETURN(const UniqueFd pidfd, OpenPidfd(keeper_));
  kill(keeper_, SIGTERM);
  CAIRN_RETURN_IF_ERROR(WaitGone(keeper_, pidfd, timeout));
  int status = 0;
  waitpid(keeper_, &status, 0);
  keeper_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Status Daemon::KillEverything() {
  if (keeper_ < 0) return absl::OkStatus();
  const StatusOr<pid_t> daemon = daemon_pid();
  // The keeper first: it would start another.
  UniqueFd pidfd;
  if (daemon.ok()) {
    StatusOr<UniqueFd> opened = OpenPidfd(*daemon);
    if (opened.ok()) pidfd = *std::move(opened);
  }
  kill(keeper_, SIGKILL);
  waitpid(keeper_, nullptr, 0);
  keeper_ = -1;
  if (!pidfd.valid()) return absl::OkStatus();
  kill(*daemon, SIGKILL);
  return WaitGone(*daemon, pidfd, absl::Seconds(30));
}

std::string Daemon::LogTail() const {
  constexpr size_t kTail = 3000;
  StatusOr<std::string> log = ReadFile(folder_ + "/cairnd.log");
  if (!log.ok()) return "";
  return log->size() > kTail ? log->substr(log->size() - kTail) : *log;
}

}  // namespace cairn::testing
