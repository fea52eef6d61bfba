#include "server/keeper/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/keeper/process.h"

extern char** environ;

namespace cairn::keeper {
namespace {

constexpr char kFdVariable[] = "CAIRN_KEEPER_FD";
constexpr int kCannotExec = 127;  // as a shell says it

[[noreturn]] void BecomeDaemon(pid_t keeper, int link, char* const* arguments,
                               char* const* environment, const std::string& oom_score) {
  // A daemon that outlived its keeper would go on without what the keeper held, and not know it.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != keeper) ::_exit(kCannotExec);
  // In a group of its own: a terminal's Ctrl-C goes to the keeper alone, which forwards it once.
  ::setpgid(0, 0);
  RestoreOomScore(oom_score);
  sigset_t from_keeper;
  sigemptyset(&from_keeper);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&from_keeper, signal);
  ::sigprocmask(SIG_SETMASK, &from_keeper, nullptr);
  ::fcntl(link, F_SETFD, 0);
  ::execve(arguments[0], arguments, environment);
  const char* const reason = ::strerror(errno);
  for (const char* part :
       {"keeper: cannot execute ", const_cast<const char*>(arguments[0]), ": ", reason, "\n"}) {
    if (::write(STDERR_FILENO, part, ::strlen(part)) < 0) break;
  }
  ::_exit(kCannotExec);
}

}  // namespace

std::vector<char*> AsArgv(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  return arguments;
}

StatusOr<Child> SpawnDaemon(const std::vector<std::string>& command, const std::string& oom_score) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "socketpair");
  }
  Child child;
  child.link.Reset(ends[0]);
  const UniqueFd child_end(ends[1]);

  // Everything that allocates memory happens before the fork.
  const std::vector<char*> arguments = AsArgv(command);
  std::string variable = absl::StrCat(kFdVariable, "=", child_end.get());
  const absl::string_view name = absl::string_view(variable).substr(0, variable.find('=') + 1);
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (absl::string_view(*entry).substr(0, name.size()) != name) environment.push_back(*entry);
  }
  environment.push_back(variable.data());
  environment.push_back(nullptr);

  const pid_t keeper = ::getpid();
  child.pid = ::fork();
  if (child.pid < 0) return ErrnoStatus(errno, "fork");
  if (child.pid == 0) {
    BecomeDaemon(keeper, child_end.get(), arguments.data(), environment.data(), oom_score);
  }
  return child;
}

}  // namespace cairn::keeper
