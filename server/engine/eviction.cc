#include "server/engine/eviction.h"

#include <algorithm>
#include <set>

#include "server/engine/evict_class.h"
#include "server/engine/manifests.h"

namespace cairn::engine {
namespace {

constexpr int kRecycleTries = 8;
constexpr int kTries = 64;
// Of the budget they have one part in so many, or at least so many pages.
constexpr uint64_t kShareOfOnlyRecords = 64;
constexpr uint64_t kSomeOnlyRecords = 64;
constexpr int kAtOnce = 64;  // in one event

bool InStorage(const Checkpoint& checkpoint) {
  return checkpoint.files->persisted && !checkpoint.files->deleting;
}

}  // namespace

uint64_t Eviction::Coming() const {
  return ledger_.UnusedBudget() + ledger_.bytes_in(SlabState::kDying) + ledger_.probing_bytes();
}

uint64_t Eviction::Available(const Job& job) const {
  standing_.Settle();
  const SlabOwner owner{job.owner->uid, job.name};
  return Coming() + ledger_.bytes_in(SlabState::kFree) + ledger_.idle_unmapped_bytes() +
         ledger_.making_unreserved_bytes() + ledger_.idle_mapped_bytes(owner) +
         standing_.evictable_bytes() -
         (standing_.evictable_mapped_bytes() - job.standing->evictable_mapped_bytes);
}

uint64_t Eviction::MappedElsewhere(const Job& job) const {
  standing_.Settle();
  const SlabOwner owner{job.owner->uid, job.name};
  return ledger_.idle_mapped_bytes() - ledger_.idle_mapped_bytes(owner) +
         ledger_.bytes_in(SlabState::kQuarantined) - ledger_.probing_bytes() +
         standing_.evictable_mapped_bytes() - job.standing->evictable_mapped_bytes;
}

// Within a class, what comes back by itself goes first. What the asking session has mapped itself
// comes next, for the session hears of it in the answer to this very create; other sessions are
// asked last.
bool Eviction::Free(const Job* job, SessionId session, uint64_t wanted) {
  uint64_t retiring = 0;
  const auto lacking = [&] { return wanted - std::min(wanted, Coming() + retiring); };
  const auto retire_own = [&] {
    if (session != 0 && Coming() < wanted) retiring = ledger_.Retire(session, wanted - Coming());
  };
  for (const EvictClass evict_class : kEvictClasses) {
    if (evict_class == EvictClass::kOwes) retire_own();
    while (lacking() > 0) {
      if (ledger_.DestroyOldest() > 0) continue;
      if (EvictOne(evict_class, /*soft=*/false, lacking(), session, nullptr, nullptr)) continue;
      const uint64_t before = lacking();
      if (session == 0 || !EvictOne(evict_class, /*soft=*/true, before, session, job, nullptr)) {
        break;
      }
      retire_own();
      if (lacking() == before) break;  // it is others that map it: they are asked below
    }
  }
  while (lacking() > 0) {
    if (ledger_.RetireOthers(session, nullptr, lacking()) >= lacking()) break;
    bool evicted = false;
    for (const EvictClass evict_class : kEvictClasses) {
      evicted =
          evicted || EvictOne(evict_class, /*soft=*/true, lacking(), session, nullptr, nullptr);
    }
    if (!evicted) break;
  }
  return Coming() >= wanted;
}

bool Eviction::EvictOne(EvictClass evict_class, bool soft, uint64_t wanted, SessionId session,
                        const Job* only, const Job* except) {
  // The rest of one that was condemned just now goes before another one is.
  Checkpoint* checkpoint = standing_.FirstEvictable(EvictClass::kGarbage, soft, only, except);
  if (checkpoint == nullptr) {
    checkpoint = standing_.FirstEvictable(evict_class, soft, only, except);
  }
  if (checkpoint == nullptr) return false;
  EvictSome(checkpoint, soft, wanted, session);
  return true;
}

bool Eviction::EvictAny() {
  Checkpoint* checkpoint = standing_.FirstEvictable();
  if (checkpoint == nullptr) return false;
  Evict(checkpoint);
  return true;
}

void Eviction::LimitOnlyRecords() {
  const size_t most =
      std::max(kSomeOnlyRecords, options_.budget_bytes / kShareOfOnlyRecords / kPageBytes);
  for (int i = 0; i < kAtOnce && standing_.only_records() > most; ++i) {
    Evict(standing_.FirstOfOnlyRecords());
  }
}

bool Eviction::Recycle(Job* job, SessionId session, Writer writer, uint64_t need,
                       EvictClass up_to) {
  const auto fits = [&](SlabId id) {
    const SlabRecord& slab = *ledger_.Find(id);
    return slab.bytes >= need && slab.bytes <= LargestFit(need) && !slab.Locked() &&
           !slab.by_path && (slab.mapper == session || (slab.mapper == 0 && slab.clean));
  };
  int tries = 0;
  for (const auto& [evict_class, id] : standing_.EvictableOf(*job)) {
    if (evict_class > up_to || ++tries > kRecycleTries) return false;
    Checkpoint* checkpoint = CheckpointOf(*job, id);
    if (up_to == EvictClass::kGarbage && checkpoint->content->complete) continue;
    SlabId slab = 0;
    if (const Part* own = Parts::PartOf(*checkpoint, writer)) {
      for (const auto& [id_of_own, objects] : own->content->slabs) {
        if (slab == 0 && fits(id_of_own)) slab = id_of_own;
      }
    }
    if (slab == 0) slab = FirstThat(*checkpoint, fits);
    if (slab == 0) continue;
    out_.Count("recycled_parts");
    EvictFrom(checkpoint, slab);
    return true;
  }
  return false;
}

// Behind the last that went, if that is soon found: sessions come in the order in which they came before.
SlabId Eviction::FirstThat(const Checkpoint& checkpoint,
                           const std::function<bool(SlabId)>& fits) const {
  const auto& slabs = checkpoint.memory->slabs;
  auto at = slabs.upper_bound(last_);
  for (size_t i = 0; i < std::min<size_t>(slabs.size(), kTries); ++i, ++at) {
    if (at == slabs.end()) at = slabs.begin();
    if (fits(at->first)) return at->first;
  }
  return 0;
}

// Takes what nobody holds of it out of memory. What is in storage too stays known; anything else is
// gone, and what a lease still holds of it lives as long as the lease.
void Eviction::Evict(Checkpoint* checkpoint) {
  CountEvicted(*checkpoint);
  if (!InStorage(*checkpoint)) return parts_.Erase(checkpoint);
  DropMemory(checkpoint);
}

// Once for each, however many parts of it go at a time.
void Eviction::CountEvicted(const Checkpoint& checkpoint) {
  if (checkpoint.content->condemned || (InStorage(checkpoint) && !checkpoint.Resident())) return;
  out_.Count("evicted_checkpoints");
  if (checkpoint.standing->evict_class == EvictClass::kOwes) out_.Count("evicted_unpersisted");
}

// In storage each part may go for itself. Elsewhere the others are of no use without it: the step is gone at
// once, whatever is left of it.
bool Eviction::GoesInParts(const Checkpoint& checkpoint) const {
  if (checkpoint.memory->slabs.empty()) return false;
  const StepContent& content = *checkpoint.content;
  if (InStorage(checkpoint) || content.condemned) return true;
  return content.complete && content.parts.size() > static_cast<size_t>(options_.given_up_whole) &&
         !checkpoint.files->persisting;
}

void Eviction::EvictSome(Checkpoint* checkpoint, bool soft, uint64_t bytes, SessionId session) {
  if (!GoesInParts(*checkpoint)) return Evict(checkpoint);
  const uint64_t evictable = checkpoint->standing->evictable_bytes;
  const uint64_t until = evictable - std::min(bytes, evictable);
  while (EvictFrom(checkpoint, NextThatMayGo(*checkpoint, soft, session)) &&
         checkpoint->memory->slab_bytes - checkpoint->memory->locked_bytes > until) {
  }
}

bool Eviction::EvictFrom(Checkpoint* checkpoint, SlabId slab) {
  if (!GoesInParts(*checkpoint)) {
    Evict(checkpoint);
    return false;
  }
  CountEvicted(*checkpoint);
  last_ = slab;
  if (!InStorage(*checkpoint)) {
    if (!checkpoint->content->condemned) parts_.Condemn(checkpoint);
    parts_.Erase(footprints_.PartIn(slab));
    if (checkpoint->memory->slab_bytes > checkpoint->memory->locked_bytes) return true;
    parts_.Erase(checkpoint);  // what is left is leased, or holds no object
    return false;
  }
  Part* part = footprints_.PartIn(slab);
  if (parts_.Free(part)) manifests_->Free(part);
  const Footprint& memory = *checkpoint->memory;
  if (memory.slab_bytes > memory.locked_bytes) return true;
  // Nothing else of it may go now: so do the tables, and the records of parts without objects.
  parts_.DropTable(part);
  const StepContent& content = *checkpoint->content;
  const auto left = static_cast<uint64_t>(content.committed) -
                    std::min<uint64_t>(content.without_table, checkpoint->absent_manifests->count);
  std::set<const Part*> held;
  for (const auto& [id, extents] : memory.slabs) held.insert(footprints_.PartIn(id));
  if (left > held.size()) DropMemory(checkpoint);
  return false;
}

// Of what may go: hard, one that nobody maps; soft, one that a session does, the asking one before others.
SlabId Eviction::NextThatMayGo(const Checkpoint& checkpoint, bool soft, SessionId session) const {
  if (soft && session != 0) {
    for (const SlabId id : leases_.MappedBy(session)) {
      const Part* part = footprints_.PartIn(id);
      if (part != nullptr && part->checkpoint == &checkpoint && !ledger_.Find(id)->Locked()) {
        return id;
      }
    }
  }
  const auto fits = [&](SlabId id) {
    const SlabRecord& slab = *ledger_.Find(id);
    return !slab.Locked() && (slab.mapper != 0) == soft;
  };
  if (const SlabId slab = FirstThat(checkpoint, fits); slab != 0) return slab;
  SlabId other = 0;
  for (const auto& [id, extents] : checkpoint.memory->slabs) {
    if (fits(id)) return id;
    if (other == 0 && !ledger_.Find(id)->Locked()) other = id;
  }
  return other;
}

void Eviction::DropMemory(Checkpoint* checkpoint) {
  for (const auto& [writer, part] : checkpoint->content->parts) {
    if (parts_.Free(part.get())) manifests_->Free(part.get());
  }
  parts_.DropTables(checkpoint);
}

}  // namespace cairn::engine
