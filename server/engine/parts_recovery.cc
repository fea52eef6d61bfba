// What the journal is told of parts, how they come back, and what always holds of them.
#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/engine/manifests.h"
#include "server/engine/parts.h"
#include "server/engine/restored.h"

namespace cairn::engine {

// --- recovery

void Parts::Restore(const Restored& restored, const Recovered& recovered, Manifests* manifests) {
  std::map<PartKey, std::string> dropped = restored.dropped;
  for (const auto& [key, committed] : restored.committed) {
    const auto table = recovered.tables.find(key);
    RestoreCommitted(committed, table == recovered.tables.end() ? nullptr : table->second,
                     manifests, &dropped);
  }
  for (const auto& [key, objects] : restored.objects) {
    if (restored.committed.contains(key)) continue;
    const auto lost = restored.dropped.find(key);
    RestoreOpen(key, objects, lost == restored.dropped.end() ? "" : lost->second, &dropped);
  }
  for (const auto& [key, name] : dropped) {
    if (Find(key) == nullptr) attempts_.RememberDropped(key, name);
  }
}

void Parts::RestoreCommitted(const Restored::Committed& committed,
                             std::shared_ptr<const PartTable> table, Manifests* manifests,
                             std::map<PartKey, std::string>* dropped) {
  const fact::PartCommitted& fact = committed.fact;
  const PartKey& key = fact.part;
  Job* job = jobs_.FindOrMake(key.checkpoint.job);
  if (table == nullptr || !ledger_.Survived(fact.extent)) {
    out_.Log(Severity::kError, absl::StrCat(key.DebugString(), " is lost from memory: ",
                                            table != nullptr ? "its record's slab did not survive"
                                                             : "its record did not verify"));
    // A commit that is repeated now is not one of a writer with nothing to save.
    std::string name;
    if (table != nullptr && !table->entries.empty()) name = table->entries.front()->name;
    if (table == nullptr && !fact.slabs.empty()) name = "(an object of a lost record)";
    if (!name.empty()) (*dropped)[key] = name;
    out_.Say(fact::PartDropped{key, std::move(name)});
    return;
  }
  Checkpoint* checkpoint = FindOrMake(job, key.checkpoint, fact.world_size);
  uint64_t bytes = 0;
  for (const auto& entry : table->entries) bytes += entry->length;
  Part* part = AddCommitted(checkpoint, table->head, fact.digest, table->entries.size(), bytes);
  TakeTable(part, table);
  manifests->RestorePlace(part, fact);
  PartContent& content = part->content.Edit();
  StepContent& step = checkpoint->content.Edit();
  for (const std::string& name : committed.broken) {
    const size_t index = table->Find(name);
    if (index == PartTable::kNone || !content.broken.insert(index).second) continue;
    ++step.broken_objects;
    step.why = absl::StrCat("\"", absl::CHexEscape(name), "\" did not verify");
  }
  const std::set<SlabId> held = SurvivingSlabs(fact, part);
  for (size_t i = 0; i < table->entries.size(); ++i) {
    const SlabId slab = table->extents[i].slab;
    if (held.contains(slab) && !content.broken.contains(i)) ++content.slabs[slab];
  }
  for (const auto& [slab, objects] : content.slabs) {
    ledger_.RestoreExtents(slab, objects);
    content.absent -= objects;
    step.absent -= objects;
  }
}

// Of those that the part's objects have not left. The record says where in them: it must be within.
std::set<SlabId> Parts::SurvivingSlabs(const fact::PartCommitted& fact, Part* part) {
  std::set<SlabId> held(fact.slabs.begin(), fact.slabs.end());
  const auto& extents = part->content->table->extents;
  for (size_t i = 0; i < extents.size(); ++i) {
    const SlabId slab = extents[i].slab;
    if (!held.contains(slab) || part->content->broken.contains(i)) continue;
    if (ledger_.Survived(extents[i])) continue;
    held.erase(slab);
    out_.Say(fact::PartLeftSlab{part->key, slab});
  }
  return held;
}

// Not committed: it goes on if every session that writes it does, as when one ends.
void Parts::RestoreOpen(const PartKey& key, const std::map<std::string, Restored::Object>& objects,
                        const std::string& lost, std::map<PartKey, std::string>* dropped) {
  const bool goes_on = std::all_of(objects.begin(), objects.end(), [&](const auto& entry) {
    const auto& created = entry.second.created;
    return created && sessions_.Find(created->session) != nullptr;
  });
  Job* job = jobs_.FindOrMake(key.checkpoint.job);
  if (!goes_on) {
    const std::string& name = objects.begin()->first;
    out_.Say(fact::PartDropped{key, name});
    (*dropped)[key] = name;
    return;
  }
  for (const auto& [name, object] : objects) {
    const Session& session = *sessions_.Find(object.created->session);
    Checkpoint* checkpoint = FindOrMake(job, key.checkpoint, object.created->world_size);
    Part* part = FindOrMake(checkpoint, key.writer);
    WriteBy(part, session);
    PartContent& content = part->content.Edit();
    ++content.creates[{session.id, object.created->call}];
    // Only some of it was dropped: an earlier daemon missed the slab.
    if (!lost.empty()) content.lost = lost;
    if (!ledger_.Survived(object.Extent())) {
      out_.Say(fact::ObjectDropped{key, name});
      (*dropped)[key] = name;
      content.lost = name;
      continue;
    }
    RestoreObject(part, object);
  }
}

void Parts::RestoreObject(Part* part, const Restored::Object& restored) {
  ObjectEntry entry;
  if (restored.sealed) {
    entry = restored.sealed->entry;
  } else {
    entry.name = restored.created->name;
    entry.kind = restored.created->kind;
    entry.length = restored.created->length;
  }
  Object* object = New(part, std::move(entry));
  ObjectContent& content = object->content.Edit();
  content.extent = restored.Extent();
  content.sealed = content.seal_said = restored.sealed.has_value();
  content.granted = content.extent.length;
  content.asked = restored.created->length;
  content.session = restored.created->session;
  content.call = restored.created->call;
  PartContent& of_part = part->content.Edit();
  ++of_part.slabs[content.extent.slab];
  ledger_.RestoreExtents(content.extent.slab, 1);
  if (content.sealed) return;
  ++of_part.unsealed;
  of_part.writing_bytes += content.extent.length;
  writing_bytes_ += content.extent.length;
}

void Parts::RestoreFootprints() {
  for (const auto& [name, job] : jobs_.all()) {
    for (const auto& [id, checkpoint] : job->steps->all) {
      for (const auto& [writer, part] : checkpoint->content->parts) {
        for (const auto& [slab, objects] : part->content->slabs) {
          footprints_.Add(part.get(), ledger_.Find(slab), objects);
        }
      }
    }
  }
}

// A checkpoint all of whose parts were restored is complete.
void Parts::RestoreComplete() {
  for (const auto& [name, job] : jobs_.all()) {
    for (const auto& [id, checkpoint] : job->steps->all) {
      if (checkpoint->content->committed != checkpoint->content->world_size) {
        IndexNames(checkpoint.get());
        continue;
      }
      CompleteStored(checkpoint.get(), DigestOf(*checkpoint));
      if (!checkpoint->Resident()) {
        checkpoint->content.Edit().why = "some of its memory did not survive";
      }
    }
  }
}

const Object* Parts::OpenAfter(const Part& part, const std::string& name) {
  const auto& objects = part.content->objects;
  const auto at = objects.upper_bound(name);
  return at == objects.end() ? nullptr : at->second.get();
}

void Parts::Snapshot(const Object& object, std::vector<Fact>* facts) {
  const ObjectContent& content = *object.content;
  const Part& part = *object.part;
  facts->push_back(fact::ObjectCreated{part.key, part.checkpoint->content->world_size,
                                       object.name(), object.entry().kind, content.asked,
                                       content.extent, content.session, content.call});
  if (!content.seal_said) return;
  facts->push_back(fact::ObjectSealed{part.key, object.entry(), content.extent});
}

void Parts::Snapshot(const Part& part, std::vector<Fact>* facts) const {
  const PartContent& content = *part.content;
  if (!content.lost.empty()) facts->push_back(fact::ObjectDropped{part.key, content.lost});
  if (!part.manifest->resident || !content.committed) return;
  if (part.manifest->committing) return;  // Manifests::Keep says it
  facts->push_back(fact::PartCommitted{part.key, part.checkpoint->content->world_size,
                                       part.manifest->extent, part.manifest->bytes, content.digest,
                                       SlabsOf(part), part.source->role, part.source->owner});
  for (const size_t index : content.broken) {
    facts->push_back(fact::ObjectDropped{part.key, content.table->entries[index]->name});
  }
}

// --- invariants

std::string Parts::CheckOpen(const Part& part, const Placer& place) const {
  const auto shown = [&part] { return part.key.DebugString(); };
  const PartContent& content = *part.content;
  uint64_t unsealed = 0, writing = 0, encoded = 0, bytes = 0;
  std::map<SlabId, uint32_t> slabs;
  for (const auto& [name, object] : content.objects) {
    if (object->name() != name) return shown() + ": an object under another's name";
    const ObjectContent& of_object = *object->content;
    const std::string problem =
        place(of_object.extent, [&, &of = name] { return absl::StrCat(shown(), " ", of); });
    if (!problem.empty()) return problem;
    ++slabs[of_object.extent.slab];
    encoded += EncodedObjectSize(object->entry());
    bytes += object->entry().length;
    if (of_object.sealed) continue;
    ++unsealed;
    writing += of_object.extent.length;
  }
  if (slabs != content.slabs || unsealed != content.unsealed || writing != content.writing_bytes ||
      encoded != content.encoded_bytes || bytes != content.bytes ||
      content.objects.size() != content.count) {
    return shown() + ": what is being written is miscounted";
  }
  return "";
}

std::string Parts::CheckCommitted(const Part& part, const Placer& place) const {
  const auto shown = [&part] { return part.key.DebugString(); };
  const PartContent& content = *part.content;
  if (!content.objects.empty()) return shown() + " is committed, and being written";
  if (content.table == nullptr) {
    const bool in_memory =
        !content.slabs.empty() || part.manifest->resident || content.absent != content.count;
    return in_memory ? shown() + " is in memory, but has no table" : "";
  }
  const PartTable& table = *content.table;
  if (!table.extents.empty() && table.extents.size() != table.entries.size()) {
    return shown() + ": its extents are not those of its objects";
  }
  uint64_t resident = 0, bytes = 0;
  std::map<SlabId, uint32_t> slabs;
  for (size_t i = 0; i < table.entries.size(); ++i) {
    bytes += table.entries[i]->length;
    if (!ObjectRef{const_cast<Part*>(&part), nullptr, i}.resident()) continue;
    ++resident;
    ++slabs[table.extents[i].slab];
    const std::string problem =
        place(table.extents[i], [&] { return absl::StrCat(shown(), " ", table.entries[i]->name); });
    if (!problem.empty()) return problem;
  }
  if (slabs != content.slabs || bytes != content.bytes || content.count != table.entries.size() ||
      resident + content.absent != content.count) {
    return shown() + ": what is in memory is miscounted";
  }
  return "";
}

std::string Parts::CheckPart(const Part& part, const Placer& place) const {
  const auto shown = [&part] { return part.key.DebugString(); };
  const JobOwner& owner = *part.checkpoint->job->owner;
  for (const auto& [id, objects] : part.content->slabs) {
    const SlabRecord& slab = *ledger_.Find(id);
    if (slab.owner.job != part.key.checkpoint.job || slab.owner.uid != owner.uid) {
      return absl::StrCat(shown(), " lies in slab ", id, " of job ", slab.owner.job, " uid ",
                          slab.owner.uid);
    }
  }
  return part.content->committed ? CheckCommitted(part, place) : CheckOpen(part, place);
}

std::string Parts::CheckInvariants(const Checkpoint& checkpoint, const Placer& place) const {
  const auto shown = [&checkpoint] { return checkpoint.key.DebugString(); };
  const StepContent& content = *checkpoint.content;
  uint64_t absent = 0, broken = 0, bytes = 0;
  int32_t committed = 0, open = 0;
  size_t names = 0, without_table = 0;
  for (const auto& [writer, part] : content.parts) {
    without_table += part->content->committed && part->content->table == nullptr ? 1 : 0;
    committed += part->content->committed ? 1 : 0;
    open += part->content->committed ? 0 : 1;
    names += part->content->count;
    absent += part->content->absent;
    broken += part->content->broken.size();
    bytes += part->content->bytes;
    if (std::string problem = CheckPart(*part, place); !problem.empty()) return problem;
  }
  if (committed != content.committed || open != content.open_parts) {
    return shown() + ": its parts are miscounted";
  }
  const auto& parts = content.parts;
  const auto gap =
      std::find_if(parts.begin(), parts.end(),
                   [n = Writer{0}](const auto& at) mutable { return at.first != n++; });
  if (content.first_without != static_cast<Writer>(std::distance(parts.begin(), gap))) {
    return shown() + ": which writer has no part?";
  }
  if (absent != content.absent || broken != content.broken_objects) {
    return shown() + ": its absent objects are miscounted";
  }
  if (names != content.objects || bytes != content.bytes) {
    return shown() + ": its objects are miscounted";
  }
  // Of an incomplete one some parts may be known from storage alone, in a ring: their names are not here.
  const bool all_tables = content.complete || content.without_table == 0;
  if (all_tables && content.names.size() != (content.indexed ? names : 0)) {
    return absl::StrCat(shown(), ": ", content.names.size(), " names of ", names, " objects");
  }
  const bool few = content.parts.size() <= kFewParts;
  const bool indexed = content.indexed;
  if (content.condemned ? indexed : content.complete ? indexed && few : !indexed) {
    return shown() + ": are its names to be indexed?";
  }
  if (content.without_table != without_table) return shown() + ": its tables are miscounted";
  for (const auto& [name, part] : content.names) {
    const ObjectRef object = ObjectIn(part, name);
    if (!object || object.name().data() != name.data()) return shown() + ": a name of no object";
  }
  if (content.condemned && (content.complete || content.open_parts > 0)) {
    return shown() + " is condemned, but not over";
  }
  if (content.complete != (committed == content.world_size)) {
    return shown() + ": complete is not what its parts say";
  }
  if (content.complete == checkpoint.job->steps->incomplete.contains(checkpoint.Id())) {
    return shown() + ": incomplete?";
  }
  return "";
}

void Parts::RestoreKept() {
  for (const auto& [name, job] : jobs_.all()) {
    for (const auto& [id, checkpoint] : job->steps->all) {
      for (const auto& [writer, part] : checkpoint->content->parts) SettleKept(part.get());
    }
  }
}

std::string Parts::CheckSums(uint64_t journal) const {
  uint64_t writing = 0;
  std::map<uint32_t, uint64_t> kept;
  for (const auto& [name, job] : jobs_.all()) {
    for (const auto& [id, checkpoint] : job->steps->all) {
      for (const auto& [writer, part] : checkpoint->content->parts) {
        writing += part->content->writing_bytes;
        journal += part->content->journal_bytes;
        if (const uint64_t cost = CostOfKept(*part); cost > 0) {
          kept[part->content->journal_uid] += cost;
        }
      }
    }
  }
  if (kept != journal_.kept()) return "what is kept in the journal is miscounted";
  if (journal != journal_.reserved()) return "what is set aside in the journal is miscounted";
  return writing == writing_bytes_ ? "" : "writing_bytes is miscounted";
}

}  // namespace cairn::engine
