// Gives memory up when it is wanted, in the order of EvictClass, and says how much could be had.
#pragma once

#include <functional>

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

  // What it could have in addition once other jobs' sessions have unmapped it: what is idle, what is
  // quarantined for their mapping alone, and what could be evicted.
  uint64_t MappedElsewhere(const Job& job) const;

  // Destroys and evicts until `wanted` bytes of space are coming, or nothing more can be given up;
  // then asks sessions to unmap. True when enough is coming.
  bool Free(const Job* job, SessionId session, uint64_t wanted);
  // Evicts of the first checkpoint of this class what makes up `wanted` bytes, of what the session maps
  // itself first. False: there is none.
  bool EvictOne(EvictClass evict_class, bool soft, uint64_t wanted, SessionId session,
                const Job* only, const Job* except);
  // Gives up an old step of the job, of this class or one before it, that has a slab that fits; with
  // kGarbage only one that will never be complete, not an abandoned one. True: it did.
  // That writer's own part of it first, which its session may still map.
  bool Recycle(Job* job, SessionId session, Writer writer, uint64_t need, EvictClass up_to);
  // Steps of which nobody saved an object cost a page each that no create asks for: of those that could
  // be evicted only a few stay.
  void LimitOnlyRecords();
  // The first that may go, whatever its class. False: nothing can be given up.
  bool EvictAny();
  // Of a persisted checkpoint: what is leased or pinned stays.
  void DropMemory(Checkpoint* checkpoint);

 private:
  void Evict(Checkpoint* checkpoint);
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
