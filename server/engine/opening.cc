// Which checkpoint a name means, and handing out its objects: from memory, or from storage.
#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/engine/impl.h"

namespace cairn::engine {
Status Engine::Impl::NothingYet(const Job& job) const {
  if (job.scan == ScanState::kFailed) {
    return absl::UnavailableError(absl::StrCat("job ", job.name,
                                               ": nothing in memory, and its storage cannot be "
                                               "read: ",
                                               job.scan_problem.message()));
  }
  if (job.scan == ScanState::kScanning) {
    return absl::UnavailableError(absl::StrCat(
        "job ", job.name, ": nothing in memory, and its storage has not answered yet"));
  }
  return absl::NotFoundError(
      absl::StrCat("job: ", job.name, " has no complete checkpoint that can be had now"));
}

StatusOr<Checkpoint*> Engine::Impl::Resolve(const Job& job, const CheckpointRef& ref) const {
  if (ref.step == kNoStep) {
    if (Checkpoint* newest = NewestOnLine(job)) return newest;
    for (auto at = job.checkpoints.rbegin(); at != job.checkpoints.rend(); ++at) {
      if (at->second->complete && !at->second->Obtainable()) {
        return absl::DataLossError(absl::StrCat(at->second->key.DebugString(),
                                                " has no good copy any more: ", at->second->why));
      }
    }
    return NothingYet(job);
  }
  Checkpoint* found = nullptr;
  const Checkpoint* other = nullptr;  // to say why not
  const Checkpoint* on_line = LineAt(job, ref.step);
  for (auto at = job.checkpoints.lower_bound({ref.step, 0, 0});
       at != job.checkpoints.end() && std::get<0>(at->first) == ref.step; ++at) {
    Checkpoint* checkpoint = at->second.get();
    const bool meant =
        (ref.attempt == 0 ? on_line == nullptr || on_line->key.attempt == checkpoint->key.attempt
                          : ref.attempt == checkpoint->key.attempt) &&
        (ref.revision < 0 || ref.revision == checkpoint->key.revision);
    if (!meant) continue;
    other = checkpoint;
    const bool broken = checkpoint->complete && !checkpoint->Obtainable();
    if (!checkpoint->complete) continue;
    // Without an attempt only the line counts; what is abandoned must be asked for by its attempt.
    if (ref.attempt == 0 && ref.revision < 0 && !broken && checkpoint != on_line) continue;
    if (found == nullptr || !broken || !found->Obtainable()) found = checkpoint;
  }
  if (found != nullptr) {
    if (found->Obtainable()) return found;
    return absl::DataLossError(
        absl::StrCat(found->key.DebugString(), " has no good copy any more: ", found->why));
  }
  if (other == nullptr) {
    const auto removed = job.removed.find(ref.step);
    if (removed != job.removed.end()) {
      return absl::NotFoundError(
          absl::StrCat("step: ", ref.step, " of job ", job.name, " was removed"));
    }
    const Status nothing = NothingYet(job);
    if (!absl::IsNotFound(nothing)) return nothing;
    return absl::NotFoundError(
        absl::StrCat("step: ", ref.step, " of job ", job.name, " is unknown"));
  }
  if (!other->complete) {
    return absl::NotFoundError(absl::StrCat("step: ", other->key.DebugString(),
                                            " is not complete: it lacks writers ",
                                            absl::StrJoin(InfoOf(*other).missing_writers, ", ")));
  }
  return absl::NotFoundError(absl::StrCat("step: ", other->key.DebugString(),
                                          " is abandoned; name its attempt to have it"));
}

void Engine::Impl::On(const event::Open& event) {
  const RequestId request = event.caller.request;
  Job* job = Readable(event.caller, event.ref.job, event.deadline, event, /*scan=*/false);
  if (job == nullptr) return;
  StatusOr<Checkpoint*> found = Resolve(*job, event.ref);
  // "latest" may be in storage only; but what memory has is not kept waiting for long.
  if (!found.ok() || event.ref.step == kNoStep) {
    if (ScanFirst(event.caller, job, event.deadline, event, /*can_do_without=*/found.ok())) return;
  }
  if (!found.ok()) return Answer(request, found.status());
  Checkpoint* checkpoint = *found;
  const auto name = checkpoint->names.find(event.name);
  if (name == checkpoint->names.end()) {
    return Answer(
        request, absl::NotFoundError(absl::StrCat("name: \"", absl::CHexEscape(event.name),
                                                  "\" is not in ", checkpoint->key.DebugString())));
  }
  Object* object = name->second;
  if (!object->resident) {
    if (checkpoint->persisted) return AnswerStored(event.caller, checkpoint, object);
    return Answer(request, absl::DataLossError(absl::StrCat("\"", absl::CHexEscape(event.name),
                                                            "\" of ", checkpoint->key.DebugString(),
                                                            " has no good copy any more")));
  }
  if (!event.verify && !object->unverified) {
    return AnswerOpen(event.caller, checkpoint, object, event.mode);
  }
  Parked* parked = Park(ParkedKind::kOpen, event.caller, job->name, event.deadline, event);
  if (parked == nullptr) return;
  // Concurrent opens of one object share one look at it.
  parked->verification = object->verification != 0 ? object->verification : StartVerify(object);
  parked->part = object->part->key;
  parked->name = object->entry.name;
  verifications_.at(parked->verification).opens.push_back(request);
}

uint64_t Engine::Impl::StartVerify(Object* object) {
  Verification verification;
  verification.id = NextId();
  verification.part = object->part->key;
  verification.name = object->entry.name;
  verification.slab = object->extent.slab;
  object->verification = verification.id;
  SlabRecord* slab = ledger_.Find(verification.slab);
  ledger_.Pin(slab);
  Account(slab);
  out_.actions.push_back(
      action::Verify{verification.id, verification.part, object->entry, object->extent});
  const uint64_t id = verification.id;
  verifications_[id] = std::move(verification);
  return id;
}

void Engine::Impl::On(const event::Verified& event) {
  const auto at = verifications_.find(event.verification);
  if (at == verifications_.end()) return;
  const Verification verification = std::move(at->second);
  verifications_.erase(at);
  SlabRecord* slab = ledger_.Find(verification.slab);
  ledger_.Unpin(slab);
  Account(slab);
  Part* part = FindPart(verification.part);
  Object* object = nullptr;
  if (part != nullptr) {
    const auto found = part->objects.find(verification.name);
    if (found != part->objects.end() && found->second->verification == event.verification) {
      object = found->second.get();
    }
  }
  if (object != nullptr) {
    object->verification = 0;
    if (event.status.ok()) {
      object->unverified = false;
      object->verified_unix_ms = event.unix_ms;
      Count("verified");
    } else if (absl::IsDataLoss(event.status) && object->resident) {
      ObjectBroke(object, event.status);
    }
  }
  for (RequestId request : verification.opens) {
    const std::unique_ptr<Parked> parked = Unpark(request);
    if (parked == nullptr) continue;
    const auto& open = std::get<event::Open>(parked->event);
    if (object != nullptr && object->resident && event.status.ok()) {
      AnswerOpen(open.caller, object->part->checkpoint, object, open.mode);
    } else if (object != nullptr && !object->resident && object->part->checkpoint->persisted) {
      AnswerStored(open.caller, object->part->checkpoint, object);
    } else if (!event.status.ok()) {
      Answer(request,
             Annotate(event.status, absl::StrCat(verification.part.DebugString(), " \"",
                                                 absl::CHexEscape(verification.name), "\"")));
    } else {
      Answer(request, absl::NotFoundError(absl::StrCat("\"", absl::CHexEscape(verification.name),
                                                       "\" of ", verification.part.DebugString(),
                                                       " was removed while it was verified")));
    }
  }
}

// Its bytes in memory are not what was sealed. Storage may still have them; else the checkpoint
// can't be had.
void Engine::Impl::ObjectBroke(Object* object, const Status& why) {
  Checkpoint* checkpoint = object->part->checkpoint;
  Count("objects_broken");
  Log(2, absl::StrCat(object->part->key.DebugString(), " \"", absl::CHexEscape(object->entry.name),
                      "\" does not verify: ", why.message()));
  FreeExtent(object);
  object->broken = true;
  ++checkpoint->broken_objects;
  checkpoint->why = absl::StrCat("\"", absl::CHexEscape(object->entry.name), "\": ", why.message());
  Unowe(checkpoint);
  Touch(checkpoint);
  // Another is the newest now, and may be due.
  if (Checkpoint* newest = NewestOnLine(*checkpoint->job)) ScheduleByPolicy(newest);
  Touch(checkpoint);
}

void Engine::Impl::AnswerOpen(const Caller& caller, Checkpoint* checkpoint, Object* object,
                              OpenMode mode) {
  Session* session = FindSession(caller.session);
  SlabRecord* slab = ledger_.Find(object->extent.slab);
  reply::Open open;
  open.exact = object->extent.offset == 0 && object->entry.length == slab->bytes;
  // Only a slab that is the object itself is opened by path; of any other the client makes a copy.
  LeaseMode lease_mode = LeaseMode::kMap;
  if (mode == OpenMode::kRead) lease_mode = LeaseMode::kRead;
  if (mode == OpenMode::kFile && open.exact) lease_mode = LeaseMode::kFile;
  const Lease* lease = NewLease(session, slab, lease_mode, object->part->key, object->entry.name,
                                object->extent, object->entry.length);
  ledger_.LendToReader(slab, lease->id, lease_mode == LeaseMode::kFile);
  Account(slab);
  open.lend = {lease->id, slab->id, slab->bytes, lease_mode};
  open.extent = object->extent;
  open.checkpoint = checkpoint->key;
  open.object = InfoOf(*object, /*with_crcs=*/true);
  Count("opens_from_memory");
  Answer(caller.request, Body(std::move(open)));
}

void Engine::Impl::AnswerStored(const Caller& caller, Checkpoint* checkpoint, Object* object) {
  reply::OpenStored open;
  open.checkpoint.key = checkpoint->key;
  open.checkpoint.directory = checkpoint->directory;
  open.checkpoint.world_size = checkpoint->world_size;
  open.checkpoint.published = true;
  open.checkpoint.manifests.push_back(ManifestOf(*object->part));
  open.checkpoint.digests.push_back(object->part->digest);
  open.object = InfoOf(*object, /*with_crcs=*/true);
  Count("opens_from_storage");
  Answer(caller.request, Body(std::move(open)));
}

}  // namespace cairn::engine
