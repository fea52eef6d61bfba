#include "server/keeper/config_check.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "glog/logging.h"
#include "server/keeper/process.h"
#include "server/keeper/spawn.h"

extern char** environ;

namespace cairn::keeper {
namespace {

constexpr uint64_t kMaxOutput = 1 << 20;

}  // namespace

Status ConfigCheck::Start(const std::vector<std::string>& command, const std::string& oom_score,
                          MonotonicNanos deadline) {
  output_.Reset(::memfd_create("cairn-check-output", MFD_CLOEXEC));
  if (!output_.valid()) return ErrnoStatus(errno, "memfd_create");
  errors_.Reset(::memfd_create("cairn-check-errors", MFD_CLOEXEC));
  if (!errors_.valid()) return ErrnoStatus(errno, "memfd_create");
  const std::vector<char*> arguments = AsArgv(command);
  const pid_t pid = ::fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    RestoreOomScore(oom_score);
    ::dup2(output_.get(), STDOUT_FILENO);
    ::dup2(errors_.get(), STDERR_FILENO);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execve(arguments[0], arguments.data(), environ);
    const char* const reason = ::strerror(errno);
    if (::write(STDERR_FILENO, reason, ::strlen(reason)) < 0) ::_exit(126);
    ::_exit(127);
  }
  pid_ = pid;
  deadline_ = deadline;
  return absl::OkStatus();
}

void ConfigCheck::Kill() {
  deadline_ = std::numeric_limits<MonotonicNanos>::max();
  if (pid_ != 0) ::kill(pid_, SIGKILL);
}

StatusOr<std::vector<std::string>> ConfigCheck::Finish(const siginfo_t& end) {
  pid_ = 0;
  const UniqueFd output = std::move(output_), errors = std::move(errors_);
  if (end.si_code != CLD_EXITED) {
    return absl::InvalidArgumentError(
        absl::StrCat("the check was ended by signal ", end.si_status));
  }
  if (end.si_status != 0) {
    CAIRN_ASSIGN_OR_RETURN(const std::string why, ReadRegularFile(errors.get(), kMaxOutput));
    return absl::InvalidArgumentError(
        absl::StrCat(absl::StripAsciiWhitespace(why), " (exit code ", end.si_status, ")"));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(output.get(), kMaxOutput));
  if (text.empty() || text.back() != '\0') {
    return absl::InvalidArgumentError("the check printed no arguments");
  }
  return std::vector<std::string>(
      absl::StrSplit(absl::string_view(text).substr(0, text.size() - 1), '\0'));
}

void KeepFixed(const std::vector<std::string>& fixed, const std::vector<std::string>& now,
               std::vector<std::string>* arguments) {
  const auto with = [](const std::vector<std::string>& among, const std::string& prefix) {
    return std::find_if(among.begin(), among.end(), [&](const std::string& argument) {
      return argument.compare(0, prefix.size(), prefix) == 0;
    });
  };
  for (const std::string& prefix : fixed) {
    const auto is = with(now, prefix), wanted = with(*arguments, prefix);
    if (is == now.end() || wanted == arguments->end() || *is == *wanted) continue;
    LOG(WARNING) << "keeper: " << *wanted << " holds from the keeper's next start on; until then "
                 << *is;
    (*arguments)[static_cast<size_t>(wanted - arguments->begin())] = *is;
  }
}

}  // namespace cairn::keeper
