// The sessions of this node: each one's identity, secret and descriptors, and when it ends.
// proto/README.md has the protocol, common/fd_channel.h the messages.
//
// A session that attaches is handed to the holder first. The client gets its answer when the holder
// has answered, so that an attached session outlives this daemon.
//
// Each user's channels and pidfds are watched by that user's loop: what a client sends may cost time to
// close. A session that takes descriptors ends when its channel closes or its process dies. One that
// takes none, or has not attached yet, ends when the connection that said hello closes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/fd_channel.h"
#include "common/mutex.h"
#include "server/node/inherited.h"
#include "server/node/options.h"
#include "server/node/user_loops.h"

namespace cairn::node {

struct SessionInfo : SessionIdentity {
  SessionId id = 0;
  std::string secret;  // 16 bytes
  std::string client;
  int64_t connected_unix_ms = 0;
};

// Thread-safe.
class Sessions {
 public:
  // `ended` runs on a user's loop, once per session that ended by itself. `holder` outlives this, and
  // so do the loops, which have stopped when it goes.
  Sessions(const SessionsOptions& options, UserLoops* loops, SessionHolder* holder,
           std::function<void(SessionId)> ended);
  ~Sessions() { Stop(); }

  // Before Start: a session that outlived the last daemon.
  // `held` is taken when it is OK.
  Status Adopt(SessionInfo info, HeldSession* held);
  // Of one that will not be adopted: the holder forgets it.
  void Discard(HeldSession held);
  Status Start(UniqueFd fd_listener);
  void Stop();  // sessions stay with the holder, and none ends by itself any more

  void Add(SessionInfo info);
  // The session, for another connection that speaks for it: NOT_FOUND when it has ended,
  // PERMISSION_DENIED when the secret or the uid is wrong.
  StatusOr<SessionInfo> Rejoin(SessionId session, absl::string_view secret, uint32_t uid) const;
  // The connection that said hello has closed. True: the session ended with it and is forgotten.
  bool ConnectionClosed(SessionId session);
  // Forgets the session and closes its channel; false when there is no such session.
  bool End(SessionId session);

  // RESOURCE_EXHAUSTED while a reader, or all of its user's, leave lying what they were sent: asked before one more
  // is lent to it. Else as Push.
  Status CheckTaken(SessionId session);
  // Pushes one descriptor; never blocks. FAILED_PRECONDITION when the session has no channel,
  // RESOURCE_EXHAUSTED when its client does not read, UNAVAILABLE when it is gone.
  Status Push(SessionId session, const FdLent& lent, int fd) const;

  // What the client wrote into its progress page, unchecked; nullopt: nothing is being written.
  std::optional<ProgressPage> Progress(SessionId session) const;
  std::optional<SessionInfo> Find(SessionId session) const;

 private:
  struct Channel;  // the descriptors; shared with a push under way
  struct Record {
    SessionInfo info;
    std::shared_ptr<Channel> channel;  // null until an attach has begun
    int64_t untaken = 0;               // bytes that lay in the channel when it was last looked at
  };
  struct Pending;  // a connection that has not attached yet

  // UNAVAILABLE: it has ended; FAILED_PRECONDITION: it has none.
  StatusOr<std::shared_ptr<Channel>> ChannelOf(SessionId session) const;

  void Accept(UniqueFd socket, const Peer& peer);
  // These run on the user's loop.
  void OnPending(const std::shared_ptr<Pending>& pending, uint32_t events);
  Status Attach(const std::shared_ptr<Pending>& pending, ReceivedMessage message);
  void CompleteAttach(SessionId session, const std::shared_ptr<Channel>& channel, Status held);
  Status Watch(SessionId session, const std::shared_ptr<Channel>& channel);
  void EndByItself(SessionId session, const char* why);

  // What lies in its channel now, counted for its user.
  void LookAt(Record* record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool UserTakesNone(uint32_t uid) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void Close(SessionId session, std::shared_ptr<Channel> channel);

  const SessionsOptions options_;
  UserLoops* const loops_;
  SessionHolder* const holder_;
  const std::function<void(SessionId)> ended_;
  std::unique_ptr<Acceptor> acceptor_;  // from Start to Stop

  mutable Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<SessionId, Record> records_ ABSL_GUARDED_BY(mu_);
  const int64_t most_untaken_;  // by all users
  absl::flat_hash_map<uint32_t, int64_t> untaken_of_user_ ABSL_GUARDED_BY(mu_);
  int64_t untaken_ ABSL_GUARDED_BY(mu_) = 0;
  MonotonicNanos looked_at_all_ ABSL_GUARDED_BY(mu_) = 0;
  size_t pending_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint32_t, size_t> pending_of_user_ ABSL_GUARDED_BY(mu_);
};

// 16 bytes from the kernel's random source.
std::string RandomSecret();

}  // namespace cairn::node
