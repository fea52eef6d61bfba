// What the keeper holds for the daemon: slabs and sessions, and how it hands them to the next one.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "common/keys.h"
#include "common/status.h"
#include "server/keeper/wire.h"
#include "server/node/inherited.h"

namespace cairn::keeper {

// What a message says that a slab is for. Another use than this build knows is a later one's.
inline fact::SlabUse UseOf(uint64_t value) {
  const auto manifests = fact::SlabUse::kManifests;
  return value == static_cast<uint64_t>(manifests) ? manifests : fact::SlabUse::kObjects;
}

// The page that each daemon leaves to the next. Forgotten, it is as it was made; no daemon runs then.
StatusOr<UniqueFd> MakeBlackBox();
Status ForgetBlackBox(const UniqueFd& black_box);

struct Outgoing {
  std::string bytes;
  std::vector<int> fds;  // not owned: they stay open until this is sent
};

class Held {
 public:
  // Takes what a kHoldSlab or kHoldSession brings. RESOURCE_EXHAUSTED when there is no room for it;
  // then nothing of it is held. `fds_lost` as for Decode.
  Status Hold(Message* message, bool fds_lost);
  void DropSlab(SlabId slab) { slabs_.erase(slab); }
  void DropSession(SessionId session);  // and shuts its channel down

  size_t slabs() const { return slabs_.size(); }
  size_t sessions() const { return sessions_.size(); }
  bool empty() const { return slabs_.empty() && sessions_.empty(); }

  // kSlabs, kSessions and kEnd. Nothing may be dropped until they are sent.
  void AppendInheritance(std::deque<Outgoing>* queue) const;

 private:
  Status CheckRoom(const std::vector<UniqueFd>& fds, bool fds_lost) const;

  std::map<SlabId, node::HeldSlab> slabs_;
  std::map<SessionId, node::HeldSession> sessions_;
};

}  // namespace cairn::keeper
