#include "server/engine/standing_maps.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace cairn::engine {
Status StandingMaps::Check(const Session& session, const Lease* lease) const {
  if (lease == nullptr || lease->session != session.id || lease->released) {
    return absl::NotFoundError("lease: has ended, or was never this session's");
  }
  const SlabRecord& slab = *ledger_.Find(lease->slab);
  if (slab.owner.uid != session.uid || slab.owner.job != session.job) {
    return absl::PermissionDeniedError(
        absl::StrCat("slab ", slab.id,
                     ": belongs to another user or job; of those a session reads "
                     "without a standing mapping"));
  }
  if (!session.takes_fds) {
    return absl::FailedPreconditionError("standing mapping: this session takes no descriptors");
  }
  if (slab.mapper == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("slab ", slab.id, ": no writer maps it, so it will not be written again"));
  }
  if (slab.condemned || slab.doomed || slab.told_to_unmap || slab.standing_since != 0) {
    return absl::FailedPreconditionError(absl::StrCat("slab ", slab.id, ": is wanted back"));
  }
  if (slab.standing.contains(session.id)) return absl::OkStatus();
  return leases_.CheckRoom(session, {}, "");
}

void StandingMaps::On(const event::MapStanding& event) {
  const Session* session = sessions_.Of(event.caller);
  if (session == nullptr) return;
  const Lease* read = leases_.Find(event.lease);
  const Status status = Check(*session, read);
  if (!status.ok()) return out_.Answer(event.caller.request, status);
  SlabRecord* slab = ledger_.Find(read->slab);
  const Lease* lease = leases_.LendStanding(*session, slab);
  out_.Count("standing_lends");
  out_.Answer(event.caller.request,
              Body(reply::Standing{{lease->id, slab->id, slab->bytes, LeaseMode::kStanding}}));
}

std::vector<SlabId> StandingMaps::StillKnown(SessionId session,
                                             const std::vector<SlabId>& known) const {
  const std::set<SlabId>& wanted = ledger_.StandingToUnmap(session);
  std::vector<SlabId> still;
  for (const SlabId slab : known) {
    if (wanted.contains(slab)) still.push_back(slab);
  }
  std::sort(still.begin(), still.end());
  still.erase(std::unique(still.begin(), still.end()), still.end());
  return still;
}

reply::Unmap StandingMaps::NewsFor(SessionId session, const std::vector<SlabId>& known) const {
  reply::Unmap news;
  const std::set<SlabId>& wanted = ledger_.StandingToUnmap(session);
  std::set_difference(wanted.begin(), wanted.end(), known.begin(), known.end(),
                      std::back_inserter(news.slabs));
  return news;
}

void StandingMaps::On(const event::AwaitUnmap& event) {
  const Session* session = sessions_.Of(event.caller);
  if (session == nullptr) return;
  for (const auto& [name, slabs] :
       {std::pair("unmapped", &event.unmapped), std::pair("known", &event.known)}) {
    if (slabs->size() <= kMaxSlabsPerCall) continue;
    return out_.Answer(event.caller.request,
                       absl::InvalidArgumentError(absl::StrCat(
                           name, ": ", slabs->size(), " slabs, at most ", kMaxSlabsPerCall)));
  }
  leases_.StandingUnmapped(*session, event.unmapped);
  std::vector<SlabId> known = StillKnown(session->id, event.known);
  reply::Unmap news = NewsFor(session->id, known);
  if (!news.slabs.empty() || event.deadline <= out_.now()) {
    return out_.Answer(event.caller.request, Body(std::move(news)));
  }
  // A session waits once: each one that waits costs something whenever one of its slabs is wanted back.
  const auto other = waiting_.find(session->id);
  if (other != waiting_.end()) callers_.Answer(other->second, Body(reply::Unmap{}));
  event::AwaitUnmap parked = event;
  parked.unmapped = {};
  parked.known = std::move(known);
  if (!callers_.Park(this, event.caller, session->job, event.deadline, std::move(parked))) return;
  waiting_[session->id] = event.caller.request;
}

void StandingMaps::Serve() {
  for (const SessionId session : ledger_.TakeAskedToUnmap()) {
    const auto waiting = waiting_.find(session);
    if (waiting == waiting_.end()) continue;
    const RequestId request = waiting->second;
    const auto& asked = std::get<event::AwaitUnmap>(callers_.Find(request)->event);
    reply::Unmap news = NewsFor(session, asked.known);
    if (!news.slabs.empty()) callers_.Answer(request, Body(std::move(news)));
  }
}

void StandingMaps::Left(const Parked& parked) { waiting_.erase(parked.session); }

void StandingMaps::TimeUp(const Parked& parked) {
  callers_.Answer(parked.request, Body(reply::Unmap{}));
}

}  // namespace cairn::engine
