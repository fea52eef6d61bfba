// One file: how a part comes, is sealed and committed, and goes is read together. parts_recovery.cc has how
// parts come back after a restart, and what must hold between two events.
#include "server/engine/parts.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checksum.h"
#include "server/engine/describing.h"
#include "server/engine/manifests.h"
#include "server/engine/own_parts.h"

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

// One of the objects that the part has or had; empty: it had none.
std::string HeldName(const PartContent& content) {
  if (!content.objects.empty()) return content.objects.begin()->second->name();
  if (content.table != nullptr && !content.table->entries.empty()) {
    return content.table->entries.front()->name;
  }
  if (content.committed && content.count > 0) return "(an object that only storage had)";
  return content.lost;
}

// Why this seal of an object does not hold.
Status CheckSeal(const ObjectRef& object, const PartKey& key, const event::Seal& seal) {
  const auto named = [&](absl::string_view what) {
    return absl::StrCat("seal: \"", absl::CHexEscape(seal.name), "\" of ", key.DebugString(), " ",
                        what);
  };
  if (object.sealed()) {
    const ObjectEntry& entry = object.entry();
    if (entry.length == seal.length && entry.block_crcs == seal.block_crcs) {
      return absl::OkStatus();
    }
    return absl::AlreadyExistsError(named("is sealed with other content"));
  }
  const uint64_t granted = object.object->content->granted;
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

Parts::Parts(const Options& options, Outbox* out, Jobs* jobs, Attempts* attempts, Leases* leases,
             Ledger* ledger, Footprints* footprints, Changes* changes, Standing* standing,
             Sessions* sessions, JournalRoom* journal)
    : options_(options),
      out_(*out),
      jobs_(*jobs),
      sessions_(*sessions),
      attempts_(*attempts),
      leases_(*leases),
      ledger_(*ledger),
      footprints_(*footprints),
      changes_(*changes),
      standing_(*standing),
      journal_(*journal) {}

// --- finding

Checkpoint* Parts::Find(const CheckpointKey& key) const {
  const Job* job = jobs_.Find(key.job);
  return job == nullptr ? nullptr : CheckpointOf(*job, {key.step, key.attempt, key.revision});
}

Part* Parts::Find(const PartKey& key) const {
  const Checkpoint* checkpoint = Find(key.checkpoint);
  return checkpoint == nullptr ? nullptr : PartOf(*checkpoint, key.writer);
}

ObjectRef Parts::Find(const PartKey& key, absl::string_view name) const {
  Part* part = Find(key);
  return part == nullptr ? ObjectRef() : ObjectIn(part, name);
}

Part* Parts::PartOf(const Checkpoint& checkpoint, Writer writer) {
  const auto at = checkpoint.content->parts.find(writer);
  return at == checkpoint.content->parts.end() ? nullptr : at->second.get();
}

Object* Parts::WrittenIn(const Part& part, absl::string_view name) {
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
  part->content.Edit().journal_uid = checkpoint->job->owner->uid;
  ++content.open_parts;
  while (content.parts.contains(content.first_without)) ++content.first_without;
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
  Object* at = object.get();
  PartContent& content = part->content.Edit();
  content.encoded_bytes += EncodedObjectSize(entry);
  content.bytes += entry.length;
  uint64_t journal = JournalRoom::CostOfSeal(part->key, entry.name, entry.length);
  if (content.objects.empty()) journal += JournalRoom::CostOfPart(part->key);
  content.journal_bytes += journal;
  journal_.Reserve(content.journal_uid, journal);
  StepContent& step = part->checkpoint->content.Edit();
  step.bytes += entry.length;
  ++step.objects;
  at->content.Edit().entry = std::make_shared<ObjectEntry>(std::move(entry));
  // Most names come in their order.
  step.names.insert(step.names.end(), {at->name(), part});
  content.objects.emplace_hint(content.objects.end(), at->name(), std::move(object));
  ++content.count;
  return at;
}

void Parts::Took(Part* part, SlabRecord* slab, uint32_t objects) {
  part->content.Edit().slabs[slab->id] += objects;
  ledger_.AddExtents(slab, objects);
  footprints_.Add(part, slab, objects);
}

void Parts::Place(Object* object, const SlabRecord& slab, uint64_t offset, uint64_t length) {
  ObjectContent& content = object->content.Edit();
  content.extent = {slab.id, offset, length};
  PartContent& part = object->part->content.Edit();
  ++part.unsealed;
  part.writing_bytes += length;
  writing_bytes_ += length;
}

Object* Parts::Create(Part* part, const event::ObjectSpec& spec, const SlabRecord& slab,
                      uint64_t offset, uint64_t length, uint64_t granted, SessionId session,
                      int64_t call) {
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
  content.asked = spec.length;
  out_.Say(fact::ObjectCreated{part->key, part->checkpoint->content->world_size, spec.name,
                               spec.kind, spec.length, content.extent, session, call});
  return object;
}

void Parts::Created(Part* part, const Session& session, int64_t call, size_t objects) {
  part->content.Edit().creates[{session.id, call}] = objects;
  ++creates_;
  WriteBy(part, session);
}

void Parts::SetAside(Part* part, uint64_t journal_bytes) {
  PartContent& content = part->content.Edit();
  content.journal_to_come += journal_bytes;
  content.journal_bytes += journal_bytes;
  journal_.Reserve(content.journal_uid, journal_bytes);
}

void Parts::TakeSetAside(Part* part, uint64_t journal_bytes) {
  PartContent& content = part->content.Edit();
  content.journal_to_come -= journal_bytes;
  content.journal_bytes -= journal_bytes;
  journal_.Release(content.journal_uid, journal_bytes);
}

// --- sealed and committed

Status Parts::CheckSeals(Part* part, const PartKey& key, const std::vector<event::Seal>& seals) {
  // Committed, and only storage knows with what: nothing is sealed any more.
  if (part != nullptr && part->content->committed && part->content->table == nullptr) {
    return absl::OkStatus();
  }
  for (const event::Seal& seal : seals) {
    const ObjectRef object = part == nullptr ? ObjectRef() : ObjectIn(part, seal.name);
    if (!object) {
      return absl::NotFoundError(absl::StrCat("seal: \"", absl::CHexEscape(seal.name), "\" of ",
                                              key.DebugString(), " was never created"));
    }
    CAIRN_RETURN_IF_ERROR(CheckSeal(object, key, seal));
  }
  return absl::OkStatus();
}

void Parts::Seal(Part* part, const std::vector<event::Seal>& seals, bool say) {
  for (const event::Seal& seal : seals) {
    Object* object = WrittenIn(*part, seal.name);
    ObjectContent& content = object->content.Edit();
    if (content.sealed) {  // with a commit that failed, perhaps
      if (say) SaySeal(part, object);
      continue;
    }
    content.sealed = true;
    const uint64_t grown = seal.length - object->entry().length;
    PartContent& of_part = part->content.Edit();
    --of_part.unsealed;
    of_part.writing_bytes -= content.extent.length;
    writing_bytes_ -= content.extent.length;
    of_part.bytes += grown;
    part->checkpoint->content.Edit().bytes += grown;
    of_part.encoded_bytes -= EncodedObjectSize(object->entry());
    content.entry->length = seal.length;
    content.entry->block_crcs = seal.block_crcs;
    of_part.encoded_bytes += EncodedObjectSize(object->entry());
    leases_.EndWrite(object);
    if (say) SaySeal(part, object);
  }
}

void Parts::SaySeal(Part* part, Object* object) {
  if (std::exchange(object->content.Edit().seal_said, true)) return;
  out_.Say(fact::ObjectSealed{part->key, object->entry(), object->content->extent});
}

std::vector<SlabId> Parts::SlabsOf(const Part& part) {
  std::vector<SlabId> slabs;
  for (const auto& [slab, objects] : part.content->slabs) slabs.push_back(slab);
  return slabs;
}

std::shared_ptr<const PartTable> Parts::TableOf(const Part& part, Manifest head) {
  auto table = std::make_shared<PartTable>();
  table->head = std::move(head);
  table->entries.reserve(part.content->objects.size());
  table->extents.reserve(part.content->objects.size());
  for (const auto& [name, object] : part.content->objects) {
    table->entries.push_back(object->content->entry);
    table->extents.push_back(object->content->extent);
  }
  return table;
}

void Parts::Commit(Part* part, std::shared_ptr<const PartTable> table, const std::string& digest) {
  Checkpoint* checkpoint = part->checkpoint;
  NoLongerWritten(part);
  ReleaseJournal(part);
  PartContent& content = part->content.Edit();
  content.committed = true;
  content.table = std::move(table);
  content.digest = digest;
  SettleKept(part);
  out_.DestroyLater(std::exchange(content.objects, {}));
  content.creates.clear();
  content.sessions.clear();
  StepContent& step = checkpoint->content.Edit();
  --step.open_parts;
  ++step.committed;
  NoteDigest(&step, part->key.writer, digest);
  for (StepWatcher* watcher : watchers_) watcher->PartCommitted(part);
  if (step.committed == step.world_size) BecomeComplete(checkpoint);
}

// Of thousands of parts the digests lie in one string: to look into each part would cost more than the
// digest itself.
void Parts::NoteDigest(StepContent* step, Writer writer, absl::string_view digest) {
  const auto parts = static_cast<size_t>(step->world_size);
  if (parts <= kFewParts || digest.size() != kDigestLength) return;
  step->digests.resize(parts * kDigestLength);
  digest.copy(&step->digests[static_cast<size_t>(writer) * kDigestLength], kDigestLength);
}

std::string Parts::DigestOf(const Checkpoint& checkpoint) {
  const std::string& all = checkpoint.content->digests;
  if (!all.empty() && all.find('\0') == std::string::npos) return CheckpointDigest({all});
  std::vector<absl::string_view> digests;
  digests.reserve(checkpoint.content->parts.size());
  for (const auto& [writer, part] : checkpoint.content->parts) {
    digests.push_back(part->content->digest);
  }
  return CheckpointDigest(digests);
}

void Parts::BecomeComplete(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  StepContent& content = checkpoint->content.Edit();
  content.complete = true;
  content.digest = DigestOf(*checkpoint);
  content.digests = {};
  job->steps.Edit().incomplete.erase(checkpoint->Id());
  IndexNames(checkpoint);
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

Part* Parts::AddCommitted(Checkpoint* checkpoint, const Manifest& head, const std::string& digest,
                          uint64_t objects, uint64_t bytes) {
  Part* part = FindOrMake(checkpoint, head.writer);
  StepContent& step = checkpoint->content.Edit();
  PartContent& content = part->content.Edit();
  content.committed = true;
  content.digest = digest;
  content.count = content.absent = objects;
  content.bytes = bytes;
  step.indexed = step.indexed && objects == 0;
  step.created_unix_ms = head.created_unix_ms;
  ++step.without_table;
  step.bytes += content.bytes;
  step.objects += content.count;
  step.absent += content.absent;
  --step.open_parts;
  ++step.committed;
  for (StepWatcher* watcher : watchers_) watcher->PartStored(part);
  return part;
}

void Parts::AddStored(Checkpoint* checkpoint, const StoredPart& stored) {
  AddCommitted(checkpoint, stored.manifest, stored.digest, stored.Objects(), stored.Bytes());
}

Part* Parts::AddFetched(Checkpoint* checkpoint, std::shared_ptr<const PartTable> table,
                        const std::string& digest) {
  Part* part = PartOf(*checkpoint, table->head.writer);
  if (part == nullptr) {
    uint64_t bytes = 0;
    for (const auto& entry : table->entries) bytes += entry->length;
    part = AddCommitted(checkpoint, table->head, digest, table->entries.size(), bytes);
  }
  ++creates_;
  DropTable(part);  // of what storage has: it says nothing of memory
  TakeTable(part, table);
  std::map<SlabId, uint32_t> slabs;
  for (const ExtentRef& extent : table->extents) ++slabs[extent.slab];
  for (const auto& [slab, objects] : slabs) {
    Took(part, ledger_.Find(slab), objects);
    part->content.Edit().absent -= objects;
    checkpoint->content.Edit().absent -= objects;
  }
  SettleKept(part);
  StepContent& step = checkpoint->content.Edit();
  NoteDigest(&step, part->key.writer, digest);
  if (!step.complete && step.committed == step.world_size) {
    BecomeComplete(checkpoint);
  } else {
    step.indexed = false;  // the part may have been known without its names
    IndexNames(checkpoint);
  }
  return part;
}

void Parts::TakeTable(Part* part, std::shared_ptr<const PartTable> table) {
  PartContent& content = part->content.Edit();
  if (content.table != nullptr || table->entries.size() != content.count) return;
  content.table = std::move(table);
  StepContent& step = part->checkpoint->content.Edit();
  if (--step.without_table == 0 && step.complete) IndexNames(part->checkpoint);
}

void Parts::DropTable(Part* part) {
  PartContent& content = part->content.Edit();
  if (content.table == nullptr || !content.committed || !content.slabs.empty() ||
      part->manifest->resident) {
    return;
  }
  StepContent& step = part->checkpoint->content.Edit();
  ++step.without_table;
  step.broken_objects -= content.broken.size();
  content.broken.clear();
  step.indexed = false;
  out_.DestroyLater(std::exchange(step.names, {}));
  out_.DestroyLater(std::exchange(content.table, nullptr));
  if (!step.complete) IndexNames(part->checkpoint);  // others of it may still be written
}

void Parts::DropTables(Checkpoint* checkpoint) {
  if (!checkpoint->content->complete) return;  // its names are looked up by whoever adds to it
  for (const auto& [writer, part] : checkpoint->content->parts) DropTable(part.get());
}

void Parts::CompleteStored(Checkpoint* checkpoint, const std::string& digest) {
  StepContent& content = checkpoint->content.Edit();
  content.complete = true;
  content.condemned = false;  // what had left memory is there again
  content.digests = {};
  content.digest = digest;
  checkpoint->job->steps.Edit().incomplete.erase(checkpoint->Id());
  IndexNames(checkpoint);
}

void Parts::IndexNames(Checkpoint* checkpoint) {
  StepContent& content = checkpoint->content.Edit();
  const bool wanted =
      !content.complete || (content.parts.size() > kFewParts && content.without_table == 0);
  if (wanted && content.indexed) return;
  content.indexed = wanted;
  out_.DestroyLater(std::exchange(content.names, {}));  // some may be there
  if (!wanted) return;
  for (const auto& [writer, part] : content.parts) {
    for (const auto& [name, object] : part->content->objects) content.names[name] = part.get();
    if (part->content->table == nullptr) continue;
    for (const auto& entry : part->content->table->entries) {
      content.names[entry->name] = part.get();
    }
  }
}

// --- going

void Parts::Leave(Part* part, SlabId slab_id, uint32_t objects) {
  PartContent& content = part->content.Edit();
  const auto at = content.slabs.find(slab_id);
  at->second -= objects;
  if (at->second == 0) content.slabs.erase(at);
  SlabRecord* slab = ledger_.Find(slab_id);
  footprints_.Drop(part, slab, objects);
  ledger_.DropExtents(slab, objects);
  // What was given up for want of memory comes back; Fetches keeps what it has a use for.
  if (slab->for_peers && slab->extents == 0 && !slab->reserved) ledger_.ReturnFromPeers(slab);
  SettleKept(part);
  if (!content.committed) return;
  content.absent += objects;
  part->checkpoint->content.Edit().absent += objects;
}

bool Parts::Free(Part* part) {
  const std::map<SlabId, uint32_t> slabs = part->content->slabs;
  const bool held = std::any_of(slabs.begin(), slabs.end(),
                                [&](const auto& at) { return ledger_.Find(at.first)->Locked(); });
  for (const auto& [slab, objects] : slabs) {
    if (held && ledger_.Find(slab)->Locked()) continue;
    if (held) out_.Say(fact::PartLeftSlab{part->key, slab});
    Leave(part, slab, objects);
  }
  if (held) return false;
  if (part->manifest->resident) out_.Say(fact::PartDropped{part->key, HeldName(*part->content)});
  return true;
}

void Parts::Release(Part* part, Manifests* manifests) {
  Checkpoint* checkpoint = part->checkpoint;
  if (checkpoint->files->persisted && !checkpoint->files->deleting) {
    if (Free(part)) manifests->Free(part);
    DropTable(part);
    return;
  }
  NoLongerWhole(checkpoint);
  Erase(part);
  EraseIfEmpty(checkpoint);
}

void Parts::NoLongerWhole(Checkpoint* checkpoint) {
  if (!checkpoint->content->complete) return;
  StepContent& content = checkpoint->content.Edit();
  content.complete = content.indexed = false;
  checkpoint->job->steps.Edit().incomplete.insert(checkpoint->Id());
  IndexNames(checkpoint);
}

void Parts::Break(const ObjectRef& object, const Status& why) {
  Part* part = object.part;
  out_.Say(fact::ObjectDropped{part->key, object.name()});
  Leave(part, object.extent().slab, 1);
  part->content.Edit().broken.insert(object.index);
  StepContent& content = part->checkpoint->content.Edit();
  ++content.broken_objects;
  content.why = absl::StrCat("\"", absl::CHexEscape(object.name()), "\": ", why.message());
}

void Parts::ReleaseJournal(Part* part) {
  PartContent& content = part->content.Edit();
  content.journal_to_come = 0;
  journal_.Release(content.journal_uid, std::exchange(content.journal_bytes, 0));
}

uint64_t Parts::CostOfKept(const Part& part) {
  const PartContent& content = *part.content;
  const bool in_memory = content.committed && (!content.slabs.empty() || part.manifest->resident);
  return in_memory ? JournalRoom::CostOfKept(part.key, content.slabs.size()) : uint64_t{0};
}

void Parts::SettleKept(Part* part) {
  PartContent& content = part->content.Edit();
  const uint64_t kept = CostOfKept(*part);
  if (kept == content.journal_kept) return;
  journal_.RefundSteps(content.journal_uid, content.journal_kept);
  journal_.ChargeSteps(content.journal_uid, kept);
  part->checkpoint->content.Edit().journal_kept += kept - content.journal_kept;
  content.journal_kept = kept;
}

void Parts::ForgetNames(Part* part) {
  StepContent& step = part->checkpoint->content.Edit();
  step.objects -= part->content->count;
  if (!step.indexed) return;
  if (step.parts.size() == 1) {
    out_.DestroyLater(std::exchange(step.names, {}));
    return;
  }
  const PartContent& content = *part->content;
  for (const auto& [name, object] : content.objects) step.names.erase(name);
  if (content.table == nullptr) return;
  for (const auto& entry : content.table->entries) step.names.erase(entry->name);
}

void Parts::Erase(Part* part) {
  Checkpoint* checkpoint = part->checkpoint;
  for (StepWatcher* watcher : watchers_) watcher->PartGoes(part);
  PartContent& content = part->content.Edit();
  const std::string held = HeldName(content);
  if (!held.empty()) attempts_.RememberDropped(part->key, held);
  // Of one that only storage had, too, when it is remembered: a snapshot in pieces may be past that.
  if (!held.empty() || !content.slabs.empty() || !content.lost.empty() ||
      part->manifest->resident) {
    out_.Say(fact::PartDropped{part->key, held});
  }
  for (const auto& [name, object] : content.objects) leases_.EndWrite(object.get());
  const std::map<SlabId, uint32_t> slabs = content.slabs;
  for (const auto& [slab, objects] : slabs) Leave(part, slab, objects);
  writing_bytes_ -= content.writing_bytes;
  ForgetNames(part);
  NoLongerWritten(part);
  ReleaseJournal(part);
  for (StepWatcher* watcher : watchers_) watcher->PartEmptied(part);
  StepContent& step = checkpoint->content.Edit();
  step.bytes -= content.bytes;
  if (content.committed) {
    --step.committed;
    if (!step.digests.empty())
      NoteDigest(&step, part->key.writer, std::string(kDigestLength, '\0'));
    if (content.table == nullptr) --step.without_table;
    step.absent -= content.absent;
    step.broken_objects -= content.broken.size();
  } else {
    --step.open_parts;
  }
  standing_.Forget(part);
  const auto at = step.parts.find(part->key.writer);
  step.first_without = std::min(step.first_without, at->first);
  out_.DestroyLater(std::move(at->second));
  step.parts.erase(at);
}

void Parts::Condemn(Checkpoint* checkpoint) {
  for (StepWatcher* watcher : watchers_) watcher->CheckpointGoes(checkpoint);
  StepContent& content = checkpoint->content.Edit();
  content.condemned = content.lack_logged = true;
  content.complete = content.indexed = false;
  out_.DestroyLater(std::exchange(content.names, {}));
  checkpoint->job->steps.Edit().incomplete.insert(checkpoint->Id());
}

void Parts::EraseCondemned(const CheckpointKey& key) {
  Checkpoint* checkpoint = Find(key);
  if (checkpoint != nullptr && checkpoint->content->condemned) Erase(checkpoint);
}

void Parts::EraseIfEmpty(Checkpoint* checkpoint) {
  if (!checkpoint->content->parts.empty() || !checkpoint->verdict->waiting.empty() ||
      checkpoint->files->persisted || checkpoint->files->persisting ||
      checkpoint->elsewhere->complete) {
    return;
  }
  Erase(checkpoint);
}

void Parts::EraseHere(Checkpoint* checkpoint) {
  if (!checkpoint->RingHasIt() || checkpoint->content->condemned) return Erase(checkpoint);
  NoLongerWhole(checkpoint);
  while (!checkpoint->content->parts.empty()) {
    Erase(checkpoint->content->parts.begin()->second.get());
  }
}

bool Parts::LeaveStorage(Checkpoint* checkpoint) {
  std::vector<Part*> gone;
  for (const auto& [writer, part] : checkpoint->content->parts) {
    if (!WholeInMemory(*part)) gone.push_back(part.get());
  }
  const bool nothing_left = gone.size() == checkpoint->content->parts.size();
  if (options_.ring.Alone() || (nothing_left && !checkpoint->elsewhere->complete)) {
    Erase(checkpoint);
    return false;
  }
  StepContent& content = checkpoint->content.Edit();
  content.complete = false;
  checkpoint->job->steps.Edit().incomplete.insert(checkpoint->Id());
  for (Part* part : gone) Erase(part);
  IndexNames(checkpoint);
  return !nothing_left;
}

void Parts::Erase(Checkpoint* checkpoint) {
  Job* job = checkpoint->job;
  const CheckpointId id = checkpoint->Id();
  for (StepWatcher* watcher : watchers_) watcher->CheckpointGoes(checkpoint);
  StepContent& content = checkpoint->content.Edit();
  content.complete = content.indexed = false;
  out_.DestroyLater(std::exchange(content.names, {}));
  while (!checkpoint->content->parts.empty()) {
    Erase(checkpoint->content->parts.begin()->second.get());
  }
  JobSteps& steps = job->steps.Edit();
  steps.incomplete.erase(id);
  standing_.Forget(checkpoint);
  attempts_.CheckpointGone(job, checkpoint->key);
  jobs_.MayForget(job->name);
  steps.all.erase(id);
}

}  // namespace cairn::engine
