// One file: how creates wait for memory, are served, and cease to wait is one queue.
#include "server/engine/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/human_bytes.h"
#include "server/engine/evict_class.h"
#include "server/engine/own_parts.h"

namespace cairn::engine {
namespace {

// From this size on it is better to give up an old step that owes nothing than to fault in new
// memory on the save path (about 1 ms per MiB); below it, free budget keeps older steps loadable.
constexpr uint64_t kRecycleBytes = uint64_t{32} << 20;
constexpr absl::string_view kNotGivenUp =
    "a consumer has not given up standing mappings within 10 s";
constexpr int kFailedMakes = 3;
constexpr size_t kNamedHolders = 8;
constexpr uint64_t kLittleBesideRoom = 16;  // one part in so many
// Of one user's steps that wait so many are looked at, each time that there may be memory.
constexpr int kTriesInVain = 64;
constexpr int kRefusalsLogged = 20;  // in a second

SlabOwner OwnerOf(const Job& job) { return {job.owner->uid, job.name}; }

std::string Pids(const std::set<int32_t>& pids) {
  return pids.empty() ? std::string() : absl::StrCat(" (pid ", absl::StrJoin(pids, ", "), ")");
}

}  // namespace

Admission::Admission(const Options& options, Outbox* out, Callers* callers, Jobs* jobs,
                     Ledger* ledger, const Sessions* sessions, Leases* leases, Attempts* attempts,
                     Parts* parts, Standing* standing, Eviction* eviction, JournalRoom* journal)
    : options_(options),
      out_(*out),
      callers_(*callers),
      jobs_(*jobs),
      ledger_(*ledger),
      sessions_(*sessions),
      leases_(*leases),
      attempts_(*attempts),
      parts_(*parts),
      standing_(*standing),
      eviction_(*eviction),
      journal_(*journal) {}

Admission::~Admission() = default;

// --- the verdict

uint64_t Admission::Estimate(const Job& job, const event::Create& event,
                             const std::vector<Need>& needs, int32_t local_writers) const {
  const uint64_t declared = SlabBytesFor(needs) + event.to_come.bytes;
  const auto last = job.saves->last.find(event.part.writer);
  if (last != job.saves->last.end()) {
    const std::shared_ptr<const PartTable> table = last->second.table.lock();
    const bool saved_before =
        table != nullptr && !event.objects.empty() &&
        std::all_of(event.objects.begin(), event.objects.end(), [&](const event::ObjectSpec& spec) {
          return table->Find(spec.name) != PartTable::kNone;
        });
    if (saved_before) {
      const std::shared_ptr<uint64_t>& total = last->second.node_total;
      return std::max(declared, total != nullptr ? *total : LastOfThoseHere(job));
    }
  }
  const uint64_t writers = static_cast<uint64_t>(local_writers);
  return declared > kUnmeetable / writers ? kUnmeetable : declared * writers;
}

uint64_t Admission::LastOfThoseHere(const Job& job) const {
  std::set<Writer> here;
  for (const SessionId id : job.sessions->all) here.insert(sessions_.Find(id)->writer);
  uint64_t bytes = 0;
  for (const Writer writer : here) {
    const auto last = job.saves->last.find(writer);
    if (last == job.saves->last.end()) continue;
    for (const uint64_t slab : last->second.slabs) bytes += slab;
  }
  return bytes;
}

void Admission::Ask(const event::Create& event, Checkpoint* checkpoint, int32_t local_writers) {
  const RequestId request = event.caller.request;
  {
    Verdict& verdict = checkpoint->verdict.Edit();
    verdict.local_writers = std::max(verdict.local_writers, local_writers);
  }
  if (!callers_.Park(this, event.caller, checkpoint->key.job, event.deadline, event)) {
    return parts_.EraseIfEmpty(checkpoint);
  }
  Waiting& waiting = creates_[request];
  waiting.checkpoint = checkpoint->key;
  waiting.needs = PlanNeeds(event.objects);
  waiting.unassigned = waiting.unready = waiting.needs.size();
  waiting.order = next_order_++;
  Part* part = Parts::PartOf(*checkpoint, event.part.writer);
  waiting.journal_bytes = Parts::JournalCostOf(event, part);
  waiting.writer = event.part.writer;
  waiting.creates = parts_.creates();
  if (part != nullptr) {
    waiting.taken = std::min(part->content->journal_to_come, waiting.journal_bytes);
    parts_.TakeSetAside(part, waiting.taken);
  }
  journal_bytes_ += waiting.journal_bytes;
  waiting.uid = event.caller.uid;
  journal_.Reserve(waiting.uid, waiting.journal_bytes);
  ++queue_version_;
  order_[waiting.order] = request;
  Verdict& verdict = checkpoint->verdict.Edit();
  verdict.waiting.insert(request);
  if (verdict.state == Admitted::kNone) {
    verdict.state = Admitted::kWaiting;
    verdict.deadline = event.deadline;
    verdict.estimate = Estimate(*checkpoint->job, event, waiting.needs, verdict.local_writers);
    // What a dead daemon granted to other writers of the step.
    verdict.estimate -= std::min(verdict.estimate, verdict.granted);
  }
  // Before anything is evicted for it. A step that was admitted may ask for more, too.
  const uint64_t declared = SlabBytesFor(waiting.needs) + event.to_come.bytes;
  if (verdict.state == Admitted::kWaiting) verdict.estimate = std::max(verdict.estimate, declared);
  const uint64_t wanted = verdict.state == Admitted::kWaiting ? verdict.estimate : declared;
  if (wanted > options_.budget_bytes) {
    return Refuse(checkpoint, Full(*checkpoint->job, wanted, "the step can never fit the budget"));
  }
  if (wanted > options_.MemoryOf(checkpoint->job->owner->uid)) {
    return Refuse(checkpoint,
                  Full(*checkpoint->job, wanted, "the step can never fit what one user may have"));
  }
  const int64_t slabs = options_.OfUser(options_.max_slabs, checkpoint->job->owner->uid);
  if (waiting.needs.size() > static_cast<size_t>(slabs)) {
    return Refuse(checkpoint, absl::ResourceExhaustedError(
                                  absl::StrCat("slabs: the create needs ", waiting.needs.size(),
                                               ", one user may have ", slabs)));
  }
  if (verdict.state == Admitted::kAdmitted) return ReserveMore(checkpoint, wanted);
  if (verdict.state != Admitted::kWaiting) return;
  // One deadline for all of the step's writers.
  callers_.SetDeadline(request, std::min(event.deadline, verdict.deadline));
}

// For what the step asks for beyond its share, as far as nobody else was promised it.
void Admission::ReserveMore(Checkpoint* checkpoint, uint64_t wanted) {
  Verdict& verdict = checkpoint->verdict.Edit();
  if (verdict.reserved >= wanted) return;
  Reserve(checkpoint, std::min(wanted - verdict.reserved, Unpromised(*checkpoint->job)));
}

void Admission::Reserve(Checkpoint* checkpoint, uint64_t bytes) {
  if (bytes == 0) return;
  checkpoint->verdict.Edit().reserved += bytes;
  reserved_bytes_ += bytes;
  ledger_.Promise(checkpoint->job->owner->uid, bytes);
  reserving_.insert(checkpoint->key);
}

bool Admission::TryAdmit(Checkpoint* checkpoint) {
  const Job& job = *checkpoint->job;
  const uint64_t estimate = checkpoint->verdict->estimate;
  if (Unpromised(job) >= estimate) return true;
  const uint64_t available = eviction_.Available(job);
  const uint64_t wanted = estimate + reserved_bytes_;
  const uint64_t share = eviction_.ShareLeft(job);
  // Other jobs' steps are given up only when that helps: where it cannot suffice, the step waits for
  // memory that others free, and is refused with the arithmetic at its deadline.
  if (available + eviction_.MappedElsewhere(job) < wanted) return false;
  if (share + eviction_.ShareMappedElsewhere(job) < estimate) return false;
  // What other jobs' sessions keep mapped comes back only when they unmap it: ask them now.
  if (share < estimate) AskToUnmap(job, estimate - share, job.owner->uid);
  if (available < wanted) AskToUnmap(job, wanted - available, std::nullopt);
  return Unpromised(job) >= estimate;
}

bool Admission::ConsumersKeep(const Job& job, uint64_t wanted, uint64_t of_user) const {
  // Of the user's own: for what another's consumers keep nobody is refused who would have waited. Nor while anything else
  // may still come.
  const uint64_t overdue = ledger_.overdue_of(job.owner->uid).bytes;
  if (overdue == 0 || ledger_.probing_bytes() > 0 || ledger_.kept_by_standing().bytes > 0 ||
      under_io_() > 0) {
    return false;
  }
  const uint64_t available = eviction_.Available(job), share = eviction_.ShareLeft(job);
  return (available < wanted || share < of_user) && available + overdue >= wanted &&
         share + overdue >= of_user;
}

void Admission::AskToUnmap(const Job& job, uint64_t lacking, std::optional<uint32_t> uid) {
  const SlabOwner owner = OwnerOf(job);
  // What the user's own consumers are about to give back needs nobody's steps. Another's may come or not: his could keep
  // others from ever asking anybody.
  if (!uid.has_value()) {
    lacking -= std::min(lacking, ledger_.kept_by_standing_of(job.owner->uid).bytes);
  }
  lacking -= std::min(lacking, ledger_.RetireOthers(0, &owner, lacking, uid));
  for (const EvictClass evict_class : kEvictClasses) {
    while (lacking > 0 && eviction_.EvictOne(evict_class, /*soft=*/true, lacking, 0,
                                             {.except = &job, .uid = uid})) {
      lacking -= std::min(lacking, ledger_.RetireOthers(0, &owner, lacking, uid));
    }
  }
}

uint64_t Admission::Unpromised(const Job& job) const {
  const uint64_t available = eviction_.Available(job);
  return std::min(available - std::min(available, reserved_bytes_), eviction_.ShareLeft(job));
}

void Admission::Consume(Checkpoint* checkpoint, uint64_t bytes) {
  Verdict& verdict = checkpoint->verdict.Edit();
  const uint64_t used = std::min(verdict.reserved, bytes);
  verdict.reserved -= used;
  reserved_bytes_ -= used;
  ledger_.Unpromise(checkpoint->job->owner->uid, used);
  if (verdict.reserved == 0) reserving_.erase(checkpoint->key);
}

void Admission::Release(Checkpoint* checkpoint) {
  if (checkpoint->verdict->reserved > 0) Consume(checkpoint, checkpoint->verdict->reserved);
}

void Admission::ReleaseGivenUp() {
  for (const CheckpointKey& key : std::set<CheckpointKey>(reserving_)) {
    Checkpoint* checkpoint = parts_.Find(key);
    if (GivenUp(*checkpoint)) Release(checkpoint);
  }
}

// A client that is refused asks again; the counter has all of them.
void Admission::LogRefusal(const Checkpoint& checkpoint, const Status& why) {
  if (out_.now() - refusals_since_ >= kNanosPerSecond) {
    refusals_since_ = out_.now();
    refusals_logged_ = 0;
  }
  if (++refusals_logged_ > kRefusalsLogged) return;
  const bool last = refusals_logged_ == kRefusalsLogged;
  out_.Log(Severity::kWarning,
           absl::StrCat(checkpoint.key.DebugString(), " refused: ", why.message(),
                        last ? "; more that follow within a second are not logged" : ""));
}

void Admission::Refuse(Checkpoint* checkpoint, Status why) {
  out_.Count("refused_steps");
  LogRefusal(*checkpoint, why);
  Verdict& verdict = checkpoint->verdict.Edit();
  verdict.state = Admitted::kRefused;
  verdict.why = std::string(why.message());
  Release(checkpoint);
  attempts_.Refuse(checkpoint->job, checkpoint->key, why);
  for (RequestId request : std::set<RequestId>(verdict.waiting)) callers_.Answer(request, why);
  std::vector<Part*> open;
  for (const auto& [writer, part] : checkpoint->content->parts) {
    if (!part->content->committed && !part->manifest->committing) open.push_back(part.get());
  }
  ReplaceGrants(open, why);
  for (Part* part : open) parts_.Erase(part);
  parts_.EraseIfEmpty(checkpoint);
}

// If this event already queued a create reply for one of `parts`, the refusal replaces it. Replies
// that lend or retire slabs must still be delivered; that caller's next call fails.
void Admission::ReplaceGrants(const std::vector<Part*>& parts, const Status& why) {
  const auto lies_in = [&](const reply::GrantedExtent& extent) {
    return std::any_of(parts.begin(), parts.end(), [&](const Part* part) {
      return part->content->slabs.contains(extent.slab);
    });
  };
  out_.ReplaceAnswers(
      [&](const Body& body) {
        const auto* create = std::get_if<reply::Create>(&body);
        return create != nullptr && create->lend.empty() && create->retire.empty() &&
               std::any_of(create->extents.begin(), create->extents.end(), lies_in);
      },
      why);
}

Status Admission::Full(const Job& job, uint64_t wanted, absl::string_view what) const {
  uint64_t leased = 0, under_io = 0, mapped_elsewhere = 0, kept_by_pins = 0;
  for (const auto& [name, other] : jobs_.all()) {
    for (const auto& [id, checkpoint] : other->steps->all) {
      if (*checkpoint->pinned) kept_by_pins += checkpoint->memory->slab_bytes;
    }
  }
  std::set<int32_t> lease_pids, mapped_pids;
  std::vector<std::string> quarantined;
  std::map<SlabId, const SlabRecord*> slabs;
  for (const auto& [id, slab] : ledger_.slabs()) slabs[id] = &slab;
  for (const auto& [id, slab] : slabs) {
    if (slab->state == SlabState::kInUse && !slab->readers.empty()) {
      leased += slab->bytes;
      leases_.HoldersOf(*slab, /*readers_only=*/true, &lease_pids);
    }
    if (slab->state == SlabState::kInUse && slab->pins > 0) under_io += slab->bytes;
    if (slab->state == SlabState::kIdle && slab->mapper != 0 && slab->owner.job != job.name) {
      mapped_elsewhere += slab->bytes;
      leases_.HoldersOf(*slab, /*readers_only=*/false, &mapped_pids);
    }
    if (slab->state == SlabState::kQuarantined && quarantined.size() < kNamedHolders) {
      std::set<int32_t> pids;
      leases_.HoldersOf(*slab, /*readers_only=*/false, &pids);
      quarantined.push_back(
          absl::StrCat(HumanBytes(slab->bytes), " by ",
                       pids.empty() ? "an ended session" : "pid " + absl::StrJoin(pids, ", "),
                       " for ", (out_.now() - slab->since) / kNanosPerSecond, " s"));
    }
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory: ", what, ": ", HumanBytes(wanted), " wanted, ", HumanBytes(eviction_.Available(job)),
      " available of a budget of ", HumanBytes(options_.budget_bytes), "; in use ",
      HumanBytes(ledger_.bytes_in(SlabState::kInUse)), ", of which leased ", HumanBytes(leased),
      Pids(lease_pids), " and under I/O ", HumanBytes(under_io), ", kept by pins ",
      HumanBytes(kept_by_pins), "; quarantined ",
      HumanBytes(ledger_.bytes_in(SlabState::kQuarantined)),
      quarantined.empty() ? std::string()
                          : absl::StrCat(" (", absl::StrJoin(quarantined, "; "), ")"),
      "; mapped by other jobs ", HumanBytes(mapped_elsewhere), Pids(mapped_pids),
      "; set aside for admitted steps ", HumanBytes(reserved_bytes_), "; uid ", job.owner->uid,
      " may have ", HumanBytes(eviction_.ShareLeft(job)),
      " more that cannot be taken from him, of ", HumanBytes(options_.MemoryOf(job.owner->uid)),
      ", and holds ", ledger_.slabs_of(job.owner->uid), " slabs"));
}

// --- creates that wait

Admission::Inputs Admission::Now() const {
  return {.ledger = ledger_.version(),
          .evictable = standing_.version(),
          .reserved = reserved_bytes_,
          .queue = queue_version_,
          .manifests = manifests_version_,
          .under_io = under_io_()};
}

bool Admission::Due(uint64_t manifests_version) {
  manifests_version_ = manifests_version;
  const Inputs now = Now();
  if (now == served_) return false;
  served_ = now;
  return true;
}

void Admission::Serve(uint64_t claimed) {
  ReleaseGivenUp();
  // Neither is budget that creates before this one wait for.
  std::vector<RequestId> waiting;
  for (const auto& [order, request] : order_) waiting.push_back(request);
  std::set<const Checkpoint*> in_vain;      // steps that were tried
  std::map<uint32_t, int> in_vain_of_user;  // how many of them
  for (RequestId request : waiting) {
    const auto at = creates_.find(request);
    if (at == creates_.end()) continue;  // refused with its step
    // All of it is being made: see Made().
    if (at->second.unassigned == 0 && at->second.unready > 0) continue;
    Checkpoint* checkpoint = parts_.Find(at->second.checkpoint);
    if (checkpoint->verdict->state == Admitted::kWaiting) {
      const uint32_t uid = checkpoint->job->owner->uid;
      int& of_user = in_vain_of_user[uid];
      if (in_vain.contains(checkpoint)) continue;
      if (of_user >= kTriesInVain && !options_.Unlimited(uid)) continue;
      if (!TryAdmit(checkpoint)) {
        const uint64_t estimate = checkpoint->verdict->estimate;
        if (ConsumersKeep(*checkpoint->job, estimate + reserved_bytes_, estimate)) {
          Refuse(checkpoint, Full(*checkpoint->job, estimate, kNotGivenUp));
          continue;
        }
        in_vain.insert(checkpoint);
        ++of_user;
        short_of_memory_();
        continue;
      }
      Verdict& verdict = checkpoint->verdict.Edit();
      verdict.state = Admitted::kAdmitted;
      Reserve(checkpoint, verdict.estimate);
      // Slabs that are made or found for what is to come are a little larger than that.
      const auto& event = std::get<event::Create>(callers_.Find(request)->event);
      const auto writers = static_cast<uint64_t>(verdict.local_writers);
      ReserveMore(checkpoint, verdict.estimate + event.to_come.bytes / 16 * writers);
    }
    ServeOne(request, &claimed);
  }
}

SlabRecord* Admission::TakeReady(const Job& job, SessionId session, uint64_t bytes) {
  SlabRecord* slab = ledger_.TakeOwn(bytes, OwnerOf(job), session);
  if (slab != nullptr || !eviction_.HasShare(job, SlabBytesFor(bytes), 1)) return slab;
  return ledger_.TakeUnmapped(bytes, OwnerOf(job));
}

// Whoever saves keeps mapped what he has got, and is told what to unmap with the answer to his next create alone. What he is
// told already counts as free.
uint64_t Admission::LackOfReplicas(SessionId session, uint64_t claimed) const {
  const uint64_t wanted = room_for_replicas_() + claimed;
  const uint64_t coming = ledger_.UnusedBudget() + ledger_.bytes_in(SlabState::kFree) +
                          ledger_.bytes_in(SlabState::kDying) + ledger_.idle_unmapped_bytes() +
                          ledger_.probing_bytes() + ledger_.retired_of(session).bytes;
  return room_for_replicas_() == 0 ? 0 : wanted - std::min(wanted, coming);
}

// A slab that is there. Before it takes the room of replicas, and where they lack room, an older step of the job is given up.
SlabRecord* Admission::TakeBesideReplicas(Job* job, SessionId session, Writer writer, uint64_t need,
                                          uint64_t claimed) {
  // For what is little beside their room no step is given up: most of its memory would be of no use.
  const bool counts = need >= room_for_replicas_() / kLittleBesideRoom;
  const auto give_up = [&] {
    return eviction_.Recycle(job, session, writer, need, EvictClass::kOwes);
  };
  SlabRecord* slab = ledger_.TakeOwn(need, OwnerOf(*job), session);
  if (slab == nullptr && counts && LackOfReplicas(session, claimed + SlabBytesFor(need)) > 0 &&
      give_up()) {
    slab = ledger_.TakeOwn(need, OwnerOf(*job), session);
  }
  if (slab == nullptr) slab = TakeReady(*job, session, need);
  uint64_t lack = slab != nullptr && counts ? LackOfReplicas(session, claimed) : 0;
  lack -= std::min(lack, ledger_.RetireMore(session, {lack, 0}).bytes);
  if (lack > 0 && give_up()) ledger_.RetireMore(session, {lack, 0});
  return slab;
}

uint64_t Admission::Assign(RequestId request, bool affordable, uint64_t claimed) {
  Waiting& waiting = creates_.at(request);
  Checkpoint* checkpoint = parts_.Find(waiting.checkpoint);
  Job* job = checkpoint->job;
  const SessionId session = callers_.Find(request)->session;
  uint64_t lacking = 0;
  for (size_t i = 0; i < waiting.needs.size(); ++i) {
    Need& need = waiting.needs[i];
    if (need.slab != 0) continue;
    const uint64_t bytes = SlabBytesFor(need.bytes);
    SlabRecord* slab = nullptr;
    if (affordable) {
      // A step that will never be complete is of use to nobody, and what this session maps of it
      // would have to be unmapped before another of the job's writers got it.
      eviction_.Recycle(job, session, waiting.writer, need.bytes, EvictClass::kGarbage);
      slab = TakeBesideReplicas(job, session, waiting.writer, need.bytes, claimed);
      const bool has_share = eviction_.HasShare(*job, bytes, 1);
      if (slab == nullptr && has_share) {
        slab = ledger_.TakeMaking(need.bytes, job->owner->uid);
      }
      const bool may_make = has_share && ledger_.live_slabs() < options_.max_slabs;
      const bool fits = may_make && ledger_.UnusedBudget() >= claimed + bytes;
      if (slab == nullptr && (!fits || need.bytes >= kRecycleBytes) &&
          eviction_.Recycle(job, session, waiting.writer, need.bytes, EvictClass::kOwesNothing)) {
        slab = TakeReady(*job, session, need.bytes);
      }
      if (slab == nullptr && fits) {
        slab = ledger_.MakeFor(job->owner->uid, bytes);
        out_.Count("slabs_made_on_demand");
      }
    }
    if (slab == nullptr) {
      lacking += bytes;
      continue;
    }
    need.slab = slab->id;
    --waiting.unassigned;
    Consume(checkpoint, slab->bytes);
    if (slab->state == SlabState::kMaking) {
      made_for_[slab->id] = {request, i};
    } else {
      --waiting.unready;
    }
  }
  return lacking;
}

void Admission::ServeOne(RequestId request, uint64_t* claimed) {
  Waiting& waiting = creates_.at(request);
  Checkpoint* checkpoint = parts_.Find(waiting.checkpoint);
  Job* job = checkpoint->job;

  uint64_t unassigned = 0;
  for (const Need& need : waiting.needs) {
    if (need.slab == 0) unassigned += SlabBytesFor(need.bytes);
  }
  // Beyond what was set aside for it a step may take what nobody else was promised.
  const uint64_t reserved = checkpoint->verdict->reserved;
  const bool within_share = unassigned <= reserved;
  const bool affordable = within_share || Unpromised(*job) >= unassigned - reserved;

  const uint64_t lacking = Assign(request, affordable, *claimed);
  if (waiting.unready == 0) return Grant(request);
  if (lacking == 0) return;  // all of it is being made

  const SessionId session = callers_.Find(request)->session;
  *claimed += lacking;
  const auto slabs = static_cast<int64_t>(waiting.unassigned);
  if (affordable && !eviction_.HasShare(*job, lacking, slabs)) {
    eviction_.FreeShare(*job, session, lacking, slabs);
  } else if (affordable && eviction_.FreeSlabs(*job, session, slabs) &&
             eviction_.Free(job, session, *claimed)) {
    return;
  }
  // Evicting may have given this session slabs that fit, or slabs it must unmap first: look again.
  if (Now() != served_) return;
  if (affordable && ledger_.HasRetired(session)) {
    reply::Create unmap_first;
    unmap_first.retire = ledger_.TellRetired(session);
    return callers_.Answer(request, Body(std::move(unmap_first)));
  }
  if (ConsumersKeep(*job, *claimed, lacking)) {
    return Refuse(checkpoint, Full(*job, lacking, kNotGivenUp));
  }
  if (checkpoint->verdict->granted == 0 || ledger_.probing_bytes() > 0) return;
  if (ledger_.kept_by_standing().bytes > 0) return;
  // What it was promised may be under I/O for a while: that ends by itself.
  if (within_share && under_io_() > 0) return;
  // Or other sessions of its user map it, and are asked to unmap it.
  if (!eviction_.HasShare(*job, lacking, slabs) &&
      ledger_.idle_mapped_of(job->owner->uid).bytes > 0) {
    return;
  }
  Refuse(checkpoint, Full(*job, lacking, "the step needs more than it was admitted with"));
}

void Admission::Grant(RequestId request) {
  Waiting& waiting = creates_.at(request);
  if (parts_.creates() != waiting.creates) {
    const auto& event = std::get<event::Create>(callers_.Find(request)->event);
    std::optional<StatusOr<Body>> instead = granter_->InsteadOfGrant(event);
    if (instead.has_value()) return callers_.Answer(request, *std::move(instead));
  }
  Checkpoint* checkpoint = parts_.Find(waiting.checkpoint);
  std::vector<Need> needs = std::move(waiting.needs);
  waiting.needs.clear();
  waiting.taken = 0;
  const std::unique_ptr<Parked> parked = callers_.Unpark(request);
  granter_->Grant(std::get<event::Create>(parked->event), checkpoint, needs);
  Verdict& verdict = checkpoint->verdict.Edit();
  for (const Need& need : needs) {
    const uint64_t bytes = ledger_.Find(need.slab)->bytes;
    verdict.granted += bytes;
    *verdict.node_total += bytes;
  }
}

void Admission::Unreserve(Waiting* waiting) {
  for (Need& need : waiting->needs) {
    if (need.slab == 0) continue;
    if (SlabRecord* slab = ledger_.Find(need.slab)) ledger_.Unreserve(slab);
    made_for_.erase(need.slab);
    need.slab = 0;
  }
}

// --- what ends waiting

void Admission::Left(const Parked& parked) {
  const auto at = creates_.find(parked.request);
  Unreserve(&at->second);
  journal_bytes_ -= at->second.journal_bytes;
  journal_.Release(at->second.uid, at->second.journal_bytes);
  order_.erase(at->second.order);
  if (Checkpoint* checkpoint = parts_.Find(at->second.checkpoint)) {
    checkpoint->verdict.Edit().waiting.erase(parked.request);
    // It was not granted, and may be asked again.
    Part* part = Parts::PartOf(*checkpoint, at->second.writer);
    if (part != nullptr && !part->content->committed) parts_.SetAside(part, at->second.taken);
  }
  creates_.erase(at);
  ++queue_version_;  // what it claimed is for those behind it
}

// The whole step shares the verdict.
void Admission::TimeUp(const Parked& parked) {
  const Waiting& waiting = creates_.at(parked.request);
  Checkpoint* checkpoint = parts_.Find(waiting.checkpoint);
  const uint64_t shown = checkpoint->verdict->state == Admitted::kWaiting
                             ? checkpoint->verdict->estimate
                             : SlabBytesFor(waiting.needs);
  Refuse(checkpoint, Full(*checkpoint->job, shown, "the deadline passed while the step waited"));
}

void Admission::Cancel(const PartKey& part, const Status& why) {
  const Checkpoint* checkpoint = parts_.Find(part.checkpoint);
  for (RequestId request : std::set<RequestId>(checkpoint->verdict->waiting)) {
    const auto& create = std::get<event::Create>(callers_.Find(request)->event);
    if (create.part == part) callers_.Answer(request, why);
  }
}

void Admission::CancelAll(const Status& why) {
  for (const auto& [order, request] : std::map<uint64_t, RequestId>(order_)) {
    callers_.Answer(request, why);
  }
}

void Admission::Fence(Job* job) {
  const Attempt newest = job->attempts->fence();
  Attempt superseded_by = 0;
  std::vector<std::pair<RequestId, Attempt>> fenced;
  for (const CheckpointId& id : job->steps->incomplete) {
    if (id.attempt >= newest) continue;
    Checkpoint* checkpoint = CheckpointOf(*job, id);
    Release(checkpoint);
    for (const RequestId request : checkpoint->verdict->waiting) {
      fenced.emplace_back(request, id.attempt);
    }
  }
  for (const auto& [request, attempt] : fenced) {
    callers_.Answer(request, Attempts::CheckFence(*job, attempt, &superseded_by), superseded_by);
  }
  attempts_.ForgetOlder(job);
}

void Admission::ReleaseAttempt(const Job& job, Attempt attempt) {
  for (const CheckpointId& id : job.steps->incomplete) {
    if (id.attempt == attempt) Release(CheckpointOf(job, id));
  }
}

void Admission::Made(SlabId slab) {
  const auto made = made_for_.find(slab);
  if (made == made_for_.end()) return;
  const RequestId request = made->second.request;
  made_for_.erase(made);
  if (--creates_.at(request).unready == 0) Grant(request);
}

void Admission::NotMade(SlabId slab, const Status& why) {
  const auto made = made_for_.find(slab);
  if (made == made_for_.end()) return;
  Waiting& waiting = creates_.at(made->second.request);
  waiting.needs[made->second.need].slab = 0;
  ++waiting.unassigned;
  made_for_.erase(made);
  if (++waiting.failed_makes < kFailedMakes) return;
  Refuse(parts_.Find(waiting.checkpoint), absl::ResourceExhaustedError(absl::StrCat(
                                              "memory: no slab could be made: ", why.message())));
}

std::set<CheckpointKey> Admission::AskedBy(SessionId session) const {
  std::set<CheckpointKey> asked;
  for (RequestId request : callers_.Of(session)) {
    const auto at = creates_.find(request);
    if (at != creates_.end()) asked.insert(at->second.checkpoint);
  }
  return asked;
}

void Admission::PartCommitted(Part* part) {
  if (!IsOwn(*part, options_.ring)) return;
  Checkpoint* checkpoint = part->checkpoint;
  if (++checkpoint->verdict.Edit().committed >= checkpoint->verdict->local_writers) {
    Release(checkpoint);
  }
}

void Admission::PartGoes(Part* part) {
  // Of what came from storage nothing was counted.
  if (!part->content->committed || !IsOwn(*part, options_.ring)) return;
  Verdict& verdict = part->checkpoint->verdict.Edit();
  verdict.committed = std::max(verdict.committed - 1, 0);
}

void Admission::CheckpointCompleted(Checkpoint* checkpoint) { Release(checkpoint); }

void Admission::CheckpointGoes(Checkpoint* checkpoint) {
  for (RequestId request : std::set<RequestId>(checkpoint->verdict->waiting)) {
    callers_.Answer(request, absl::FailedPreconditionError(absl::StrCat(
                                 "create: ", checkpoint->key.DebugString(), " was dropped")));
  }
  Release(checkpoint);
}

// --- recovery

// Steps that were being written go on; what they were granted is what they hold.
void Admission::Restore() {
  for (const auto& [name, job] : jobs_.all()) {
    for (const auto& [id, checkpoint] : job->steps->all) {
      Verdict& verdict = checkpoint->verdict.Edit();
      for (const auto& [writer, part] : checkpoint->content->parts) {
        if (!IsOwn(*part, options_.ring)) continue;
        for (const auto& [slab, extents] : part->content->slabs) {
          verdict.granted += ledger_.Find(slab)->bytes;
        }
        verdict.committed += part->content->committed ? 1 : 0;
      }
      *verdict.node_total = verdict.granted;
      for (const auto& [writer, part] : checkpoint->content->parts) {
        if (part->content->committed) continue;
        verdict.state = Admitted::kAdmitted;
        for (SessionId session : part->content->sessions) {
          verdict.local_writers =
              std::max(verdict.local_writers, sessions_.Find(session)->local_writers);
        }
      }
    }
  }
}

std::string Admission::CheckInvariants() const {
  uint64_t reserved = 0;
  std::map<uint32_t, uint64_t> by_user;
  for (const auto& [name, job] : jobs_.all()) {
    for (const auto& [id, checkpoint] : job->steps->all) {
      reserved += checkpoint->verdict->reserved;
      if (checkpoint->verdict->reserved > 0) {
        by_user[job->owner->uid] += checkpoint->verdict->reserved;
      }
      if ((checkpoint->verdict->reserved > 0) != reserving_.contains(checkpoint->key)) {
        return checkpoint->key.DebugString() + ": is something set aside for it?";
      }
      for (RequestId request : checkpoint->verdict->waiting) {
        if (!callers_.Contains(request) || !creates_.contains(request)) {
          return checkpoint->key.DebugString() + ": waits for a caller that is gone";
        }
      }
    }
  }
  if (reserved != reserved_bytes_) return "reservations are miscounted";
  for (const auto& [uid, bytes] : by_user) {
    if (ledger_.promised_to(uid) != bytes) return absl::StrCat("uid ", uid, ": promised otherwise");
  }
  if (creates_.size() != order_.size()) return "creates that wait are miscounted";
  return CheckNeeds();
}

std::string Admission::CheckNeeds() const {
  size_t being_made = 0;
  for (const auto& [request, waiting] : creates_) {
    size_t unassigned = 0, unready = 0;
    for (size_t i = 0; i < waiting.needs.size(); ++i) {
      const SlabId id = waiting.needs[i].slab;
      const SlabRecord* slab = id == 0 ? nullptr : ledger_.Find(id);
      unassigned += id == 0 ? 1 : 0;
      unready += slab == nullptr || slab->state == SlabState::kMaking ? 1 : 0;
      if (slab == nullptr || slab->state != SlabState::kMaking) continue;
      ++being_made;
      const auto made = made_for_.find(id);
      if (made == made_for_.end() || made->second.request != request || made->second.need != i) {
        return absl::StrCat("slab ", id, ": nobody knows whom it is made for");
      }
    }
    if (unassigned != waiting.unassigned || unready != waiting.unready) {
      return absl::StrCat("request ", request, ": its needs are miscounted");
    }
  }
  return being_made == made_for_.size() ? "" : "slabs in the making are miscounted";
}

}  // namespace cairn::engine
