// Standing mappings: a consumer that streams version after version keeps the slabs of its job mapped, so that it
// registers them once with its device. The ledger says which of them must go; here sessions ask for one, are told what
// to give up, and say that they have.
//
// Says fact::Lent, Unlent (through the leases), and fact::Slab of one that is condemned.
#pragma once

#include <map>
#include <vector>

#include "server/engine/callers.h"
#include "server/engine/leases.h"
#include "server/engine/ledger.h"
#include "server/engine/sessions.h"

namespace cairn::engine {

class StandingMaps : public Waitlist {
 public:
  StandingMaps(Outbox* out, Callers* callers, Sessions* sessions, Ledger* ledger, Leases* leases)
      : out_(*out), callers_(*callers), sessions_(*sessions), ledger_(*ledger), leases_(*leases) {}

  // PERMISSION_DENIED: the slab is another user's, or another job's.
  // FAILED_PRECONDITION: nothing more is going to be written into it, or it is wanted back.
  void On(const event::MapStanding& event);
  void On(const event::AwaitUnmap& event);
  // Tells those who wait what they are to give up. After each event.
  void Serve();

  void Left(const Parked& parked) override;
  void TimeUp(const Parked& parked) override;

 private:
  Status Check(const Session& session, const Lease* lease) const;
  // Of those that it knows of the ones that it still is to give up, in order.
  std::vector<SlabId> StillKnown(SessionId session, const std::vector<SlabId>& known) const;
  // What it is to give up and does not know of.
  reply::Unmap NewsFor(SessionId session, const std::vector<SlabId>& known) const;

  Outbox& out_;
  Callers& callers_;
  Sessions& sessions_;
  Ledger& ledger_;
  Leases& leases_;

  std::map<SessionId, RequestId> waiting_;
};

}  // namespace cairn::engine
