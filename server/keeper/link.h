// The daemon's end of the keeper: what is handed over while the daemon runs, and what a new daemon
// inherits. keeper.h has the other end, wire.h the messages between them.
//
// A thread of the link reads the keeper's answers. Nothing here waits for room in the socket: what
// the keeper does not read yet stands in a queue, which holds one message for each hold that waits
// for its answer and for each thing that is being dropped.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/fd.h"
#include "common/keys.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/cache/cache.h"
#include "server/keeper/wire.h"
#include "server/node/inherited.h"

namespace cairn::keeper {

// Thread-safe.
class Link : public cache::SlabHolder, public node::SessionHolder {
 public:
  // How long a hold waits for the keeper's answer.
  static constexpr MonotonicNanos kAnswerTimeout = 5 * kNanosPerSecond;

  // Whether a daemon of this build works under a keeper of that version.
  static bool Speaks(int version) { return version >= kOldestVersion && version <= kVersion; }

  // Takes the descriptor named by the environment variable CAIRN_KEEPER_FD (the one variable that
  // the keeper sets for its child) and reads the inheritance. INVALID_ARGUMENT when the descriptor
  // is not a keeper's, UNIMPLEMENTED when the keeper is of a version that this build does not speak.
  static StatusOr<std::unique_ptr<Link>> Connect(int keeper_fd, node::Inherited* inherited);
  ~Link() override;  // holds that still wait get UNAVAILABLE

  // Returns when the keeper has answered. RESOURCE_EXHAUSTED when it has no room, saying why;
  // DEADLINE_EXCEEDED after kAnswerTimeout. After an error the keeper does not hold the slab. (A
  // keeper of version 1 never answers: then OK means only that the slab was sent.)
  Status Hold(SlabId slab, uint64_t bytes, fact::SlabUse use, int fd) override;
  void Drop(SlabId slab) override;
  // As Hold, without waiting: the descriptors stay open until `done` has run.
  void HoldSession(SessionId session, int channel, int pidfd, int progress,
                   std::function<void(Status)> done) override;
  void DropSession(SessionId session) override;

  // Tells the keeper that this daemon serves: from now on it is started again however it ends.
  void Serving();

 private:
  using Done = std::function<void(Status)>;
  struct Outgoing {
    uint64_t request = 0;  // 0: one that nobody waits for
    std::string bytes;
    std::vector<int> fds;
  };
  struct Waiting {
    MonotonicNanos deadline = 0;
    MessageType undo = MessageType::kDropSlab;
    uint64_t id = 0;  // of the slab or session
    Done done;
  };

  Link(UniqueFd socket, uint16_t version);
  // `detail`: the second value of the request's own item.
  void Request(MessageType type, Item item, uint64_t detail, std::vector<int> fds, MessageType undo,
               Done done);
  void Tell(MessageType type, uint64_t id);
  void Run();
  void Receive();
  void Answered(const Message& answer);
  void FailLate();
  void FailAll(const Status& why);
  void Wake() const;
  void Queue(Outgoing message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool SendQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const UniqueFd socket_;
  const uint16_t version_;  // the keeper's
  UniqueFd wake_;           // constant after construction

  // Held while a message is sent, which never waits; never while a Done runs.
  Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool gone_ ABSL_GUARDED_BY(mu_) = false;  // the keeper; nothing is sent any more
  uint64_t next_request_ ABSL_GUARDED_BY(mu_) = 1;
  // By request, so also by deadline.
  std::map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  std::deque<Outgoing> outgoing_ ABSL_GUARDED_BY(mu_);  // what the socket had no room for

  std::thread thread_;
};

}  // namespace cairn::keeper
