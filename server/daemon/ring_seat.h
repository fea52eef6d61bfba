// Where this node stands in a ring whose members are those of the catalog: what the daemon's rooms are started with, and
// what holds them together with the loop that wants, keeps and loses a rank.
#pragma once

#include <functional>
#include <memory>

#include "common/fd.h"
#include "common/status.h"
#include "server/daemon/options.h"
#include "server/node/membership_loop.h"
#include "server/node/node.h"

namespace cairn::daemon {

// What the journal of this keeper knows of the node's place; a new name and no rank where it knows nothing.
StatusOr<fact::RingSeat> SeatIn(const UniqueFd& journal, const Options& options);

// The loop, for a node. `replace`: the daemon is to hand over to the next one; called once at most.
class RingSeat final : public node::MembershipHost {
 public:
  // `options`: with the ring that the daemon runs as (RingOf). `wanted`: kNoRank, or the only rank it takes.
  RingSeat(const Options& options, engine::Rank wanted, const fact::RingSeat& seat,
           node::Node* node, std::function<void(const std::string& why)> replace);
  ~RingSeat() override { Stop(); }
  void Start();
  void Stop();

  void SeatChanged(const fact::RingSeat& seat) override { node_->SeatChanged(seat); }
  void ViewChanged(const engine::RingView& view) override { node_->ViewChanged(view); }
  void Fenced(const engine::MemberId& by) override { node_->Fenced(by); }
  void Replace(const std::string& why) override { replace_(why); }
  bool MayClaim() override { return node_->CanJournal(); }
  bool Leaves() override { return node_->Leaves(); }
  bool MayStartAnew() override { return node_->MayStartAnew(); }
  bool NothingIsOnlyHere() override;

 private:
  node::Node* const node_;
  const std::function<void(const std::string&)> replace_;
  std::unique_ptr<node::MembershipLoop> loop_;
};

}  // namespace cairn::daemon
