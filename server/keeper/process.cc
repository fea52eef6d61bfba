#include "server/keeper/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "common/fd.h"

namespace cairn::keeper {
namespace {

constexpr char kOomScore[] = "/proc/self/oom_score_adj";
// One above the value that exempts a process for good: if nothing else is left, the kernel may end
// the keeper rather than stop the machine.
constexpr char kLastToGo[] = "-999";

bool Write(const char* path, const char* text, size_t length) {
  const int fd = ::open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool written = ::write(fd, text, length) == static_cast<ssize_t>(length);
  ::close(fd);
  return written;
}

}  // namespace

void IgnoreStraySignals() {
  ::signal(SIGCHLD, SIG_DFL);  // ignored, it would hide the daemon's death
  // A daemon is started with it blocked, and the kernel forgets a pending signal that is ignored.
  sigset_t blocked;
  sigemptyset(&blocked);
  ::sigprocmask(SIG_SETMASK, nullptr, &blocked);
  for (int number = 1; number < NSIG; ++number) {
    switch (number) {
      case SIGTERM:
      case SIGINT:
      case SIGCHLD:
      case SIGCONT:
      case SIGTSTP:
        continue;
      case SIGHUP:
        if (sigismember(&blocked, SIGHUP) == 1) continue;
        break;
      default:
        break;
    }
    if (::signal(number, SIG_IGN) != SIG_ERR) continue;
    // The first two real-time signals are glibc's own, and it takes them when the first thread
    // begins. Until then their default action would end the process.
    struct {
      void (*handler)(int);
      unsigned long rest[8];
    } ignore = {SIG_IGN, {}};
    constexpr size_t kKernelMaskBytes = 8;
    ::syscall(SYS_rt_sigaction, number, &ignore, nullptr, kKernelMaskBytes);
  }
}

void HeedFaultSignals() {
  for (int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS}) {
    ::signal(number, SIG_DFL);
  }
}

std::string ShieldFromOom() {
  StatusOr<std::string> before = ReadFile(kOomScore);
  if (!before.ok() || std::atoi(before->c_str()) <= std::atoi(kLastToGo)) return "";
  return Write(kOomScore, kLastToGo, std::strlen(kLastToGo)) ? *before : "";
}

void RestoreOomScore(const std::string& score) {
  if (!score.empty()) Write(kOomScore, score.data(), score.size());
}

void KeepLogFromBlocking() {
  struct stat log = {};
  if (::fstat(STDERR_FILENO, &log) != 0) return;
  if (S_ISFIFO(log.st_mode)) {
    // A description of our own: its O_NONBLOCK concerns no other writer of the pipe.
    const UniqueFd own(::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    if (own.valid()) ::dup2(own.get(), STDERR_FILENO);
  } else if (S_ISSOCK(log.st_mode)) {
    const timeval limit = {0, 100'000};
    ::setsockopt(STDERR_FILENO, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  }
}

}  // namespace cairn::keeper
