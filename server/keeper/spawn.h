// Starts a daemon's process, with an end of a socket pair in the environment variable
// CAIRN_KEEPER_FD.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/fd.h"
#include "common/status.h"

namespace cairn::keeper {

struct Child {
  pid_t pid = 0;
  UniqueFd link;  // the keeper's end
};

// `command` is its argv, argv[0] a path; `oom_score` as ShieldFromOom returned it. The child has
// SIGTERM, SIGINT and SIGHUP blocked, so that none of them ends it before it looks for them, and
// dies with its parent.
StatusOr<Child> SpawnDaemon(const std::vector<std::string>& command, const std::string& oom_score);

// Ready for execve: pointers into `command`, which must outlive them, and a null pointer.
std::vector<char*> AsArgv(const std::vector<std::string>& command);

}  // namespace cairn::keeper
