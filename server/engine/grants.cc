#include "server/engine/grants.h"

#include "absl/strings/str_cat.h"

namespace cairn::engine {

Grants::Grants(Outbox* out, const Members* members, Ledger* ledger, Parts* parts)
    : out_(*out), members_(*members), ledger_(*ledger), parts_(*parts) {}

StatusOr<Part*> Grants::Readable(const event::GrantAsked& event) const {
  const auto& others = members_.others();
  const auto member = others.find(event.from.rank);
  if (member == others.end() || member->second.id != event.from) {
    return absl::FailedPreconditionError(
        absl::StrCat("from: rank ", event.from.rank, ", incarnation ", event.from.incarnation,
                     " is not the life of that rank that this node has met"));
  }
  Part* part = parts_.Find(event.question.part);
  if (part == nullptr || !Fetches::Holds(*part)) {
    return absl::NotFoundError(
        absl::StrCat(event.question.part.DebugString(), " is not in this node's memory"));
  }
  if (!event.question.digest.empty() && part->content->digest != event.question.digest) {
    return absl::NotFoundError(
        absl::StrCat(event.question.part.DebugString(), " is here with other content"));
  }
  if (grants_.size() >= kMost) {
    return absl::ResourceExhaustedError(absl::StrCat("grants: ", kMost, " are under way"));
  }
  return part;
}

void Grants::On(const event::GrantAsked& event) {
  const StatusOr<Part*> part = Readable(event);
  if (!part.ok()) return out_.Answer(event.caller.request, part.status());
  const uint64_t id = out_.NextId();
  Grant& grant = grants_[id];
  grant.reader = event.from.rank;
  grant.part = (*part)->key;
  grant.pinned = Parts::SlabsOf(**part);
  for (const SlabId slab : grant.pinned) ledger_.Pin(ledger_.Find(slab));
  out_.Count("grants");
  given_(grant.reader, grant.part);
  out_.Answer(event.caller.request, Body(reply::Granted{id, (*part)->content->table}));
}

void Grants::On(const event::GrantEnded& event) {
  const auto at = grants_.find(event.grant);
  if (at == grants_.end()) return;
  for (const SlabId slab : at->second.pinned) ledger_.Unpin(ledger_.Find(slab));
  given_(at->second.reader, at->second.part);
  grants_.erase(at);
}

void Grants::MemberLost(Rank rank) {
  for (auto& [id, grant] : grants_) {
    if (grant.reader != rank || std::exchange(grant.revoked, true)) continue;
    out_.Do(action::RevokeGrant{id});
  }
}

std::string Grants::CheckInvariants(std::map<SlabId, uint32_t>* pins) const {
  for (const auto& [id, grant] : grants_) {
    for (const SlabId slab : grant.pinned) ++(*pins)[slab];
  }
  return "";
}

}  // namespace cairn::engine
