// Who a session is: what its process says of itself in hello, and what the kernel says of it. It is
// the same for the life of the session, across the deaths of the daemon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/keys.h"

namespace cairn {

inline constexpr size_t kMaxRunBytes = 256;

struct SessionIdentity {
  // Sent with hello.
  std::string job;            // empty: a session that saves nothing and is in no job
  Attempt attempt = 0;        // 0: it saves nothing, or chooses its attempt later
  Writer writer = -1;         // -1: it only reads
  int32_t world_size = 0;     // 0 for a session that only reads
  int32_t local_writers = 1;  // writers of the job on this node, which are admitted together
  bool takes_fds = true;      // false: bytes go in chunks, and the session is its connection
  ProcessToken process;
  // Of the launcher that started it, where that tells: which run, and how often it was started anew
  // before. Of one run the one with more restarts comes after the other.
  std::string run;       // empty: not told
  int32_t restart = -1;  // -1: not told

  // Of the socket's peer, as the kernel gives them; never sent.
  uint32_t uid = 0;
  uint32_t gid = 0;
  int32_t pid = 0;

  bool operator==(const SessionIdentity&) const = default;
};

}  // namespace cairn
