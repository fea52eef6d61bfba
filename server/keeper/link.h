// The daemon's end of the keeper: what is handed over while the daemon runs, and what a new daemon
// inherits. keeper.h has the other end, wire.h the messages between them.
#pragma once

#include <cstdint>
#include <memory>

#include "common/fd.h"
#include "common/keys.h"
#include "common/status.h"
#include "server/cache/cache.h"
#include "server/node/inherited.h"

namespace cairn::keeper {

// Thread-safe.
class Link : public cache::SlabHolder, public node::SessionHolder {
 public:
  // Takes the descriptor named by the environment variable CAIRN_KEEPER_FD (the one variable that
  // the keeper sets for its child) and reads the inheritance. INVALID_ARGUMENT when the descriptor
  // is not a keeper's, UNIMPLEMENTED when the keeper is of another version.
  static StatusOr<std::unique_ptr<Link>> Connect(int keeper_fd, node::Inherited* inherited);

  Status Hold(SlabId slab, uint64_t bytes, int fd) override;
  void Drop(SlabId slab) override;
  Status HoldSession(SessionId session, int channel, int pidfd, int progress) override;
  void DropSession(SessionId session) override;

 private:
  explicit Link(UniqueFd socket) : socket_(std::move(socket)) {}
  const UniqueFd socket_;
};

}  // namespace cairn::keeper
