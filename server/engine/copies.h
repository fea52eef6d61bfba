// What this node keeps for other members. The owner says what it wants kept (WantList), this node fetches
// it and answers with what it has (HaveList), at once and every few seconds, so that any message may be
// lost. Nothing that is held is let go because a list does not name it: only the owner's word (Release)
// ends a copy, or memory that runs short, and then only what a checkpoint supersedes that is protected
// (evict_class.h).
//
// Quota: of each owner and job, twice what its largest wanted step takes is set aside, so that a new step
// can come while the one before is still what protects. An owner and job for which that does not fit is
// refused with the arithmetic, and nothing of it counts as replicated.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/fetches.h"

namespace cairn::engine {

class Copies : public RingWatcher {
 public:
  Copies(const Options& options, Outbox* out, const Members* members, Parts* parts,
         Fetches* fetches);

  void On(const MemberId& from, const peer::WantList& list);
  void On(const MemberId& from, const peer::ReleaseList& list);
  // Starts what may start, and says what has changed. `often`: some seconds have passed, so that what was
  // refused is tried again and lists are repeated.
  void Run(bool again);

  void MemberCame(Rank rank) override;
  void Restore(const Restored& restored);

  uint64_t HeldFor(Rank owner) const;  // bytes
  uint64_t quota() const;
  uint64_t reserved() const;

  std::string CheckInvariants() const { return ""; }

 private:
  using OwnerAndJob = std::pair<Rank, std::string>;
  struct Of {  // one owner
    uint64_t wants_version = 0;
    std::vector<peer::Want> wants;
    uint64_t haves_version = 0;
    std::vector<peer::Have> told;
    std::map<PartKey, std::string> refused;  // why, until the next try
    std::map<PartKey, std::string> failed;   // to come: that is no refusal; why, until the next try
    std::map<PartKey, std::string>
        lacks;               // no memory yet: why; tried again whenever some comes free
    std::set<PartKey> held;  // that it did not let go
    bool due = false;        // look at it, and tell it what there is
  };

  void Ended(const Fetches::Order& order, const Status& status);
  void Plan(Rank owner, Of* of);
  // Why the owner's job has no room here; OK: what it needs is set aside.
  Status Reserve(Rank owner, const std::string& job, const Of& of);
  Status CheckQuota(const Fetches::Order& order);
  void Tell(Rank owner, Of* of);
  bool MayRelease(Rank from, const Part& part) const;
  static Fetches::Order OrderOf(Rank owner, const peer::Want& want);

  const Options& options_;
  Outbox& out_;
  const Members& members_;
  Parts& parts_;
  Fetches& fetches_;
  std::map<Rank, Of> owners_;
  std::map<OwnerAndJob, uint64_t> reserved_;
  uint64_t memory_seen_ = 0;
};

}  // namespace cairn::engine
