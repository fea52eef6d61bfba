// One file: a fetch and the memory that it fills begin and end together.
#include "server/engine/fetches.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/engine/needs.h"
#include "server/engine/own_parts.h"
#include "server/engine/restored.h"
#include "server/engine/retention.h"

namespace cairn::engine {
namespace {

// Of one user and job; more are of no use, for at most two parts of a writer come at a time.
constexpr size_t kMostSpares = 2;
// So long what an earlier daemon's fetches left waits for who wants it.
constexpr MonotonicNanos kLeftFor = 60 * kNanosPerSecond;

}  // namespace

Fetches::Fetches(const Options& options, const Mode* mode, JournalRoom* journal, Outbox* out,
                 Jobs* jobs, Attempts* attempts, Ledger* ledger, Parts* parts, Manifests* manifests,
                 Eviction* eviction)
    : options_(options),
      mode_(*mode),
      journal_(*journal),
      out_(*out),
      jobs_(*jobs),
      attempts_(*attempts),
      ledger_(*ledger),
      parts_(*parts),
      manifests_(*manifests),
      eviction_(*eviction) {
  manifests_.set_keeping_ended([this](const PartKey& part) {
    const auto at = keeping_.find(part);
    if (at == keeping_.end()) return;
    ReleaseJournal(&at->second);
    aborted_.push_back(std::move(at->second));
    keeping_.erase(at);
  });
  manifests_.set_kept([this](Part* part, const Status& status) { Kept(part, status); });
}

bool Fetches::RestIsRead(const PartKey& key) const {
  const Part* part = parts_.Find(key);
  if (part == nullptr || Holds(*part)) return false;
  const auto& slabs = part->content->slabs;
  return std::any_of(slabs.begin(), slabs.end(),
                     [this](const auto& slab) { return ledger_.Find(slab.first)->Locked(); });
}

bool Fetches::Holds(const Part& part) {
  return part.content->committed && part.manifest->resident && !part.manifest->committing &&
         part.content->absent == 0;
}

uint64_t Fetches::DoneBytes(const PartKey& part) const {
  const auto at = by_part_.find(part);
  return at == by_part_.end() ? 0 : fetches_.at(at->second).done;
}

std::vector<reply::FetchStatus> Fetches::UnderWay() const {
  constexpr absl::string_view kWhatFor[] = {"restore", "load", "replica"};  // by FetchFor
  std::vector<reply::FetchStatus> shown;
  for (const auto& [id, fetch] : fetches_) {
    if (shown.size() == kMostShown) break;
    const Order& order = fetch.order;
    shown.push_back({order.part, std::string(kWhatFor[static_cast<int>(order.what_for)]), order.uid,
                     order.bytes, fetch.done, order.sources});
  }
  return shown;
}

// --- beginning

// Of the fetch, its slab and the part; and of the job, its attempt and how far it is safe, where they are new here.
uint64_t Fetches::JournalCostOf(const Order& order) {
  constexpr uint64_t kFacts = 6;
  return JournalRoom::CostOfPart(order.part) + JournalRoom::CostOfKept(order.part, /*slabs=*/1) +
         kFacts * (JournalRoom::kFactBytes + order.part.checkpoint.job.size());
}

void Fetches::ReleaseJournal(Order* order) {
  journal_.Release(order->uid, std::exchange(order->journal_bytes, 0));
}

Status Fetches::CheckAdmits(const Order& order) const {
  if (!mode_.safe_mode.empty()) return absl::UnavailableError(mode_.safe_mode);
  CAIRN_RETURN_IF_ERROR(journal_.CheckCreate(order.uid, JournalCostOf(order)));
  CAIRN_RETURN_IF_ERROR(journal_.CheckShare(order.uid, JournalCostOf(order)));
  const std::string& name = order.part.checkpoint.job;
  return jobs_.CheckRoom(name, jobs_.Find(name), order.uid);
}

Status Fetches::CheckPlace(const Order& order) const {
  const Job* job = jobs_.Find(order.part.checkpoint.job);
  const CheckpointKey& key = order.part.checkpoint;
  if (job != nullptr) {
    CAIRN_RETURN_IF_ERROR(Retention::CheckRemoved(*job, key.step, key.attempt));
  }
  if (job != nullptr && job->owner->owned && job->owner->uid != order.uid) {
    return absl::PermissionDeniedError(absl::StrCat("job ", job->name, " is uid ", job->owner->uid,
                                                    "'s here, and uid ", order.uid,
                                                    "'s where the part comes from"));
  }
  const Checkpoint* checkpoint = parts_.Find(order.part.checkpoint);
  if (checkpoint == nullptr) return absl::OkStatus();
  if (!checkpoint->elsewhere->conflict.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        order.part.checkpoint.DebugString(), " is in conflict: ", checkpoint->elsewhere->conflict));
  }
  if (checkpoint->content->world_size != order.world_size) {
    return absl::FailedPreconditionError(absl::StrCat(order.part.DebugString(), " has world_size ",
                                                      order.world_size, ", here ",
                                                      checkpoint->content->world_size));
  }
  const Part* part = Parts::PartOf(*checkpoint, order.part.writer);
  if (part == nullptr) return absl::OkStatus();
  if (!part->content->committed || part->manifest->committing) {
    return absl::FailedPreconditionError(
        absl::StrCat(order.part.DebugString(), " is being written here"));
  }
  if (part->content->digest != order.digest) {
    return absl::AlreadyExistsError(
        absl::StrCat(order.part.DebugString(), " is here with other content"));
  }
  if (RestIsRead(order.part)) {
    return absl::UnavailableError(
        absl::StrCat("what is left of ", order.part.DebugString(), " here is being read"));
  }
  return absl::OkStatus();
}

uint64_t Fetches::SlabBytesOf(const Order& order) {
  return SlabBytesFor(std::max(order.bytes, kPageBytes));
}

SlabRecord* Fetches::FindSpare(const Order& order) const {
  const auto spares = spares_.find(OwnerOf(order));
  if (spares == spares_.end()) return nullptr;
  const uint64_t bytes = SlabBytesOf(order);
  for (const SlabId id : spares->second) {
    SlabRecord* slab = ledger_.Find(id);
    const bool fits = slab->bytes >= bytes && slab->bytes <= LargestFit(bytes);
    if (fits && slab->clean && !slab->Locked()) return slab;
  }
  return nullptr;
}

SlabRecord* Fetches::FindLeft(const Order& order) const {
  const auto left = left_.find(order.part);
  if (left == left_.end()) return nullptr;
  SlabRecord* slab = ledger_.Find(left->second);
  const bool same = slab->fetch->digest == order.digest && slab->owner == OwnerOf(order);
  return same && slab->bytes >= SlabBytesOf(order) && !slab->Locked() ? slab : nullptr;
}

// What this node lost may come back into what was made ready at its start. Replicas leave that to those
// who save.
SlabRecord* Fetches::TakeReady(const Order& order) {
  SlabRecord* slab = FindLeft(order);
  if (slab != nullptr) {
    left_.erase(order.part);
  } else if ((slab = FindSpare(order)) != nullptr) {
    std::erase(spares_[OwnerOf(order)], slab->id);
  } else if (order.role == PartRole::kOwn) {
    slab = ledger_.TakeUnmapped(SlabBytesOf(order), /*owner=*/{});
    if (slab != nullptr) ledger_.KeepForPeers(slab);
  }
  return slab;
}

// Somebody else wants it, too. Of two reasons the one that keeps it longer counts.
Status Fetches::Join(const Order& order) {
  const auto keeping = keeping_.find(order.part);
  const auto under_way = by_part_.find(order.part);
  Fetch* const fetch = under_way == by_part_.end() ? nullptr : &fetches_.at(under_way->second);
  Order* const known = fetch == nullptr ? &keeping->second : &fetch->order;
  if (!known->digest.empty() && !order.digest.empty() && known->digest != order.digest) {
    return absl::AlreadyExistsError(
        absl::StrCat(order.part.DebugString(), " is being fetched with other content"));
  }
  if (fetch != nullptr) {
    fetch->joined |= order.what_for != fetch->order.what_for;
    AddSources(under_way->second, order.sources);
  }
  if (order.role == PartRole::kReplica) known->asker = order.asker;
  if (order.role >= known->role) return absl::OkStatus();
  known->role = order.role;
  known->owner = order.owner;
  const bool replica = order.role == PartRole::kReplica;
  if (under_way != by_part_.end()) CountReplica(fetches_.at(under_way->second).slab, replica);
  Part* part = parts_.Find(order.part);
  if (keeping != keeping_.end() && part != nullptr) {
    part->source.Edit() = {order.role, order.owner};
    CountReplica(*part, replica);
  }
  return absl::OkStatus();
}

void Fetches::Become(Part* part, PartRole role, Rank owner) {
  if (part->source->role <= role) return;
  part->source.Edit() = {role, owner};
  CountReplica(*part, role == PartRole::kReplica);
  manifests_.SayAgain(*part);
}

bool Fetches::CountsAsReplica(const PartKey& part) const {
  const auto keeping = keeping_.find(part);
  if (keeping != keeping_.end()) return keeping->second.role == PartRole::kReplica;
  const auto at = by_part_.find(part);
  return at != by_part_.end() && fetches_.at(at->second).order.role == PartRole::kReplica;
}

void Fetches::CountReplica(SlabId slab, bool is) {
  const auto known = replicas_.find(slab);
  if (is == (known != replicas_.end())) return;
  if (is) {
    replica_bytes_ += replicas_[slab] = ledger_.Find(slab)->bytes;
  } else {
    replica_bytes_ -= known->second;
    replicas_.erase(known);
  }
}

void Fetches::CountReplica(const Part& part, bool is) {
  for (const auto& [slab, objects] : part.content->slabs) CountReplica(slab, is);
}

Status Fetches::Start(const Order& order) {
  if (by_part_.contains(order.part) || keeping_.contains(order.part)) return Join(order);
  CAIRN_RETURN_IF_ERROR(CheckAdmits(order));
  CAIRN_RETURN_IF_ERROR(CheckPlace(order));
  const uint64_t bytes = SlabBytesOf(order);
  SlabRecord* slab = TakeReady(order);
  const bool ready = slab != nullptr;
  if (!ready) {
    if (ledger_.UnusedBudget() < bytes) FreeSpares();
    if (ledger_.UnusedBudget() < bytes) eviction_.Free(nullptr, /*session=*/0, bytes);
    if (ledger_.UnusedBudget() < bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(order.part.DebugString(), " needs ", bytes,
                                                       " bytes of memory, ", ledger_.UnusedBudget(),
                                                       " of ", options_.budget_bytes, " are free"));
    }
    slab = ledger_.MakeForPeers(bytes);
  }
  const uint64_t id = out_.NextId();
  Fetch& fetch = fetches_[id];
  fetch.order = order;
  fetch.order.journal_bytes = JournalCostOf(order);
  journal_.Reserve(order.uid, fetch.order.journal_bytes);
  fetch.slab = slab->id;
  fetch.begun_before = slab->fetch != nullptr;
  CountReplica(slab->id, order.role == PartRole::kReplica);
  by_part_[order.part] = id;
  by_slab_[slab->id] = id;
  if (ready) Run(id, &fetch);
  return absl::OkStatus();
}

void Fetches::Run(uint64_t id, Fetch* fetch) {
  const Order& order = fetch->order;
  SlabRecord* const slab = ledger_.Find(fetch->slab);
  ledger_.SetOwner(slab, OwnerOf(order));
  if (!fetch->begun_before) {
    ledger_.SetFetch(slab, std::make_shared<const fact::FetchBegun>(
                               fact::FetchBegun{slab->id, order.part, order.digest}));
  }
  fetch->running = true;
  out_.Count("fetches");
  out_.Do(action::Fetch{id, order.part, order.uid, order.digest, order.manifest_bytes, slab->id,
                        slab->bytes, order.sources, order.what_for, fetch->begun_before});
}

bool Fetches::SlabMade(SlabId slab, const Status& status) {
  const auto at = by_slab_.find(slab);
  if (at == by_slab_.end()) return false;
  const uint64_t id = at->second;
  Fetch& fetch = fetches_.at(id);
  if (!status.ok() || fetch.cancelled) {
    End(id, status.ok() ? absl::CancelledError("not wanted any more") : status);
    return true;
  }
  Run(id, &fetch);
  return true;
}

// One that does not have it is left out by who reads.
void Fetches::AddSources(uint64_t id, const std::vector<Rank>& sources) {
  Fetch& fetch = fetches_.at(id);
  std::vector<Rank>& known = fetch.order.sources;
  const size_t before = known.size();
  for (const Rank rank : sources) {
    if (std::find(known.begin(), known.end(), rank) == known.end()) known.push_back(rank);
  }
  if (known.size() > before && fetch.running) out_.Do(action::FetchFrom{id, known});
}

void Fetches::Cancel(const PartKey& part) {
  const auto at = by_part_.find(part);
  if (at == by_part_.end()) return;
  Fetch& fetch = fetches_.at(at->second);
  if (fetch.joined || std::exchange(fetch.cancelled, true) || !fetch.running) return;
  out_.Do(action::CancelFetch{at->second});
}

// --- ending

void Fetches::On(const event::FetchAdvanced& event) {
  const auto at = fetches_.find(event.fetch);
  if (at != fetches_.end()) at->second.done = std::max(at->second.done, event.bytes);
}

void Fetches::On(const event::Fetched& event) {
  const auto at = fetches_.find(event.fetch);
  if (at == fetches_.end()) return;
  const Fetch& fetch = at->second;
  Status status = event.status;
  if (status.ok() && fetch.cancelled) status = absl::CancelledError("not wanted any more");
  if (status.ok()) status = Take(fetch.order, event);
  if (!status.ok()) return End(event.fetch, status);
  // The slab is the part's now; its asker hears once the record is written.
  const Order order = fetch.order;
  const SlabId slab = fetch.slab;
  by_part_.erase(order.part);
  by_slab_.erase(slab);
  fetches_.erase(at);
  Part* part = parts_.Find(order.part);
  if (part->content->slabs.empty()) {
    Return(ledger_.Find(slab));  // it has no objects
  } else {
    holding_[slab] = OwnerOf(order);
  }
  keeping_[order.part] = order;
  manifests_.Keep(part);
}

// Two writers on two nodes may have chosen one name, and the home may not have said so yet: a node that took both
// parts would call the checkpoint complete. Of names as directories of each other view.h says nothing either.
Status Fetches::CheckNames(const PartKey& of, const PartTable& table) const {
  const Checkpoint* checkpoint = parts_.Find(of.checkpoint);
  if (checkpoint == nullptr || checkpoint->content->complete) return absl::OkStatus();
  for (const auto& entry : table.entries) {
    const ObjectRef other = ObjectIn(*checkpoint, entry->name);
    if (!other || other.part->key.writer == of.writer) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(of.DebugString(), " has the name \"", absl::CHexEscape(entry->name),
                     "\", and so has writer ", other.part->key.writer, "'s part here"));
  }
  return absl::OkStatus();
}

Status Fetches::Take(const Order& order, const event::Fetched& event) {
  CAIRN_RETURN_IF_ERROR(CheckPlace(order));  // again: much may have happened meanwhile
  const Manifest& head = event.table->head;
  if (!(head.Part() == order.part) || head.world_size != order.world_size ||
      event.digest != order.digest || head.owner_uid != order.uid) {
    return absl::DataLossError(
        absl::StrCat("what was fetched as ", order.part.DebugString(), " is another part"));
  }
  CAIRN_RETURN_IF_ERROR(CheckNames(order.part, *event.table));
  Job* job = jobs_.FindOrMake(order.part.checkpoint.job);
  if (Part* here = parts_.Find(order.part); here != nullptr && HeldInMemory(*here)) {
    if (Holds(*here)) {
      return absl::AlreadyExistsError(absl::StrCat(order.part.DebugString(), " is here by now"));
    }
    // What is left of a damaged copy makes room for a whole one.
    if (!Release(here)) {
      return absl::UnavailableError(
          absl::StrCat("what is left of ", order.part.DebugString(), " here is being read"));
    }
    job = jobs_.FindOrMake(order.part.checkpoint.job);
  }
  jobs_.TakeOwnership(job, order.uid, order.gid, std::nullopt);
  const Attempt newest = job->attempts->newest();
  attempts_.Learn(job, head.attempt, {head.first, head.lineage, {}}, head.created_unix_ms);
  Checkpoint* checkpoint = parts_.FindOrMake(job, order.part.checkpoint, order.world_size);
  Part* part = parts_.AddFetched(checkpoint, event.table, event.digest);
  part->source.Edit() = {order.role, order.owner};
  if (head.attempt > newest) newer_attempt_(job);
  return absl::OkStatus();
}

void Fetches::TellAborted() {
  for (const Order& order : std::exchange(aborted_, {})) {
    for (const Ended& ended : ended_) {
      ended(order, absl::AbortedError(absl::StrCat(order.part.DebugString(), " went again")));
    }
  }
}

void Fetches::Kept(Part* part, const Status& status) {
  const auto at = keeping_.find(part->key);
  if (at == keeping_.end()) return;
  ReleaseJournal(&at->second);
  const Order order = std::move(at->second);
  keeping_.erase(at);
  for (const auto& [id, objects] : part->content->slabs) {
    SlabRecord* slab = ledger_.Find(id);
    ledger_.SetFetch(slab, nullptr);
    if (order.role != PartRole::kOwn || !status.ok()) continue;
    ledger_.BecomeOwn(slab);
    holding_.erase(id);
  }
  if (!status.ok()) parts_.Release(part, &manifests_);
  for (const Ended& ended : ended_) ended(order, status);
}

void Fetches::End(uint64_t id, const Status& status) {
  const auto at = fetches_.find(id);
  ReleaseJournal(&at->second.order);
  const Order order = std::move(at->second.order);
  const SlabId slab = at->second.slab;
  fetches_.erase(at);
  by_part_.erase(order.part);
  by_slab_.erase(slab);
  SlabRecord* record = ledger_.Find(slab);
  // What it has now may be lent to this job's user; so it must be his. Of a source that lied nobody knows.
  const bool his = absl::IsCancelled(status) || absl::IsUnavailable(status);
  if (record == nullptr) {  // it could not be made
    CountReplica(slab, false);
  } else if (his) {
    Spare(record, OwnerOf(order));
  } else {
    Return(record);
  }
  if (!absl::IsCancelled(status)) {
    out_.Count("fetches_failed");
    out_.Log(Severity::kWarning,
             absl::StrCat("job=", order.part.checkpoint.job, " step=", order.part.checkpoint.step,
                          " writer ", order.part.writer, " was not fetched: ", status.message()));
  }
  for (const Ended& ended : ended_) ended(order, status);
}

// --- memory

void Fetches::Spare(SlabRecord* slab, const SlabOwner& owner) {
  ledger_.SetFetch(slab, nullptr);
  CountReplica(slab->id, false);
  std::deque<SlabId>& spares = spares_[owner];
  spares.push_back(slab->id);
  while (spares.size() > kMostSpares) {
    Return(ledger_.Find(spares.front()));
    spares.pop_front();
  }
}

// Nobody has it again.
void Fetches::Return(SlabRecord* slab) {
  CountReplica(slab->id, false);
  ledger_.ReturnFromPeers(slab);
}

void Fetches::FreeSpares() {
  for (auto& [owner, spares] : spares_) {
    for (const SlabId slab : spares) Return(ledger_.Find(slab));
  }
  spares_.clear();
  ForgetLeft();
}

void Fetches::ForgetLeft() {
  for (const auto& [part, slab] : left_) ledger_.ReturnFromPeers(ledger_.Find(slab));
  left_.clear();
}

bool Fetches::Release(Part* part) {
  for (const auto& [slab, objects] : part->content->slabs) {
    if (ledger_.Find(slab)->Locked()) return false;
  }
  const std::vector<SlabId> slabs = Parts::SlabsOf(*part);
  for (const SlabId slab : slabs) ledger_.ReserveForPeers(ledger_.Find(slab), true);
  parts_.Release(part, &manifests_);
  for (const SlabId slab : slabs) {
    SlabRecord* record = ledger_.Find(slab);
    if (record != nullptr && record->extents > 0) ledger_.ReserveForPeers(record, false);
  }
  ReturnEmpty();
  return true;
}

// Whoever erased the part: its release, an eviction, a removal.
void Fetches::ReturnEmpty() {
  if (out_.now() >= left_until_) ForgetLeft();
  for (auto at = holding_.begin(); at != holding_.end();) {
    SlabRecord* slab = ledger_.Find(at->first);
    if (slab != nullptr && slab->extents > 0) {
      ++at;
      continue;
    }
    CountReplica(at->first, false);
    if (slab != nullptr && slab->for_peers) Spare(slab, at->second);
    at = holding_.erase(at);
  }
}

// --- recovery

void Fetches::Restore(const Restored& restored) {
  for (const auto& [key, committed] : restored.committed) {
    const fact::PartCommitted& fact = committed.fact;
    Part* part = parts_.Find(key);
    if (part == nullptr || fact.role == PartRole::kOwn) continue;
    part->source.Edit() = {fact.role, fact.owner};
    if (options_.ring.Alone()) continue;  // it was in a ring once; whose the part is stays known
    for (const auto& [slab, objects] : part->content->slabs) {
      SlabRecord* record = ledger_.Find(slab);
      ledger_.KeepForPeers(record);
      holding_[slab] = record->owner;
      CountReplica(slab, fact.role == PartRole::kReplica);
    }
  }
  left_until_ = out_.now() + kLeftFor;
  for (const auto& [id, fetch] : restored.fetches) {
    SlabRecord* slab = ledger_.Find(id);
    if (slab == nullptr || slab->extents > 0) continue;  // lost with the keeper's descriptor
    slab->fetch = std::make_shared<const fact::FetchBegun>(fetch);
    ledger_.KeepForPeers(slab);
    if (options_.ring.Alone() || !left_.emplace(fetch.part, id).second) {
      ledger_.ReturnFromPeers(slab);
    }
  }
}

uint64_t Fetches::journal_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, fetch] : fetches_) bytes += fetch.order.journal_bytes;
  for (const auto& [part, order] : keeping_) bytes += order.journal_bytes;
  return bytes;
}

std::string Fetches::CheckInvariants() const {
  std::set<SlabId> known;
  for (const auto& [id, fetch] : fetches_) known.insert(fetch.slab);
  for (const auto& [slab, owner] : holding_) known.insert(slab);
  for (const auto& [part, slab] : left_) known.insert(slab);
  for (const auto& [owner, spares] : spares_) known.insert(spares.begin(), spares.end());
  for (const auto& [id, slab] : ledger_.slabs()) {
    if (slab.for_peers && slab.state != SlabState::kDying && !known.contains(id)) {
      return absl::StrCat("slab ", id, " is kept for peers, and nobody knows for what");
    }
  }
  uint64_t bytes = 0;
  for (const auto& [slab, counted] : replicas_) {
    bytes += counted;
    if (!holding_.contains(slab) && !by_slab_.contains(slab)) {
      return absl::StrCat("slab ", slab, " counts as a replica's, and is nobody's");
    }
  }
  for (const auto& [id, fetch] : fetches_) {
    if (replicas_.contains(fetch.slab) != (fetch.order.role == PartRole::kReplica)) {
      return absl::StrCat("slab ", fetch.slab, ": whether it counts as a replica's is wrong");
    }
  }
  if (bytes != replica_bytes_) return "replicas are miscounted";
  return "";
}

}  // namespace cairn::engine
