// One file: nothing else touches the private state of Parts, and how a part comes, is sealed, goes and
// comes back after a restart is read together.
#include "server/engine/parts.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checksum.h"
#include "server/engine/describing.h"
#include "server/engine/manifests.h"
#include "server/engine/restored.h"

namespace cairn::engine {
namespace {

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

std::string DigestOf(const Checkpoint& checkpoint) {
  std::vector<std::string> digests;
  for (const auto& [writer, part] : checkpoint.content->parts) {
    digests.push_back(part->content->digest);
  }
  return CheckpointDigest(digests);
}

// Why this seal of an object that is being written does not hold.
Status CheckSeal(const Object& object, const PartKey& key, const event::Seal& seal) {
  const auto named = [&](absl::string_view what) {
    return absl::StrCat("seal: \"", absl::CHexEscape(seal.name), "\" of ", key.DebugString(), " ",
                        what);
  };
  const uint64_t granted = object.content->granted;
  if (object.content->sealed) {
    const ObjectEntry& entry = object.entry();
    if (entry.length == seal.length && entry.block_crcs == seal.block_crcs) {
      return absl::OkStatus();
    }
    return absl::AlreadyExistsError(named("is sealed with other content"));
  }
  if (seal.length < object.entry().length) {
    return absl::InvalidArgumentError(
        named(absl::StrCat("is short: ", seal.length, " bytes of the ", object.entry().length,
                           " it was created with")));
  }
  if (seal.length > granted) {
    return absl::InvalidArgumentError(
        named(absl::StrCat("is overlong: ", seal.length, " bytes, granted are ", granted)));
  }
  const uint64_t blocks = BlockCount(seal.length, kBlockBytes);
  if (seal.block_crcs.size() != blocks) {
    return absl::InvalidArgumentError(named(absl::StrCat(
        "has ", seal.block_crcs.size(), " checksums, ", seal.length, " bytes have ", blocks)));
  }
  for (const auto& [begin, end] : seal.covered) {
    if (begin > end || end > granted) {
      return absl::InvalidArgumentError(named(absl::StrCat("was written at [", begin, ", ", end,
                                                           "), granted are ", granted, " bytes")));
    }
  }
  const uint64_t hole = FirstUncovered(seal.covered, seal.length);
  if (hole < seal.length) {
    return absl::InvalidArgumentError(
        named(absl::StrCat("is uncovered from byte ", hole, " of ", seal.length)));
  }
  return absl::OkStatus();
}

}  // namespace

Parts::Parts(Outbox* out, Jobs* jobs, Attempts* attempts, Leases* leases, Ledger* ledger,
             Footprints* footprints, Changes* changes, Standing* standing, Sessions* sessions)
    : out_(*out),
      jobs_(*jobs),
      sessions_(*sessions),
      attempts_(*attempts),
      leases_(*leases),
      ledger_(*ledger),
      footprints_(*footprints),
      changes_(*changes),
      standing_(*standing) {}

// --- finding

Checkpoint* Parts::Find(const CheckpointKey& key) const {
  const Job* job = jobs_.Find(key.job);
  return job == nullptr ? nullptr : CheckpointOf(*job, {key.step, key.attempt, key.revision});
}

Part* Parts::Find(const PartKey& key) const {
  const Checkpoint* checkpoint = Find(key.checkpoint);
  return checkpoint == nullptr ? nullptr : PartOf(*checkpoint, key.writer);
}

Object* Parts::Find(const PartKey& key, const std::string& name) const {
  const Part* part = Find(key);
  return part == nullptr ? nullptr : ObjectOf(*part, name);
}

Part* Parts::PartOf(const Checkpoint& checkpoint, Writer writer) {
  const auto at = checkpoint.content->parts.find(writer);
  return at == checkpoint.content->parts.end() ? nullptr : at->second.get();
}

Object* Parts::ObjectOf(const Part& part, const std::string& name) {
  const auto at = part.content->objects.find(name);
  return at == part.content->objects.end() ? nullptr : at->second.get();
}

const std::set<PartKey>& Parts::WrittenBy(SessionId session) const {
  static const std::set<PartKey> kNone;
  const auto at = written_by_.find(session);
  return at == written_by_.end() ? kNone : at->second;
}

// --- coming

Checkpoint* Parts::FindOrMake(Job* job, const CheckpointKey& key, int32_t world_size) {
  const CheckpointId id{key.step, key.attempt, key.revision};
  if (Checkpoint* known = CheckpointOf(*job, id)) return known;
  JobSteps& steps = job->steps.Edit();
  std::unique_ptr<Checkpoint>& checkpoint = steps.all[id];
  checkpoint = std::make_unique<Checkpoint>(job, key, next_sequence_++, &changes_);
  StepContent& content = checkpoint->content.Edit();
  content.world_size = world_size;
  content.created_unix_ms = out_.UnixMillis();
  steps.incomplete.insert(id);
  attempts_.CheckpointMade(job, key);
  return checkpoint.get();
}

Part* Parts::FindOrMake(Checkpoint* checkpoint, Writer writer) {
  if (Part* known = PartOf(*checkpoint, writer)) return known;
  StepContent& content = checkpoint->content.Edit();
  std::unique_ptr<Part>& part = content.parts[writer];
  part = std::make_unique<Part>(checkpoint, writer);
  ++content.open_parts;
  return part.get();
}

void Parts::WriteBy(Part* part, const Session& session) {
  part->content.Edit().sessions.insert(session.id);
  written_by_[session.id].insert(part->key);
}

void Parts::NoLongerWritten(Part* part) {
  for (SessionId id : part->content->sessions) {
    const auto at = written_by_.find(id);
    if (at == written_by_.end()) continue;
    at->second.erase(part->key);
    if (at->second.empty()) written_by_.erase(at);
  }
}

Object* Parts::New(Part* part, ObjectEntry entry) {
  auto object = std::make_unique<Object>(part);
  ObjectContent& content = object->content.Edit();
  content.draft = std::make_shared<ObjectEntry>(std::move(entry));
  content.entry = content.draft.get();
  Object* at = object.get();
  StepContent& step = part->checkpoint->content.Edit();
  step.names[at->name()] = at;
  step.bytes += at->entry().length;
  part->content.Edit().objects[at->name()] = std::move(object);
  return at;
}

void Parts::Place(Object* object, SlabRecord* slab, uint64_t offset, uint64_t length) {
  ObjectContent& content = object->content.Edit();
  content.extent = {slab->id, offset, length};
  content.resident = true;
  ledger_.AddExtent(slab);
  footprints_.Add(object->part->checkpoint, slab);
  if (!content.sealed) writing_bytes_ += length;
}

Object* Parts::Create(Part* part, const event::ObjectSpec& spec, SlabRecord* slab, uint64_t offset,
                      uint64_t length, uint64_t granted, SessionId session, int64_t call) {
  ObjectEntry entry;
  entry.name = spec.name;
  entry.kind = spec.kind;
  entry.length = spec.length;
  Object* object = New(part, std::move(entry));
  Place(object, slab, offset, length);
  ObjectContent& content = object->content.Edit();
  content.session = session;
  content.call = call;
  content.granted = granted;
  out_.Say(fact::ObjectCreated{part->key, part->checkpoint->content->world_size, spec.name,
                               spec.kind, spec.length, content.extent, session, call});
  return object;
}

void Parts::Created(Part* part, const Session& session, int64_t call, size_t objects) {
  part->content.Edit().creates[{session.id, call}] = objects;
  WriteBy(part, session);
}

// --- sealed and committed

Status Parts::CheckSeals(const Part* part, const PartKey& key,
                         const std::vector<event::Seal>& seals) {
  for (const event::Seal& seal : seals) {
    const Object* object = part == nullptr ? nullptr : ObjectOf(*part, seal.name);
    if (object == nullptr) {
      return absl::NotFoundError(absl::StrCat("seal: \"", absl::CHexEscape(seal.name), "\" of ",
                                              key.DebugString(), " was never created"));
    }
    CAIRN_RETURN_IF_ERROR(CheckSeal(*object, key, seal));
  }
  return absl::OkStatus();
}

void Parts::Seal(Part* part, const std::vector<event::Seal>& seals) {
  for (const event::Seal& seal : seals) {
    Object* object = ObjectOf(*part, seal.name);
    ObjectContent& content = object->content.Edit();
    if (content.sealed) continue;
    content.sealed = true;
    writing_bytes_ -= content.extent.length;
    part->checkpoint->content.Edit().bytes += seal.length - object->entry().length;
    content.draft->length = seal.length;
    content.draft->block_crcs = seal.block_crcs;
    leases_.EndWrite(object);
    out_.Say(fact::ObjectSealed{part->key, object->entry(), content.extent});
  }
}

void Parts::UseEntriesOf(Part* part) {
  for (const ObjectEntry& entry : part->content->manifest->objects) {
    ObjectContent& content = ObjectOf(*part, entry.name)->content.Edit();
    content.entry = &entry;
    content.draft.reset();
    content.session = 0;
  }
}

void Parts::Commit(Part* part, std::shared_ptr<const Manifest> manifest,
                   const std::string& digest) {
  Checkpoint* checkpoint = part->checkpoint;
  NoLongerWritten(part);
  PartContent& content = part->content.Edit();
  content.committed = true;
  content.manifest = std::move(manifest);
  content.digest = digest;
  content.creates.clear();
  content.sessions.clear();
  UseEntriesOf(part);
  StepContent& step = checkpoint->content.Edit();
  --step.open_parts;
  ++step.committed;
  for (const auto& [name, object] : content.objects) {
    if (!object->content->resident) ++step.absent;
  }
  for (StepWatcher* watcher : watchers_) watcher->PartCommitted(part);
  if (step.committed == step.world_size) BecomeComplete(checkpoint);
}

void Parts::BecomeComplete(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  StepContent& content = checkpoint->content.Edit();
  content.complete = true;
  content.digest = DigestOf(*checkpoint);
  job->steps.Edit().incomplete.erase(checkpoint->Id());
  for (StepWatcher* watcher : watchers_) watcher->CheckpointCompleted(checkpoint);
  LogLacking(checkpoint);
  // Its older revisions are replaced now, not before.
  for (Checkpoint* other : CheckpointsAt(*job, checkpoint->key.step)) {
    if (other->key.attempt == checkpoint->key.attempt && other->Id() < checkpoint->Id()) {
      other->Touch();
    }
  }
}

// Steps of this attempt that were left behind: said once, with the writers they lack.
void Parts::LogLacking(Checkpoint* checkpoint) {
  const Job* job = checkpoint->job;
  for (const CheckpointId& id : job->steps->incomplete) {
    if (id.step >= checkpoint->key.step) break;
    if (id.attempt != checkpoint->key.attempt) continue;
    Checkpoint* lacking = CheckpointOf(*job, id);
    lacking->Touch();
    if (lacking->content->lack_logged || lacking->content->parts.empty()) continue;
    lacking->content.Edit().lack_logged = true;
    const std::vector<Writer> missing = MissingWriters(*lacking);
    out_.Log(
        Severity::kWarning,
        absl::StrCat(lacking->key.DebugString(), " is incomplete while step ", checkpoint->key.step,
                     " is complete: it lacks writers ", absl::StrJoin(missing, ", "),
                     missing.size() == kMostMissingWritersNamed ? ", …" : ""));
  }
}

void Parts::AddStored(Checkpoint* checkpoint, std::shared_ptr<const Manifest> manifest,
                      const std::string& digest) {
  Part* part = FindOrMake(checkpoint, manifest->writer);
  PartContent& content = part->content.Edit();
  for (const ObjectEntry& entry : manifest->objects) {
    if (ObjectOf(*part, entry.name) == nullptr) {
      ObjectEntry named;
      named.name = entry.name;
      named.length = entry.length;
      New(part, std::move(named));
    }
    ObjectOf(*part, entry.name)->content.Edit().sealed = true;
  }
  content.committed = true;
  content.digest = digest;
  content.manifest = std::move(manifest);
  UseEntriesOf(part);
  StepContent& step = checkpoint->content.Edit();
  --step.open_parts;
  ++step.committed;
  step.absent += content.objects.size();
  step.created_unix_ms = content.manifest->created_unix_ms;
  for (StepWatcher* watcher : watchers_) watcher->PartStored(part);
}

void Parts::CompleteStored(Checkpoint* checkpoint, const std::string& digest) {
  StepContent& content = checkpoint->content.Edit();
  content.complete = true;
  content.digest = digest;
  checkpoint->job->steps.Edit().incomplete.erase(checkpoint->Id());
}

// --- going

void Parts::Free(Object* object) {
  if (!object->content->resident) return;
  Part* part = object->part;
  ObjectContent& content = object->content.Edit();
  content.resident = false;
  if (!content.sealed) writing_bytes_ -= content.extent.length;
  out_.Say(fact::ObjectDropped{part->key, object->name()});
  SlabRecord* slab = ledger_.Find(content.extent.slab);
  footprints_.Drop(part->checkpoint, slab);
  ledger_.DropExtent(slab);
  if (part->content->committed) ++part->checkpoint->content.Edit().absent;
}

void Parts::Break(Object* object, const Status& why) {
  Free(object);
  object->content.Edit().broken = true;
  StepContent& content = object->part->checkpoint->content.Edit();
  ++content.broken_objects;
  content.why = absl::StrCat("\"", absl::CHexEscape(object->name()), "\": ", why.message());
}

void Parts::Drop(Object* object) {
  Free(object);
  leases_.EndWrite(object);
  Part* part = object->part;
  StepContent& step = part->checkpoint->content.Edit();
  if (part->content->committed) {
    --step.absent;
    if (object->content->broken) --step.broken_objects;
  }
  step.bytes -= object->entry().length;
  const std::string name = object->name();
  const auto at = step.names.find(name);
  if (at != step.names.end() && at->second == object) step.names.erase(at);
  part->content.Edit().objects.erase(name);
}

void Parts::Erase(Part* part) {
  Checkpoint* checkpoint = part->checkpoint;
  for (StepWatcher* watcher : watchers_) watcher->PartGoes(part);
  const PartContent& content = *part->content;
  const std::string held = content.objects.empty() ? content.lost : content.objects.begin()->first;
  if (!held.empty()) attempts_.RememberDropped(part->key, held);
  while (!content.objects.empty()) Drop(content.objects.begin()->second.get());
  NoLongerWritten(part);
  for (StepWatcher* watcher : watchers_) watcher->PartEmptied(part);
  StepContent& step = checkpoint->content.Edit();
  if (content.committed) {
    --step.committed;
  } else {
    --step.open_parts;
  }
  step.parts.erase(part->key.writer);
}

void Parts::EraseIfEmpty(Checkpoint* checkpoint) {
  if (!checkpoint->content->parts.empty() || !checkpoint->verdict->waiting.empty() ||
      checkpoint->files->persisted || checkpoint->files->persisting) {
    return;
  }
  Erase(checkpoint);
}

void Parts::Erase(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  const CheckpointId id = checkpoint->Id();
  for (StepWatcher* watcher : watchers_) watcher->CheckpointGoes(checkpoint);
  checkpoint->content.Edit().complete = false;
  while (!checkpoint->content->parts.empty()) {
    Erase(checkpoint->content->parts.begin()->second.get());
  }
  JobSteps& steps = job->steps.Edit();
  steps.incomplete.erase(id);
  standing_.Forget(checkpoint);
  attempts_.CheckpointGone(job, checkpoint->key);
  steps.all.erase(id);
}

// --- recovery

void Parts::Restore(const Restored& restored, const Recovered& recovered, Manifests* manifests) {
  std::set<PartKey> keys;
  for (const auto& [key, objects] : restored.objects) keys.insert(key);
  for (const auto& [key, manifest] : restored.manifests) keys.insert(key);
  static const std::map<std::string, Restored::Object> kNoObjects;
  std::map<PartKey, std::string> dropped = restored.dropped;
  for (const PartKey& key : keys) {
    const auto found = restored.objects.find(key);
    const auto& objects = found == restored.objects.end() ? kNoObjects : found->second;
    const Dropper drop = [&](const std::string& name) {
      out_.Say(fact::ObjectDropped{key, name});
      dropped[key] = name;
    };
    const auto committed = restored.manifests.find(key);
    if (committed != restored.manifests.end()) {
      const auto verified = recovered.manifests.find(key);
      RestoreCommitted(committed->second,
                       verified == recovered.manifests.end() ? nullptr : verified->second, objects,
                       manifests, drop);
    } else {
      const auto lost = restored.dropped.find(key);
      RestoreOpen(key, objects, lost == restored.dropped.end() ? "" : lost->second, drop);
    }
  }
  for (const auto& [key, name] : dropped) {
    if (Find(key) == nullptr) attempts_.RememberDropped(key, name);
  }
}

void Parts::RestoreCommitted(const fact::ManifestCommitted& committed,
                             std::shared_ptr<const Manifest> manifest,
                             const std::map<std::string, Restored::Object>& objects,
                             Manifests* manifests, const Dropper& drop) {
  const PartKey& key = committed.part;
  Job* job = jobs_.FindOrMake(key.checkpoint.job);
  if (manifest == nullptr || !ledger_.Survived(committed.extent)) {
    out_.Log(Severity::kError,
             absl::StrCat(key.DebugString(), " is lost from memory: ",
                          manifest != nullptr ? "its manifest's slab did not survive"
                                              : "its manifest did not verify"));
    for (const auto& [name, object] : objects) drop(name);
    out_.Say(fact::ManifestDropped{key});
    return;
  }
  Checkpoint* checkpoint = FindOrMake(job, key.checkpoint, committed.world_size);
  AddStored(checkpoint, std::move(manifest), committed.digest);
  Part* part = PartOf(*checkpoint, key.writer);
  manifests->RestorePlace(part, committed);
  for (const auto& [name, object] : part->content->objects) {
    const auto known = objects.find(name);
    if (known == objects.end()) continue;
    if (!ledger_.Survived(known->second.Extent())) {
      drop(name);
      continue;
    }
    ObjectContent& content = object->content.Edit();
    content.extent = known->second.Extent();
    content.resident = true;
    ledger_.RestoreExtent(content.extent.slab);
    --checkpoint->content.Edit().absent;
  }
  for (const auto& [name, object] : objects) {
    if (!part->content->objects.contains(name)) drop(name);
  }
}

// Not committed: it goes on if every session that writes it does, as when one ends.
void Parts::RestoreOpen(const PartKey& key, const std::map<std::string, Restored::Object>& objects,
                        const std::string& lost, const Dropper& drop) {
  const bool goes_on = std::all_of(objects.begin(), objects.end(), [&](const auto& entry) {
    const auto& created = entry.second.created;
    return created && sessions_.Find(created->session) != nullptr;
  });
  Job* job = jobs_.FindOrMake(key.checkpoint.job);
  for (const auto& [name, object] : objects) {
    if (!goes_on) {
      drop(name);
      continue;
    }
    const Session& session = *sessions_.Find(object.created->session);
    Checkpoint* checkpoint = FindOrMake(job, key.checkpoint, object.created->world_size);
    Part* part = FindOrMake(checkpoint, key.writer);
    WriteBy(part, session);
    PartContent& content = part->content.Edit();
    ++content.creates[{session.id, object.created->call}];
    // Only some of it was dropped: an earlier daemon missed the slab.
    if (!lost.empty()) content.lost = lost;
    if (!ledger_.Survived(object.Extent())) {
      drop(name);
      content.lost = name;
      continue;
    }
    RestoreObject(part, object);
  }
}

void Parts::RestoreObject(Part* part, const Restored::Object& object) {
  ObjectEntry entry;
  if (object.sealed) {
    entry = object.sealed->entry;
  } else {
    entry.name = object.created->name;
    entry.kind = object.created->kind;
    entry.length = object.created->length;
  }
  ObjectContent& content = New(part, std::move(entry))->content.Edit();
  content.extent = object.Extent();
  content.resident = true;
  content.sealed = object.sealed.has_value();
  content.granted = content.extent.length;
  content.session = object.created->session;
  content.call = object.created->call;
  if (!content.sealed) writing_bytes_ += content.extent.length;
  ledger_.RestoreExtent(content.extent.slab);
}

void Parts::RestoreFootprints() {
  for (const auto& [name, job] : jobs_.all()) {
    for (const auto& [id, checkpoint] : job->steps->all) {
      for (const auto& [writer, part] : checkpoint->content->parts) {
        for (const auto& [object_name, object] : part->content->objects) {
          if (!object->content->resident) continue;
          footprints_.Add(checkpoint.get(), ledger_.Find(object->content->extent.slab));
        }
      }
    }
  }
}

// A checkpoint all of whose parts were restored is complete.
void Parts::RestoreComplete() {
  for (const auto& [name, job] : jobs_.all()) {
    for (const auto& [id, checkpoint] : job->steps->all) {
      if (checkpoint->content->committed != checkpoint->content->world_size) continue;
      CompleteStored(checkpoint.get(), DigestOf(*checkpoint));
      if (!checkpoint->Resident()) {
        checkpoint->content.Edit().why = "some of its memory did not survive";
      }
    }
  }
}

void Parts::Snapshot(const Part& part, std::vector<Fact>* facts) const {
  for (const auto& [name, object] : part.content->objects) {
    const ObjectContent& content = *object->content;
    if (!content.resident) continue;
    if (!part.content->committed) {
      facts->push_back(fact::ObjectCreated{part.key, part.checkpoint->content->world_size, name,
                                           object->entry().kind, object->entry().length,
                                           content.extent, content.session, content.call});
    }
    if (content.sealed) {
      facts->push_back(fact::ObjectSealed{part.key, object->entry(), content.extent});
    }
  }
  if (!part.content->lost.empty()) {
    facts->push_back(fact::ObjectDropped{part.key, part.content->lost});
  }
}

// --- invariants

std::string Parts::CheckPart(const Part& part, const Placer& place) const {
  const std::string shown = part.key.DebugString();
  if (part.content->committed && part.content->manifest == nullptr) {
    return shown + " is committed, but has no manifest";
  }
  for (const auto& [name, object] : part.content->objects) {
    if (object->name() != name) return shown + ": an object under another's name";
    if (!object->content->resident) continue;
    const std::string problem = place(object->content->extent, absl::StrCat(shown, " ", name));
    if (!problem.empty()) return problem;
    const SlabRecord& slab = *ledger_.Find(object->content->extent.slab);
    const JobOwner& owner = *part.checkpoint->job->owner;
    if (slab.owner.job != part.key.checkpoint.job || slab.owner.uid != owner.uid) {
      return absl::StrCat(shown, " ", name, " lies in a slab of job ", slab.owner.job, " uid ",
                          slab.owner.uid);
    }
    if (part.content->committed && !object->content->sealed) {
      return shown + " is committed, not all sealed";
    }
  }
  return "";
}

std::string Parts::CheckInvariants(const Checkpoint& checkpoint, const Placer& place) const {
  const std::string shown = checkpoint.key.DebugString();
  const StepContent& content = *checkpoint.content;
  uint64_t absent = 0;
  int32_t committed = 0, open = 0;
  size_t names = 0;
  for (const auto& [writer, part] : content.parts) {
    committed += part->content->committed ? 1 : 0;
    open += part->content->committed ? 0 : 1;
    names += part->content->objects.size();
    for (const auto& [name, object] : part->content->objects) {
      absent += part->content->committed && !object->content->resident ? 1 : 0;
    }
    if (std::string problem = CheckPart(*part, place); !problem.empty()) return problem;
  }
  if (committed != content.committed || open != content.open_parts) {
    return shown + ": its parts are miscounted";
  }
  if (absent != content.absent) return shown + ": its absent objects are miscounted";
  if (names != content.names.size()) return shown + ": its names are miscounted";
  if (content.complete != (committed == content.world_size)) {
    return shown + ": complete is not what its parts say";
  }
  if (content.complete == checkpoint.job->steps->incomplete.contains(checkpoint.Id())) {
    return shown + ": incomplete?";
  }
  return "";
}

std::string Parts::CheckSums() const {
  uint64_t writing = 0;
  for (const auto& [name, job] : jobs_.all()) {
    for (const auto& [id, checkpoint] : job->steps->all) {
      for (const auto& [writer, part] : checkpoint->content->parts) {
        for (const auto& [object_name, object] : part->content->objects) {
          const ObjectContent& content = *object->content;
          if (content.resident && !content.sealed) writing += content.extent.length;
        }
      }
    }
  }
  return writing == writing_bytes_ ? "" : "writing_bytes is miscounted";
}

}  // namespace cairn::engine
