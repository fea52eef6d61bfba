// Parts that come from other members: the slab each goes into, the reading, and how it becomes a part of
// this node once every block has verified. Why a part is fetched is its asker's affair: Copies keeps parts
// for their owners, Loads brings back what is asked for here.
//
// Changes Part::source. A part that is fetched becomes one of the checkpoint's at once, and is told to the
// journal and to its asker when its record is written: only then does it outlive the daemon.
//
// Slabs of fetched parts are never lent for writing, count for nobody's share, and serve one user and job:
// when a part is released its slab is kept for that job's next one, as a spare. A part of this node's own that has
// come back is like one that was saved here, and so is its slab. The slab of a fetch outlives the daemon: who wants
// the same part again within a minute reads only the blocks that do not verify in it.
//
// Invariants:
//   1. A fetch has a slab, being made or at work; nothing else uses that slab.
//   2. A slab that is kept for peers is a fetch's, a fetched part's, a spare, or left by an earlier daemon's fetch.
//   3. What counts as a replica is the slab of a fetch or of a fetched part; of fetches, those for replicas.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/engine/journal_room.h"
#include "server/engine/manifests.h"
#include "server/engine/members.h"
#include "server/engine/mode.h"

namespace cairn::engine {

class Fetches {
 public:
  static constexpr size_t kMostShown = 64;
  struct Order {
    PartKey part;
    std::string digest;
    int32_t world_size = 0;
    uint64_t bytes = 0;           // of its objects, each in whole pages
    uint64_t manifest_bytes = 0;  // at most
    uint32_t uid = 0, gid = 0;    // the job's owner
    PartRole role = PartRole::kReplica;
    Rank owner = kNoRank;
    Rank asker = kNoRank;  // of a replica: the member that wants it kept here
    std::vector<Rank> sources;
    action::FetchFor what_for = action::FetchFor::kReplica;
    uint64_t journal_bytes = 0;  // set aside for it, while it is on its way
  };
  // Hears once how a fetch has ended. OK: the part is here, verified, and its record is written.
  using Ended = std::function<void(const Order&, const Status&)>;

  Fetches(const Options& options, const Mode* mode, JournalRoom* journal, Outbox* out, Jobs* jobs,
          Attempts* attempts, Ledger* ledger, Parts* parts, Manifests* manifests,
          Eviction* eviction);

  // Whoever asked, all are told: who loads a part may wait for one that is fetched as a replica.
  void OnEnded(Ended ended) { ended_.push_back(std::move(ended)); }
  // A newer attempt than all before is known now: older ones are to be fenced.
  void set_newer_attempt(std::function<void(Job*)> newer) { newer_attempt_ = std::move(newer); }

  // Whether the journal, and the number of jobs, have room for it, and this node takes anything in at all.
  Status CheckAdmits(const Order& order) const;
  // As CheckAdmits; RESOURCE_EXHAUSTED with the arithmetic when there is no memory for it now, FAILED_PRECONDITION
  // when something else stands in its place. OK: it is under way, or was already.
  Status Start(const Order& order);
  // A part that is here for a weaker reason is kept for this one from now on.
  void Become(Part* part, PartRole role, Rank owner);
  // Says of those that went before their records were written how they ended.
  void TellAborted();
  bool any_aborted() const { return !aborted_.empty(); }
  uint64_t DoneBytes(const PartKey& part) const;  // of one under way
  void Cancel(const PartKey& part);
  // A damaged copy, which readers keep from making way for a whole one.
  bool RestIsRead(const PartKey& part) const;
  // The part is here, all of it, and outlives the daemon.
  static bool Holds(const Part& part);
  // Its owner lets it go, or its checkpoint gave way: its memory becomes a spare. False: somebody reads it.
  bool Release(Part* part);
  // Memory is short: spares go.
  void FreeSpares();
  // Of slabs, those that are being filled included.
  uint64_t replica_bytes() const { return replica_bytes_; }
  bool CountsAsReplica(const PartKey& part) const;               // one that is on its way
  uint64_t memory_version() const { return ledger_.version(); }  // grows when some comes free
  // What was refused for want of memory may soon have it.
  bool MemoryReturns() const { return ledger_.Returning(); }
  size_t under_way() const { return fetches_.size(); }
  uint64_t journal_bytes() const;                    // set aside for what is on its way
  std::vector<reply::FetchStatus> UnderWay() const;  // the oldest kMostShown

  bool SlabMade(SlabId slab, const Status& status);  // true: it was made for a fetch
  void On(const event::FetchAdvanced& event);
  void On(const event::Fetched& event);
  // A slab of these lost its last extent: the part was erased. And what an earlier daemon's fetches left, where
  // nobody has wanted it.
  void ReturnEmpty();

  void Restore(const Restored& restored);
  std::string CheckInvariants() const;

 private:
  struct Fetch {
    Order order;
    SlabId slab = 0;
    bool running = false;  // action::Fetch has left
    bool cancelled = false;
    bool joined = false;  // wanted for another reason, too: nobody cancels it
    bool begun_before = false;
    uint64_t done = 0;
  };
  static SlabOwner OwnerOf(const Order& order) { return {order.uid, order.part.checkpoint.job}; }
  static uint64_t JournalCostOf(const Order& order);
  void ReleaseJournal(Order* order);
  Status Join(const Order& order);
  void AddSources(uint64_t id, const std::vector<Rank>& sources);
  Status CheckPlace(const Order& order) const;
  Status CheckNames(const PartKey& of, const PartTable& table) const;
  static uint64_t SlabBytesOf(const Order& order);
  SlabRecord* FindSpare(const Order& order) const;
  SlabRecord* FindLeft(const Order& order) const;
  SlabRecord* TakeReady(const Order& order);
  void ForgetLeft();
  void Run(uint64_t id, Fetch* fetch);
  // The fetched part becomes one of the node's.
  Status Take(const Order& order, const event::Fetched& event);
  void Kept(Part* part, const Status& status);
  void End(uint64_t id, const Status& status);
  void Spare(SlabRecord* slab, const SlabOwner& owner);
  void Return(SlabRecord* slab);
  void CountReplica(SlabId slab, bool is);
  void CountReplica(const Part& part, bool is);

  const Options& options_;
  const Mode& mode_;
  JournalRoom& journal_;
  Outbox& out_;
  Jobs& jobs_;
  Attempts& attempts_;
  Ledger& ledger_;
  Parts& parts_;
  Manifests& manifests_;
  Eviction& eviction_;

  std::vector<Ended> ended_;
  std::function<void(Job*)> newer_attempt_;
  std::map<uint64_t, Fetch> fetches_;
  std::map<PartKey, uint64_t> by_part_;
  std::map<SlabId, uint64_t> by_slab_;
  std::map<PartKey, Order> keeping_;     // here, and their records are being written
  std::vector<Order> aborted_;           // not told yet
  std::map<SlabId, SlabOwner> holding_;  // slabs of fetched parts, and whose
  std::map<SlabOwner, std::deque<SlabId>> spares_;
  std::map<SlabId, uint64_t> replicas_;  // slabs that count as such, and their bytes
  uint64_t replica_bytes_ = 0;
  std::map<PartKey, SlabId> left_;  // by fetches of an earlier daemon
  MonotonicNanos left_until_ = 0;
};

}  // namespace cairn::engine
