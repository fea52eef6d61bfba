// What the other members of the ring say to this node and ask of it.
#include <utility>

#include "common/failpoint.h"
#include "glog/logging.h"
#include "server/cache/cache.h"
#include "server/engine/engine.h"
#include "server/node/attached.h"
#include "server/node/distant_parts.h"
#include "server/node/executor.h"
#include "server/node/granter.h"
#include "server/node/mover.h"
#include "server/node/node.h"

namespace cairn::node {

void Node::RecoverSelf(engine::Recovered* recovered) {
  if (options_.engine.ring.Alone()) return;
  engine::MemberId self = {options_.engine.ring.rank, started_unix_ms_, RandomSecret()};
  self.instance.resize(engine::kInstanceBytes);
  for (const Fact& any : recovered->facts) {
    if (const auto* life = std::get_if<fact::MemberLife>(&any)) {
      self.incarnation = life->incarnation;
      self.instance = life->instance;
    }
  }
  recovered->member = self;
  ReachFailpoint(Failpoint::kRingLife);
  BecomeLife(std::move(self));
}

void Node::BecomeLife(engine::MemberId self) {
  recorder_.SetIncarnation(self.incarnation);
  MutexLock lock(&self_mu_);
  self_ = std::move(self);
}

void Node::Exchanged(engine::Rank rank, std::optional<engine::MemberId> member) {
  Post(engine::event::Exchanged{rank, std::move(member)});
}

void Node::PeerSaid(engine::MemberId from, engine::peer::Message message) {
  ReachFailpoint(Failpoint::kRingHeard);
  Post(engine::event::PeerSaid{std::move(from), std::move(message)});
}

StatusOr<engine::peer::GrantAnswer> Node::Grant(engine::MemberId from,
                                                engine::peer::GrantQuestion question,
                                                MonotonicNanos deadline) {
  if (granter_ == nullptr) return absl::UnavailableError("this node lends nothing to members");
  CAIRN_RETURN_IF_ERROR(granter_->Admit());
  engine::event::GrantAsked asked;
  const engine::RequestId request = asked.caller.request = NextRequest();
  asked.from = from;
  asked.question = std::move(question);
  const Answer answer = Await(request, engine::Event(std::move(asked)));
  const engine::reply::Granted* granted =
      answer.body.ok() ? std::get_if<engine::reply::Granted>(&*answer.body) : nullptr;
  if (granted == nullptr) {
    granter_->Refused();
    if (!answer.body.ok()) return answer.body.status();
    return absl::InternalError("a grant was answered with something else");
  }
  ReachFailpoint(Failpoint::kRingGrant);
  StatusOr<engine::peer::GrantAnswer> given = granter_->Give(from, granted->grant, *granted->table);
  ReachFailpoint(Failpoint::kRingGranted);
  if (given.ok() && clock()->Now() > deadline) {
    granter_->End(granted->grant);
    return absl::DeadlineExceededError("the grant came too late");
  }
  return given;
}

StatusOr<std::string> Node::TransportAsked(engine::MemberId from, absl::string_view question) {
  if (rooms_.transport == nullptr) return absl::UnavailableError("this node has no transport");
  return rooms_.transport->Answer(PeerOf(from), question);
}

void Node::EndGrant(engine::MemberId from, EndedGrant ended) {
  if (granter_ != nullptr) granter_->EndFor(from, ended);
}

void Node::Met(engine::Rank rank, engine::MemberId life) {
  Post(engine::event::LifeMet{rank, std::move(life)});
}

void Node::Destroy(SlabId slab) {
  const auto destroy = [cache = rooms_.cache, gate = gate_, slab] {
    cache->Destroy(slab, [gate, slab] { gate->Post(engine::event::SlabDestroyed{slab}); });
  };
  if (attached_ == nullptr || !attached_->Has(slab)) return destroy();
  detacher_->Add([this, slab, destroy] {
    attached_->Detach(slab);
    destroy();
  });
}

void Node::StopRing() {
  if (attached_ == nullptr) return;
  mover_->Stop();
  distant_parts_->Stop();
  granter_->Stop();
  detacher_->Stop();
  attached_->DetachAll();
}

}  // namespace cairn::node
