// Checkpoints coming and going, when they are complete, and the line (common/line.h) kept up to
// date with each of them instead of computed anew.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/engine/impl.h"

namespace cairn::engine {
namespace {

constexpr size_t kNamedWriters = 64;

}  // namespace

// --- coming and going

Checkpoint* Engine::Impl::FindCheckpoint(const CheckpointKey& key) const {
  const Job* job = FindJob(key.job);
  if (job == nullptr) return nullptr;
  const auto at = job->checkpoints.find({key.step, key.attempt, key.revision});
  return at == job->checkpoints.end() ? nullptr : at->second.get();
}

Checkpoint* Engine::Impl::GetCheckpoint(Job* job, const CheckpointKey& key, int32_t world_size) {
  std::unique_ptr<Checkpoint>& checkpoint = job->checkpoints[{key.step, key.attempt, key.revision}];
  if (checkpoint == nullptr) {
    checkpoint = std::make_unique<Checkpoint>();
    checkpoint->key = key;
    checkpoint->job = job;
    checkpoint->sequence = next_sequence_++;
    checkpoint->world_size = world_size;
    checkpoint->node_total = std::make_shared<uint64_t>(0);
    checkpoint->created_unix_ms = UnixMillis();
    job->incomplete.insert(checkpoint->Id());
    AttemptState& attempt = job->attempts[key.attempt];
    attempt.attempt = key.attempt;
    ++attempt.checkpoints_at[key.step];
  }
  return checkpoint.get();
}

Part* Engine::Impl::FindPart(const PartKey& key) const {
  const Checkpoint* checkpoint = FindCheckpoint(key.checkpoint);
  if (checkpoint == nullptr) return nullptr;
  const auto at = checkpoint->parts.find(key.writer);
  return at == checkpoint->parts.end() ? nullptr : at->second.get();
}

Part* Engine::Impl::GetPart(Checkpoint* checkpoint, Writer writer) {
  std::unique_ptr<Part>& part = checkpoint->parts[writer];
  if (part == nullptr) {
    part = std::make_unique<Part>();
    part->key = {checkpoint->key, writer};
    part->checkpoint = checkpoint;
    ++checkpoint->open_parts;
    Touch(checkpoint);
  }
  return part.get();
}

Object* Engine::Impl::NewObject(Part* part, ObjectEntry entry) {
  auto object = std::make_unique<Object>();
  object->part = part;
  object->entry = std::move(entry);
  Object* at = object.get();
  part->checkpoint->names[at->entry.name] = at;
  part->checkpoint->bytes += at->entry.length;
  part->objects[at->entry.name] = std::move(object);
  return at;
}

void Engine::Impl::PlaceObject(Object* object, SlabRecord* slab, uint64_t offset, uint64_t length) {
  object->extent = {slab->id, offset, length};
  object->resident = true;
  ledger_.AddExtent(slab);
  UseSlab(object->part->checkpoint, slab);
  if (!object->sealed) writing_bytes_ += length;
}

void Engine::Impl::FreeExtent(Object* object) {
  if (!object->resident) return;
  Part* part = object->part;
  object->resident = false;
  if (!object->sealed) writing_bytes_ -= object->extent.length;
  out_.facts.push_back(fact::ObjectDropped{part->key, object->entry.name});
  SlabRecord* slab = ledger_.Find(object->extent.slab);
  LeaveSlab(part->checkpoint, slab);
  ledger_.DropExtent(slab);
  if (part->committed) ++part->checkpoint->absent;
}

void Engine::Impl::DropObject(Object* object) {
  FreeExtent(object);
  if (object->write_lease != 0) ForgetLease(object->write_lease);
  Part* part = object->part;
  Checkpoint* checkpoint = part->checkpoint;
  if (part->committed) {
    --checkpoint->absent;
    if (object->broken) --checkpoint->broken_objects;
  }
  checkpoint->bytes -= object->entry.length;
  const auto name = checkpoint->names.find(object->entry.name);
  if (name != checkpoint->names.end() && name->second == object) checkpoint->names.erase(name);
  part->objects.erase(std::string(object->entry.name));
}

void Engine::Impl::FreeManifest(Part* part) {
  if (!part->manifest_resident) return;
  part->manifest_resident = false;
  if (part->committed) {
    out_.facts.push_back(fact::ManifestDropped{part->key});
    ++part->checkpoint->absent;
  }
  if (part->writing_manifest) {  // the write goes on: the extent is free when it has ended
    orphan_manifests_.emplace(part->key, part->manifest_extent);
    return;
  }
  FreeManifestExtent(part->manifest_extent);
}

void Engine::Impl::FreeManifestExtent(const ExtentRef& extent) {
  ManifestSlab& manifests = manifest_slabs_.at(extent.slab);
  manifests.extents.erase(extent.offset);
  manifests.used -= extent.length;
  ledger_.DropExtent(ledger_.Find(extent.slab));
  KeepManifestRoom();
}

void Engine::Impl::ErasePart(Part* part) {
  Checkpoint* checkpoint = part->checkpoint;
  for (RequestId request : std::vector<RequestId>(part->committers)) {
    AnswerParked(request, absl::FailedPreconditionError(
                              absl::StrCat("commit: ", part->key.DebugString(), " was dropped")));
  }
  manifests_waiting_.erase(part->key);
  const std::string held = part->objects.empty() ? part->lost : part->objects.begin()->first;
  if (!held.empty()) RememberDropped(part->key, held);
  while (!part->objects.empty()) DropObject(part->objects.begin()->second.get());
  for (SessionId id : part->sessions) {
    if (Session* session = FindSession(id)) session->writing.erase(part->key);
  }
  FreeManifest(part);
  if (part->committed) {
    --checkpoint->absent;  // its manifest
    --checkpoint->committed;
  } else {
    --checkpoint->open_parts;
  }
  checkpoint->parts.erase(part->key.writer);
  Touch(checkpoint);
}

void Engine::Impl::MaybeEraseCheckpoint(Checkpoint* checkpoint) {
  if (!checkpoint->parts.empty() || !checkpoint->waiting_creates.empty() || checkpoint->persisted ||
      checkpoint->persisting) {
    return;
  }
  EraseCheckpoint(checkpoint);
}

void Engine::Impl::EraseCheckpoint(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  const CheckpointKey key = checkpoint->key;
  for (RequestId request : std::set<RequestId>(checkpoint->waiting_creates)) {
    AnswerParked(request, absl::FailedPreconditionError(
                              absl::StrCat("create: ", key.DebugString(), " was dropped")));
  }
  ReleaseReservation(checkpoint);
  Unsettle(checkpoint);
  while (!checkpoint->parts.empty()) ErasePart(checkpoint->parts.begin()->second.get());
  Unowe(checkpoint);
  Unindex(checkpoint);
  std::erase(touched_, checkpoint);
  job->incomplete.erase(checkpoint->Id());
  job->persisted.erase(checkpoint->Id());
  const auto attempt = job->attempts.find(key.attempt);
  const auto at_step = attempt->second.checkpoints_at.find(key.step);
  if (--at_step->second == 0) {
    attempt->second.checkpoints_at.erase(at_step);
    attempt->second.worlds.erase(key.step);
  }
  job->checkpoints.erase(checkpoint->Id());
}

// --- completeness

// The part's manifest is in its slab. The caller has emitted its fact.
void Engine::Impl::PartCommitted(Part* part) {
  Checkpoint* checkpoint = part->checkpoint;
  part->committed = true;
  part->committing = false;
  part->encoded.clear();
  part->creates.clear();
  --checkpoint->open_parts;
  ++checkpoint->committed;
  for (auto& [name, object] : part->objects) {
    object->session = 0;
    if (!object->resident) ++checkpoint->absent;
  }
  for (SessionId id : part->sessions) {
    if (Session* session = FindSession(id)) session->writing.erase(part->key);
  }
  part->sessions.clear();
  const auto attempt = checkpoint->job->attempts.find(checkpoint->key.attempt);
  if (attempt != checkpoint->job->attempts.end()) attempt->second.provisional = false;
  if (checkpoint->committed >= checkpoint->local_writers) ReleaseReservation(checkpoint);
  if (checkpoint->committed == checkpoint->world_size) {
    BecameComplete(checkpoint);
  } else {
    Touch(checkpoint);
  }
}

void Engine::Impl::BecameComplete(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  checkpoint->complete = true;
  job->incomplete.erase(checkpoint->Id());
  std::vector<std::string> digests;
  for (const auto& [writer, part] : checkpoint->parts) digests.push_back(part->digest);
  checkpoint->digest = CheckpointDigest(digests);
  ReleaseReservation(checkpoint);
  Touch(checkpoint);
  ScheduleByPolicy(checkpoint);

  // Steps of this attempt that were left behind: said once, with the writers they lack.
  const CheckpointId id = checkpoint->Id();
  for (const CheckpointId& other : job->incomplete) {
    if (std::get<0>(other) >= std::get<0>(id)) break;
    if (std::get<1>(other) != std::get<1>(id)) continue;
    Checkpoint* lacking = job->checkpoints.at(other).get();
    Touch(lacking);
    if (lacking->lack_logged || lacking->parts.empty()) continue;
    lacking->lack_logged = true;
    const std::vector<Writer> missing = InfoOf(*lacking).missing_writers;
    Log(1,
        absl::StrCat(lacking->key.DebugString(), " is incomplete while step ", checkpoint->key.step,
                     " is complete: it lacks writers ", absl::StrJoin(missing, ", "),
                     missing.size() == kNamedWriters ? ", …" : ""));
  }
  // Its older revisions are replaced now, not before.
  for (auto at = job->checkpoints.lower_bound({std::get<0>(id), std::get<1>(id), 0});
       at != job->checkpoints.end() && at->first < id; ++at) {
    Touch(at->second.get());
  }
  Touch(checkpoint);
}

// --- the line

Step Engine::Impl::LineBound(const Job& job) {
  if (job.attempts.empty() || job.attempts.rbegin()->second.complete > 0) {
    return std::numeric_limits<Step>::max();
  }
  return job.attempts.rbegin()->second.comes_from;
}

Step Engine::Impl::ComesFromLine(const Job& job, Step step) const {
  Settle();
  const Step bound = LineBound(job);
  const auto above = step <= bound ? job.settled.lower_bound(step) : job.settled.upper_bound(bound);
  // With step above the bound the line ends at the bound; both stay below the first step.
  return above == job.settled.begin() ? kNoStep : std::prev(above)->first;
}

Checkpoint* Engine::Impl::NewestOnLine(const Job& job) const {
  Settle();
  const auto above = job.settled.upper_bound(LineBound(job));
  return above == job.settled.begin() ? nullptr : std::prev(above)->second;
}

Checkpoint* Engine::Impl::LineAt(const Job& job, Step step) const {
  Settle();
  if (step > LineBound(job)) return nullptr;
  const auto at = job.settled.find(step);
  return at == job.settled.end() ? nullptr : at->second;
}

bool Engine::Impl::OnLine(const Checkpoint& checkpoint) const {
  Settle();
  const auto at = checkpoint.job->settled.find(checkpoint.key.step);
  return at != checkpoint.job->settled.end() && at->second == &checkpoint &&
         checkpoint.key.step <= LineBound(*checkpoint.job);
}

bool Engine::Impl::Abandoned(const Checkpoint& checkpoint) const {
  Settle();
  if (!checkpoint.counted) return false;
  const auto at = checkpoint.job->settled.find(checkpoint.key.step);
  if (at == checkpoint.job->settled.end()) return true;
  // Replaced by a later revision of its own attempt is superseded, not abandoned.
  return at->second != &checkpoint && at->second->key.attempt != checkpoint.key.attempt;
}

// A checkpoint came to be obtainable, or ceased to be.
void Engine::Impl::RefreshLine(Checkpoint* checkpoint) {
  const bool obtainable = checkpoint->Obtainable();
  if (obtainable == checkpoint->counted) return;
  checkpoint->counted = obtainable;
  Job* job = checkpoint->job;
  AttemptState& attempt = job->attempts.at(checkpoint->key.attempt);
  attempt.complete += obtainable ? 1 : -1;
  const Step step = checkpoint->key.step;
  if (obtainable) {
    if (job->attempts.rbegin()->first != attempt.attempt || attempt.complete == 1) {
      // The attempt's first complete step cuts off what older ones did above the point it came
      // from; a late one of an older attempt may stand anywhere. Both are rare.
      RebuildLine(job);
      return;
    }
    Checkpoint*& entry = job->settled[step];
    if (entry == nullptr || entry->Id() < checkpoint->Id()) {
      Checkpoint* replaced = std::exchange(entry, checkpoint);
      if (replaced != nullptr) Touch(replaced);
    }
  } else {
    const auto at = job->settled.find(step);
    if (at != job->settled.end() && at->second == checkpoint) {
      int32_t others = 0;
      for (auto other = job->checkpoints.lower_bound({step, 0, 0});
           other != job->checkpoints.end() && std::get<0>(other->first) == step; ++other) {
        others += other->second->counted ? 1 : 0;
      }
      if (others > 0 || attempt.complete == 0) {
        job->settled.erase(at);
        RebuildLine(job);
        return;
      }
      job->settled.erase(at);
    } else if (attempt.complete == 0) {
      RebuildLine(job);
      return;
    }
  }
  Touch(checkpoint);
  TouchJob(job);
}

std::vector<AttemptLine> Engine::Impl::AttemptLines(const Job& job) const {
  std::vector<AttemptLine> lines;
  for (const auto& [number, attempt] : job.attempts) {
    lines.push_back({number, attempt.comes_from, {}});
  }
  for (const auto& [id, checkpoint] : job.checkpoints) {
    if (!checkpoint->counted) continue;
    const auto at = std::lower_bound(
        lines.begin(), lines.end(), checkpoint->key.attempt,
        [](const AttemptLine& line, Attempt attempt) { return line.attempt < attempt; });
    // Ids ascend, so the last revision stays.
    at->complete[checkpoint->key.step] = checkpoint->key.revision;
  }
  return lines;
}

void Engine::Impl::RebuildLine(Job* job) {
  std::vector<AttemptLine> lines = AttemptLines(*job);
  // Settled is what the attempts with a complete step left; ComputeLine also cuts at one without.
  while (!lines.empty() && lines.back().complete.empty()) lines.pop_back();
  job->settled.clear();
  for (const LineStep& step : ComputeLine(lines)) {
    job->settled[step.step] = job->checkpoints.at({step.step, step.attempt, step.revision}).get();
  }
  for (const auto& [id, checkpoint] : job->checkpoints) Touch(checkpoint.get());
  TouchJob(job);
}

}  // namespace cairn::engine
