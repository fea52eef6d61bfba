// Gives memory up when it is wanted, in the order of EvictClass, and says how much could be had.
#pragma once

#include <algorithm>
#include <functional>

#include "server/engine/journal_room.h"
#include "server/engine/parts.h"
#include "server/engine/standing.h"

namespace cairn::engine {

class Eviction {
 public:
  Eviction(const Options& options, Outbox* out, Ledger* ledger, const Leases* leases,
           Footprints* footprints, Parts* parts, Standing* standing)
      : options_(options),
        out_(*out),
        ledger_(*ledger),
        leases_(*leases),
        footprints_(*footprints),
        parts_(*parts),
        standing_(*standing) {}
  // Manifests of what is evicted; set before the first event (the two need each other).
  void set_manifests(Manifests* manifests) { manifests_ = manifests; }

  // Space in the budget, and what is certainly about to be.
  uint64_t Coming() const;
  // What this job could have if it had to, beside what is leased, pinned, quarantined or a live
  // job's newest.
  uint64_t Available(const Job& job) const;

  // Of what one user may hold: what this job could have, beside what cannot be given up; all of it where he
  // may hold everything.
  uint64_t ShareLeft(const Job& job) const;
  // Whether the job's user may hold so many more bytes and slabs.
  bool HasShare(const Job& job, uint64_t bytes, int64_t slabs) const;
  // Gives up steps of his until he may, then asks his sessions to unmap, this one first. True: he may now.
  bool FreeShare(const Job& job, SessionId session, uint64_t bytes, int64_t slabs);
  // Whether his record may take so much: half of what is left beyond his share is for records alone, which
  // a commit needs that cannot unmap anything first.
  bool HasShareForRecord(const Job& job, uint64_t bytes) const;
  // Gives up what is idle, and steps, of who has the most slabs first, until there may be so many more;
  // asks the session to unmap what is still lacking.
  bool FreeSlabs(const Job& job, SessionId session, int64_t more);
  // What would be left in addition if his other jobs' sessions unmapped what could be given up.
  uint64_t ShareMappedElsewhere(const Job& job) const;

  // What it could have in addition once other jobs' sessions have unmapped it: what is idle, what is
  // quarantined for their mapping alone, and what could be evicted.
  uint64_t MappedElsewhere(const Job& job) const;

  // Destroys and evicts until `wanted` bytes of space are coming, or nothing more can be given up;
  // then asks sessions to unmap. True when enough is coming.
  bool Free(const Job* job, SessionId session, uint64_t wanted);
  // Evicts of the first checkpoint of this class what makes up `wanted` bytes, of what the session maps
  // itself first; of a user who holds more than his share before others. False: there is none.
  bool EvictOne(EvictClass evict_class, bool soft, uint64_t wanted, SessionId session,
                const Whose& whose);
  // Gives up an old step of the job, of this class or one before it, that has a slab that fits; with
  // kGarbage only one that will never be complete, not an abandoned one. True: it did.
  // That writer's own part of it first, which its session may still map.
  bool Recycle(Job* job, SessionId session, Writer writer, uint64_t need, EvictClass up_to);
  // Steps that have only their records in memory take some that no create asks for: of those that could be
  // evicted only a few stay.
  void LimitOnlyRecords();
  // The first that may go, whatever its class, of that user before others. False: nothing can be given up.
  bool EvictAny(std::optional<uint32_t> uid);
  // Gives up steps of the user while a create would cost more of the journal than he may have beside them.
  void MakeJournalRoom(uint32_t uid, const JournalRoom& journal, uint64_t bytes);
  // Its memory goes; leased parts stay. Storage keeps what it has.
  void Evict(Checkpoint* checkpoint);
  // Of a persisted checkpoint: what is leased or pinned stays.
  void DropMemory(Checkpoint* checkpoint);

 private:
  // What is wanted and cannot be had yet.
  struct Lacks {
    SessionId session = 0;  // of who wants it; 0: nobody who could unmap something
    std::function<Ledger::Held()> lacking;
    std::function<bool(EvictClass, uint64_t)> give_up;  // what nobody has to unmap first

    bool Any() const { return lacking() != Ledger::Held(); }
    uint64_t Bytes() const { return std::max(lacking().bytes, uint64_t{1}); }
  };
  void GiveUp(const Job& job, const Lacks& lacks);
  // A step may have thousands of parts: only as many as make up the bytes.
  void EvictSome(Checkpoint* checkpoint, bool soft, uint64_t bytes, SessionId session);
  // The part whose objects lie there. False: with it went all that could.
  bool EvictFrom(Checkpoint* checkpoint, SlabId slab);
  bool GoesInParts(const Checkpoint& checkpoint) const;
  void CountEvicted(const Checkpoint& checkpoint);
  SlabId NextThatMayGo(const Checkpoint& checkpoint, bool soft, SessionId session) const;
  SlabId FirstThat(const Checkpoint& checkpoint, const std::function<bool(SlabId)>& fits) const;

  const Options& options_;
  Outbox& out_;
  Ledger& ledger_;
  const Leases& leases_;
  Footprints& footprints_;
  Parts& parts_;
  Standing& standing_;
  Manifests* manifests_ = nullptr;
  SlabId last_ = 0;  // whose part was evicted last
};

}  // namespace cairn::engine
