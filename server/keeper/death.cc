#include "server/keeper/death.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace cairn::keeper {

int ExitCode(const siginfo_t& death) {
  return death.si_code == CLD_EXITED ? death.si_status : 128 + death.si_status;
}

bool HandsOver(const siginfo_t& death) {
  return death.si_code == CLD_EXITED && death.si_status == kHandsOverExitCode;
}

bool IsCrash(const siginfo_t& death) {
  return death.si_code != CLD_EXITED && death.si_status != SIGTERM && death.si_status != SIGINT;
}

std::string Describe(const siginfo_t& death) {
  if (death.si_code == CLD_EXITED) return absl::StrCat("exit code ", death.si_status);
  return absl::StrCat("signal ", death.si_status, " (", ::strsignal(death.si_status), ")");
}

}  // namespace cairn::keeper
