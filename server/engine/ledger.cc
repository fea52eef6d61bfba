// One file: nothing else touches the private state of the ledger, and its states, indexes and probes are
// read together.
#include "server/engine/ledger.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "server/engine/restored.h"

namespace cairn::engine {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Slabs asked about in one go; the rest follow at the next tick.
constexpr int kProbesAtOnce = 256;
// A slab in use whose reader lingers is asked about less and less often, down to this.
constexpr int kLongestProbeWait = 16;

fact::Slab FactOf(const SlabRecord& slab) {
  return {slab.id,        slab.bytes,   slab.use,      slab.owner.uid,
          slab.owner.job, slab.by_path, slab.condemned};
}

}  // namespace

uint64_t SlabBytesFor(uint64_t need) {
  need = std::max<uint64_t>(need, 1);
  const uint64_t granule =
      std::clamp(std::bit_floor(std::max<uint64_t>(need / 32, 1)), kPageBytes, kMiB);
  return (need + granule - 1) / granule * granule;
}

uint64_t LargestFit(uint64_t need) {
  const uint64_t slack = need >= kMiB ? std::min(2 * kMiB, need / 16) : need + 16 * kPageBytes;
  return std::max(need + slack, SlabBytesFor(need));
}

Ledger::~Ledger() = default;

SlabRecord* Ledger::Find(SlabId slab) {
  const auto at = slabs_.find(slab);
  return at == slabs_.end() ? nullptr : &at->second;
}

const SlabRecord* Ledger::Find(SlabId slab) const {
  const auto at = slabs_.find(slab);
  return at == slabs_.end() ? nullptr : &at->second;
}

// --- states and indexes

SlabState Ledger::Decide(const SlabRecord& slab) const {
  if (slab.state == SlabState::kMaking || slab.state == SlabState::kDying) return slab.state;
  if (slab.extents > 0 || slab.pins > 0 || slab.reserved || slab.for_peers ||
      slab.use == fact::SlabUse::kManifests) {
    return SlabState::kInUse;
  }
  if (slab.mapper != 0) {
    const bool writable_again = slab.readers.empty() && !slab.by_path && !slab.told_to_unmap &&
                                !slab.doomed && !slab.condemned;
    return writable_again ? SlabState::kIdle : SlabState::kQuarantined;
  }
  if (!slab.clean || !slab.readers.empty() || !slab.standing.empty()) {
    return SlabState::kQuarantined;
  }
  return slab.owner.None() ? SlabState::kFree : SlabState::kIdle;
}

std::optional<uint32_t> Ledger::HolderOf(const SlabRecord& slab) {
  if (slab.for_peers) return std::nullopt;
  if (slab.reserved) return slab.reserved_for;
  if (slab.owner.None()) return std::nullopt;
  const bool holds = slab.state == SlabState::kInUse || slab.state == SlabState::kQuarantined ||
                     (slab.state == SlabState::kIdle && slab.mapper != 0);
  return holds ? std::optional(slab.owner.uid) : std::nullopt;
}

void Ledger::Add(ByUser* to, uint32_t uid, const Held& more) {
  Held& held = (*to)[uid];
  held.bytes += more.bytes;
  held.slabs += more.slabs;
}

void Ledger::Take(ByUser* from, uint32_t uid, const Held& less) {
  const auto held = from->find(uid);
  held->second.bytes -= less.bytes;
  held->second.slabs -= less.slabs;
  if (held->second == Held()) from->erase(held);
}

void Ledger::CountIn(const SlabRecord& slab) {
  bytes_[static_cast<size_t>(slab.state)] += slab.bytes;
  if (slab.state == SlabState::kDying) ++dying_;
  if (Leaves(slab)) ++leaving_;
  if (!KeptByStanding(slab)) {
  } else if (slab.overdue) {
    overdue_.bytes += slab.bytes;
    ++overdue_.slabs;
    Add(&overdue_of_, slab.owner.uid, {slab.bytes, 1});
  } else {
    kept_.bytes += slab.bytes;
    ++kept_.slabs;
    Add(&kept_of_, slab.owner.uid, {slab.bytes, 1});
  }
  if (const auto uid = HolderOf(slab); uid.has_value()) Add(&held_by_, *uid, {slab.bytes, 1});
}

void Ledger::CountOut(const SlabRecord& slab) {
  bytes_[static_cast<size_t>(slab.state)] -= slab.bytes;
  if (slab.state == SlabState::kDying) --dying_;
  if (Leaves(slab)) --leaving_;
  if (!KeptByStanding(slab)) {
  } else if (slab.overdue) {
    overdue_.bytes -= slab.bytes;
    --overdue_.slabs;
    Take(&overdue_of_, slab.owner.uid, {slab.bytes, 1});
  } else {
    kept_.bytes -= slab.bytes;
    --kept_.slabs;
    Take(&kept_of_, slab.owner.uid, {slab.bytes, 1});
  }
  if (const auto uid = HolderOf(slab); uid.has_value()) Take(&held_by_, *uid, {slab.bytes, 1});
}

void Ledger::Lift(SlabRecord* slab) {
  CountOut(*slab);
  if (MayComeBack(*slab)) {
    probing_bytes_ -= slab->bytes;
    --probing_slabs_;
    Take(&coming_to_, slab->owner.uid, {slab->bytes, 1});
  }
  switch (slab->state) {
    case SlabState::kMaking:
      if (making_.erase({slab->bytes, slab->id}) > 0) making_unreserved_bytes_ -= slab->bytes;
      break;
    case SlabState::kFree:
      free_.erase({slab->bytes, slab->id});
      oldest_.erase({slab->since, slab->id});
      break;
    case SlabState::kIdle:
      if (slab->mapper != 0) {
        const auto at = idle_mapped_.find(slab->mapper);
        at->second.erase({slab->bytes, slab->id});
        if (at->second.empty()) idle_mapped_.erase(at);
        idle_mapped_bytes_ -= slab->bytes;
        const auto owned = idle_mapped_by_owner_.find(slab->owner);
        if ((owned->second -= slab->bytes) == 0) idle_mapped_by_owner_.erase(owned);
        Take(&idle_mapped_of_, slab->owner.uid, {slab->bytes, 1});
      } else {
        const auto at = idle_unmapped_.find(slab->owner);
        at->second.erase({slab->bytes, slab->id});
        if (at->second.empty()) idle_unmapped_.erase(at);
        oldest_.erase({slab->since, slab->id});
      }
      break;
    case SlabState::kQuarantined:
      quarantined_.erase(slab->id);
      break;
    case SlabState::kInUse:
    case SlabState::kDying:
      break;
  }
}

void Ledger::Settle(SlabRecord* slab) {
  SlabState state = Decide(*slab);
  if ((slab->doomed || slab->condemned) &&
      (state == SlabState::kFree || state == SlabState::kIdle)) {
    if (slab->condemned) out_.Count("slabs_condemned_destroyed");
    Destroy(slab);
    state = SlabState::kDying;
  }
  if (state != slab->state) {
    slab->state = state;
    slab->since = out_.now();
    if (state == SlabState::kFree || state == SlabState::kIdle) ++version_;
  }
  // Only its mapper's word brings such a slab back, so it is asked to unmap it.
  if (state == SlabState::kQuarantined && slab->mapper != 0 && slab->readers.empty() &&
      !slab->told_to_unmap) {
    MarkRetiring(slab);
  }
  if (!slab->standing.empty() && slab->standing_since == 0 && StandingMustGo(*slab)) {
    AskStanding(slab);
  }
  switch (state) {
    case SlabState::kMaking:
      if (!slab->reserved && slab->use == fact::SlabUse::kObjects) {
        making_.insert({slab->bytes, slab->id});
        making_unreserved_bytes_ += slab->bytes;
      }
      break;
    case SlabState::kFree:
      free_.insert({slab->bytes, slab->id});
      oldest_.insert({slab->since, slab->id});
      break;
    case SlabState::kIdle:
      if (slab->mapper != 0) {
        idle_mapped_[slab->mapper].insert({slab->bytes, slab->id});
        idle_mapped_bytes_ += slab->bytes;
        idle_mapped_by_owner_[slab->owner] += slab->bytes;
        Add(&idle_mapped_of_, slab->owner.uid, {slab->bytes, 1});
      } else {
        idle_unmapped_[slab->owner].insert({slab->bytes, slab->id});
        oldest_.insert({slab->since, slab->id});
      }
      break;
    case SlabState::kQuarantined:
      quarantined_.insert(slab->id);
      break;
    case SlabState::kInUse:
    case SlabState::kDying:
      break;
  }
  if (!NeedsProbe(*slab)) {
    ScheduleProbe(slab, kNever);
  } else if (!slab->probing && slab->next_probe == kNever) {
    slab->probe_wait = options_.probe_interval;
    slab->busy_probes = 0;
    SendProbe(slab);
  }
  CountIn(*slab);
  if (MayComeBack(*slab)) {
    probing_bytes_ += slab->bytes;
    ++probing_slabs_;
    Add(&coming_to_, slab->owner.uid, {slab->bytes, 1});
  }
  watcher_->SlabChanged(slab);
}

void Ledger::Destroy(SlabRecord* slab) {
  ClearRetiring(slab);
  out_.Say(fact::SlabGone{slab->id});
  out_.Do(action::DestroySlab{slab->id});
}

void Ledger::MarkRetiring(SlabRecord* slab) {
  slab->retiring = true;
  Retired& retired = retired_[slab->mapper];
  if (retired.slabs.insert(slab->id).second) retired.bytes += slab->bytes;
}

void Ledger::ClearRetiring(SlabRecord* slab) {
  slab->retiring = slab->told_to_unmap = false;
  const auto at = retired_.find(slab->mapper);
  if (at == retired_.end()) return;
  if (at->second.slabs.erase(slab->id) > 0) at->second.bytes -= slab->bytes;
  if (at->second.slabs.empty()) retired_.erase(at);
}

// --- standing mappings

void Ledger::AskStanding(SlabRecord* slab) {
  slab->standing_since = out_.now();
  patience_.insert({slab->standing_since + kPatience, slab->id});
  for (const auto& [session, lease] : slab->standing) {
    standing_to_unmap_[session].insert(slab->id);
    asked_to_unmap_.insert(session);
  }
}

void Ledger::LendStanding(SlabRecord* slab, SessionId session, LeaseId lease) {
  Lift(slab);
  slab->standing[session] = lease;
  slab->clean = false;
  ++slab->lends;
  Settle(slab);
}

void Ledger::StandingGone(SlabRecord* slab, SessionId session, bool died) {
  if (!slab->standing.contains(session)) return;
  Lift(slab);
  slab->standing.erase(session);
  if (const auto asked = standing_to_unmap_.find(session); asked != standing_to_unmap_.end()) {
    asked->second.erase(slab->id);
    if (asked->second.empty()) standing_to_unmap_.erase(asked);
  }
  if (slab->standing.empty() && slab->standing_since != 0) {
    patience_.erase({slab->standing_since + kPatience, slab->id});
    slab->standing_since = 0;
    slab->overdue = false;
    ++version_;
  }
  ScheduleProbe(slab, kNever);
  slab->probe_again = slab->probing;
  const bool condemns = died && !slab->condemned;
  slab->condemned |= died;
  if (condemns && InJournal(*slab)) out_.Say(FactOf(*slab));
  if (condemns) out_.Count("slabs_condemned");
  Settle(slab);
}

const std::set<SlabId>& Ledger::StandingToUnmap(SessionId session) const {
  static const std::set<SlabId> none;
  const auto asked = standing_to_unmap_.find(session);
  return asked == standing_to_unmap_.end() ? none : asked->second;
}

void Ledger::ExpirePatience() {
  while (!patience_.empty() && patience_.begin()->first <= out_.now()) {
    SlabRecord* slab = Find(patience_.begin()->second);
    patience_.erase(patience_.begin());
    Lift(slab);
    slab->overdue = true;
    Settle(slab);
    ++version_;
  }
}

// --- getting slabs

SlabRecord* Ledger::FirstFit(const BySize& index, uint64_t need) {
  const auto at = index.lower_bound({need, 0});
  if (at == index.end() || at->first > LargestFit(need)) return nullptr;
  return Find(at->second);
}

void Ledger::Reserve(SlabRecord* slab, uint32_t uid) {
  Lift(slab);
  ClearRetiring(slab);
  slab->reserved = true;
  slab->reserved_for = uid;
  Settle(slab);
}

SlabRecord* Ledger::TakeOwn(uint64_t need, const SlabOwner& owner, SessionId session) {
  const auto own = idle_mapped_.find(session);
  if (own == idle_mapped_.end()) return nullptr;
  SlabRecord* slab = FirstFit(own->second, need);
  if (slab == nullptr || slab->owner != owner) return nullptr;
  Reserve(slab, owner.uid);
  return slab;
}

SlabRecord* Ledger::TakeUnmapped(uint64_t need, const SlabOwner& owner) {
  SlabRecord* slab = nullptr;
  if (const auto idle = idle_unmapped_.find(owner); idle != idle_unmapped_.end()) {
    slab = FirstFit(idle->second, need);
  }
  if (slab == nullptr) slab = FirstFit(free_, need);
  if (slab != nullptr) Reserve(slab, owner.uid);
  return slab;
}

SlabRecord* Ledger::TakeMaking(uint64_t need, uint32_t uid) {
  SlabRecord* slab = FirstFit(making_, need);
  if (slab == nullptr) return nullptr;
  if (!slab->urgent) out_.Do(action::HurrySlab{slab->id});
  slab->urgent = true;
  Reserve(slab, uid);
  return slab;
}

SlabRecord* Ledger::Make(uint64_t bytes, fact::SlabUse use, bool urgent,
                         std::optional<uint32_t> reserved_for, bool populate) {
  const SlabId id = out_.NextId();
  SlabRecord record;
  record.id = id;
  record.bytes = bytes;
  record.use = use;
  record.urgent = urgent;
  record.reserved = reserved_for.has_value();
  record.reserved_for = reserved_for.value_or(0);
  record.since = out_.now();
  SlabRecord* slab = &slabs_.emplace(id, std::move(record)).first->second;
  total_ += bytes;
  Settle(slab);
  out_.Do(action::MakeSlab{id, bytes, urgent, use, populate});
  return slab;
}

SlabRecord* Ledger::MakeForPeers(uint64_t bytes) {
  SlabRecord* slab =
      Make(bytes, fact::SlabUse::kObjects, /*urgent=*/true, uint32_t{0}, /*populate=*/false);
  KeepForPeers(slab);
  return slab;
}

void Ledger::KeepForPeers(SlabRecord* slab) {
  if (slab->for_peers) return;
  const bool was_in_journal = slab->state != SlabState::kMaking;
  Lift(slab);
  slab->for_peers = true;
  Settle(slab);
  SayOf(*slab, was_in_journal);
}

void Ledger::SayOf(const SlabRecord& slab, bool was_in_journal) {
  if (was_in_journal == InJournal(slab)) return;
  out_.Say(was_in_journal ? Fact(fact::SlabGone{slab.id}) : Fact(FactOf(slab)));
}

void Ledger::SetFetch(SlabRecord* slab, std::shared_ptr<const fact::FetchBegun> fetch) {
  const bool was_in_journal = InJournal(*slab);
  slab->fetch = std::move(fetch);
  SayOf(*slab, was_in_journal);
  if (slab->fetch != nullptr) out_.Say(*slab->fetch);
}

void Ledger::ReserveForPeers(SlabRecord* slab, bool reserved) {
  if (!slab->for_peers || slab->reserved == reserved) return;
  Lift(slab);
  slab->reserved = reserved;
  Settle(slab);
}

void Ledger::ReturnFromPeers(SlabRecord* slab) {
  if (!slab->for_peers) return;
  Lift(slab);
  slab->for_peers = slab->reserved = false;
  slab->fetch = nullptr;
  slab->doomed = true;
  Settle(slab);
}

void Ledger::BecomeOwn(SlabRecord* slab) {
  if (!slab->for_peers) return;
  Lift(slab);
  slab->for_peers = false;
  slab->fetch = nullptr;
  Settle(slab);
}

void Ledger::Unreserve(SlabRecord* slab) {
  Lift(slab);
  slab->reserved = false;
  Settle(slab);
}

void Ledger::SetOwner(SlabRecord* slab, const SlabOwner& owner) {
  if (slab->owner == owner) return;
  Lift(slab);
  slab->owner = owner;
  Settle(slab);
  if (InJournal(*slab)) out_.Say(FactOf(*slab));
}

void Ledger::ReturnFromManifests(SlabRecord* slab) {
  Lift(slab);
  slab->use = fact::SlabUse::kObjects;
  slab->doomed = true;
  Settle(slab);
}

// --- what holds them

void Ledger::AddExtents(SlabRecord* slab, uint32_t count) {
  const bool was_in_journal = InJournal(*slab);
  Lift(slab);
  slab->extents += count;
  slab->reserved = false;
  Settle(slab);
  SayOf(*slab, was_in_journal);
}

void Ledger::DropExtents(SlabRecord* slab, uint32_t count) {
  const bool was_in_journal = InJournal(*slab);
  Lift(slab);
  slab->extents -= count;
  Settle(slab);
  SayOf(*slab, was_in_journal);
}

void Ledger::Pin(SlabRecord* slab) {
  Lift(slab);
  ++slab->pins;
  Settle(slab);
}

void Ledger::Unpin(SlabRecord* slab) {
  Lift(slab);
  --slab->pins;
  Settle(slab);
}

void Ledger::LendToWriter(SlabRecord* slab, SessionId session, LeaseId lease) {
  Lift(slab);
  ClearRetiring(slab);
  slab->mapper = session;
  slab->writer_lease = lease;
  slab->clean = false;
  ++slab->lends;
  Settle(slab);
}

void Ledger::WriterGone(SlabRecord* slab) {
  Lift(slab);
  ClearRetiring(slab);
  slab->mapper = 0;
  slab->writer_lease = 0;
  ScheduleProbe(slab, kNever);  // it can be free now: ask at once
  slab->probe_again = slab->probing;
  Settle(slab);
}

void Ledger::LendToReader(SlabRecord* slab, LeaseId lease, bool by_path) {
  Lift(slab);
  slab->readers[lease] = false;
  ++slab->open_readers;
  slab->clean = false;
  if (by_path && !slab->by_path) {
    slab->by_path = true;
    out_.Say(FactOf(*slab));
  }
  ++slab->lends;
  Settle(slab);
}

void Ledger::ReaderReleased(SlabRecord* slab, LeaseId lease, bool has_lock) {
  const auto at = slab->readers.find(lease);
  if (at == slab->readers.end() || at->second) return;
  Lift(slab);
  at->second = true;
  --slab->open_readers;
  if (!has_lock) slab->readers.erase(at);
  ScheduleProbe(slab, kNever);
  slab->probe_again = slab->probing;
  Settle(slab);
  if (slab->readers.empty()) ++version_;
}

void Ledger::ReaderNeverLent(SlabRecord* slab, LeaseId lease) {
  ReaderReleased(slab, lease, /*has_lock=*/false);
}

// --- giving memory back

uint64_t Ledger::DestroyOldest() {
  if (oldest_.empty()) return 0;
  SlabRecord* slab = Find(oldest_.begin()->second);
  Doom(slab);
  return slab->bytes;
}

void Ledger::Doom(SlabRecord* slab) {
  if (slab->doomed) return;
  Lift(slab);
  slab->doomed = true;
  Settle(slab);
}

uint64_t Ledger::Retire(SessionId session, uint64_t bytes) {
  uint64_t marked = 0;
  const auto own = idle_mapped_.find(session);
  if (own == idle_mapped_.end()) return 0;
  for (auto at = own->second.rbegin(); at != own->second.rend() && marked < bytes; ++at) {
    SlabRecord* slab = Find(at->second);
    MarkRetiring(slab);
    marked += slab->bytes;
  }
  return marked;
}

Ledger::Held Ledger::RetireOfUser(uint32_t uid, SessionId except, const Held& wanted) {
  Held asked;
  for (const auto& [mapper, retired] : retired_) {
    if (mapper == except || Find(*retired.slabs.begin())->owner.uid != uid) continue;
    asked.bytes += retired.bytes;
    asked.slabs += static_cast<int64_t>(retired.slabs.size());
  }
  for (const auto& [mapper, idle] : idle_mapped_) {
    if (asked.bytes >= wanted.bytes && asked.slabs >= wanted.slabs) break;
    if (mapper == except || Find(idle.begin()->second)->owner.uid != uid) continue;
    const Held more = RetireMore(mapper, {wanted.bytes - std::min(wanted.bytes, asked.bytes),
                                          wanted.slabs - std::min(wanted.slabs, asked.slabs)});
    asked.bytes += more.bytes;
    asked.slabs += more.slabs;
  }
  return asked;
}

Ledger::Held Ledger::RetireMore(SessionId session, const Held& more) {
  Held marked;
  const auto own = idle_mapped_.find(session);
  if (own == idle_mapped_.end()) return marked;
  for (auto at = own->second.rbegin(); at != own->second.rend(); ++at) {
    if (marked.bytes >= more.bytes && marked.slabs >= more.slabs) break;
    SlabRecord* slab = Find(at->second);
    if (slab->retiring) continue;
    MarkRetiring(slab);
    marked.bytes += slab->bytes;
    ++marked.slabs;
  }
  return marked;
}

uint64_t Ledger::RetireOthers(SessionId session, const SlabOwner* except_owner, uint64_t bytes,
                              std::optional<uint32_t> uid) {
  uint64_t marked = 0;
  for (const auto& [mapper, idle] : idle_mapped_) {
    if (marked >= bytes) break;
    // A session is in one job: all its slabs have one owner.
    const SlabOwner& owner = Find(idle.begin()->second)->owner;
    const bool spared = (except_owner != nullptr && owner == *except_owner) ||
                        (uid.has_value() && owner.uid != *uid);
    if (mapper != session && !spared) marked += Retire(mapper, bytes - marked);
  }
  return marked;
}

std::vector<SlabId> Ledger::TellRetired(SessionId session) {
  const auto at = retired_.find(session);
  if (at == retired_.end()) return {};
  const std::vector<SlabId> slabs(at->second.slabs.begin(), at->second.slabs.end());
  for (SlabId id : slabs) {
    SlabRecord* slab = Find(id);
    Lift(slab);
    slab->told_to_unmap = true;
    Settle(slab);
  }
  return slabs;
}

bool Ledger::HasRetired(SessionId session) const { return retired_.contains(session); }

// --- results of actions

bool Ledger::OnMade(SlabId id, const Status& status) {
  SlabRecord* slab = Find(id);
  if (slab == nullptr || slab->state != SlabState::kMaking) return false;
  Lift(slab);
  // One that is made for a create changes nothing for the others.
  if (!slab->reserved || !status.ok()) ++version_;
  if (!status.ok()) {
    total_ -= slab->bytes;
    slabs_.erase(id);
    return true;
  }
  slab->state = SlabState::kInUse;  // of no index; Settle decides
  if (InJournal(*slab)) out_.Say(FactOf(*slab));
  Settle(slab);
  return true;
}

void Ledger::OnDestroyed(SlabId id) {
  SlabRecord* slab = Find(id);
  if (slab == nullptr || slab->state != SlabState::kDying) return;
  Lift(slab);
  total_ -= slab->bytes;
  slabs_.erase(id);
  ++version_;
}

std::vector<LeaseId> Ledger::OnProbed(const event::SlabProbed& probed) {
  SlabRecord* slab = Find(probed.slab);
  if (slab == nullptr || !slab->probing) return {};
  Lift(slab);
  slab->probing = false;
  // Who counted on this slab looks again, whatever the answer.
  if (slab->state == SlabState::kQuarantined) ++version_;
  std::vector<LeaseId> ended;
  for (LeaseId lease : probed.ended) {
    const auto at = slab->readers.find(lease);
    if (at == slab->readers.end() || !at->second) continue;
    slab->readers.erase(at);
    ended.push_back(lease);
  }
  // Free means: no one at all, so every released reader is gone too.
  if (probed.free && slab->mapper == 0 && slab->open_readers == 0 && slab->standing.empty() &&
      slab->probed_at_lends == slab->lends) {
    for (const auto& [lease, said] : slab->readers) ended.push_back(lease);
    std::sort(ended.begin(), ended.end());
    slab->readers.clear();
    slab->clean = true;
    if (std::exchange(slab->by_path, false) && InJournal(*slab)) out_.Say(FactOf(*slab));
  }
  if (std::exchange(slab->probe_again, false)) {
    ScheduleProbe(slab, kNever);  // Settle asks anew
  } else if (NeedsProbe(*slab)) {
    ++slab->busy_probes;
    ScheduleProbe(slab, out_.now() + slab->probe_wait);
    slab->probe_wait = std::min(
        slab->probe_wait * 2,
        options_.probe_interval * (slab->state == SlabState::kInUse ? kLongestProbeWait : 2));
  }
  Settle(slab);
  if (!ended.empty()) ++version_;
  return ended;
}

bool Ledger::NeedsProbe(const SlabRecord& slab) {
  if (slab.state == SlabState::kMaking || slab.state == SlabState::kDying) return false;
  if (slab.readers.size() > slab.open_readers) return true;
  return !slab.clean && slab.mapper == 0 && slab.open_readers == 0 && slab.standing.empty();
}

void Ledger::ScheduleProbe(SlabRecord* slab, MonotonicNanos at) {
  if (slab->next_probe != kNever) due_.erase({slab->next_probe, slab->id});
  slab->next_probe = at;
  if (at != kNever) due_.insert({at, slab->id});
}

void Ledger::SendProbe(SlabRecord* slab) {
  ScheduleProbe(slab, kNever);
  slab->probing = true;
  slab->probed_at_lends = slab->lends;
  action::ProbeSlab probe;
  probe.slab = slab->id;
  for (const auto& [lease, said] : slab->readers) {
    if (said) probe.leases.push_back(lease);
  }
  std::sort(probe.leases.begin(), probe.leases.end());
  out_.Do(std::move(probe));
}

void Ledger::ProbeDue() {
  for (int i = 0; i < kProbesAtOnce && !due_.empty() && due_.begin()->first <= out_.now(); ++i) {
    SlabRecord* slab = Find(due_.begin()->second);
    Lift(slab);
    if (slab->probing) {
      ScheduleProbe(slab, out_.now() + slab->probe_wait);
    } else {
      SendProbe(slab);
    }
    Settle(slab);
  }
}

// --- recovery

void Ledger::RestoreSlabs(const Restored& restored,
                          const std::vector<std::pair<SlabId, uint64_t>>& held_slabs) {
  const std::map<SlabId, uint64_t> held(held_slabs.begin(), held_slabs.end());
  for (const auto& [id, fact] : restored.slabs) {
    const auto at = held.find(id);
    if (at != held.end() && at->second == fact.bytes) continue;
    out_.Say(fact::SlabGone{id});
    out_.Log(Severity::kError,
             absl::StrCat("slab ", id, " of ", fact.bytes, " bytes did not survive"));
  }
  for (const auto& [id, bytes] : held) {
    const auto at = restored.slabs.find(id);
    SlabRecord& slab = slabs_[id];
    slab.id = id;
    slab.bytes = bytes;
    slab.state = SlabState::kInUse;
    slab.since = out_.now();
    if (at == restored.slabs.end() || at->second.bytes != bytes) {
      // It was being made, or was about to be destroyed: nobody was told of it.
      slab.doomed = true;
      slab.clean = false;
    } else {
      slab.use = at->second.use;
      slab.owner = {at->second.owner_uid, at->second.owner_job};
      slab.clean = slab.owner.None();
      slab.by_path = at->second.by_path;
      slab.condemned = at->second.condemned;
    }
  }
}

bool Ledger::Survived(const ExtentRef& extent) const {
  const SlabRecord* slab = Find(extent.slab);
  return slab != nullptr && !slab->doomed && extent.offset + extent.length <= slab->bytes;
}

void Ledger::RestoreExtents(SlabId slab, uint32_t count) { Find(slab)->extents += count; }

void Ledger::RestoreWriter(SlabRecord* slab, SessionId session, LeaseId lease) {
  slab->mapper = session;
  slab->writer_lease = lease;
  slab->lend_again = true;
  slab->clean = false;
}

void Ledger::RestoreReader(SlabRecord* slab, LeaseId lease, bool released, bool by_path) {
  slab->readers[lease] = released;
  if (!released) ++slab->open_readers;
  slab->clean = false;
  slab->by_path |= by_path;
}

void Ledger::RestoreStanding(SlabRecord* slab, SessionId session, LeaseId lease) {
  slab->standing[session] = lease;
  slab->clean = false;
}

void Ledger::RestoreCondemned(SlabRecord* slab) {
  slab->clean = false;
  if (std::exchange(slab->condemned, true)) return;
  if (InJournal(*slab)) out_.Say(FactOf(*slab));
  out_.Count("slabs_condemned");
}

void Ledger::RestoreUnclean(SlabRecord* slab) { slab->clean = false; }

void Ledger::ResumeAll() {
  std::vector<SlabId> ids;
  for (const auto& [id, slab] : slabs_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (SlabId id : ids) Resume(Find(id));
}

void Ledger::Resume(SlabRecord* slab) {
  total_ += slab->bytes;
  recovered_total_ = std::max(recovered_total_, total_);
  CountIn(*slab);
  Lift(slab);
  Settle(slab);
}

void Ledger::Snapshot(SlabId id, std::vector<Fact>* facts) const {
  const SlabRecord* slab = Find(id);
  if (slab == nullptr || slab->state == SlabState::kMaking || slab->state == SlabState::kDying ||
      slab->doomed || !InJournal(*slab)) {
    return;
  }
  facts->push_back(FactOf(*slab));
  if (slab->fetch != nullptr) facts->push_back(*slab->fetch);
}

// --- sums

std::optional<uint32_t> Ledger::GreediestForSlabs() const {
  const auto most = std::max_element(
      held_by_.begin(), held_by_.end(),
      [](const auto& a, const auto& b) { return a.second.slabs < b.second.slabs; });
  const auto users = static_cast<int64_t>(held_by_.size());
  if (users < 2 || most->second.slabs <= options_.max_slabs / users) return std::nullopt;
  return most->first;
}

uint64_t Ledger::idle_mapped_bytes(const SlabOwner& owner) const {
  const auto at = idle_mapped_by_owner_.find(owner);
  return at == idle_mapped_by_owner_.end() ? 0 : at->second;
}

Ledger::Held Ledger::idle_mapped_of(uint32_t uid) const {
  const auto at = idle_mapped_of_.find(uid);
  return at == idle_mapped_of_.end() ? Held() : at->second;
}

void Ledger::HoldRecord(uint32_t uid, uint64_t bytes) {
  Add(&records_, uid, {bytes, 0});
  Add(&held_by_, uid, {bytes, 0});
}

void Ledger::DropRecord(uint32_t uid, uint64_t bytes) {
  Take(&records_, uid, {bytes, 0});
  Take(&held_by_, uid, {bytes, 0});
}

uint64_t Ledger::held_by(uint32_t uid) const {
  const auto at = held_by_.find(uid);
  return at == held_by_.end() ? 0 : at->second.bytes;
}

Ledger::Held Ledger::kept_by_standing_of(uint32_t uid) const {
  const auto at = kept_of_.find(uid);
  return at == kept_of_.end() ? Held() : at->second;
}

Ledger::Held Ledger::overdue_of(uint32_t uid) const {
  const auto at = overdue_of_.find(uid);
  return at == overdue_of_.end() ? Held() : at->second;
}

Ledger::Held Ledger::coming_to(uint32_t uid) const {
  const auto at = coming_to_.find(uid);
  return at == coming_to_.end() ? Held() : at->second;
}

Ledger::Held Ledger::retired_of(SessionId session) const {
  const auto at = retired_.find(session);
  if (at == retired_.end()) return {};
  return {at->second.bytes, static_cast<int64_t>(at->second.slabs.size())};
}

int64_t Ledger::slabs_of(uint32_t uid) const {
  const auto at = held_by_.find(uid);
  return at == held_by_.end() ? 0 : at->second.slabs;
}

void Ledger::Unpromise(uint32_t uid, uint64_t bytes) {
  if (bytes == 0) return;
  const auto at = promised_to_.find(uid);
  if ((at->second -= bytes) == 0) promised_to_.erase(at);
}

uint64_t Ledger::promised_to(uint32_t uid) const {
  const auto at = promised_to_.find(uid);
  return at == promised_to_.end() ? 0 : at->second;
}

std::optional<uint32_t> Ledger::Greediest() const {
  const auto most = std::max_element(
      held_by_.begin(), held_by_.end(),
      [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
  if (held_by_.size() < 2 || most->second.bytes <= options_.budget_bytes / held_by_.size()) {
    return std::nullopt;
  }
  return most->first;
}

std::vector<uint64_t> Ledger::ReadyFor(const SlabOwner& owner, SessionId session) const {
  std::vector<uint64_t> sizes;
  const auto add = [&sizes](const BySize& index) {
    for (const auto& [bytes, id] : index) sizes.push_back(bytes);
  };
  if (const auto at = idle_mapped_.find(session); at != idle_mapped_.end()) add(at->second);
  if (const auto at = idle_unmapped_.find(owner); at != idle_unmapped_.end()) add(at->second);
  add(free_);
  add(making_);
  std::sort(sizes.begin(), sizes.end());
  return sizes;
}

std::string Ledger::CheckStanding(const SlabRecord& slab) const {
  if (!slab.standing.empty() && StandingMustGo(slab) && slab.standing_since == 0) {
    return "nobody was asked to give up what keeps it";
  }
  if (slab.standing.empty() && (slab.standing_since != 0 || slab.overdue)) {
    return "waits for standing mappings that are gone";
  }
  if (slab.standing_since != 0 &&
      slab.overdue == patience_.contains({slab.standing_since + kPatience, slab.id})) {
    return "its patience is on the wrong list";
  }
  for (const auto& [session, lease] : slab.standing) {
    if ((slab.standing_since != 0) != StandingToUnmap(session).contains(slab.id)) {
      return "a standing mapping is on the wrong list";
    }
  }
  return "";
}

std::string Ledger::CheckInvariants() const {
  uint64_t total = 0;
  Held kept_by_standing, overdue;
  int64_t leaving = 0;
  std::array<uint64_t, kSlabStates> bytes{};
  ByUser held = records_, coming, kept_of;
  for (const auto& [id, slab] : slabs_) {
    total += slab.bytes;
    if (const auto uid = HolderOf(slab); uid.has_value()) Add(&held, *uid, {slab.bytes, 1});
    if (MayComeBack(slab)) Add(&coming, slab.owner.uid, {slab.bytes, 1});
    if (Leaves(slab)) ++leaving;
    bytes[static_cast<size_t>(slab.state)] += slab.bytes;
    const auto bad = [id = id](absl::string_view what) {
      return absl::StrCat("slab ", id, ": ", what);
    };
    uint32_t open = 0;
    for (const auto& [lease, said] : slab.readers) open += said ? 0 : 1;
    if (open != slab.open_readers) return bad("open_readers does not count its open readers");
    if (Decide(slab) != slab.state) return bad("its state is not what holds it");
    if (slab.state == SlabState::kFree && !slab.owner.None()) return bad("free, yet owned");
    if (slab.clean && (slab.mapper != 0 || !slab.readers.empty() || !slab.standing.empty())) {
      return bad("clean, yet lent");
    }
    if (KeptByStanding(slab)) {
      Held& sum = slab.overdue ? overdue : kept_by_standing;
      sum.bytes += slab.bytes;
      ++sum.slabs;
      if (!slab.overdue) Add(&kept_of, slab.owner.uid, {slab.bytes, 1});
    }
    if (const std::string wrong = CheckStanding(slab); !wrong.empty()) return bad(wrong);
    if ((NeedsProbe(slab) || MayComeBack(slab)) && !slab.probing && slab.next_probe == kNever) {
      return bad("waits for a probe that nobody will ask");
    }
    if (slab.retiring !=
        (retired_.contains(slab.mapper) && retired_.at(slab.mapper).slabs.contains(id))) {
      return bad("retiring, but on no list");
    }
  }
  if (total != total_) return absl::StrCat("slabs add up to ", total, ", counted ", total_);
  if (bytes != bytes_) return "bytes by state do not add up";
  if (!(overdue == overdue_ && kept_by_standing == kept_)) return "overdue bytes do not add up";
  if (leaving != leaving_) return absl::StrCat(leaving, " slabs leave, counted ", leaving_);
  if (held != held_by_ || coming != coming_to_ || kept_of != kept_of_)
    return "bytes by user do not add up";
  if (total_ > std::max(options_.budget_bytes, recovered_total_)) {
    return absl::StrCat("slabs take ", total_, " bytes, the budget is ", options_.budget_bytes);
  }
  return "";
}

}  // namespace cairn::engine
