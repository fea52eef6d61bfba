// The slab ledger: which slabs there are, whose they are, who may still see them, and which are
// ready to be written. It knows nothing of checkpoints; it counts the extents, pins and leases it
// is told of.
//
// A slab is in exactly one state:
//   making       asked for, being faulted in
//   free         never lent, without an owner; it becomes the first taker's (uid, job) for life
//   idle         owned, holds nothing; mapped at most by the one session that wrote it last, and by those
//                that have a standing mapping of it
//   in use       holds extents, or is pinned by an action, or reserved by a create that waits
//   quarantined  holds nothing, but somebody may still see or scribble on it: probed until that ends
//   dying        being destroyed
// All of them count against the budget.
//
// Who may still see a slab: `mapper` is the session that was lent it for writing and has neither
// said "unmapped" nor ended. `readers` are read leases, released ones too until their lock is gone. `standing` are
// the sessions that keep it mapped from version to version: only while a writer maps it, for after that its bytes may
// be another process's. From then on it is quarantined until each of them has said "unmapped" (or died: then it is
// condemned), and whoever waits for its memory waits kPatience for that.
// `clean` says that nobody outside the daemon has had the slab since it was made or since a probe
// said free. A probe answers for the moment it ran: the answer of one that a later lend overtook
// does not count (`lends`).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "common/clock.h"
#include "server/engine/options.h"
#include "server/engine/outbox.h"
#include "server/facts/facts.h"

namespace cairn::engine {

struct Restored;

struct SlabOwner {
  uint32_t uid = 0;
  std::string job;  // empty: nobody
  bool None() const { return job.empty(); }
  auto operator<=>(const SlabOwner&) const = default;
};

enum class SlabState : uint8_t { kMaking, kFree, kIdle, kInUse, kQuarantined, kDying };
inline constexpr size_t kSlabStates = 6;

struct SlabRecord {
  SlabId id = 0;
  uint64_t bytes = 0;
  SlabState state = SlabState::kMaking;
  fact::SlabUse use = fact::SlabUse::kObjects;
  SlabOwner owner;
  uint32_t extents = 0;
  uint32_t pins = 0;
  bool reserved = false;
  uint32_t reserved_for = 0;  // uid
  bool for_peers = false;     // holds a part that came from another member, or is kept for the next
  std::shared_ptr<const fact::FetchBegun> fetch;  // of one for peers: what is being read into it
  SessionId mapper = 0;
  LeaseId writer_lease = 0;
  absl::flat_hash_map<LeaseId, bool> readers;  // true: released, its lock not known to be gone
  uint32_t open_readers = 0;                   // of them, those not released
  std::map<SessionId, LeaseId> standing;
  MonotonicNanos standing_since = 0;  // when they were asked to give it up; 0: they were not
  bool overdue = false;               // that is longer ago than kPatience
  bool condemned = false;             // fact::Slab::condemned
  bool clean = true;
  bool by_path = false;  // lent in file mode: others may have opened it without a lock
  // Journaled as lent by a daemon that died: whether the description ever left is not known, so the
  // next grant lends it once more.
  bool lend_again = false;
  bool retiring = false;       // its mapper is asked to unmap it, its memory is wanted elsewhere
  bool told_to_unmap = false;  // its mapper was told so: the slab is not granted again
  bool doomed = false;         // destroyed as soon as nobody sees it
  bool urgent = false;
  bool probing = false;
  bool probe_again = false;  // something ended while a probe was under way
  int busy_probes = 0;       // answers, one after another, that somebody holds it
  uint64_t lends = 0;        // counts lends, so that a probe overtaken by one is known
  uint64_t probed_at_lends = 0;
  MonotonicNanos since = 0;  // in this state
  MonotonicNanos next_probe = kNever;
  MonotonicNanos probe_wait = 0;

  bool Locked() const { return !readers.empty() || pins > 0; }
};

// Bytes a new slab for `need` bytes has, and the largest one that may serve it.
uint64_t SlabBytesFor(uint64_t need);
uint64_t LargestFit(uint64_t need);

// Told after each change of a slab's record.
class SlabWatcher {
 public:
  virtual ~SlabWatcher() = default;
  virtual void SlabChanged(SlabRecord* slab) = 0;
};

class Ledger {
 public:
  Ledger(const Options& options, Outbox* out) : options_(options), out_(*out) {}
  ~Ledger();
  void set_watcher(SlabWatcher* watcher) { watcher_ = watcher; }

  SlabRecord* Find(SlabId slab);
  const SlabRecord* Find(SlabId slab) const;
  const absl::node_hash_map<SlabId, SlabRecord>& slabs() const { return slabs_; }
  const std::set<SlabId>& quarantined() const { return quarantined_; }

  // --- getting slabs ---
  // A ready slab for `need` bytes, now reserved: the session's own idle one; nullptr when there is none.
  SlabRecord* TakeOwn(uint64_t need, const SlabOwner& owner, SessionId session);
  // Likewise one of the same owner that nobody maps, or a free one.
  SlabRecord* TakeUnmapped(uint64_t need, const SlabOwner& owner);
  // One in the making that nobody waits for, now reserved and hurried.
  SlabRecord* TakeMaking(uint64_t need, uint32_t uid);
  // Asks for a new slab. The caller has checked UnusedBudget().
  SlabRecord* Make(uint64_t bytes) {
    return Make(bytes, fact::SlabUse::kObjects, /*urgent=*/false, std::nullopt);
  }
  SlabRecord* MakeFor(uint32_t uid, uint64_t bytes) {
    return Make(bytes, fact::SlabUse::kObjects, /*urgent=*/true, uid);
  }
  // One for manifests: it is never lent, never idle.
  SlabRecord* MakeForManifests(uint64_t bytes, bool urgent) {
    return Make(bytes, fact::SlabUse::kManifests, urgent, std::nullopt);
  }
  // One for a part that comes from another member: in use until ReturnFromPeers, never lent for writing, and
  // nobody's share. Its pages are made while the part comes. The journal has it while it holds one.
  SlabRecord* MakeForPeers(uint64_t bytes);
  void KeepForPeers(SlabRecord* slab);  // a restored one, which holds such a part
  // Of one that is kept for peers: blocks of a part are read into it; nullptr: no more. While they are, the journal
  // names it.
  void SetFetch(SlabRecord* slab, std::shared_ptr<const fact::FetchBegun> fetch);
  // What it holds is let go, and it is kept for the next part.
  void ReserveForPeers(SlabRecord* slab, bool reserved);
  void ReturnFromPeers(SlabRecord* slab);  // destroyed as soon as nobody sees it
  // What came back into it was saved on this node: it is like any other that holds such a part.
  void BecomeOwn(SlabRecord* slab);
  void Unreserve(SlabRecord* slab);
  void SetOwner(SlabRecord* slab, const SlabOwner& owner);
  void ReturnFromManifests(SlabRecord* slab);  // it holds none: destroyed

  // --- what holds them ---
  void AddExtents(SlabRecord* slab, uint32_t count);
  void DropExtents(SlabRecord* slab, uint32_t count);
  void Pin(SlabRecord* slab);
  void Unpin(SlabRecord* slab);
  void LendToWriter(SlabRecord* slab, SessionId session, LeaseId lease);
  // The writer unmapped it or is dead.
  void WriterGone(SlabRecord* slab);
  void LendToReader(SlabRecord* slab, LeaseId lease, bool by_path);
  // The client said so (or is dead). `has_lock`: a description was lent, whose lock must go too.
  void ReaderReleased(SlabRecord* slab, LeaseId lease, bool has_lock);
  // The description never left the daemon.
  void ReaderNeverLent(SlabRecord* slab, LeaseId lease);
  // True, once: SlabRecord::lend_again.
  bool TakeLendAgain(SlabRecord* slab) { return std::exchange(slab->lend_again, false); }

  void LendStanding(SlabRecord* slab, SessionId session, LeaseId lease);
  // The session has given it up. `died`: or is dead, and a device may still have the pages.
  void StandingGone(SlabRecord* slab, SessionId session, bool died);

  // --- giving memory back ---
  // Destroys the idle or free slab that has been so the longest. Returns its bytes, 0: there is
  // none.
  uint64_t DestroyOldest();
  void Doom(SlabRecord* slab);
  struct Held {
    uint64_t bytes = 0;
    int64_t slabs = 0;
    bool operator==(const Held&) const = default;
  };
  // Idle slabs mapped by `session`, to be unmapped; marks enough of them for `bytes`, returns how
  // many.
  uint64_t Retire(SessionId session, uint64_t bytes);
  // Marks so many more; how many those are.
  Held RetireMore(SessionId session, const Held& more);
  // Asks the user's sessions but this one until they are asked for so much in all; for how much they are,
  // earlier requests included.
  Held RetireOfUser(uint32_t uid, SessionId except, const Held& wanted);
  // Retire for other sessions: not those of `except_owner`, and with `uid` only that user's.
  uint64_t RetireOthers(SessionId session, const SlabOwner* except_owner, uint64_t bytes,
                        std::optional<uint32_t> uid = std::nullopt);
  // What to tell `session` to unmap; they are not granted again.
  std::vector<SlabId> TellRetired(SessionId session);
  bool HasRetired(SessionId session) const;
  // So long creates wait for standing mappings that are to be given up.
  static constexpr MonotonicNanos kPatience = 10 * kNanosPerSecond;
  // The standing mappings that the session is to give up.
  const std::set<SlabId>& StandingToUnmap(SessionId session) const;
  // Sessions that are to give up more than when this was last asked.
  std::set<SessionId> TakeAskedToUnmap() { return std::exchange(asked_to_unmap_, {}); }
  void ExpirePatience();
  MonotonicNanos next_overdue() const {
    return patience_.empty() ? kNever : patience_.begin()->first;
  }

  // --- results of actions ---
  // False when the slab is unknown. A failed making leaves nothing.
  bool OnMade(SlabId slab, const Status& status);
  void OnDestroyed(SlabId slab);
  // Leases that have ended now.
  std::vector<LeaseId> OnProbed(const event::SlabProbed& probed);
  // Asks about slabs whose turn it is.
  void ProbeDue();
  MonotonicNanos next_probe() const { return due_.empty() ? kNever : due_.begin()->first; }

  // --- recovery ---
  // The slabs that the keeper holds, as a dead daemon left them; ResumeAll decides their states
  // once all their holders are told.
  void RestoreSlabs(const Restored& restored,
                    const std::vector<std::pair<SlabId, uint64_t>>& held_slabs);
  bool Survived(const ExtentRef& extent) const;
  void RestoreExtents(SlabId slab, uint32_t count);
  void RestoreWriter(SlabRecord* slab, SessionId session, LeaseId lease);
  void RestoreReader(SlabRecord* slab, LeaseId lease, bool released, bool by_path);
  void RestoreStanding(SlabRecord* slab, SessionId session, LeaseId lease);
  void RestoreCondemned(SlabRecord* slab);  // one of those that had it mapped died
  void RestoreUnclean(SlabRecord* slab);    // somebody unknown may still see it
  void ResumeAll();
  void Snapshot(SlabId slab,
                std::vector<Fact>* facts) const;  // nothing of one that goes or is made

  // --- sums ---
  uint64_t total() const { return total_; }
  // Of slabs that nothing but standing mappings keeps from being used: those that may come, and those that should
  // have come by now; these also of one user.
  Held kept_by_standing() const { return kept_; }
  Held kept_by_standing_of(uint32_t uid) const;
  Held overdue() const { return overdue_; }
  Held overdue_of(uint32_t uid) const;
  uint64_t bytes_in(SlabState state) const { return bytes_[static_cast<size_t>(state)]; }
  uint64_t UnusedBudget() const {
    return options_.budget_bytes > total_ ? options_.budget_bytes - total_ : 0;
  }
  uint64_t idle_mapped_bytes() const { return idle_mapped_bytes_; }
  uint64_t idle_mapped_bytes(const SlabOwner& owner) const;
  Held idle_mapped_of(uint32_t uid) const;
  // What a user holds: what is used for him or set aside, what somebody may still see, his records.
  uint64_t held_by(uint32_t uid) const;
  int64_t slabs_of(uint32_t uid) const;  // that he holds
  // Of what he holds, what is being probed: that comes back by itself.
  Held coming_to(uint32_t uid) const;
  // What this session is asked to unmap.
  Held retired_of(SessionId session) const;
  int64_t live_slabs() const { return static_cast<int64_t>(slabs_.size()) - dying_; }
  // What the slabs of his manifests count for (Manifests::Charge); they have no owner here.
  void HoldRecord(uint32_t uid, uint64_t bytes);
  void DropRecord(uint32_t uid, uint64_t bytes);
  const std::map<uint32_t, Held>& records() const { return records_; }
  // What a user's steps were promised and do not hold yet; held_by leaves it out.
  void Promise(uint32_t uid, uint64_t bytes) { promised_to_[uid] += bytes; }
  void Unpromise(uint32_t uid, uint64_t bytes);
  uint64_t promised_to(uint32_t uid) const;
  // Who holds the most bytes, or slabs, when that is more than his share among those who hold something.
  std::optional<uint32_t> Greediest() const;
  std::optional<uint32_t> GreediestForSlabs() const;
  uint64_t idle_unmapped_bytes() const { return bytes_in(SlabState::kIdle) - idle_mapped_bytes_; }
  uint64_t making_unreserved_bytes() const { return making_unreserved_bytes_; }
  // Quarantined bytes that nobody is known to hold and that a probe may give back soon.
  uint64_t probing_bytes() const { return probing_bytes_; }
  int64_t probing_slabs() const { return probing_slabs_; }
  // Memory is on its way back: a slab is being destroyed, or one that nobody is known to hold is being probed.
  bool Returning() const { return dying_ > 0 || leaving_ > 0; }
  // Sizes of the ready or making slabs that `session` could write next, ascending.
  std::vector<uint64_t> ReadyFor(const SlabOwner& owner, SessionId session) const;
  // Grows whenever something became available or was given back.
  uint64_t version() const { return version_; }

  std::string CheckInvariants() const;

 private:
  using BySize = std::set<std::pair<uint64_t, SlabId>>;
  using ByUser = std::map<uint32_t, Held>;

  SlabRecord* Make(uint64_t bytes, fact::SlabUse use, bool urgent,
                   std::optional<uint32_t> reserved_for, bool populate = true);
  // The next daemon destroys what it does not know, for nobody was lent it; what is kept for the next part has not
  // all its pages.
  static bool InJournal(const SlabRecord& slab) {
    return !slab.for_peers || slab.extents > 0 || slab.fetch != nullptr;
  }
  void SayOf(const SlabRecord& slab, bool was_in_journal);
  static std::optional<uint32_t> HolderOf(const SlabRecord& slab);
  void CountIn(const SlabRecord& slab);
  void CountOut(const SlabRecord& slab);
  static void Add(ByUser* to, uint32_t uid, const Held& more);
  static void Take(ByUser* from, uint32_t uid, const Held& less);
  // Every change of a record stands between Lift, which takes it out of the indexes and sums, and
  // Settle, which decides its state anew, puts it back and asks the probe it needs.
  void Lift(SlabRecord* slab);
  void Settle(SlabRecord* slab);
  SlabState Decide(const SlabRecord& slab) const;
  void Destroy(SlabRecord* slab);  // between Lift and Settle
  void Resume(SlabRecord* slab);
  void ScheduleProbe(SlabRecord* slab, MonotonicNanos at);
  static bool NeedsProbe(const SlabRecord& slab);
  void SendProbe(SlabRecord* slab);
  // So long the mappings of a process that has just died, or unmapped, may still be seen.
  static constexpr int kProbesOfTheDying = 3;
  // It is being probed, and those who had it have said that they have it no more.
  static bool Leaves(const SlabRecord& slab) {
    return NeedsProbe(slab) && slab.mapper == 0 && slab.open_readers == 0 &&
           (slab.probing || slab.busy_probes < kProbesOfTheDying);
  }
  static bool MayComeBack(const SlabRecord& slab) {
    return slab.state == SlabState::kQuarantined && Leaves(slab);
  }
  SlabRecord* FirstFit(const BySize& index, uint64_t need);
  void Reserve(SlabRecord* slab, uint32_t uid);
  void MarkRetiring(SlabRecord* slab);
  void ClearRetiring(SlabRecord* slab);
  // Whether standing mappings of it must go.
  static bool StandingMustGo(const SlabRecord& slab) {
    return slab.mapper == 0 || (slab.state == SlabState::kQuarantined && slab.readers.empty());
  }
  void AskStanding(SlabRecord* slab);
  std::string CheckStanding(const SlabRecord& slab) const;
  // Nothing but standing mappings keeps it.
  static bool KeptByStanding(const SlabRecord& slab) {
    return !slab.standing.empty() && slab.state == SlabState::kQuarantined && slab.mapper == 0 &&
           slab.readers.empty();
  }

  // Constant after construction.
  const Options& options_;
  Outbox& out_;
  SlabWatcher* watcher_ = nullptr;

  absl::node_hash_map<SlabId, SlabRecord> slabs_;  // records stay where they are
  // Indexes of the states; a slab is in the index of its state and in no other.
  BySize free_, making_;
  std::set<SlabId> quarantined_;
  std::map<SlabOwner, BySize> idle_unmapped_;
  std::map<SessionId, BySize> idle_mapped_;
  struct Retired {
    std::set<SlabId> slabs;
    uint64_t bytes = 0;
  };
  std::map<SessionId, Retired> retired_;
  std::map<SessionId, std::set<SlabId>> standing_to_unmap_;
  std::set<SessionId> asked_to_unmap_;
  std::set<std::pair<MonotonicNanos, SlabId>> patience_;  // ends then
  std::set<std::pair<MonotonicNanos, SlabId>> oldest_;    // free, and idle that nobody maps
  std::set<std::pair<MonotonicNanos, SlabId>> due_;       // next_probe
  std::map<SlabOwner, uint64_t> idle_mapped_by_owner_;
  ByUser held_by_, coming_to_;
  ByUser records_, idle_mapped_of_;
  std::map<uint32_t, uint64_t> promised_to_;
  int64_t dying_ = 0, leaving_ = 0, probing_slabs_ = 0;
  uint64_t total_ = 0, idle_mapped_bytes_ = 0, making_unreserved_bytes_ = 0, probing_bytes_ = 0;
  Held kept_, overdue_;
  ByUser kept_of_, overdue_of_;
  std::array<uint64_t, kSlabStates> bytes_{};
  uint64_t recovered_total_ = 0;  // may exceed a budget that was lowered since
  uint64_t version_ = 1;
};

}  // namespace cairn::engine
