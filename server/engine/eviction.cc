#include "server/engine/eviction.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/engine/evict_class.h"
#include "server/engine/manifests.h"

namespace cairn::engine {
namespace {

constexpr int kRecycleTries = 8;
constexpr int kSlabsTried = 64;  // of a step's slabs, for one that may go
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
         standing_.gain().bytes -
         (standing_.gain().mapped_bytes - job.standing->evictable_mapped_bytes);
}

uint64_t Eviction::ShareLeft(const Job& job) const {
  const uint32_t uid = job.owner->uid;
  if (options_.Unlimited(uid)) return options_.budget_bytes;
  const Gain gain = standing_.gain_of(uid);
  const uint64_t comes_back = gain.bytes - gain.uncharged_bytes -
                              (gain.mapped_bytes - job.standing->evictable_mapped_bytes) +
                              ledger_.idle_mapped_bytes({uid, job.name}) +
                              ledger_.coming_to(uid).bytes;
  const uint64_t held = ledger_.held_by(uid);
  const uint64_t kept = held - std::min(held, comes_back) + ledger_.promised_to(uid);
  const uint64_t share = options_.MemoryOf(uid);
  return share - std::min(share, kept);
}

uint64_t Eviction::ShareMappedElsewhere(const Job& job) const {
  const uint32_t uid = job.owner->uid;
  return standing_.gain_of(uid).mapped_bytes - job.standing->evictable_mapped_bytes +
         ledger_.idle_mapped_of(uid).bytes - ledger_.idle_mapped_bytes({uid, job.name});
}

// All that he holds counts: what can be taken from him now, a pin or a reader may keep a moment later.
bool Eviction::HasShare(const Job& job, uint64_t bytes, int64_t slabs) const {
  const uint32_t uid = job.owner->uid;
  if (options_.Unlimited(uid)) return true;
  return ledger_.held_by(uid) + bytes <= options_.MemoryOf(uid) &&
         ledger_.slabs_of(uid) + slabs <= options_.OfUser(options_.max_slabs, uid);
}

bool Eviction::HasShareForRecord(const Job& job, uint64_t bytes) const {
  const uint32_t uid = job.owner->uid;
  if (options_.Unlimited(uid)) return true;
  const uint64_t share = options_.MemoryOf(uid);
  return ledger_.held_by(uid) + bytes <= share + (options_.budget_bytes - share) / 2;
}

// The order is that of Free. What is being probed, and what the session is asked to unmap, counts as if it
// had come back: nothing more is given up for it. What other sessions are asked for may not come.
bool Eviction::FreeShare(const Job& job, SessionId session, uint64_t bytes, int64_t slabs) {
  const uint32_t uid = job.owner->uid;
  const int64_t share_slabs = options_.OfUser(options_.max_slabs, uid);
  // Nothing is given up for what cannot be had all the same.
  const Gain gain = standing_.gain_of(uid);
  const Ledger::Held idle = ledger_.idle_mapped_of(uid), back_soon = ledger_.coming_to(uid);
  const uint64_t could_go =
      gain.bytes - gain.uncharged_bytes + gain.record_bytes + idle.bytes + back_soon.bytes;
  if (ledger_.held_by(uid) + bytes > options_.MemoryOf(uid) + could_go) return false;
  const int64_t slabs_back = gain.slabs - gain.uncharged_slabs + idle.slabs + back_soon.slabs;
  if (ledger_.slabs_of(uid) + slabs > share_slabs + slabs_back) return false;
  Lacks lacks;
  lacks.session = session;
  lacks.lacking = [&, share = options_.MemoryOf(uid)]() -> Ledger::Held {
    const Ledger::Held coming = ledger_.coming_to(uid), retired = ledger_.retired_of(session);
    const uint64_t held = ledger_.held_by(uid) + bytes, back = coming.bytes + retired.bytes;
    const uint64_t wanted = held - std::min(held, back);
    const int64_t wanted_slabs = ledger_.slabs_of(uid) + slabs - coming.slabs - retired.slabs;
    return {wanted - std::min(wanted, share), std::max(wanted_slabs - share_slabs, int64_t{0})};
  };
  lacks.give_up = [&](EvictClass evict_class, uint64_t wanted) {
    return EvictOne(evict_class, /*soft=*/false, wanted, session, {.uid = uid});
  };
  GiveUp(job, lacks);
  for (int i = 0; i < kAtOnce && lacks.lacking().bytes > 0; ++i) {
    Checkpoint* checkpoint = standing_.FirstOfOnlyRecords(uid);
    if (checkpoint == nullptr) break;
    Evict(checkpoint);
  }
  while (lacks.Any()) {
    const Ledger::Held wanted = lacks.lacking();
    const Ledger::Held asked = ledger_.RetireOfUser(uid, session, wanted);
    if (asked.bytes >= wanted.bytes && asked.slabs >= wanted.slabs) break;
    const bool evicted =
        std::any_of(std::begin(kEvictClasses), std::end(kEvictClasses), [&](EvictClass of) {
          return EvictOne(of, /*soft=*/true, lacks.Bytes(), session, {.uid = uid});
        });
    if (!evicted) break;
  }
  return HasShare(job, bytes, slabs);
}

// Class by class; what the session has mapped itself comes before a step that owes a file.
void Eviction::GiveUp(const Job& job, const Lacks& lacks) {
  for (const EvictClass evict_class : kEvictClasses) {
    if (evict_class == EvictClass::kOwes) ledger_.RetireMore(lacks.session, lacks.lacking());
    while (lacks.Any()) {
      if (lacks.give_up(evict_class, lacks.Bytes())) continue;
      const Ledger::Held before = lacks.lacking();
      const Whose own = {.only = &job, .uid = job.owner->uid};
      if (lacks.session == 0 ||
          !EvictOne(evict_class, /*soft=*/true, lacks.Bytes(), lacks.session, own)) {
        break;
      }
      ledger_.RetireMore(lacks.session, lacks.lacking());
      if (lacks.lacking() == before) break;  // it is others that map it
    }
  }
}

bool Eviction::FreeSlabs(const Job& job, SessionId session, int64_t more) {
  int left = kAtOnce;
  Lacks lacks;
  lacks.session = session;
  lacks.lacking = [&]() -> Ledger::Held {
    const int64_t back = ledger_.probing_slabs() + ledger_.retired_of(session).slabs;
    return {0, std::max(ledger_.live_slabs() + more - back - options_.max_slabs, int64_t{0})};
  };
  lacks.give_up = [&](EvictClass evict_class, uint64_t wanted) {
    if (left-- <= 0) return false;
    if (ledger_.DestroyOldest() > 0) return true;
    const std::optional<uint32_t> greedy = ledger_.GreediestForSlabs();
    return (greedy.has_value() &&
            EvictOne(evict_class, /*soft=*/false, wanted, 0, {.uid = greedy})) ||
           EvictOne(evict_class, /*soft=*/false, wanted, 0, {});
  };
  if (lacks.Any()) GiveUp(job, lacks);
  return ledger_.live_slabs() + more <= options_.max_slabs;
}

uint64_t Eviction::MappedElsewhere(const Job& job) const {
  standing_.Settle();
  const SlabOwner owner{job.owner->uid, job.name};
  return ledger_.idle_mapped_bytes() - ledger_.idle_mapped_bytes(owner) +
         ledger_.bytes_in(SlabState::kQuarantined) - ledger_.probing_bytes() -
         ledger_.overdue().bytes + standing_.gain().mapped_bytes -
         job.standing->evictable_mapped_bytes;
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
      if (EvictOne(evict_class, /*soft=*/false, lacking(), session, {})) continue;
      const uint64_t before = lacking();
      if (session == 0 || !EvictOne(evict_class, /*soft=*/true, before, session, {.only = job})) {
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
      evicted = evicted || EvictOne(evict_class, /*soft=*/true, lacking(), session, {});
    }
    if (!evicted) break;
  }
  return Coming() >= wanted;
}

bool Eviction::EvictOne(EvictClass evict_class, bool soft, uint64_t wanted, SessionId session,
                        const Whose& whose) {
  // The rest of one that was condemned just now goes before another one is.
  Checkpoint* checkpoint = standing_.FirstEvictable(EvictClass::kGarbage, soft, whose);
  const bool anybody = whose.only == nullptr && !whose.uid.has_value();
  if (const auto greedy = ledger_.Greediest(); checkpoint == nullptr && anybody && greedy) {
    checkpoint =
        standing_.FirstEvictable(evict_class, soft, {.except = whose.except, .uid = greedy});
  }
  if (checkpoint == nullptr) checkpoint = standing_.FirstEvictable(evict_class, soft, whose);
  if (checkpoint == nullptr) return false;
  EvictSome(checkpoint, soft, wanted, session);
  return true;
}

void Eviction::MakeJournalRoom(uint32_t uid, const JournalRoom& journal, uint64_t bytes) {
  if (journal.OverShare(uid, bytes, standing_.gain_of(uid).journal_bytes)) return;
  for (int i = 0; i < kAtOnce && journal.OverShare(uid, bytes); ++i) {
    Checkpoint* checkpoint = standing_.FirstEvictable(uid);
    if (checkpoint == nullptr) return;
    Evict(checkpoint);
  }
}

bool Eviction::EvictAny(std::optional<uint32_t> uid) {
  Checkpoint* checkpoint = uid.has_value() ? standing_.FirstEvictable(*uid) : nullptr;
  if (checkpoint == nullptr) checkpoint = standing_.FirstEvictable();
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
           !slab.for_peers && !slab.by_path && !slab.condemned &&
           (slab.mapper == session || (slab.mapper == 0 && slab.clean));
  };
  int tries = 0;
  for (const auto& [evict_class, id] : standing_.EvictableOf(*job)) {
    if (evict_class > up_to || ++tries > kRecycleTries) return false;
    Checkpoint* checkpoint = CheckpointOf(*job, id);
    if (up_to == EvictClass::kGarbage && checkpoint->Complete()) continue;
    SlabId slab = 0;
    if (const Part* own = Parts::PartOf(*checkpoint, writer)) {
      for (const auto& [id_of_own, objects] : own->content->slabs) {
        if (slab == 0 && fits(id_of_own)) slab = id_of_own;
      }
    }
    if (slab == 0) slab = FirstThat(*checkpoint, fits);
    if (slab == 0) {
      // Else younger steps would go in its place for ever, and the slab would never be empty.
      const SlabId condemned = FirstThat(*checkpoint, [&](SlabId candidate) {
        const SlabRecord& of = *ledger_.Find(candidate);
        return of.condemned && !of.Locked() && of.bytes >= need && of.bytes <= LargestFit(need);
      });
      if (condemned == 0) continue;
      EvictFrom(checkpoint, condemned);
      return false;
    }
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
  for (size_t i = 0; i < std::min<size_t>(slabs.size(), kSlabsTried); ++i, ++at) {
    if (at == slabs.end()) at = slabs.begin();
    if (fits(at->first)) return at->first;
  }
  return 0;
}

// Takes what nobody holds of it out of memory. What is in storage too stays known; anything else is
// gone, and what a lease still holds of it lives as long as the lease.
void Eviction::Evict(Checkpoint* checkpoint) {
  CountEvicted(*checkpoint);
  if (!InStorage(*checkpoint)) return parts_.EraseHere(checkpoint);
  DropMemory(checkpoint);
}

// Once for each, however many parts of it go at a time.
void Eviction::CountEvicted(const Checkpoint& checkpoint) {
  if (checkpoint.content->condemned || (InStorage(checkpoint) && !checkpoint.Resident())) return;
  out_.Count("evicted_checkpoints");
  if (checkpoint.standing->evict_class == EvictClass::kOwes) out_.Count("evicted_unpersisted");
}

// Of what storage or other members have each part may go for itself. Else the others are of no use without it: the
// step is gone at once, whatever is left of it.
bool Eviction::GoesInParts(const Checkpoint& checkpoint) const {
  if (checkpoint.memory->slabs.empty()) return false;
  const StepContent& content = *checkpoint.content;
  if (InStorage(checkpoint) || content.condemned) return true;
  const bool whole = content.complete || checkpoint.RingHasIt();
  return whole && content.parts.size() > static_cast<size_t>(options_.given_up_whole) &&
         !checkpoint.files->persisting;
}

void Eviction::EvictSome(Checkpoint* checkpoint, bool soft, uint64_t bytes, SessionId session) {
  if (!GoesInParts(*checkpoint)) return Evict(checkpoint);
  const uint64_t evictable = checkpoint->standing->gain.bytes;
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
    if (checkpoint->RingHasIt()) {
      parts_.NoLongerWhole(checkpoint);
    } else if (!checkpoint->content->condemned) {
      parts_.Condemn(checkpoint);
    }
    parts_.Erase(footprints_.PartIn(slab));
    if (checkpoint->memory->slab_bytes > checkpoint->memory->locked_bytes) return true;
    parts_.EraseHere(checkpoint);  // what is left is leased, or holds no object
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
                    std::min<uint64_t>(content.without_table, checkpoint->manifests->absent);
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
