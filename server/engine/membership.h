// Which rank this node has, where the members of a ring stand in the catalog. Decides; whoever carries it out
// (node/membership_loop.h) does one step at a time and says how it ended. No I/O, no clock of its own.
//
// A rank is got by one statement that names the incarnation *and* the beat which the row had when it was read, so of
// two who want it one gets it, and a reading that lags behind gets nothing. Whoever wants the rank of another waits
// until that one's row has stood still for `still` on the clock of this node, while the catalog answered all the time:
// a database that was away fences nobody. Then it dials the address, and only where nobody answers it claims.
//
// A claim without an answer is *uncertain*: it may have been done, and may still be. The node then wants no other rank
// until the row's incarnation has moved or no statement of its own can be under way any more; if it finds itself in the
// row it has the rank.
//
// A node that has a rank beats. A row that another instance has, of no lesser incarnation, *fences* it. A row that is
// older than what the node was given comes from a database that was restored: the node writes itself into it again, as
// it raises an epoch that is older than the ring's. Such a database may also give a number twice: who has the row, and hears
// of another life of its rank whose number is not below its own, takes a greater one, for the members go by numbers. First
// it waits for `still`, in which that other life, if it lives, writes itself into the row.
// And it may be resized before it is brought up to date: of two sizes of one epoch the greater becomes the next epoch's.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "server/engine/ring.h"
#include "server/facts/facts.h"

namespace cairn::engine {

// A rank as the catalog has it. `beat` grows with each beat of who has it, and whenever the rank changes hands.
struct RankRow {
  int64_t incarnation = 0;  // 0: nobody ever had it
  std::string instance;     // empty: nobody has it
  std::string address;
  int64_t beat = 0;
  bool operator==(const RankRow&) const = default;
};
struct RingTable {
  int64_t epoch = 0;           // 0: the cluster has no ring yet
  int64_t version = 0;         // grows whenever a rank changes hands, or the size
  std::vector<RankRow> ranks;  // by rank; as many as the ring's size
};

struct MembershipOptions {
  Rank wanted = kNoRank;  // kNoRank: any that is empty or lost
  std::string address;    // ADDRESS:PORT at which other members reach this node
  int size = 0;           // of the ring, where the cluster has none yet; 0: it waits for one
  MonotonicNanos beat = 3 * kNanosPerSecond;
  MonotonicNanos still = 15 * kNanosPerSecond;
  // Two readings further apart than this saw no row stand still between them.
  MonotonicNanos gap = 8 * kNanosPerSecond;
  // No statement of this node is under way for longer: the server's wait for a lock, and 15 s.
  MonotonicNanos uncertain = 65 * kNanosPerSecond;
  // A name for a life, 16 random bytes.
  std::function<std::string()> new_instance;
};

// --- what is to be done next

namespace ring_step {

struct Wait {
  MonotonicNanos until = 0;
};
struct Read {};  // the whole table
// The row of this node's rank. Its end also tells the table's version.
struct Beat {
  Rank rank = kNoRank;
  int64_t incarnation = 0;
};
// Whether anybody answers there who may be the rank's owner: not one that says that it has another rank.
struct Probe {
  Rank rank = kNoRank;
  std::string address;
};
// Of the row that has `of` and `beat`, or of the rank's empty place.
struct Claim {
  Rank rank = kNoRank;
  int64_t of = 0, beat = 0;
  int64_t incarnation = 0;  // the new one
};
// This node has taken a greater incarnation, for the members have met one that the catalog had forgotten.
struct Raise {
  Rank rank = kNoRank;
  int64_t of = 0, incarnation = 0;
};
struct Release {
  Rank rank = kNoRank;
  int64_t incarnation = 0;
};
// Makes the ring of the cluster, unless there is one of this or a greater epoch.
struct MakeRing {
  int64_t epoch = 0;
  int size = 0;
};

}  // namespace ring_step

using RingStep =
    std::variant<ring_step::Wait, ring_step::Read, ring_step::Beat, ring_step::Probe,
                 ring_step::Claim, ring_step::Raise, ring_step::Release, ring_step::MakeRing>;

// How a statement that changes a row ended.
enum class Written : uint8_t {
  kDone,     // as asked
  kNot,      // the row was another one: nothing was changed
  kUnknown,  // no answer: it may have been done, or be done yet
  kRefused,  // it was not done, for the catalog cannot be used
};

// The ring that a node with this seat goes by, at `address` itself; what the seat does not say is as in `ring`.
RingOptions SeatedRing(RingOptions ring, const fact::RingSeat& seat, const std::string& address);

class Membership {
 public:
  // `seat`: what the journal knows; its instance is this node's, and not empty.
  Membership(MembershipOptions options, const fact::RingSeat& seat);

  RingStep Next(MonotonicNanos now);

  // The step that Next told has ended. A failure's reason is told in `problem`.
  void HasRead(MonotonicNanos now, const StatusOr<RingTable>& table);
  void HasBeaten(MonotonicNanos now, Written how, int64_t version, const Status& why);
  void HasProbed(MonotonicNanos now, Rank rank, bool answers);
  void HasWritten(MonotonicNanos now, Written how, const Status& why);

  // A member has told its view.
  void Heard(const RingView& view);
  // A member has met another life of this node's rank. Only the database says which of the two has the rank.
  void Met(const MemberId& life);
  // The engine has taken a greater incarnation.
  void Became(int64_t incarnation);
  // Whether a rank that it gets would be journaled; it takes none before it is told so.
  void SetMayClaim(bool may) { may_claim_ = may; }
  // The rank is to be given back, and no other to be taken, until further notice.
  void Leave() { leaving_ = true; }
  // It is not to be given back after all; or another is wanted, under a new name, where it was.
  void ComeBack();
  // The node has nothing any more that only it has: a fenced one may want another rank, under a new name.
  void StartAnew();

  const fact::RingSeat& seat() const { return seat_; }
  const RingView& view() const { return view_; }
  bool ranked() const { return seat_.rank != kNoRank; }
  // Who has this node's rank by the catalog.
  const std::optional<MemberId>& fenced_by() const { return fenced_by_; }
  // Why the node has no rank, or what is wrong with the catalog, in words; empty: nothing.
  std::string Problem() const;

 private:
  struct Watch {
    RankRow row;
    MonotonicNanos since = 0;   // it has not changed since
    MonotonicNanos probed = 0;  // nobody answered there; 0: not probed, or somebody did
    MonotonicNanos again = 0;   // not probed before
  };
  struct Uncertain {
    Rank rank = kNoRank;
    int64_t of = 0;
    MonotonicNanos until = 0;
  };

  std::optional<RingStep> NextOfUnranked(MonotonicNanos now);
  std::optional<RingStep> WantRank(MonotonicNanos now, Rank rank);
  void See(MonotonicNanos now, const RingTable& table);
  void SeeOwnRow(MonotonicNanos now, const RingTable& table);
  void SeeThatItHasTheRow(MonotonicNanos now, const RankRow& row);
  void Rise(int64_t incarnation);
  void NoteOtherLife(const RingView& view);
  void Take(Rank rank, int64_t incarnation);
  void TakeNoRank();
  void TellSeat();

  const MembershipOptions options_;
  fact::RingSeat seat_;
  RingView view_;

  bool read_due_ = true;
  std::optional<RingStep> next_;  // before anything else
  RingStep asked_;                // what Next told last
  MonotonicNanos asked_at_ = 0;
  MonotonicNanos beat_at_ = 0;
  MonotonicNanos read_at_ = 0;  // when the table is read again
  bool has_read_ = false;
  MonotonicNanos answered_at_ = 0;  // the last successful reading
  int64_t version_ = -1;            // of it
  std::vector<Watch> watches_;
  std::optional<Uncertain> uncertain_;
  std::optional<MemberId> fenced_by_;
  int64_t met_ = 0;  // of other lives of this rank that a member knows, the greatest incarnation
  MonotonicNanos met_since_ = 0;  // the row is this node's all the same; 0: it was not read since
  bool leaving_ = false;
  bool may_claim_ = false;
  std::string problem_;  // of the catalog
  std::string waits_;    // why there is no rank yet
};

}  // namespace cairn::engine
