#include "server/engine/manifests.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/engine/needs.h"
#include "server/engine/restored.h"

namespace cairn::engine {
namespace {

// Manifests share slabs of this size: dozens of a usual job's.
constexpr uint64_t kManifestSlabBytes = 256 << 10;
// A commit carries no deadline of its own.
constexpr MonotonicNanos kPatience = 10 * kNanosPerSecond;
constexpr MonotonicNanos kPauseAfterFailure = kNanosPerSecond / 2;

// Of a manifest beside its objects, as a rule.
constexpr uint64_t kHeadBytes = 2048;

uint64_t RecordBytes(uint64_t manifest_bytes, uint64_t objects) {
  return manifest_bytes + PartRecordTailSize(objects) + kRecordSealBytes;
}

}  // namespace

Manifests::Manifests(const Options& options, Outbox* out, Callers* callers, Sessions* sessions,
                     Ledger* ledger, Parts* parts, Eviction* eviction)
    : slab_bytes_(std::clamp(options.budget_bytes / 64 / kPageBytes * kPageBytes, kPageBytes,
                             kManifestSlabBytes)),
      out_(*out),
      callers_(*callers),
      sessions_(*sessions),
      ledger_(*ledger),
      parts_(*parts),
      eviction_(*eviction) {}

Manifests::~Manifests() = default;

// --- committing

bool Manifests::Await(Part* part, const event::Commit& event) {
  // A write that is under way ends by itself; memory for it may not come.
  const bool bounded = part->manifest->committing && !part->manifest->writing;
  const MonotonicNanos deadline = bounded ? out_.now() + kPatience : kNever;
  if (!callers_.Park(this, event.caller, part->key.checkpoint.job, deadline, event)) return false;
  part->manifest.Edit().committers.push_back(event.caller.request);
  committing_[event.caller.request] = part->key;
  return true;
}

void Manifests::Begin(Part* part, Manifest head) {
  ManifestPlace& place = part->manifest.Edit();
  place.committing = true;
  under_way_.insert(part->key);
  place.bytes = EncodedManifestSize(head) + part->content->encoded_bytes;
  place.record_bytes = RecordBytes(place.bytes, part->content->count);
  place.table = Parts::TableOf(*part, std::move(head));
  Write(part);
}

void Manifests::Keep(Part* part) {
  ManifestPlace& place = part->manifest.Edit();
  place.committing = true;
  under_way_.insert(part->key);
  place.table = part->content->table;
  place.bytes = EncodedManifestSize(place.table->head);
  for (const auto& entry : place.table->entries) place.bytes += EncodedObjectSize(*entry);
  place.record_bytes = RecordBytes(place.bytes, part->content->count);
  Write(part);
}

fact::PartCommitted Manifests::FactOf(const Part& part, const std::string& digest) {
  return {part.key,
          part.checkpoint->content->world_size,
          part.manifest->extent,
          part.manifest->bytes,
          digest,
          Parts::SlabsOf(part),
          part.source->role,
          part.source->owner};
}

// First fit among the slabs of the user's manifests, and those that are empty; nullptr when none has space.
SlabRecord* Manifests::Find(uint32_t uid, uint64_t bytes, uint64_t* offset) {
  const auto of_user = roomy_.find(uid);
  if (of_user != roomy_.end()) {
    for (const SlabId id : of_user->second) {
      const Space& space = slabs_.at(id);
      if (space.bytes - space.used < bytes) continue;
      uint64_t free_from = 0;
      for (const auto& [begin, length] : space.extents) {
        if (begin - free_from >= bytes) break;
        free_from = begin + length;
      }
      if (space.bytes - free_from < bytes) continue;
      *offset = free_from;
      return ledger_.Find(id);
    }
  }
  for (const SlabId id : empty_) {
    const uint64_t there = slabs_.at(id).bytes;
    if (there < bytes || there > SlabBytesFor(std::max(bytes, slab_bytes_))) continue;
    *offset = 0;
    return ledger_.Find(id);
  }
  return nullptr;
}

// A slab of manifests is one user's, so that he pays for all of it, however little of it he uses; and the
// daemon keeps a table of each beside it that is as large.
uint64_t Manifests::Charge(uint64_t bytes) { return 2 * bytes; }

// What a record adds to its user's share: nothing in a slab that is his.
uint64_t Manifests::Adds(uint32_t uid, uint64_t bytes) {
  uint64_t offset = 0;
  const SlabRecord* slab = Find(uid, bytes, &offset);
  if (slab == nullptr) return Charge(SlabBytesFor(std::max(bytes, slab_bytes_)));
  const Space& space = slabs_.at(slab->id);
  return space.used == 0 ? Charge(space.bytes) : 0;
}

void Manifests::Write(Part* part) {
  uint64_t offset = 0;
  const uint64_t bytes = RoundUpToPages(part->manifest->record_bytes);
  const Job& job = *part->checkpoint->job;
  const uint32_t uid = job.owner->uid;
  SlabRecord* slab = Find(uid, bytes, &offset);
  if (!eviction_.HasShareForRecord(job, Adds(uid, bytes))) slab = nullptr;
  if (slab == nullptr) {
    if (waiting_.insert(part->key).second) ++version_;  // Retry makes one
    for (RequestId request : part->manifest->committers) {
      callers_.SetDeadline(request, out_.now() + kPatience);
    }
    return;
  }
  waiting_.erase(part->key);
  Use(slab->id, offset, bytes, uid);
  ledger_.AddExtents(slab, 1);
  ManifestPlace& place = part->manifest.Edit();
  place.extent = {slab->id, offset, bytes};
  place.resident = true;
  place.writing = true;
  if (part->content->committed) --part->checkpoint->manifests.Edit().absent;  // Keep
  part->checkpoint->manifests.Edit().record_bytes += Charge(bytes);
  ledger_.Pin(slab);
  for (RequestId request : place.committers) {
    callers_.SetDeadline(request, kNever);  // the write is under way and will be answered
  }
  out_.Do(action::WriteManifest{part->key, place.extent, place.table,
                                part->checkpoint->job->owner->gid});
  KeepSpace();
}

void Manifests::Adopt(const SlabRecord& slab) {
  const auto [at, fresh] = slabs_.try_emplace(slab.id);
  if (!fresh) return;
  at->second.bytes = slab.bytes;
  slabs_bytes_ += slab.bytes;
  empty_.insert(slab.id);
}

void Manifests::Use(SlabId slab, uint64_t offset, uint64_t bytes, uint32_t uid) {
  Space& space = slabs_.at(slab);
  if (space.used == 0) {
    empty_.erase(slab);
    space.uid = uid;
    ledger_.HoldRecord(uid, Charge(space.bytes));
  }
  space.extents[offset] = bytes;
  space.used += bytes;
  used_bytes_ += bytes;
  SettleRoom(slab, space);
}

void Manifests::SettleRoom(SlabId slab, const Space& space) {
  std::set<SlabId>& roomy = roomy_[space.uid];
  if (space.used > 0 && space.used < space.bytes) {
    roomy.insert(slab);
  } else {
    roomy.erase(slab);
  }
  if (roomy.empty()) roomy_.erase(space.uid);
}

// One of the usual size is kept, and those that are still being written to.
void Manifests::KeepSpace() {
  for (auto at = empty_.begin(); at != empty_.end();) {
    SlabRecord* slab = ledger_.Find(*at);
    const bool keep = slabs_.size() == 1 && slab->bytes <= SlabBytesFor(slab_bytes_);
    if (keep || slab->extents > 0 || slab->pins > 0) {
      ++at;
      continue;
    }
    slabs_bytes_ -= slab->bytes;
    slabs_.erase(slab->id);
    at = empty_.erase(at);
    ledger_.ReturnFromManifests(slab);
  }
  if (slabs_bytes_ - used_bytes_ >= slab_bytes_ / 2 || !coming_.empty()) return;
  if (ledger_.UnusedBudget() < slab_bytes_) return;
  MakeSlab(slab_bytes_, /*urgent=*/false);
}

void Manifests::MakeSlab(uint64_t bytes, bool urgent) {
  coming_.insert(ledger_.MakeForManifests(bytes, urgent)->id);
}

void Manifests::Prepare(const Part& part, SessionId session, uint64_t most) {
  const PartContent& content = *part.content;
  const uint64_t need =
      RoundUpToPages(kHeadBytes + RecordBytes(content.encoded_bytes, content.count));
  uint64_t offset = 0;
  // Some other parts may be committed first.
  const bool spare = slabs_bytes_ - used_bytes_ >= need + slab_bytes_ / 8;
  const uint32_t uid = part.checkpoint->job->owner->uid;
  if ((spare && Find(uid, need, &offset) != nullptr) || Coming(need) || make_at_ != 0) return;
  const uint64_t bytes = SlabBytesFor(std::max(need, slab_bytes_));
  if (most < bytes) return;
  if (ledger_.UnusedBudget() < bytes) eviction_.Free(part.checkpoint->job, session, bytes);
  if (ledger_.UnusedBudget() >= bytes) MakeSlab(bytes, /*urgent=*/false);
}

bool Manifests::Coming(uint64_t bytes) const {
  return std::any_of(coming_.begin(), coming_.end(),
                     [&](SlabId id) { return ledger_.Find(id)->bytes >= bytes; });
}

uint64_t Manifests::Retry() {
  uint64_t wanted = 0;
  const std::set<PartKey> waiting = waiting_;
  std::set<uint32_t> without_share;
  for (const PartKey& key : waiting) {
    Part* part = parts_.Find(key);
    if (part == nullptr) continue;  // evicting for another made it go
    uint64_t offset = 0;
    const uint64_t need = RoundUpToPages(part->manifest->record_bytes);
    const Job& job = *part->checkpoint->job;
    const uint32_t uid = job.owner->uid;
    if (without_share.contains(uid)) continue;
    if (!eviction_.HasShareForRecord(job, Adds(uid, need))) {
      eviction_.FreeShare(job, /*session=*/0, Adds(uid, need), /*slabs=*/0);
      part = parts_.Find(key);
      if (part == nullptr) continue;
      if (!eviction_.HasShareForRecord(job, Adds(uid, need))) {
        without_share.insert(uid);
        continue;
      }
    }
    if (Find(uid, need, &offset) != nullptr) {
      Write(part);
      continue;
    }
    if (Coming(need)) continue;
    const uint64_t bytes = SlabBytesFor(std::max(need, slab_bytes_));
    if (ledger_.UnusedBudget() < bytes) eviction_.Free(nullptr, 0, bytes);
    if (ledger_.UnusedBudget() < bytes || make_at_ != 0) {
      wanted = std::max(wanted, bytes);
      continue;
    }
    MakeSlab(bytes, /*urgent=*/true);
  }
  return wanted;
}

bool Manifests::SlabMade(SlabId slab, const Status& status) {
  if (coming_.erase(slab) == 0) return false;
  if (status.ok()) {
    Adopt(*ledger_.Find(slab));
  } else {
    make_at_ = out_.now() + kPauseAfterFailure;
  }
  return true;
}

void Manifests::PauseOver() {
  if (make_at_ == 0 || out_.now() < make_at_) return;
  make_at_ = 0;
  ++version_;
}

Part* Manifests::On(const event::ManifestWritten& event) {
  // The part may be gone, and even there again with another manifest under way elsewhere: the extent
  // tells which write this was.
  const auto [first, last] = orphans_.equal_range(event.part);
  for (auto orphan = first; orphan != last; ++orphan) {
    if (orphan->second != event.extent) continue;
    orphans_.erase(orphan);
    ledger_.Unpin(ledger_.Find(event.extent.slab));
    FreeExtent(event.extent);
    return nullptr;
  }
  Part* part = parts_.Find(event.part);
  if (part == nullptr || !part->manifest->writing || part->manifest->extent != event.extent) {
    return nullptr;
  }
  part->manifest.Edit().writing = false;
  ledger_.Unpin(ledger_.Find(part->manifest->extent.slab));
  if (!event.status.ok()) {
    Failed(part, event.status);
    return nullptr;
  }
  out_.Say(FactOf(*part, event.digest));
  if (part->content->committed) {
    Ended(part);
    kept_(part, absl::OkStatus());
    return nullptr;
  }
  out_.Count("commits");
  std::shared_ptr<const PartTable> table = part->manifest->table;
  Ended(part);
  parts_.Commit(part, std::move(table), event.digest);
  AnswerCommitters(part, Body(reply::Commit{event.digest, part->checkpoint->content->complete}));
  return part;
}

void Manifests::Ended(Part* part) {
  ManifestPlace& place = part->manifest.Edit();
  place.committing = false;
  place.table = nullptr;
  under_way_.erase(part->key);
  waiting_.erase(part->key);
}

void Manifests::Failed(Part* part, const Status& why) {
  Ended(part);
  Free(part);
  AnswerCommitters(part, Annotate(why, "commit"));
  if (part->content->committed) return kept_(part, why);
  bool alive = false;
  for (SessionId id : part->content->sessions) alive |= sessions_.Find(id) != nullptr;
  if (alive) return;
  Checkpoint* checkpoint = part->checkpoint;
  parts_.Erase(part);
  parts_.EraseIfEmpty(checkpoint);
}

void Manifests::AnswerCommitters(Part* part, const StatusOr<Body>& body) {
  const std::vector<RequestId> committers = part->manifest->committers;
  for (RequestId request : committers) callers_.Answer(request, body);
}

// --- going

void Manifests::Free(Part* part) {
  if (part->content->committed && part->manifest->committing) {
    Ended(part);
    keeping_ended_(part->key);
  }
  if (!part->manifest->resident) return;
  ManifestPlace& place = part->manifest.Edit();
  place.resident = false;
  part->checkpoint->manifests.Edit().record_bytes -= Charge(place.extent.length);
  parts_.SettleKept(part);
  if (part->content->committed) ++part->checkpoint->manifests.Edit().absent;
  if (place.writing) {  // the write goes on: the extent is free when it has ended
    orphans_.emplace(part->key, place.extent);
    place.writing = false;
    return;
  }
  FreeExtent(place.extent);
}

void Manifests::FreeExtent(const ExtentRef& extent) {
  Space& space = slabs_.at(extent.slab);
  space.extents.erase(extent.offset);
  space.used -= extent.length;
  used_bytes_ -= extent.length;
  SettleRoom(extent.slab, space);
  if (space.used == 0) {
    empty_.insert(extent.slab);
    ledger_.DropRecord(space.uid, Charge(space.bytes));
  }
  ++version_;
  ledger_.DropExtents(ledger_.Find(extent.slab), 1);
  KeepSpace();
}

void Manifests::PartGoes(Part* part) {
  if (!part->manifest->committers.empty()) {
    AnswerCommitters(part, absl::FailedPreconditionError(
                               absl::StrCat("commit: ", part->key.DebugString(), " was dropped")));
  }
  waiting_.erase(part->key);
  under_way_.erase(part->key);
}

void Manifests::PartEmptied(Part* part) {
  Free(part);
  if (part->content->committed) --part->checkpoint->manifests.Edit().absent;
}

void Manifests::PartStored(Part* part) { ++part->checkpoint->manifests.Edit().absent; }

void Manifests::Left(const Parked& parked) {
  const auto at = committing_.find(parked.request);
  if (Part* part = parts_.Find(at->second)) {
    ManifestPlace& place = part->manifest.Edit();
    std::erase(place.committers, parked.request);
    // Nobody waits for the memory that it lacks: nobody else waits behind it.
    if (place.committing && !place.writing && place.committers.empty()) Ended(part);
  }
  committing_.erase(at);
}

void Manifests::TimeUp(const Parked& parked) {
  callers_.Answer(parked.request, absl::ResourceExhaustedError(
                                      "commit: no memory for the manifest, or none of its user's "
                                      "share; the objects are kept, the call can be repeated"));
}

// --- recovery

void Manifests::RestoreSlabs() {
  for (const auto& [id, slab] : ledger_.slabs()) {
    if (slab.use == fact::SlabUse::kManifests) Adopt(slab);
  }
}

void Manifests::RestorePlace(Part* part, const fact::PartCommitted& committed) {
  ManifestPlace& place = part->manifest.Edit();
  place.extent = committed.extent;
  place.bytes = committed.bytes;
  place.resident = true;
  part->checkpoint->manifests.Edit().record_bytes += Charge(place.extent.length);
  --part->checkpoint->manifests.Edit().absent;
  Adopt(*ledger_.Find(place.extent.slab));
  Use(place.extent.slab, place.extent.offset, place.extent.length,
      part->checkpoint->job->owner->uid);
  ledger_.RestoreExtents(place.extent.slab, 1);
}

// --- invariants

std::string Manifests::CheckInvariants(const Checkpoint& checkpoint, const Parts::Placer& place,
                                       std::map<SlabId, uint32_t>* pins) const {
  const auto shown = [&checkpoint] { return checkpoint.key.DebugString(); };
  uint64_t absent = 0;
  for (const auto& [writer, part] : checkpoint.content->parts) {
    const ManifestPlace& manifest = *part->manifest;
    absent += part->content->committed && !manifest.resident ? 1 : 0;
    if (manifest.resident) {
      const std::string problem = place(manifest.extent, [&] { return shown() + "'s manifest"; });
      if (!problem.empty()) return problem;
    }
    if (manifest.writing) ++(*pins)[manifest.extent.slab];
    if (manifest.committing != under_way_.contains(part->key)) return shown() + ": committing?";
    if (manifest.committing != (manifest.table != nullptr)) return shown() + ": a manifest's table";
    if (manifest.committing && !manifest.writing && manifest.committers.empty() &&
        !waiting_.contains(part->key)) {
      return absl::StrCat(shown(), " commits, but nothing is under way for it");
    }
  }
  if (absent != checkpoint.manifests->absent) {
    return shown() + ": its absent manifests are miscounted";
  }
  return "";
}

std::string Manifests::CheckSpace() const {
  uint64_t bytes = 0, used = 0;
  std::map<uint32_t, Ledger::Held> charged;
  for (const auto& [id, space] : slabs_) {
    uint64_t of_slab = 0;
    for (const auto& [offset, length] : space.extents) of_slab += length;
    if (of_slab != space.used || space.bytes != ledger_.Find(id)->bytes ||
        empty_.contains(id) != (of_slab == 0) ||
        (roomy_.contains(space.uid) && roomy_.at(space.uid).contains(id)) !=
            (of_slab > 0 && of_slab < space.bytes)) {
      return absl::StrCat("slab ", id, " of manifests: its space is miscounted");
    }
    bytes += space.bytes;
    used += of_slab;
    if (of_slab > 0) charged[space.uid].bytes += Charge(space.bytes);
  }
  if (bytes != slabs_bytes_ || used != used_bytes_ || charged != ledger_.records()) {
    return "the space of all manifests is miscounted";
  }
  return "";
}

std::string Manifests::CheckOrphans(const Parts::Placer& place,
                                    std::map<SlabId, uint32_t>* pins) const {
  for (const auto& [part, extent] : orphans_) {
    const std::string problem =
        place(extent, [] { return std::string("a manifest being written"); });
    if (!problem.empty()) return problem;
    ++(*pins)[extent.slab];
  }
  return "";
}

}  // namespace cairn::engine
