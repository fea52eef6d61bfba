// Which members of the ring live, as far as this node can tell from exchanges of its own. A member is
//   up      its last exchange with this node went well
//   silent  it did not; nobody knows yet whether it is gone
//   lost    at least kFailedExchanges of them failed in a row, over ring.lost_after
// Silence permits to answer, to protect and to stand in; never to destroy. Time alone makes nobody lost:
// a node that was stopped itself for a while has heard nobody either, so when its own timer ran late the
// count starts anew.
//
// Which life of its rank this node is, it was told at its start. A member that has met another life at the
// rank's address says so, and of two lives of an address the one of the greater incarnation is the newer:
//   A life that no member has believed yet takes a greater incarnation than that, for its clock may be behind
//   the one that the life before it had.
//   One that was believed is *superseded* for good when it is told of a greater incarnation. It takes no saves
//   and decides nothing; what it holds is loaded and granted as before.
// What was believed is journaled, so that a life whose daemon died before any member had met it is not superseded
// for good by the greater number of one before it.
//
// Where the members stand in the catalog it decides who has a rank (membership.h), and this class is told: which life
// this node is by the seat that was journaled, and that another life has its rank by event::Fenced.
//
// Says fact::MemberLife: at first, with a greater incarnation, when it is believed, and when it is superseded;
// fact::RingSeat.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/options.h"
#include "server/engine/outbox.h"

namespace cairn::engine {

struct Restored;

// Told of what changes, in the order of registration (engine.cc).
class RingWatcher {
 public:
  virtual ~RingWatcher() = default;
  // It can be reached again, or is another life: what it was told before it may not know.
  virtual void MemberCame(Rank) {}
  virtual void MemberWent(Rank) {}  // up → silent
  virtual void MemberLost(Rank) {}  // silent → lost
};

class Members {
 public:
  // A node whose own timer is this late has not listened.
  static constexpr MonotonicNanos kLate = kNanosPerSecond;

  struct Member {
    std::optional<MemberId> id;  // as it was met last; of lost ones, too
    bool up = false, lost = false;
    int failed = 0;                    // exchanges in a row
    MonotonicNanos failing_since = 0;  // when the first of them began
    MonotonicNanos up_since = 0;
    MonotonicNanos heard = 0;  // when it answered last; 0: never
    MonotonicNanos met = 0;    // this life, first
  };

  Members(const Options& options, Outbox* out);
  void Watch(RingWatcher* watcher) { watchers_.push_back(watcher); }

  // Which life of its rank this node is; said as a fact unless it is known.
  void Start(const Restored& restored, const std::optional<MemberId>& self);
  void Snapshot(std::vector<Fact>* facts) const;

  void On(const event::Exchanged& event);
  // True: the node is superseded now.
  bool On(const event::LifeMet& event);
  bool On(const event::Fenced& event);
  void On(const event::SeatChanged& event);
  // The node's own timer ran late: nobody was silent, this node did not listen.
  void TimerWasLate();
  // Some member has met this life: what the ring knows, this node can have heard.
  bool Believed() const { return all_.size() <= 1 || believed_; }
  // It said something: it lives. False: this is not the life that was met.
  bool Heard(const MemberId& from);

  bool Alone() const { return options_.ring.Alone(); }
  int64_t epoch() const { return options_.ring.epoch; }
  Rank self() const { return options_.ring.rank; }
  const MemberId& self_id() const { return self_; }
  // Where the members stand in the catalog: this node is one of them. Else it is nobody's home, and decides nothing.
  bool Counts() const {
    return !options_.ring.from_catalog || (self() != kNoRank && superseded_by_ == 0);
  }
  // In words, why the node is superseded; empty: it is not.
  std::string Superseded() const;
  const std::set<Rank>& all() const { return all_; }
  const std::map<Rank, Member>& others() const { return others_; }
  MonotonicNanos lost_after() const { return options_.ring.lost_after_seconds * kNanosPerSecond; }
  bool Up(Rank rank) const;  // this node is
  const std::set<Rank>& Lost() const { return lost_; }
  // Since when each member that is not lost has answered without a gap; a standstill of this node is one. kNever: one of
  // them is silent.
  MonotonicNanos HeardAllSince() const;
  // Others answer for what it owned: it is lost, or has left the ring.
  bool Gone(Rank owner) const {
    return owner != kNoRank && (lost_.contains(owner) || !all_.contains(owner));
  }
  // What the member whose clock is the furthest ahead has at least, in Unix ms: a life's incarnation is its clock when
  // it began. 0: nobody was met.
  int64_t GreatestClock() const;
  // Those that keep copies of a member's parts, without those in `passed_over`.
  std::vector<Rank> BackupsOf(Rank owner, const std::set<Rank>& passed_over, int replicas) const;
  // Those that keep copies of this node's parts, for so many replicas.
  std::vector<Rank> Backups(int replicas) const;
  int ReplicasOf(const JobPolicy& policy) const;
  // The first member, in the job's order, that is up.
  Rank HomeOf(const std::string& job) const;

 private:
  fact::MemberLife Life() const;
  void Say() const;
  bool Supersede(int64_t by, const std::string& told);
  const Member* Find(Rank rank) const;  // nullptr: it is no other member
  Member* Find(Rank rank) { return const_cast<Member*>(std::as_const(*this).Find(rank)); }

  const Options& options_;
  Outbox& out_;
  std::vector<RingWatcher*> watchers_;
  std::set<Rank> all_;
  MemberId self_;
  int64_t superseded_by_ = 0;
  fact::RingSeat seat_;    // empty instance: the members stand in a list
  bool believed_ = false;  // some member has met this life
  std::map<Rank, Member> others_;
  std::vector<Member*> by_rank_;  // invariant: `others_`, which are asked for with each event
  MonotonicNanos late_ = 0;       // when this node's timer was late last
  std::set<Rank> lost_;           // invariant: those of `others_` that are lost
};

}  // namespace cairn::engine
