// What keeper and daemon do to their own process, so that nothing ends or stops it that nobody asked
// for.
#pragma once

#include <string>

namespace cairn::keeper {

// Ignores all signals but SIGTERM and SIGINT, those that stop and continue a process, SIGCHLD, and
// SIGHUP where it is blocked: one that is pending is not lost.
// Faults that send a signal themselves (SIGSEGV, SIGABRT …) still end the process; only `kill` with
// these does not. An ignored signal stays ignored in children and through exec.
void IgnoreStraySignals();

// For a daemon: it can be made to leave a core with `kill -ABRT`, because its keeper starts another.
// Async-signal-safe.
void HeedFaultSignals();

// Asks the kernel to end any other process before this one when memory is short. Returns what stood
// in oom_score_adj before, for the children; empty when nothing was changed, which needs privilege
// (CAP_SYS_RESOURCE).
std::string ShieldFromOom();
// In a child, between fork and exec. Async-signal-safe.
void RestoreOomScore(const std::string& score);

// A reader of the log that does not read must not stop this process: on a full pipe, log lines are
// dropped; on a socket, each waits for a tenth of a second at most. A terminal, and a pipe that
// another user made, are left as they are.
void KeepLogFromBlocking();

}  // namespace cairn::keeper
