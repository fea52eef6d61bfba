// The daemon's wiring: which room stands on which, and the order in which they start and stop.
#pragma once

#include <string>

#include "common/status.h"
#include "server/daemon/options.h"

namespace cairn::daemon {

// Runs the daemon under the keeper at `keeper_fd` until SIGTERM or SIGINT, then drains; or until the
// keeper sends SIGHUP, then lets commits finish and exits with 0. Returns the process's exit code. Call
// it before any thread exists.
int RunDaemon(const Options& options, int keeper_fd);

// The failpoints of `spec` that are meant for a daemon that was started `life` times before, in the
// form that ArmFailpoints takes: "a,b@1:2" is "a" in life 0 and "b:2" in life 1.
StatusOr<std::string> FailpointsOfLife(const std::string& spec, int life);

}  // namespace cairn::daemon
