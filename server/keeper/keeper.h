// The keeper: the small parent process that holds what must outlive the daemon: slabs, session
// channels with their pidfds, the journal, the listening sockets. It is single-threaded, decides
// nothing about checkpoints, execs the daemon before any thread exists, and starts a new one only
// after the old one is reaped and every message that the old one sent has been read.
//
// A daemon talks to it over one SOCK_SEQPACKET pair; link.h has the daemon's end. Hand-overs need
// no answer: once sendmsg has returned, the descriptor is in the kernel's queue, and the keeper
// drains the queue before it reaps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cairn::keeper {

struct Options {
  std::string socket_path;      // Thrift; the fd channel's is socket_path + ".fd"
  uint32_t socket_mode = 0666;  // who may connect; uids are checked per call
  uint64_t journal_bytes = 128 << 20;
  std::vector<std::string> daemon_command;  // argv of the daemon; argv[0] is a path
  int deaths_before_safe_mode = 3;          // within a minute
};

// Binds both sockets (a live daemon on them is an error that names the path; a dead one's files are
// replaced, under a lock file), then runs and restarts the daemon until it exits by itself with 0,
// or SIGTERM/SIGINT: forwarded once, the second one kills. Returns the process's exit code: the
// daemon's own, or 128 + the signal that ended it. A first daemon that exits with an error before
// anything is held has refused to start: its code is returned and nothing restarted, for there is
// nothing to lose. Back-off between deaths: none for the first, then 100 ms doubling to 5 s.
int Run(const Options& options);

}  // namespace cairn::keeper
