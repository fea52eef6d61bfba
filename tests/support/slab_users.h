// Who has which slab mapped or open, as the kernel would know it: what a probe of a slab finds.
#pragma once

#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "server/engine/actions.h"
#include "server/engine/events.h"

namespace cairn::testing {

class SlabUsers {
 public:
  void Map(SlabId slab, SessionId session) { mapped_[slab].insert(session); }
  void Unmap(SlabId slab, SessionId session) {
    const auto at = mapped_.find(slab);
    if (at != mapped_.end()) at->second.erase(session);
  }
  // An open description that a reader was lent.
  void Lock(LeaseId lease, SlabId slab, SessionId session) { locks_[lease] = {slab, session}; }
  void Unlock(LeaseId lease) { locks_.erase(lease); }

  void Destroyed(SlabId slab) { mapped_.erase(slab); }
  void Died(SessionId session) {
    for (auto& [slab, sessions] : mapped_) sessions.erase(session);
    absl::erase_if(locks_, [&](const auto& lock) { return lock.second.second == session; });
  }

  engine::event::SlabProbed Probe(const engine::action::ProbeSlab& probe) const {
    engine::event::SlabProbed probed;
    probed.slab = probe.slab;
    const auto mapped = mapped_.find(probe.slab);
    probed.free = mapped == mapped_.end() || mapped->second.empty();
    for (const auto& [lease, lock] : locks_) probed.free &= lock.first != probe.slab;
    for (const LeaseId lease : probe.leases) {
      if (!locks_.contains(lease)) probed.ended.push_back(lease);
    }
    return probed;
  }

 private:
  absl::flat_hash_map<SlabId, std::set<SessionId>> mapped_;
  absl::flat_hash_map<LeaseId, std::pair<SlabId, SessionId>> locks_;
};

}  // namespace cairn::testing
