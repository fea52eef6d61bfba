// Memory for creates. One verdict per step and node: the first create of a step asks for all that
// the node's writers are expected to save; admitted, the step gets what it needs; refused, it holds
// nothing. And the pool: which slabs to make before anyone waits for them.
//
// No wait here is without end: a step that holds something waits only for memory that comes by the
// engine's own doing, and every create has a deadline at which its whole step is refused.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/engine/impl.h"

namespace cairn::engine {
namespace {

// From this size on it is better to give up an old step that owes nothing than to fault in new
// memory on the save path (about 1 ms per MiB); below it, room in the budget keeps older steps
// loadable.
constexpr uint64_t kRecycleBytes = uint64_t{32} << 20;
constexpr int kRecycleTries = 8;
constexpr int kFailedMakes = 3;
constexpr MonotonicNanos kProvisionPause = 5 * kNanosPerSecond;
constexpr size_t kNamedHolders = 8;

}  // namespace

// --- the verdict

uint64_t Engine::Impl::Estimate(const Job& job, const event::Create& event,
                                const std::vector<Need>& needs, int32_t local_writers) const {
  uint64_t declared = 0;
  for (const Need& need : needs) declared += SlabBytesFor(need.bytes);
  const auto last = job.last_saves.find(event.part.writer);
  if (last != job.last_saves.end()) {
    const std::vector<std::string>& names = *last->second.names;
    const bool saved_before =
        std::all_of(event.objects.begin(), event.objects.end(), [&](const event::ObjectSpec& spec) {
          return std::binary_search(names.begin(), names.end(), spec.name);
        });
    if (saved_before) return std::max(declared, *last->second.node_total);
  }
  return declared * static_cast<uint64_t>(local_writers);
}

// What this job could have if it had to, beside what is leased, pinned, quarantined or a live job's
// newest.
uint64_t Engine::Impl::Available(const Job& job) const {
  Settle();
  const SlabOwner owner{job.owner_uid, job.name};
  return Coming() + ledger_.bytes_in(SlabState::kFree) + ledger_.idle_unmapped_bytes() +
         ledger_.making_unreserved_bytes() + ledger_.idle_mapped_bytes(owner) + evictable_total_ -
         (evictable_mapped_total_ - job.evictable_mapped);
}

void Engine::Impl::Admit(Parked* parked, Checkpoint* checkpoint) {
  if (checkpoint->admission == Admission::kNone) {
    const auto& event = std::get<event::Create>(parked->event);
    checkpoint->admission = Admission::kWaiting;
    checkpoint->admission_deadline = parked->deadline;
    checkpoint->estimate =
        Estimate(*checkpoint->job, event, parked->needs, checkpoint->local_writers);
  }
  if (checkpoint->admission == Admission::kWaiting) {
    uint64_t own = 0;
    for (const Need& need : parked->needs) own += SlabBytesFor(need.bytes);
    checkpoint->estimate = std::max(checkpoint->estimate, own);
    if (checkpoint->estimate > options_.budget_bytes) {
      return RefuseStep(checkpoint, FullStatus(*checkpoint->job, checkpoint->estimate,
                                               "the step can never fit the budget"));
    }
    // One deadline for all of the step's writers.
    deadlines_.erase({parked->deadline, parked->request});
    parked->deadline = std::min(parked->deadline, checkpoint->admission_deadline);
    deadlines_.insert({parked->deadline, parked->request});
  }
}

bool Engine::Impl::TryAdmit(Checkpoint* checkpoint) {
  const uint64_t available = Available(*checkpoint->job);
  const uint64_t wanted = checkpoint->estimate + reserved_total_;
  if (available < wanted) {
    // What other jobs' sessions keep mapped comes back only when they unmap it: ask them now.
    const SlabOwner owner{checkpoint->job->owner_uid, checkpoint->job->name};
    uint64_t lacking = wanted - available;
    lacking -= std::min(lacking, ledger_.RetireOthers(0, &owner, lacking));
    for (const EvictClass evict_class : {EvictClass::kGarbage, EvictClass::kOwesNothing,
                                         EvictClass::kOwes, EvictClass::kLastOfFinished}) {
      while (lacking > 0 && EvictOne(evict_class, /*soft=*/true, nullptr, checkpoint->job)) {
        lacking -= std::min(lacking, ledger_.RetireOthers(0, &owner, lacking));
      }
    }
    return Available(*checkpoint->job) >= wanted;
  }
  return true;
}

void Engine::Impl::Consume(Checkpoint* checkpoint, uint64_t bytes) {
  const uint64_t used = std::min(checkpoint->reserved, bytes);
  checkpoint->reserved -= used;
  reserved_total_ -= used;
}

void Engine::Impl::ReleaseReservation(Checkpoint* checkpoint) {
  Consume(checkpoint, checkpoint->reserved);
}

// The step holds nothing any more, and every writer of it hears the same.
void Engine::Impl::RefuseStep(Checkpoint* checkpoint, Status why) {
  Count("refused_steps");
  Log(1, absl::StrCat(checkpoint->key.DebugString(), " refused: ", why.message()));
  checkpoint->admission = Admission::kRefused;
  checkpoint->why = std::string(why.message());
  ReleaseReservation(checkpoint);
  const auto attempt = checkpoint->job->attempts.find(checkpoint->key.attempt);
  attempt->second.refused[{checkpoint->key.step, checkpoint->key.revision}] = why;
  for (RequestId request : std::set<RequestId>(checkpoint->waiting_creates)) {
    AnswerParked(request, why);
  }
  std::vector<Part*> open;
  for (const auto& [writer, part] : checkpoint->parts) {
    if (!part->committed && !part->committing) open.push_back(part.get());
  }
  RetractGrants(open, why);
  for (Part* part : open) ErasePart(part);
  MaybeEraseCheckpoint(checkpoint);
}

// A grant that this same event made has not left yet, and its extents are about to go: its caller
// hears the verdict. But what a session is lent, or told to unmap, it hears; its next call fails.
void Engine::Impl::RetractGrants(const std::vector<Part*>& parts, const Status& why) {
  const auto of_these = [&](const reply::GrantedExtent& extent) {
    return std::any_of(parts.begin(), parts.end(), [&](const Part* part) {
      return std::any_of(part->objects.begin(), part->objects.end(), [&](const auto& named) {
        const ExtentRef& held = named.second->extent;
        return held.slab == extent.slab && held.offset == extent.offset;
      });
    });
  };
  for (Action& action : out_.actions) {
    auto* reply = std::get_if<action::Reply>(&action);
    if (reply == nullptr || !reply->body.ok()) continue;
    const auto* create = std::get_if<reply::Create>(&*reply->body);
    if (create == nullptr || !create->lend.empty() || !create->retire.empty()) continue;
    if (std::any_of(create->extents.begin(), create->extents.end(), of_these)) reply->body = why;
  }
}

Status Engine::Impl::FullStatus(const Job& job, uint64_t wanted, absl::string_view what) const {
  uint64_t leased = 0, under_io = 0, mapped_elsewhere = 0, kept_by_pins = 0;
  for (const auto& [name, other] : jobs_) {
    for (const auto& [id, checkpoint] : other->checkpoints) {
      if (checkpoint->pinned) kept_by_pins += checkpoint->slab_bytes;
    }
  }
  std::set<int32_t> lease_pids, mapped_pids;
  std::vector<std::string> quarantined;
  std::vector<SlabId> ids;
  for (const auto& [id, slab] : ledger_.slabs()) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (SlabId id : ids) {
    const SlabRecord& slab = *ledger_.Find(id);
    if (slab.state == SlabState::kInUse && !slab.readers.empty()) {
      leased += slab.bytes;
      HoldersOf(slab, /*readers_only=*/true, &lease_pids);
    }
    if (slab.state == SlabState::kInUse && slab.pins > 0) under_io += slab.bytes;
    if (slab.state == SlabState::kIdle && slab.mapper != 0 && slab.owner.job != job.name) {
      mapped_elsewhere += slab.bytes;
      HoldersOf(slab, /*readers_only=*/false, &mapped_pids);
    }
    if (slab.state == SlabState::kQuarantined && quarantined.size() < kNamedHolders) {
      std::set<int32_t> pids;
      HoldersOf(slab, /*readers_only=*/false, &pids);
      quarantined.push_back(
          absl::StrCat(slab.bytes, " by ",
                       pids.empty() ? "an ended session" : "pid " + absl::StrJoin(pids, ", "),
                       " for ", (now_ - slab.since) / kNanosPerSecond, " s"));
    }
  }
  const auto pids = [](const std::set<int32_t>& set) {
    return set.empty() ? std::string() : absl::StrCat(" (pid ", absl::StrJoin(set, ", "), ")");
  };
  return absl::ResourceExhaustedError(
      absl::StrCat("memory: ", what, ": ", wanted, " bytes wanted, ", Available(job),
                   " available of a budget of ", options_.budget_bytes, "; in use ",
                   ledger_.bytes_in(SlabState::kInUse), ", of which leased ", leased,
                   pids(lease_pids), " and under I/O ", under_io, ", kept by pins ", kept_by_pins,
                   "; quarantined ", ledger_.bytes_in(SlabState::kQuarantined),
                   quarantined.empty() ? std::string()
                                       : absl::StrCat(" (", absl::StrJoin(quarantined, "; "), ")"),
                   "; mapped by other jobs ", mapped_elsewhere, pids(mapped_pids),
                   "; set aside for admitted steps ", reserved_total_));
}

// --- creates that wait

Engine::Impl::MemoryState Engine::Impl::MemoryNow() const {
  Settle();
  return {ledger_.version(),
          evictable_version_,
          reserved_total_,
          next_sequence_,
          persists_.size() + verifications_.size(),
          manifests_waiting_.size()};
}

void Engine::Impl::ServeWaiting() {
  // Room that creates before this one wait for is not this one's.
  uint64_t claimed = 0;
  std::vector<RequestId> waiting;
  for (const auto& [order, request] : waiting_creates_) waiting.push_back(request);
  for (RequestId request : waiting) {
    const auto at = parked_.find(request);
    if (at == parked_.end()) continue;  // refused with its step
    Parked* parked = at->second.get();
    Checkpoint* checkpoint = FindJob(parked->job)->checkpoints.at(parked->checkpoint).get();
    if (checkpoint->admission == Admission::kWaiting) {
      if (!TryAdmit(checkpoint)) {
        OweFinished();
        continue;
      }
      checkpoint->admission = Admission::kAdmitted;
      checkpoint->reserved = checkpoint->estimate;
      reserved_total_ += checkpoint->reserved;
    }
    Serve(parked, &claimed);
  }
}

void Engine::Impl::Serve(Parked* parked, uint64_t* claimed) {
  Checkpoint* checkpoint = FindJob(parked->job)->checkpoints.at(parked->checkpoint).get();
  Job* job = checkpoint->job;
  const SlabOwner owner{job->owner_uid, job->name};
  const SessionId session = parked->session;

  uint64_t unassigned = 0;
  for (const Need& need : parked->needs) {
    if (need.slab == 0) unassigned += SlabBytesFor(need.bytes);
  }
  // Beyond its own share a step may take what nobody else was promised.
  const uint64_t promised = reserved_total_ - checkpoint->reserved;
  const bool within_share = unassigned <= checkpoint->reserved;
  const bool affordable = within_share || Available(*job) >= unassigned + promised;

  bool ready = true;
  uint64_t lacking = 0;
  for (Need& need : parked->needs) {
    if (need.slab == 0 && affordable) {
      SlabRecord* slab = ledger_.Take(need.bytes, owner, session);
      if (slab == nullptr) slab = ledger_.TakeMaking(need.bytes);
      const uint64_t bytes = SlabBytesFor(need.bytes);
      const bool room = ledger_.Room() >= *claimed + bytes;
      if (slab == nullptr && (!room || need.bytes >= kRecycleBytes) &&
          Recycle(job, session, need.bytes)) {
        slab = ledger_.Take(need.bytes, owner, session);
      }
      if (slab == nullptr && room) {
        slab = MakeSlab(bytes, /*urgent=*/true, /*reserved=*/true);
        Count("slabs_made_on_demand");
      }
      if (slab != nullptr) {
        need.slab = slab->id;
        Consume(checkpoint, slab->bytes);
      }
    }
    if (need.slab == 0) {
      lacking += SlabBytesFor(need.bytes);
      ready = false;
    } else if (!need.ready) {
      need.ready = ledger_.Find(need.slab)->state != SlabState::kMaking;
      ready &= need.ready;
    }
  }
  if (ready) return Grant(parked);
  if (lacking == 0) return;  // all of it is being made

  *claimed += lacking;
  if (affordable && FreeMemory(job, session, *claimed)) return;
  // Evicting may have given this session slabs that fit, or slabs it must unmap first.
  if (MemoryNow() != served_) return;
  if (affordable && ledger_.HasRetired(session)) {
    reply::Create unmap_first;
    unmap_first.retire = ledger_.TellRetired(session);
    return AnswerParked(parked->request, Body(std::move(unmap_first)));
  }
  if (checkpoint->granted == 0 || ledger_.probing_bytes() > 0) return;
  // What it was promised may be under I/O for a while: that ends by itself.
  if (within_share && !(persists_.empty() && verifications_.empty())) return;
  RefuseStep(checkpoint,
             FullStatus(*job, lacking, "the step needs more than it was admitted with"));
}

void Engine::Impl::ReleaseNeeds(Parked* parked) {
  for (Need& need : parked->needs) {
    if (need.slab == 0) continue;
    if (SlabRecord* slab = ledger_.Find(need.slab)) ledger_.Unreserve(slab);
    need.slab = 0;
    need.ready = false;
  }
}

// --- freeing memory

uint64_t Engine::Impl::Coming() const {
  return ledger_.Room() + ledger_.bytes_in(SlabState::kDying) + ledger_.probing_bytes();
}

// In the order of EvictClass, and within a class first what comes back by itself. What the asking
// session has mapped itself comes next, for it hears of it in the answer to this very create; other
// sessions are asked last.
bool Engine::Impl::FreeMemory(const Job* job, SessionId session, uint64_t wanted) {
  uint64_t retiring = 0;
  const auto lacking = [&] { return wanted - std::min(wanted, Coming() + retiring); };
  const auto retire_own = [&] {
    if (session != 0 && Coming() < wanted) retiring = ledger_.Retire(session, wanted - Coming());
  };
  for (const EvictClass evict_class : {EvictClass::kGarbage, EvictClass::kOwesNothing,
                                       EvictClass::kOwes, EvictClass::kLastOfFinished}) {
    if (evict_class == EvictClass::kOwes) retire_own();
    while (lacking() > 0) {
      if (ledger_.DestroyOldest() > 0) continue;
      if (EvictOne(evict_class, /*soft=*/false, nullptr, nullptr)) continue;
      if (session == 0 || !EvictOne(evict_class, /*soft=*/true, job, nullptr)) break;
      retire_own();
    }
  }
  while (lacking() > 0) {
    if (ledger_.RetireOthers(session, nullptr, lacking()) >= lacking()) break;
    bool evicted = false;
    for (const EvictClass evict_class : {EvictClass::kGarbage, EvictClass::kOwesNothing,
                                         EvictClass::kOwes, EvictClass::kLastOfFinished}) {
      evicted = evicted || EvictOne(evict_class, /*soft=*/true, nullptr, nullptr);
    }
    if (!evicted) break;
  }
  return Coming() >= wanted;
}

// Gives up the next checkpoint of a class. Hard: one of whose memory some comes back by itself.
// Soft: one that is mapped by sessions. Those with a lease on some object go last: the rest of them
// gains less.
bool Engine::Impl::EvictOne(EvictClass evict_class, bool soft, const Job* only, const Job* except) {
  Settle();
  for (const bool partly : {false, true}) {
    for (auto at = evictable_.lower_bound({evict_class, 0});
         at != evictable_.end() && at->first.first == evict_class; ++at) {
      Checkpoint* checkpoint = at->second;
      if ((checkpoint->locked_bytes > 0) != partly) continue;
      if ((only != nullptr && checkpoint->job != only) || checkpoint->job == except) continue;
      const uint64_t hard = checkpoint->counted_evictable - checkpoint->counted_evictable_mapped;
      if (soft ? checkpoint->counted_evictable_mapped == 0 : hard == 0) continue;
      Evict(checkpoint);
      return true;
    }
  }
  return false;
}

bool Engine::Impl::Recycle(Job* job, SessionId session, uint64_t need) {
  Settle();
  int tries = 0;
  for (const auto& [evict_class, id] : job->evictable) {
    if (evict_class > EvictClass::kOwesNothing || ++tries > kRecycleTries) return false;
    Checkpoint* checkpoint = job->checkpoints.at(id).get();
    for (const auto& [slab_id, extents] : checkpoint->slabs) {
      const SlabRecord& slab = *ledger_.Find(slab_id);
      if (slab.bytes < need || slab.bytes > LargestFit(need) || slab.Locked() || slab.by_path)
        continue;
      if (slab.mapper != session && (slab.mapper != 0 || !slab.clean)) continue;
      Count("recycled_steps");
      Evict(checkpoint);
      return true;
    }
  }
  return false;
}

// --- the pool

SlabRecord* Engine::Impl::MakeSlab(uint64_t bytes, bool urgent, bool reserved) {
  return ledger_.Make(NextId(), bytes, urgent, reserved);
}

void Engine::Impl::RememberSaves(const Checkpoint& checkpoint) {
  auto node_total = std::make_shared<uint64_t>(0);
  for (const auto& [writer, part] : checkpoint.parts) {
    if (checkpoint.job->last_saves.contains(writer)) continue;
    LastSave& last = checkpoint.job->last_saves[writer];
    auto names = std::make_shared<std::vector<std::string>>();
    event::Create as_created;
    for (const auto& [name, object] : part->objects) {
      names->push_back(name);
      as_created.objects.push_back({name, object->entry.length, object->entry.kind, false});
    }
    for (const Need& need : PlanNeeds(as_created)) last.slabs.push_back(SlabBytesFor(need.bytes));
    std::sort(last.slabs.begin(), last.slabs.end());
    for (uint64_t bytes : last.slabs) *node_total += bytes;
    last.names = std::move(names);
    last.node_total = node_total;
  }
}

void Engine::Impl::Provision(Job* job, SessionId session, Writer writer, int times) {
  const auto last = job->last_saves.find(writer);
  if (last == job->last_saves.end() || now_ < provision_at_ || !waiting_creates_.empty() ||
      draining_ || !safe_mode_.empty()) {
    return;
  }
  std::vector<uint64_t> ready = ledger_.ReadyFor(SlabOwner{job->owner_uid, job->name}, session);
  for (int i = 0; i < times; ++i) {
    // Both ascend: each size takes the first ready slab that fits it.
    std::vector<uint64_t> left;
    auto next = ready.begin();
    for (uint64_t bytes : last->second.slabs) {
      while (next != ready.end() && *next < bytes) left.push_back(*next++);
      if (next != ready.end() && *next <= LargestFit(bytes)) {
        ++next;
        continue;
      }
      if (ledger_.Room() < bytes) return;
      MakeSlab(bytes, /*urgent=*/false, /*reserved=*/false);
    }
    left.insert(left.end(), next, ready.end());
    ready = std::move(left);
  }
}

void Engine::Impl::On(const event::SlabMade& event) {
  if (!ledger_.OnMade(event.slab, event.status)) return;
  const bool for_manifests = manifest_slabs_coming_.erase(event.slab) > 0;
  if (event.status.ok()) {
    if (for_manifests) manifest_slabs_[event.slab];
    return;
  }
  Count("slabs_not_made");
  provision_at_ = now_ + kProvisionPause;
  Log(1, absl::StrCat("slab ", event.slab, " was not made: ", event.status.message()));
  for (const auto& [order, request] : std::map<uint64_t, RequestId>(waiting_creates_)) {
    const auto at = parked_.find(request);
    if (at == parked_.end()) continue;
    for (Need& need : at->second->needs) {
      if (need.slab != event.slab) continue;
      need.slab = 0;
      if (++at->second->failed_makes < kFailedMakes) break;
      RefuseStep(FindJob(at->second->job)->checkpoints.at(at->second->checkpoint).get(),
                 absl::ResourceExhaustedError(
                     absl::StrCat("memory: no slab could be made: ", event.status.message())));
      return;
    }
  }
}

void Engine::Impl::On(const event::SlabDestroyed& event) { ledger_.OnDestroyed(event.slab); }

}  // namespace cairn::engine
