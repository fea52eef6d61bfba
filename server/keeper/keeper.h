// The keeper: the small parent process that holds what must outlive the daemon: slabs, session
// channels with their pidfds, the journal, the listening sockets. It is single-threaded, decides
// nothing about checkpoints, execs the daemon before any thread exists, and starts a new one only
// after the old is reaped and every message the old one sent has been read.
//
// A daemon talks to it over one SOCK_SEQPACKET pair. Hand-overs need no answer: once sendmsg
// returned, the descriptor is in the kernel's queue, and the keeper drains the queue before it
// reaps.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "common/keys.h"
#include "common/status.h"
#include "server/cache/cache.h"

namespace cairn::keeper {

struct KeeperOptions {
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
int RunKeeper(const KeeperOptions& options);

// What a new daemon gets from the keeper.
struct Inheritance {
  struct HeldSlab {
    SlabId slab = 0;
    uint64_t bytes = 0;
    UniqueFd fd;
  };
  struct HeldSession {
    SessionId session = 0;
    UniqueFd channel, pidfd, progress;
  };
  UniqueFd journal, thrift_listener, fd_listener;
  std::vector<HeldSlab> slabs;
  std::vector<HeldSession> sessions;
  int restarts = 0;
  std::string safe_mode;  // empty, or why: serve what is recovered, admit nothing
};

// The daemon's end. Thread-safe.
class KeeperLink : public cache::SlabHolder {
 public:
  // Takes the descriptor named by the environment variable CAIRN_KEEPER_FD (the one variable the
  // keeper sets for its child) and reads the inheritance. INVALID_ARGUMENT when that is no
  // keeper's, UNIMPLEMENTED when the keeper is of another version.
  static StatusOr<std::unique_ptr<KeeperLink>> Connect(int keeper_fd, Inheritance* inheritance);

  Status Hold(SlabId slab, uint64_t bytes, int fd) override;
  void Drop(SlabId slab) override;
  Status HoldSession(SessionId session, int channel, int pidfd, int progress);
  void DropSession(SessionId session);  // the keeper also shuts the channel down

 private:
  explicit KeeperLink(UniqueFd socket) : socket_(std::move(socket)) {}
  UniqueFd socket_;
};

}  // namespace cairn::keeper
