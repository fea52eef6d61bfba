// How a child ended, from what waitid() tells of it.
#pragma once

#include <signal.h>

#include <string>

namespace cairn::keeper {

int ExitCode(const siginfo_t& death);  // as a shell's
// By a signal that nobody sends to end it in good order.
bool IsCrash(const siginfo_t& death);
std::string Describe(const siginfo_t& death);

}  // namespace cairn::keeper
