// What other members may read from this node's memory. The part's slabs are pinned from the grant until the
// node says that nothing of it can be read any more: it makes reading impossible first.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/engine/fetches.h"

namespace cairn::engine {

class Grants : public RingWatcher {
 public:
  static constexpr size_t kMost = 4096;

  Grants(Outbox* out, const Members* members, Ledger* ledger, Parts* parts);

  // Hears of each part that a member may read from now on, and when it no longer may.
  using Given = std::function<void(Rank, const PartKey&)>;
  void set_given(Given given) { given_ = std::move(given); }

  void On(const event::GrantAsked& event);
  void On(const event::GrantEnded& event);
  void MemberLost(Rank rank) override;

  size_t size() const { return grants_.size(); }
  std::string CheckInvariants(std::map<SlabId, uint32_t>* pins) const;

 private:
  struct Grant {
    Rank reader = kNoRank;
    PartKey part;
    std::vector<SlabId> pinned;
    bool revoked = false;
  };
  StatusOr<Part*> Readable(const event::GrantAsked& event) const;

  Outbox& out_;
  const Members& members_;
  Ledger& ledger_;
  Parts& parts_;
  Given given_;
  std::map<uint64_t, Grant> grants_;
};

}  // namespace cairn::engine
