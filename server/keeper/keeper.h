// The keeper: the small parent process that holds what must outlive the daemon: slabs, session
// channels with their pidfds, the journal, the listening sockets. It is single-threaded, decides
// nothing about checkpoints, execs the daemon before any thread exists, and starts a new one only
// after the old one is reaped and every message that the old one sent has been read.
//
// A daemon talks to it over one SOCK_SEQPACKET pair; link.h has the daemon's end. The keeper answers
// each hand-over, because it may lack a descriptor or memory for it. What it has not answered yet
// when the daemon dies is in the kernel's queue, which the keeper drains before it reaps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/keeper/restart_policy.h"

namespace cairn::keeper {

struct Options {
  std::string socket_path;      // Thrift; the fd channel's is socket_path + ".fd"
  std::string socket_origin;    // for errors: where the path comes from, "default" or "flag"
  uint32_t socket_mode = 0666;  // who may connect; uids are checked per call
  uint64_t journal_bytes = 128 << 20;
  std::vector<std::string> daemon_command;  // argv of the daemon; argv[0] is a path
  RestartOptions restart;

  // What SIGHUP runs: argv of a program that exits with 0 and prints the arguments of the next
  // daemon after argv[0], each ended by a NUL byte, or says on standard error why the options are
  // refused. Empty: the next daemon has the arguments of this one.
  std::vector<std::string> check_command;
  // Beginnings of arguments ("--socket=") whose values the keeper itself uses: SIGHUP does not change
  // them.
  std::vector<std::string> fixed_arguments;
};

// Binds both sockets (a live daemon on them is an error that names the path; a dead one's files are
// replaced, under a lock file), then runs the daemon until SIGTERM or SIGINT: forwarded once, the
// second one kills. A daemon that ends otherwise, however it ends, is started again; no other signal
// does anything to the keeper, and neither does a lack of descriptors or memory. Returns the
// process's exit code: the daemon's own, or 128 + the signal that ended it. A first daemon that
// exits before it serves has refused to start: its code is returned and nothing restarted, for
// there is nothing to lose. Back-off between deaths: none for the first, then 100 ms doubling to
// 5 s.
//
// SIGHUP replaces the daemon: when the check takes the options, the daemon gets SIGHUP, upon which it
// ends soon (it is killed after 10 s), and one of the binary that is on disk then takes over. That
// is no death. The daemon has SIGTERM, SIGINT and SIGHUP blocked when it starts; it waits for them and
// never ignores them, for then the kernel would forget one that had come before.
int Run(const Options& options);

}  // namespace cairn::keeper
