// What this node keeps for other members. The owner says what it wants kept (WantList), this node fetches
// it and answers with what it has (HaveList), at once and every second, so that any message may be
// lost. Nothing that is held is let go because a list does not name it: only the owner's word (Release)
// ends a copy, or memory that runs short, and then only what a checkpoint supersedes that is protected
// (evict_class.h).
//
// One exception, without which a backup that got a part of each step while others could not be reached would have
// no room for the target for good: what is not wanted, and was never protected, makes way for it. Nobody
// may come to call it protected meanwhile. So for kInDoubt all members must be heard to say that it is not; then
// this node reports the part as gone, for as long again, so that no home counts the copy any more; then it goes.
// What its owner calls surplus goes in the same two steps, and stays as soon as the owner stops saying so: a backup that
// held it may be gone. The owner says so only while the last list of each backup is at most peer::kListFresh old, and its word
// counts for peer::kListFresh after the list that it answers. So a backup that died has been silent for at most twice that when
// a copy still counts as surplus, which is no more than kInDoubt: no home counted that copy when the backup died.
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
  // Starts what may start, and says what has changed. `again`: a second has passed, so that what was refused is tried
  // again and lists are repeated.
  void Run(bool again);

  void MemberCame(Rank rank) override;
  void MemberLost(Rank rank) override;
  void Restore(const Restored& restored);

  // By itself a home counts nothing that it heard longer ago (Home::kHeardFor).
  static constexpr MonotonicNanos kInDoubt = 4 * kNanosPerSecond;
  static_assert(2 * peer::kListFresh <= kInDoubt);
  // It is here, and homes are told that it is gone.
  bool MakesWay(const PartKey& part) const;

  uint64_t HeldFor(Rank owner) const;  // bytes
  uint64_t quota() const;
  uint64_t reserved() const { return reserved_bytes_; }
  uint64_t Unused() const;  // of what is reserved

  std::string CheckInvariants() const;

 private:
  using OwnerAndJob = std::pair<Rank, std::string>;
  struct Why {
    std::string text;
    uint64_t lacking = 0;  // bytes that would have to be free; 0: room would not end the refusal
  };
  struct Of {  // one owner
    uint64_t wants_version = 0;
    std::vector<peer::Want> wants;
    uint64_t haves_version = 0;
    std::map<uint64_t, MonotonicNanos> said;  // by version, when this node said that list
    std::vector<peer::Have> told;
    std::map<PartKey, Why> refused;  // until the next try
    std::map<PartKey, Why> failed;   // not refused, it comes later; until the next try
    std::map<PartKey, Why> lacks;    // no memory yet; tried again whenever some comes free
    std::set<PartKey> held;          // that it did not let go; Hold and LetGo change it
    MonotonicNanos planned = 0;
  };

  // The two ways in which `held` changes. Hold: false when it was held for that owner already; LetGo: when it was not.
  bool Hold(Rank owner, const PartKey& part);
  bool LetGo(Rank owner, const PartKey& part);
  void Ended(const Fetches::Order& order, const Status& status);
  void Plan(Rank owner, Of* of);
  // Why the owner's job has no room here; OK: what it needs is set aside.
  Status Reserve(Rank owner, const std::string& job, uint64_t needs);
  std::map<std::string, uint64_t> NeedsOf(Rank owner, const Of& of) const;
  Status CheckQuota(const Fetches::Order& order) const;
  void Tell(Rank owner, Of* of);
  // What is in the way of targets that lack room.
  std::set<PartKey> InTheWay() const;
  bool NeverProtected(const Checkpoint& checkpoint) const;
  void MakeWay();
  bool MayRelease(Rank from, const Part& part) const;
  static Fetches::Order OrderOf(Rank owner, const peer::Want& want);

  const Options& options_;
  Outbox& out_;
  const Members& members_;
  Parts& parts_;
  Fetches& fetches_;
  std::map<Rank, Of> owners_;
  std::set<Rank> due_;       // owners to look at, and to tell what there is
  std::set<Rank> held_for_;  // invariant: those of `owners_` for which anything is held
  std::map<OwnerAndJob, uint64_t> reserved_;
  uint64_t reserved_bytes_ = 0;  // their sum
  uint64_t memory_seen_ = 0;
  struct Leaving {
    MonotonicNanos since = 0;
    bool reported = false;  // as gone
  };
  std::map<PartKey, Leaving> leaving_;
  // When this node said the have-list that the owner's last such word answers.
  std::map<PartKey, MonotonicNanos> surplus_;
};

}  // namespace cairn::engine
