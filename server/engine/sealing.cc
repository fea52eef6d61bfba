// seal, commit, abort; the manifests and the slabs they live in.
#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "server/engine/impl.h"

namespace cairn::engine {
namespace {

constexpr MonotonicNanos kManifestPatience = 10 * kNanosPerSecond;

uint64_t Pages(uint64_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

// The first byte of [0, length) that `covered` leaves out; `length` when it covers all.
uint64_t FirstUncovered(std::vector<std::pair<uint64_t, uint64_t>> covered, uint64_t length) {
  std::sort(covered.begin(), covered.end());
  uint64_t until = 0;
  for (const auto& [begin, end] : covered) {
    if (begin > until) break;
    until = std::max(until, end);
  }
  return std::min(until, length);
}

}  // namespace

bool Engine::Impl::MayWrite(const Caller& caller, const PartKey& part, Session** session,
                            Job** job) {
  *session = SessionOf(caller);
  if (*session == nullptr) return false;
  if (part.checkpoint.job != (*session)->job) {
    Answer(caller.request,
           absl::InvalidArgumentError(absl::StrCat(
               "job: ", part.checkpoint.job, ", but the session is in job ", (*session)->job)));
    return false;
  }
  *job = GetJob(part.checkpoint.job);
  Attempt superseded_by = 0;
  Status status = CheckAccess(**job, caller);
  if (status.ok()) status = ValidateStep(part.checkpoint.step);
  if (status.ok()) status = ValidateAttempt(part.checkpoint.attempt);
  if (status.ok()) status = CheckProcess(**job, part, **session);
  // A repeat of a commit that was acknowledged is answered even when superseded since.
  const Part* known = FindPart(part);
  if (status.ok() && (known == nullptr || !known->committed)) {
    status = CheckFence(**job, part.checkpoint.attempt, &superseded_by);
    if (status.ok()) status = CheckRefused(**job, part.checkpoint);
    if (status.ok() && known == nullptr) status = CheckDropped(**job, part);
  }
  if (status.ok()) return true;
  Answer(caller.request, status, superseded_by);
  return false;
}

// All or nothing: the first seal that does not hold fails the call, and nothing has changed.
Status Engine::Impl::CheckSeals(const Part* part, const PartKey& key,
                                const std::vector<event::Seal>& seals) const {
  for (const event::Seal& seal : seals) {
    const auto named = [&](absl::string_view what) {
      return absl::StrCat("seal: \"", absl::CHexEscape(seal.name), "\" of ", key.DebugString(), " ",
                          what);
    };
    const auto at =
        part == nullptr ? decltype(part->objects.begin()){} : part->objects.find(seal.name);
    if (part == nullptr || at == part->objects.end()) {
      return absl::NotFoundError(named("was never created"));
    }
    const Object& object = *at->second;
    if (object.sealed) {
      if (object.entry.length == seal.length && object.entry.block_crcs == seal.block_crcs)
        continue;
      return absl::AlreadyExistsError(named("is sealed with other content"));
    }
    if (seal.length < object.entry.length) {
      return absl::InvalidArgumentError(
          named(absl::StrCat("is short: ", seal.length, " bytes of the ", object.entry.length,
                             " it was created with")));
    }
    if (seal.length > object.granted) {
      return absl::InvalidArgumentError(named(
          absl::StrCat("is overlong: ", seal.length, " bytes, granted are ", object.granted)));
    }
    const uint64_t blocks = BlockCount(seal.length, kBlockBytes);
    if (seal.block_crcs.size() != blocks) {
      return absl::InvalidArgumentError(named(absl::StrCat(
          "has ", seal.block_crcs.size(), " checksums, ", seal.length, " bytes have ", blocks)));
    }
    for (const auto& [begin, end] : seal.covered) {
      if (begin > end || end > object.granted) {
        return absl::InvalidArgumentError(named(absl::StrCat(
            "was written at [", begin, ", ", end, "), granted are ", object.granted, " bytes")));
      }
    }
    const uint64_t hole = FirstUncovered(seal.covered, seal.length);
    if (hole < seal.length) {
      return absl::InvalidArgumentError(
          named(absl::StrCat("is uncovered from byte ", hole, " of ", seal.length)));
    }
  }
  return absl::OkStatus();
}

void Engine::Impl::ApplySeals(Part* part, const std::vector<event::Seal>& seals) {
  for (const event::Seal& seal : seals) {
    Object* object = part->objects.at(seal.name).get();
    if (object->sealed) continue;
    object->sealed = true;
    writing_bytes_ -= object->extent.length;
    part->checkpoint->bytes += seal.length - object->entry.length;
    object->entry.length = seal.length;
    object->entry.block_crcs = seal.block_crcs;
    if (object->write_lease != 0) ForgetLease(std::exchange(object->write_lease, 0));
    out_.facts.push_back(fact::ObjectSealed{part->key, object->entry, object->extent});
  }
}

void Engine::Impl::On(const event::SealObjects& event) {
  Session* session = nullptr;
  Job* job = nullptr;
  if (!MayWrite(event.caller, event.part, &session, &job)) return;
  Part* part = FindPart(event.part);
  const Status status = CheckSeals(part, event.part, event.seals);
  if (!status.ok()) return Answer(event.caller.request, status);
  if (part != nullptr) ApplySeals(part, event.seals);
  Answer(event.caller.request, Body(reply::Ok{}));
}

void Engine::Impl::On(const event::Commit& event) {
  const RequestId request = event.caller.request;
  if (Session* known = FindSession(event.caller.session)) Unmapped(known, event.unmapped);
  Session* session = nullptr;
  Job* job = nullptr;
  if (!MayWrite(event.caller, event.part, &session, &job)) return;
  Part* part = FindPart(event.part);
  Status status = CheckWorld(*job, event.part, event.world_size);
  if (status.ok()) status = CheckSeals(part, event.part, event.seals);
  if (!status.ok()) return Answer(request, status);

  if (part != nullptr && part->committed) {
    return Answer(request, Body(reply::Commit{part->digest, part->checkpoint->complete}));
  }
  if (part != nullptr && part->committing) {
    // Its write ends by itself; memory for it may not come.
    const MonotonicNanos deadline = part->writing_manifest ? kNever : now_ + kManifestPatience;
    Parked* parked = Park(ParkedKind::kCommit, event.caller, job->name, deadline, event);
    if (parked == nullptr) return;
    parked->part = event.part;
    part->committers.push_back(request);
    return;
  }
  if (part != nullptr && !part->lost.empty()) {
    return Answer(request,
                  absl::DataLossError(absl::StrCat(
                      "commit: ", event.part.DebugString(),
                      " lost memory with the daemon's death; save it again under a new revision")));
  }
  Attempt superseded_by = 0;
  if (part == nullptr) {  // a writer with nothing to save
    if (!safe_mode_.empty()) {
      status = absl::UnavailableError(absl::StrCat("safe mode: nothing is admitted: ", safe_mode_));
    }
    if (status.ok()) status = CheckFence(*job, event.part.checkpoint.attempt, &superseded_by);
    if (status.ok() && event.world_size == 1) {
      status = CheckLone(*job, event.part.checkpoint.attempt, *session);
    }
  }
  if (status.ok()) status = CheckRevision(*job, event.part);
  if (!status.ok()) return Answer(request, status, superseded_by);
  if (part != nullptr) {
    std::set<std::string> sealed_now;
    for (const event::Seal& seal : event.seals) sealed_now.insert(seal.name);
    for (const auto& [name, object] : part->objects) {
      if (!object->sealed && !sealed_now.contains(name)) {
        return Answer(request, absl::InvalidArgumentError(
                                   absl::StrCat("commit: \"", absl::CHexEscape(name), "\" of ",
                                                event.part.DebugString(), " is not sealed")));
      }
    }
  }
  if (part == nullptr) {
    TakeOwnership(job, event.caller);
    EnterAttempt(job, event.part, event.world_size, session);
    part = GetPart(GetCheckpoint(job, event.part.checkpoint, event.world_size), event.part.writer);
    part->sessions.insert(session->id);
    session->writing.insert(part->key);
  }
  ApplySeals(part, event.seals);
  const AttemptState& attempt = job->attempts.at(event.part.checkpoint.attempt);
  part->notes = event.notes;
  part->created_unix_ms = event.unix_ms;
  part->comes_from = attempt.comes_from;
  part->owner_uid = job->owner_uid;
  part->committing = true;
  part->encoded = EncodeManifest(ManifestOf(*part));
  Parked* parked = Park(ParkedKind::kCommit, event.caller, job->name, kNever, event);
  if (parked == nullptr) {
    part->committing = false;
    part->encoded.clear();
    return;
  }
  parked->part = part->key;
  part->committers.push_back(request);
  // What a writer saved is what its next step is expected to need.
  LastSave& last = job->last_saves[part->key.writer];
  auto names = std::make_shared<std::vector<std::string>>();
  std::map<SlabId, uint64_t> slabs;
  for (const auto& [name, object] : part->objects) {
    names->push_back(name);
    slabs[object->extent.slab] = ledger_.Find(object->extent.slab)->bytes;
  }
  last.names = std::move(names);
  last.node_total = part->checkpoint->node_total;
  last.slabs.clear();
  for (const auto& [slab, bytes] : slabs) last.slabs.push_back(bytes);
  std::sort(last.slabs.begin(), last.slabs.end());
  Touch(part->checkpoint);
  WriteManifest(part);
}

void Engine::Impl::On(const event::Abort& event) {
  Session* session = SessionOf(event.caller);
  if (session == nullptr) return;
  Part* part = FindPart(event.part);
  // A repeat, or another's: there is nothing of this session to drop.
  if (part != nullptr && !part->committed && !part->committing &&
      part->sessions.contains(session->id)) {
    Checkpoint* checkpoint = part->checkpoint;
    std::vector<RequestId> own;
    for (RequestId request : checkpoint->waiting_creates) {
      const auto& create = std::get<event::Create>(parked_.at(request)->event);
      if (create.part == event.part) own.push_back(request);
    }
    for (RequestId request : own) {
      AnswerParked(request, absl::CancelledError("create: its step was aborted"));
    }
    ErasePart(part);
    if (checkpoint->parts.empty()) ReleaseReservation(checkpoint);
    MaybeEraseCheckpoint(checkpoint);
  }
  Answer(event.caller.request, Body(reply::Ok{}));
}

// --- manifests

Manifest Engine::Impl::ManifestOf(const Part& part) const {
  Manifest manifest;
  manifest.job = part.key.checkpoint.job;
  manifest.owner_uid = part.owner_uid;
  manifest.step = part.key.checkpoint.step;
  manifest.attempt = part.key.checkpoint.attempt;
  manifest.revision = part.key.checkpoint.revision;
  manifest.writer = part.key.writer;
  manifest.world_size = part.checkpoint->world_size;
  manifest.created_unix_ms = part.created_unix_ms;
  manifest.comes_from = part.comes_from;
  manifest.notes = part.notes;
  manifest.unknown = part.unknown;
  manifest.objects.reserve(part.objects.size());
  for (const auto& [name, object] : part.objects) manifest.objects.push_back(object->entry);
  return manifest;
}

// First fit among the manifests' slabs; nullptr when none has room.
SlabRecord* Engine::Impl::FindManifestRoom(uint64_t bytes, uint64_t* offset) {
  for (const auto& [id, manifests] : manifest_slabs_) {
    SlabRecord* slab = ledger_.Find(id);
    if (slab->bytes - manifests.used < bytes) continue;
    uint64_t free_from = 0;
    for (const auto& [begin, length] : manifests.extents) {
      if (begin - free_from >= bytes) break;
      free_from = begin + length;
    }
    if (slab->bytes - free_from >= bytes) {
      *offset = free_from;
      return slab;
    }
  }
  return nullptr;
}

void Engine::Impl::WriteManifest(Part* part) {
  uint64_t offset = 0;
  const uint64_t bytes = Pages(part->encoded.size());
  SlabRecord* slab = FindManifestRoom(bytes, &offset);
  if (slab == nullptr) {
    manifests_waiting_.insert(part->key);
    // Bounded like every wait: commit carries no deadline of its own.
    for (RequestId request : part->committers) {
      Parked* parked = parked_.at(request).get();
      deadlines_.erase({parked->deadline, request});
      parked->deadline = now_ + kManifestPatience;
      deadlines_.insert({parked->deadline, request});
    }
    return;
  }
  manifests_waiting_.erase(part->key);
  ManifestSlab& manifests = manifest_slabs_.at(slab->id);
  manifests.extents[offset] = bytes;
  manifests.used += bytes;
  ledger_.AddExtent(slab);
  part->manifest_extent = {slab->id, offset, bytes};
  part->manifest_bytes = part->encoded.size();
  part->manifest_resident = true;
  part->writing_manifest = true;
  ledger_.Pin(slab);
  for (RequestId request : part->committers) {
    Parked* parked = parked_.at(request).get();
    deadlines_.erase({parked->deadline, request});
    parked->deadline = kNever;  // its write is under way and will be answered
    deadlines_.insert({kNever, request});
  }
  out_.actions.push_back(action::WriteManifest{part->key, part->manifest_extent, part->encoded});
  KeepManifestRoom();
}

// Keeps room for the next manifest, so that commits do not wait for a slab to be faulted in.
void Engine::Impl::KeepManifestRoom() {
  uint64_t used = 0, total = 0;
  for (auto at = manifest_slabs_.begin(); at != manifest_slabs_.end();) {
    SlabRecord* slab = ledger_.Find(at->first);
    if (at->second.used == 0 && slab->extents == 0 && slab->pins == 0 &&
        manifest_slabs_.size() > 1) {
      slab->use = fact::SlabUse::kObjects;
      at = manifest_slabs_.erase(at);
      ledger_.Doom(slab);
      continue;
    }
    total += slab->bytes;
    used += at->second.used;
    ++at;
  }
  if (total - used >= manifest_slab_bytes_ / 2 || !manifest_slabs_coming_.empty()) return;
  if (ledger_.Room() < manifest_slab_bytes_) return;
  SlabRecord* slab = MakeSlab(manifest_slab_bytes_, /*urgent=*/false, /*reserved=*/false);
  ledger_.KeepForManifests(slab);
  manifest_slabs_coming_.insert(slab->id);
}

// Commits that found no room for their manifest: makes a slab for them, freeing memory if it must.
void Engine::Impl::RetryManifests() {
  const std::set<PartKey> waiting = manifests_waiting_;
  for (const PartKey& key : waiting) {
    Part* part = FindPart(key);
    uint64_t offset = 0;
    const uint64_t need = Pages(part->encoded.size());
    if (FindManifestRoom(need, &offset) != nullptr) {
      WriteManifest(part);
      continue;
    }
    bool coming = false;
    for (SlabId id : manifest_slabs_coming_) coming |= ledger_.Find(id)->bytes >= need;
    if (coming) continue;
    const uint64_t bytes = SlabBytesFor(std::max(need, manifest_slab_bytes_));
    if (ledger_.Room() < bytes) FreeMemory(nullptr, 0, bytes);
    if (ledger_.Room() < bytes) continue;
    SlabRecord* slab = MakeSlab(bytes, /*urgent=*/true, /*reserved=*/false);
    ledger_.KeepForManifests(slab);
    manifest_slabs_coming_.insert(slab->id);
  }
}

void Engine::Impl::AnswerCommitters(Part* part, const StatusOr<Body>& body) {
  const std::vector<RequestId> committers = std::move(part->committers);
  part->committers.clear();
  for (RequestId request : committers) AnswerParked(request, body);
}

void Engine::Impl::On(const event::ManifestWritten& event) {
  const auto orphan = orphan_manifests_.find(event.part);
  if (orphan != orphan_manifests_.end()) {
    const ExtentRef extent = orphan->second;
    orphan_manifests_.erase(orphan);
    ledger_.Unpin(ledger_.Find(extent.slab));
    FreeManifestExtent(extent);
    return;
  }
  Part* part = FindPart(event.part);
  if (part == nullptr || !part->writing_manifest) return;
  part->writing_manifest = false;
  ledger_.Unpin(ledger_.Find(part->manifest_extent.slab));
  if (!event.status.ok()) {
    part->committing = false;
    part->encoded.clear();
    FreeManifest(part);
    Touch(part->checkpoint);
    AnswerCommitters(part, Annotate(event.status, "commit"));
    bool alive = false;
    for (SessionId id : part->sessions) alive |= FindSession(id) != nullptr;
    if (!alive) {
      Checkpoint* checkpoint = part->checkpoint;
      ErasePart(part);
      MaybeEraseCheckpoint(checkpoint);
    }
    return;
  }
  part->digest = ManifestDigest(part->encoded);
  out_.facts.push_back(fact::ManifestCommitted{part->key, part->checkpoint->world_size,
                                               part->manifest_extent, part->manifest_bytes,
                                               part->digest});
  Count("commits");
  const std::set<SessionId> sessions = part->sessions;
  PartCommitted(part);
  AnswerCommitters(part, Body(reply::Commit{part->digest, part->checkpoint->complete}));
  for (SessionId id : sessions) {
    if (FindSession(id) != nullptr) Provision(part->checkpoint->job, id, part->key.writer, 1);
  }
}

}  // namespace cairn::engine
