#include "server/engine/leases.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/engine/restored.h"

namespace cairn::engine {
namespace {

fact::Lent LentFact(const Lease& lease, SessionId session) {
  return {lease.id, session, lease.slab, lease.mode, lease.part, lease.name};
}

bool IsReaders(LeaseMode mode) { return mode != LeaseMode::kWrite && mode != LeaseMode::kStanding; }

}  // namespace

Leases::~Leases() = default;

void Leases::CountReader(const Lease& lease) {
  readers_.Add(lease.uid);
  journal_.ChargeLasting(lease.uid, JournalRoom::CostOfLease(lease.part, lease.name));
}

const Lease* Leases::Find(LeaseId lease) const {
  const auto at = leases_.find(lease);
  return at == leases_.end() ? nullptr : at->second.get();
}

// --- lending

Lease* Leases::Make(const Session& session, SlabRecord* slab, LeaseMode mode, const PartKey& part,
                    const std::string& name, const ExtentRef& extent, uint64_t length) {
  auto lease = std::make_unique<Lease>();
  lease->id = out_.NextId();
  lease->session = session.id;
  lease->slab = slab->id;
  lease->mode = mode;
  lease->part = part;
  lease->name = name;
  lease->extent = extent;
  lease->length = length;
  if (!session.takes_fds && mode != LeaseMode::kWrite) {
    lease->expires = out_.now() + options_.lease_without_fds;
    expiry_.insert({lease->expires, lease->id});
  }
  Held& held = held_[session.id];
  held.leases.insert(lease->id);
  held.bytes += mode == LeaseMode::kWrite ? 0 : length;
  out_.Say(LentFact(*lease, session.id));
  if (mode != LeaseMode::kWrite) {
    lease->uid = session.uid;
    CountReader(*lease);
  }
  Lease* at = lease.get();
  leases_[at->id] = std::move(lease);
  return at;
}

const Lease* Leases::LendToReader(const Session& session, const ObjectRef& object, LeaseMode mode) {
  SlabRecord* slab = ledger_.Find(object.extent().slab);
  const Lease* lease = Make(session, slab, mode, object.part->key, object.name(), object.extent(),
                            object.entry().length);
  ledger_.LendToReader(slab, lease->id, mode == LeaseMode::kFile);
  return lease;
}

const Lease* Leases::LendToWriter(const Session& session, SlabRecord* slab,
                                  std::vector<Lend>* lend) {
  if (slab->mapper == session.id) {
    const Lease* lent = leases_.at(slab->writer_lease).get();
    if (ledger_.TakeLendAgain(slab)) {
      lend->push_back({lent->id, slab->id, slab->bytes, LeaseMode::kWrite});
    }
    return lent;
  }
  ledger_.TakeLendAgain(slab);
  const Lease* lease = Make(session, slab, LeaseMode::kWrite, {}, "", {}, 0);
  ledger_.LendToWriter(slab, session.id, lease->id);
  held_[session.id].mapped.insert(slab->id);
  lend->push_back({lease->id, slab->id, slab->bytes, LeaseMode::kWrite});
  return lease;
}

const Lease* Leases::LendStanding(const Session& session, SlabRecord* slab) {
  const auto has = slab->standing.find(session.id);
  if (has != slab->standing.end()) {
    Lease* lease = leases_.at(has->second).get();
    ++lease->sent;
    return lease;
  }
  const Lease* lease = Make(session, slab, LeaseMode::kStanding, {}, "", {}, 0);
  ledger_.LendStanding(slab, session.id, lease->id);
  return lease;
}

const Lease* Leases::LendForChunks(const Session& session, Object* object) {
  if (*object->write_lease == 0) {
    SlabRecord* slab = ledger_.Find(object->content->extent.slab);
    object->write_lease.Edit() =
        Make(session, slab, LeaseMode::kWrite, object->part->key, object->name(),
             object->content->extent, object->content->granted)
            ->id;
  }
  return leases_.at(*object->write_lease).get();
}

// --- ending

Leases::Held* Leases::HeldBy(SessionId session) {
  if (const auto held = held_.find(session); held != held_.end()) return &held->second;
  const auto ending = ending_.find(session);
  return ending == ending_.end() ? nullptr : &ending->second;
}

// The description of a reader may live on in a forked child, or as a mapping.
void Leases::Release(Lease* lease) {
  if (lease->released) return;
  const bool has_lock = lease->expires == kNever;  // a client without descriptors has none
  if (Held* held = HeldBy(lease->session)) {
    held->leases.erase(lease->id);
    held->bytes -= lease->length;
  }
  if (lease->expires != kNever) expiry_.erase({lease->expires, lease->id});
  lease->expires = kNever;
  lease->released = true;
  SlabRecord* slab = ledger_.Find(lease->slab);
  ledger_.ReaderReleased(slab, lease->id, has_lock);
  if (has_lock) {
    out_.Say(LentFact(*lease, /*session=*/0));  // of no session; its lock may still be there
  } else {
    Forget(lease->id);
  }
}

void Leases::Forget(LeaseId id) {
  const auto at = leases_.find(id);
  if (at == leases_.end()) return;
  const Lease& lease = *at->second;
  if (Held* held = HeldBy(lease.session)) held->leases.erase(id);
  if (lease.expires != kNever) expiry_.erase({lease.expires, id});
  if (lease.mode != LeaseMode::kWrite) {
    readers_.Drop(lease.uid);
    journal_.RefundLasting(lease.uid, JournalRoom::CostOfLease(lease.part, lease.name));
  }
  out_.Say(fact::Unlent{id});
  leases_.erase(at);
}

void Leases::EndWrite(Object* object) {
  if (*object->write_lease != 0) Forget(std::exchange(object->write_lease.Edit(), 0));
}

void Leases::UnmapWriter(SlabRecord* slab) {
  if (slab == nullptr || slab->mapper == 0) return;
  if (Held* held = HeldBy(slab->mapper)) held->mapped.erase(slab->id);
  const LeaseId lease = slab->writer_lease;
  ledger_.WriterGone(slab);
  Forget(lease);
}

void Leases::Unmapped(const Session& session, const std::vector<SlabId>& slabs) {
  const auto held = held_.find(session.id);
  if (held == held_.end()) return;
  for (SlabId id : slabs) {
    if (held->second.mapped.contains(id)) UnmapWriter(ledger_.Find(id));
  }
}

void Leases::StandingUnmapped(const Session& session, const std::vector<SlabId>& slabs) {
  for (SlabId id : slabs) {
    const SlabRecord* slab = ledger_.Find(id);
    if (slab == nullptr) continue;
    const auto has = slab->standing.find(session.id);
    if (has != slab->standing.end()) EndStanding(has->second, /*died=*/false);
  }
}

void Leases::EndStanding(LeaseId id, bool died) {
  const Lease& lease = *leases_.at(id);
  ledger_.StandingGone(ledger_.Find(lease.slab), lease.session, died);
  Forget(id);
}

void Leases::EndAll(SessionId session, bool goodbye) {
  auto held = held_.extract(session);
  if (!held) return;
  held.mapped().goodbye = goodbye;
  ending_.emplace(session, std::move(held.mapped()));
}

void Leases::EndSome() {
  for (int i = 0; i < options_.ended_at_once && !ending_.empty(); ++i) {
    const Held& held = ending_.begin()->second;
    if (!held.mapped.empty()) {
      UnmapWriter(ledger_.Find(*held.mapped.begin()));
    } else if (!held.leases.empty()) {
      Lease* lease = leases_.at(*held.leases.begin()).get();
      if (lease->mode == LeaseMode::kWrite) {
        Forget(lease->id);
      } else if (lease->mode == LeaseMode::kStanding) {
        EndStanding(lease->id, /*died=*/!held.goodbye);
      } else {
        Release(lease);
      }
    } else {
      ending_.erase(ending_.begin());
    }
  }
}

void Leases::Expire() {
  while (!expiry_.empty() && expiry_.begin()->first <= out_.now()) {
    Release(leases_.at(expiry_.begin()->second).get());
  }
}

void Leases::Renew(LeaseId id) {
  Lease* lease = leases_.at(id).get();
  if (lease->expires == kNever) return;
  expiry_.erase({lease->expires, id});
  lease->expires = out_.now() + options_.lease_without_fds;
  expiry_.insert({lease->expires, id});
}

void Leases::On(const event::Release& event) {
  const Session* session = sessions_.Of(event.caller);
  if (session == nullptr) return;
  for (LeaseId id : event.leases) {
    const auto at = leases_.find(id);
    // Unknown ones were released before: the call is a repeat.
    if (at == leases_.end() || at->second->session != session->id) continue;
    if (IsReaders(at->second->mode)) Release(at->second.get());
  }
  out_.Answer(event.caller.request, Body(reply::Ok{}));
}

void Leases::On(const event::Renew& event) {
  const Session* session = sessions_.Of(event.caller);
  if (session == nullptr) return;
  for (LeaseId id : event.leases) {
    const auto at = leases_.find(id);
    if (at == leases_.end() || at->second->session != session->id || at->second->released) {
      return out_.Answer(event.caller.request,
                         absl::NotFoundError(absl::StrCat("lease: ", id, " has ended")));
    }
  }
  for (LeaseId id : event.leases) Renew(id);
  out_.Answer(event.caller.request, Body(reply::Ok{}));
}

void Leases::On(const event::LendFailed& event) {
  const auto at = leases_.find(event.lease);
  if (at == leases_.end()) return;
  const Lease& lease = *at->second;
  if (lease.released) return;  // its session has ended; a probe finds that there is no lock
  SlabRecord* slab = ledger_.Find(lease.slab);
  if (lease.mode == LeaseMode::kWrite) {
    // The objects stay its own: a repeat of the create lends anew.
    UnmapWriter(slab);
    return;
  }
  if (lease.mode == LeaseMode::kStanding) {
    // What was sent before may be mapped.
    if (--at->second->sent == 0) EndStanding(event.lease, /*died=*/false);
    return;
  }
  if (Held* held = HeldBy(lease.session)) held->bytes -= lease.length;
  ledger_.ReaderNeverLent(slab, lease.id);
  Forget(event.lease);
}

void Leases::On(const event::SlabProbed& event) {
  for (LeaseId lease : ledger_.OnProbed(event)) Forget(lease);
}

const std::set<SlabId>& Leases::MappedBy(SessionId session) const {
  static const std::set<SlabId> none;
  const auto held = held_.find(session);
  return held == held_.end() ? none : held->second.mapped;
}

// --- for people

uint64_t Leases::BytesOf(SessionId session) const {
  const auto held = held_.find(session);
  return held == held_.end() ? 0 : held->second.bytes;
}

size_t Leases::CountOf(SessionId session) const {
  const auto held = held_.find(session);
  return held == held_.end() ? 0 : held->second.leases.size();
}

void Leases::HoldersOf(const SlabRecord& slab, bool readers_only, std::set<int32_t>* pids) const {
  const auto add = [&](SessionId id) {
    if (const Session* session = sessions_.Find(id)) pids->insert(session->pid);
  };
  if (slab.mapper != 0 && !readers_only) add(slab.mapper);
  for (const auto& [lease, said] : slab.readers) {
    if (const Lease* held = Find(lease)) add(held->session);
  }
  if (readers_only) return;
  for (const auto& [session, lease] : slab.standing) add(session);
}

// --- recovery

void Leases::Restore(const Restored& restored,
                     const std::function<ObjectRef(const PartKey&, const std::string&)>& find) {
  for (const auto& [id, fact] : restored.leases) {
    SlabRecord* slab = ledger_.Find(fact.slab);
    const Session* session = sessions_.Find(fact.session);
    const auto begun = restored.sessions.find(fact.session);
    const bool had_lock = begun == restored.sessions.end() || begun->second.takes_fds;
    const bool writes = fact.mode == LeaseMode::kWrite;
    const bool stands = fact.mode == LeaseMode::kStanding;
    if (stands && slab != nullptr && session == nullptr) ledger_.RestoreCondemned(slab);
    if (slab == nullptr || (stands && session == nullptr) ||
        (session == nullptr && (writes || !had_lock))) {
      if (slab != nullptr && had_lock) ledger_.RestoreUnclean(slab);
      out_.Say(fact::Unlent{id});
      continue;
    }
    auto lease = std::make_unique<Lease>();
    lease->id = id;
    lease->session = fact.session;
    lease->slab = fact.slab;
    lease->mode = fact.mode;
    lease->part = fact.part;
    lease->name = fact.name;
    const ObjectRef found = find(fact.part, fact.name);
    Object* object = found.object;
    // Where the bytes of a checkpoint lay that was given up is not known any more.
    if (found && found.resident()) {
      lease->extent = found.extent();
      lease->length = writes && object != nullptr ? object->content->granted : found.entry().length;
    }
    if (writes) {
      if (session->takes_fds) {
        ledger_.RestoreWriter(slab, session->id, id);
        held_[session->id].mapped.insert(slab->id);
      } else if (object == nullptr || object->content->sealed) {
        out_.Say(fact::Unlent{id});
        continue;
      } else {
        object->write_lease.Edit() = id;
      }
    } else if (stands) {
      ledger_.RestoreStanding(slab, session->id, id);
    } else if (session == nullptr) {
      lease->session = 0;
      lease->released = true;
      ledger_.RestoreReader(slab, id, /*released=*/true, fact.mode == LeaseMode::kFile);
      out_.Say(LentFact(*lease, 0));
    } else {
      ledger_.RestoreReader(slab, id, /*released=*/false, fact.mode == LeaseMode::kFile);
      held_[session->id].bytes += lease->length;
      if (!session->takes_fds) {
        lease->expires = out_.now() + options_.lease_without_fds;
        expiry_.insert({lease->expires, id});
      }
    }
    if (session != nullptr) held_[session->id].leases.insert(id);
    if (!writes) {
      // Of one that has ended it is not known; it is the owner's more often than another's.
      lease->uid = session == nullptr ? slab->owner.uid : session->uid;
      CountReader(*lease);
    }
    leases_[id] = std::move(lease);
  }
}

void Leases::Snapshot(LeaseId id, std::vector<Fact>* facts) const {
  const auto at = leases_.find(id);
  if (at == leases_.end()) return;
  const Lease& lease = *at->second;
  facts->push_back(LentFact(lease, lease.released ? 0 : lease.session));
}

void Leases::AddJournal(std::map<uint32_t, uint64_t>* held) const {
  for (const auto& [id, lease] : leases_) {
    if (lease->mode == LeaseMode::kWrite) continue;
    (*held)[lease->uid] += JournalRoom::CostOfLease(lease->part, lease->name);
  }
}

std::string Leases::CheckInvariants() const {
  for (const auto& [id, lease] : leases_) {
    if (!lease->released && sessions_.Find(lease->session) == nullptr &&
        !ending_.contains(lease->session)) {
      return absl::StrCat("lease ", id, " outlives its session");
    }
    const SlabRecord* slab = ledger_.Find(lease->slab);
    if (slab == nullptr) return absl::StrCat("lease ", id, " of no slab");
    if (lease->mode == LeaseMode::kStanding && !slab->standing.contains(lease->session)) {
      return absl::StrCat("lease ", id, ": its slab does not count it");
    }
  }
  for (const auto& [id, slab] : ledger_.slabs()) {
    if (slab.mapper != 0 && sessions_.Find(slab.mapper) == nullptr &&
        !ending_.contains(slab.mapper)) {
      return absl::StrCat("slab ", id, ": mapped by a session that has ended");
    }
    for (const auto& [lease, said] : slab.readers) {
      if (!leases_.contains(lease)) return absl::StrCat("slab ", id, ": a reader without a lease");
    }
    for (const auto& [session, lease] : slab.standing) {
      const Lease* held = Find(lease);
      if (held == nullptr || held->session != session || held->mode != LeaseMode::kStanding) {
        return absl::StrCat("slab ", id, ": a standing mapping without a lease");
      }
    }
  }
  std::string problem;
  const auto check = [&](SessionId session, const Held& held) {
    for (const SlabId id : held.mapped) {
      const SlabRecord* slab = ledger_.Find(id);
      if (slab != nullptr && slab->mapper == session) continue;
      problem = absl::StrCat("slab ", id, ": session ", session, " is not its mapper");
    }
    for (const LeaseId id : held.leases) {
      const Lease* lease = Find(id);
      if (lease != nullptr && lease->session == session && !lease->released) continue;
      problem = absl::StrCat("lease ", id, ": session ", session, " does not hold it");
    }
  };
  for (const auto& [session, held] : held_) {
    check(session, held);
    if (sessions_.Find(session) == nullptr) {
      return absl::StrCat("leases are held for session ", session, ", which has ended");
    }
  }
  for (const auto& [session, held] : ending_) check(session, held);
  return problem;
}

}  // namespace cairn::engine
