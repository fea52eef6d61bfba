// How a child ended, from what waitid() tells of it.
#pragma once

#include <signal.h>

#include <string>

namespace cairn::keeper {

// Of a daemon that wants the next one in its place, as when its rank in a ring has changed: no death.
inline constexpr int kHandsOverExitCode = 75;

int ExitCode(const siginfo_t& death);  // as a shell's
bool HandsOver(const siginfo_t& death);
// By a signal that nobody sends to end it in good order.
bool IsCrash(const siginfo_t& death);
std::string Describe(const siginfo_t& death);

}  // namespace cairn::keeper
