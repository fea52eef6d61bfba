// Leases: what a session may see or write, until it says that it is done, ends, or its time is up.
// A reader's lock may outlive it (a forked child, a mapping), so a lease whose description was lent
// is over only when a probe says that the lock is gone.
//
// Changes Object::write_lease. Says fact::Lent, Unlent.
//
// Invariants:
//   1. A lease is of a live session or of one whose leases are being ended, or released.
//   2. Its slab is there; a reader's lease is among the slab's readers; the lease of a writer that
//      maps a slab is the slab's writer_lease.
//   3. What a session is said to have mapped it is the mapper of.
//   4. The leases of standing mappings are those that the slabs count.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/engine/callers.h"
#include "server/engine/journal_room.h"
#include "server/engine/ledger.h"
#include "server/engine/sessions.h"

namespace cairn::engine {

struct Lease {
  LeaseId id = 0;
  SessionId session = 0;
  SlabId slab = 0;
  LeaseMode mode = LeaseMode::kMap;
  PartKey part;
  std::string name;
  ExtentRef extent;  // what a client without descriptors may touch through it
  uint64_t length = 0;
  MonotonicNanos expires = kNever;
  bool released = false;  // its lock is not known to be gone
  uint32_t uid = 0;       // of a reader, whose share of the journal it costs
  uint32_t sent = 1;  // of a standing mapping: how often its descriptor was sent, or is being sent
};

class Leases {
 public:
  Leases(const Options& options, Outbox* out, Sessions* sessions, Ledger* ledger,
         JournalRoom* journal)
      : options_(options), out_(*out), sessions_(*sessions), ledger_(*ledger), journal_(*journal) {}
  ~Leases();

  const Lease* Find(LeaseId lease) const;

  // --- lending
  // RESOURCE_EXHAUSTED when its user has as many as a reader may have.
  Status CheckRoom(const Session& session, const PartKey& part, absl::string_view name) const {
    CAIRN_RETURN_IF_ERROR(readers_.CheckRoom(options_, options_.max_leases, session.uid));
    return journal_.CheckLease(session.uid, JournalRoom::CostOfLease(part, name));
  }
  const Lease* LendToReader(const Session& session, const ObjectRef& object, LeaseMode mode);
  // The lease under which the session maps the slab for writing: the one it has, else a new one.
  // What must leave with the answer is added to `lend`.
  const Lease* LendToWriter(const Session& session, SlabRecord* slab, std::vector<Lend>* lend);
  // The lease under which the session keeps a standing mapping of the slab: the one it has, else a new one.
  const Lease* LendStanding(const Session& session, SlabRecord* slab);
  // For a client without descriptors: the object's write lease, the one it has or a new one.
  const Lease* LendForChunks(const Session& session, Object* object);

  // --- ending
  void Forget(LeaseId lease);
  void EndWrite(Object* object);  // it is sealed or dropped
  void Unmapped(const Session& session, const std::vector<SlabId>& slabs);
  void StandingUnmapped(const Session& session, const std::vector<SlabId>& slabs);
  // The session has ended. It may have mapped thousands of slabs, so they are let go in pieces: EndSome
  // does a piece; it is called after each event, and soon when there is more to end.
  void EndAll(SessionId session, bool goodbye);
  // Slabs that the session may write to; empty for one that has ended.
  const std::set<SlabId>& MappedBy(SessionId session) const;
  void EndSome();
  bool more_to_end() const { return !ending_.empty(); }
  void Expire();
  void Renew(LeaseId lease);
  MonotonicNanos next_expiry() const { return expiry_.empty() ? kNever : expiry_.begin()->first; }

  void On(const event::Release& event);
  void On(const event::Renew& event);
  void On(const event::LendFailed& event);
  void On(const event::SlabProbed& event);

  // --- for people
  const UserCounts& readers() const { return readers_; }
  uint64_t BytesOf(SessionId session) const;  // that readers' leases cover
  size_t CountOf(SessionId session) const;
  // Adds the pids of those who may still see the slab; `readers_only`: not of who maps it for
  // writing.
  void HoldersOf(const SlabRecord& slab, bool readers_only, std::set<int32_t>* pids) const;

  // Of a part that is there again (`find` gives its object, or nullptr).
  void Restore(const Restored& restored,
               const std::function<ObjectRef(const PartKey&, const std::string&)>& find);
  const absl::flat_hash_map<LeaseId, std::unique_ptr<Lease>>& all() const { return leases_; }
  void Snapshot(LeaseId lease, std::vector<Fact>* facts) const;
  std::string CheckInvariants() const;
  void AddJournal(std::map<uint32_t, uint64_t>* held) const;  // what its users' leases cost it

 private:
  struct Held {
    std::set<LeaseId> leases;  // not released
    std::set<SlabId> mapped;   // lent for writing
    uint64_t bytes = 0;
    bool goodbye = false;  // of one that ends: its process has said so
  };

  Lease* Make(const Session& session, SlabRecord* slab, LeaseMode mode, const PartKey& part,
              const std::string& name, const ExtentRef& extent, uint64_t length);
  Held* HeldBy(SessionId session);  // nullptr: nothing
  void CountReader(const Lease& lease);
  void Release(Lease* lease);
  void UnmapWriter(SlabRecord* slab);
  void EndStanding(LeaseId lease, bool died);

  const Options& options_;
  Outbox& out_;
  Sessions& sessions_;
  Ledger& ledger_;
  JournalRoom& journal_;

  absl::flat_hash_map<LeaseId, std::unique_ptr<Lease>> leases_;
  UserCounts readers_{"leases", "limits.leases"};
  std::set<std::pair<MonotonicNanos, LeaseId>> expiry_;
  absl::flat_hash_map<SessionId, Held> held_;
  std::map<SessionId, Held> ending_;  // of sessions that have ended
};

}  // namespace cairn::engine
