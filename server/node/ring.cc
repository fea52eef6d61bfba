// What the other members of the ring say to this node and ask of it, and its own place among them.
#include <optional>
#include <utility>

#include "common/failpoint.h"
#include "glog/logging.h"
#include "server/cache/cache.h"
#include "server/engine/engine.h"
#include "server/node/attached.h"
#include "server/node/distant_parts.h"
#include "server/node/executor.h"
#include "server/node/granter.h"
#include "server/node/membership_loop.h"
#include "server/node/mover.h"
#include "server/node/node.h"

namespace cairn::node {
namespace {

Status NotInCatalog() {
  return absl::FailedPreconditionError(
      "ring: the members of this node's ring do not stand in the catalog (ring.members)");
}

}  // namespace

void Node::RecoverSelf(engine::Recovered* recovered) {
  std::optional<bool> leaves;
  bool drained = false;
  for (const Fact& any : recovered->facts) {
    if (const auto* leaving = std::get_if<fact::Leaving>(&any)) leaves = leaving->on;
    if (const auto* seat = std::get_if<fact::RingSeat>(&any)) drained = seat->drained;
  }
  leaves_ = leaves.value_or(drained);
  if (options_.engine.ring.Alone()) return;
  if (options_.engine.ring.from_catalog) return RecoverSeat(recovered);
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

// The life that has the seat; the journal may know that it has taken a greater incarnation since.
void Node::RecoverSeat(engine::Recovered* recovered) {
  engine::MemberId self = {options_.engine.ring.rank, 0, ""};
  std::vector<fact::MemberLife> lives;
  for (const Fact& any : recovered->facts) {
    if (const auto* seat = std::get_if<fact::RingSeat>(&any)) {
      self.incarnation = seat->incarnation;
      self.instance = seat->instance;
    }
    if (const auto* life = std::get_if<fact::MemberLife>(&any)) lives.push_back(*life);
  }
  for (const fact::MemberLife& life : lives) {
    if (life.instance != self.instance || life.incarnation < self.incarnation) continue;
    self.incarnation = life.incarnation;
    if (life.superseded_by != 0) recorder_.Fence();
  }
  recovered->member = self;
  BecomeLife(std::move(self));
}

void Node::BecomeLife(engine::MemberId self) {
  recorder_.SetIncarnation(self.incarnation);
  if (MembershipLoop* const membership = membership_) membership->Became(self.incarnation);
  MutexLock lock(&self_mu_);
  self_ = std::move(self);
}

void Node::Exchanged(engine::Rank rank, std::optional<engine::MemberId> member,
                     MonotonicNanos took) {
  Post(engine::event::Exchanged{rank, std::move(member), took});
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
  Post(engine::event::LifeMet{rank, life});
  // After the engine, which may take a greater incarnation by itself.
  if (MembershipLoop* const membership = membership_) membership->Met(life);
}

void Node::HeardView(const engine::RingView& view) {
  if (MembershipLoop* const membership = membership_) membership->Heard(view);
}

void Node::SeatChanged(const fact::RingSeat& seat) { Post(engine::event::SeatChanged{seat}); }

void Node::Fenced(const engine::MemberId& by) {
  Post(engine::event::Fenced{by});
  recorder_.Fence();
}

Status Node::Leave(const engine::Caller& caller, bool on) {
  const Answer answer = Call(engine::event::Leave{caller, on});
  if (!answer.body.ok()) return answer.body.status();
  leaves_ = on;
  MembershipLoop* const membership = membership_;
  if (!on && membership != nullptr) membership->ComeBack();
  return absl::OkStatus();
}

bool Node::NothingIsOnlyHere() {
  const StatusOr<NodeState> state = State({});
  return state.ok() && state->engine.only_here_count == 0 && state->engine.writing_bytes == 0;
}

StatusOr<RingState> Node::Ring() const {
  MembershipLoop* const membership = membership_;
  if (membership == nullptr) return NotInCatalog();
  return membership->State();
}

StatusOr<int64_t> Node::ResizeRing(const engine::Caller& caller, int32_t size) {
  MembershipLoop* const membership = membership_;
  if (membership == nullptr) return NotInCatalog();
  if (!options_.engine.Unlimited(caller.uid)) {
    return absl::PermissionDeniedError(
        "ring: only root, or the user who runs the daemon, may resize it");
  }
  return membership->Resize(size);
}

bool Node::MayStartAnew() {
  if (options_.engine.storage) return NothingIsOnlyHere();
  const StatusOr<NodeState> state = State({});
  return state.ok() && state->engine.writing_bytes == 0;
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
