#include "server/engine/standing_maps.h"

#include <utility>
#include <variant>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace cairn::engine {
namespace {
constexpr size_t kMostNamed = 65'536;  // in one call, which holds the engine up
}  // namespace

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

reply::Unmap StandingMaps::NewsFor(SessionId session, const event::AwaitUnmap& event) const {
  reply::Unmap news;
  const absl::flat_hash_set<SlabId> known(event.known.begin(), event.known.end());
  for (const SlabId slab : ledger_.StandingToUnmap(session)) {
    if (!known.contains(slab)) news.slabs.push_back(slab);
  }
  return news;
}

void StandingMaps::On(const event::AwaitUnmap& event) {
  const Session* session = sessions_.Of(event.caller);
  if (session == nullptr) return;
  for (const auto& [name, slabs] :
       {std::pair("unmapped", &event.unmapped), std::pair("known", &event.known)}) {
    if (slabs->size() <= kMostNamed) continue;
    return out_.Answer(event.caller.request,
                       absl::InvalidArgumentError(absl::StrCat(name, ": ", slabs->size(),
                                                               " slabs, at most ", kMostNamed)));
  }
  leases_.StandingUnmapped(*session, event.unmapped);
  reply::Unmap news = NewsFor(session->id, event);
  if (!news.slabs.empty() || event.deadline <= out_.now()) {
    return out_.Answer(event.caller.request, Body(std::move(news)));
  }
  if (!callers_.Park(this, event.caller, session->job, event.deadline, event)) return;
  waiting_[session->id].insert(event.caller.request);
}

void StandingMaps::Serve() {
  for (const SessionId session : ledger_.TakeAskedToUnmap()) {
    const auto of_session = waiting_.find(session);
    if (of_session == waiting_.end()) continue;
    for (const RequestId request : std::set<RequestId>(of_session->second)) {
      const auto& asked = std::get<event::AwaitUnmap>(callers_.Find(request)->event);
      reply::Unmap news = NewsFor(session, asked);
      if (!news.slabs.empty()) callers_.Answer(request, Body(std::move(news)));
    }
  }
}

void StandingMaps::Left(const Parked& parked) {
  const auto of_session = waiting_.find(parked.session);
  of_session->second.erase(parked.request);
  if (of_session->second.empty()) waiting_.erase(of_session);
}

void StandingMaps::TimeUp(const Parked& parked) {
  callers_.Answer(parked.request, Body(reply::Unmap{}));
}

}  // namespace cairn::engine
