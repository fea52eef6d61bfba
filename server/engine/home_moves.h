// Whether jobs may have got another home since that was last asked: a member was lost, or one that was lost is back.
#pragma once

#include <set>
#include <utility>

#include "server/engine/members.h"

namespace cairn::engine {

class HomeMoves : public RingWatcher {
 public:
  void MemberLost(Rank rank) override {
    lost_.insert(rank);
    moved_ = true;
  }
  void MemberCame(Rank rank) override { moved_ |= lost_.erase(rank) > 0; }

  bool Take() { return std::exchange(moved_, false); }

 private:
  std::set<Rank> lost_;
  bool moved_ = false;
};

}  // namespace cairn::engine
