// What outlives a daemon: the words that the keeper, which holds it, and the node, which hands it
// over and inherits it, share. Header only, so that the keeper links neither engine nor Thrift.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/fd.h"
#include "common/keys.h"
#include "common/status.h"
#include "server/facts/extent.h"

namespace cairn::node {

struct HeldSlab {
  SlabId slab = 0;
  uint64_t bytes = 0;
  UniqueFd fd;
  // As the holder was told before anybody could be lent it. A keeper that is too old to know says
  // kObjects: then nothing is known to have never been lent.
  fact::SlabUse use = fact::SlabUse::kObjects;
};

struct HeldSession {
  SessionId session = 0;
  UniqueFd channel, pidfd, progress;  // none of a session that takes no descriptors
};

// Of the page that a daemon leaves to the next one, to say what it was reading when it died.
inline constexpr uint64_t kBlackBoxBytes = 64 << 10;

// What a daemon gets from the keeper when it starts.
struct Inherited {
  UniqueFd journal, thrift_listener, fd_listener;
  UniqueFd black_box;  // storage/black_box.h; none from a keeper that is too old to have one
  std::vector<HeldSlab> slabs;
  std::vector<HeldSession> sessions;
  int restarts = 0;       // daemons that died before this one under the same keeper
  std::string safe_mode;  // not empty: serve what is recovered, admit nothing; says why
};

// Holds a session's descriptors beyond the daemon's life. Thread-safe. (Slabs have
// cache::SlabHolder.)
class SessionHolder {
 public:
  virtual ~SessionHolder() = default;
  // Takes its own references; a descriptor below 0 is one that the session does not have. `done` runs
  // once, before this returns or on a thread of the holder's; until then the descriptors stay open.
  // Its status is OK when the holder has the session, else nothing of it is held.
  virtual void HoldSession(SessionId session, int channel, int pidfd, int progress,
                           std::function<void(Status)> done) = 0;
  virtual void DropSession(SessionId session) = 0;  // and shuts the channel down
};

}  // namespace cairn::node
