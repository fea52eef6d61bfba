#include "server/engine/model.h"

#include <algorithm>

namespace cairn::engine {

Attempt JobAttempts::fence() const {
  for (auto at = decisions.rbegin(); at != decisions.rend(); ++at) {
    if (at->second.kind == LineRecordKind::kUse) return std::max(newest(), at->first);
  }
  return newest();
}

Part::Part(Checkpoint* of, Writer writer)
    : key{of->key, writer}, checkpoint(of), content(this), manifest(this), source(this) {}

void Part::Touch() { checkpoint->Touch(this); }

ObjectRef ObjectIn(Part* part, absl::string_view name) {
  const PartContent& content = *part->content;
  if (content.committed) {
    if (content.table == nullptr) return {};
    const size_t index = content.table->Find(name);
    return index == PartTable::kNone ? ObjectRef() : ObjectRef{part, nullptr, index};
  }
  const auto at = content.objects.find(name);
  return at == content.objects.end() ? ObjectRef() : ObjectRef{part, at->second.get()};
}

ObjectRef ObjectIn(const Checkpoint& checkpoint, absl::string_view name) {
  const StepContent& content = *checkpoint.content;
  if (content.indexed) {
    const auto at = content.names.find(name);
    return at == content.names.end() ? ObjectRef() : ObjectIn(at->second, name);
  }
  for (const auto& [writer, part] : content.parts) {
    if (const ObjectRef object = ObjectIn(part.get(), name)) return object;
  }
  return {};
}

ObjectRef ObjectAfter(const Checkpoint& checkpoint, absl::string_view name) {
  const StepContent& content = *checkpoint.content;
  if (content.indexed) {
    const auto at = content.names.upper_bound(name);
    return at == content.names.end() ? ObjectRef() : ObjectIn(at->second, at->first);
  }
  ObjectRef next;
  for (const auto& [writer, part] : content.parts) {
    if (part->content->table == nullptr) continue;
    const auto& entries = part->content->table->entries;
    const auto at = std::upper_bound(
        entries.begin(), entries.end(), name,
        [](absl::string_view after, const auto& entry) { return after < entry->name; });
    if (at == entries.end() || (next && next.name() < (*at)->name)) continue;
    next = {part.get(), nullptr, static_cast<size_t>(at - entries.begin())};
  }
  return next;
}

const ObjectEntry& ObjectRef::entry() const {
  return object != nullptr ? object->entry() : *part->content->table->entries[index];
}

const ExtentRef& ObjectRef::extent() const {
  return object != nullptr ? object->content->extent : part->content->table->extents[index];
}

bool ObjectRef::resident() const {
  if (object != nullptr) return true;
  const PartContent& content = *part->content;
  return !content.slabs.empty() && !content.broken.contains(index) &&
         content.slabs.contains(content.table->extents[index].slab);
}

ObjectCheck ObjectRef::check() const {
  if (object != nullptr) return {};
  const auto known = part->checks->known.find(index);
  if (known != part->checks->known.end()) return known->second;
  return {.unverified = part->checks->unverified};
}

Checkpoint::Checkpoint(Job* of, const CheckpointKey& of_key, uint64_t number, Changes* changes)
    : key(of_key),
      job(of),
      sequence(number),
      content(this),
      manifests(this),
      files(this),
      verdict(this),
      memory(this),
      pinned(this, of->pins->contains(Id())),
      elsewhere(this),
      copied(this),
      changes_(changes) {}

Job::Job(std::string of_name, Changes* changes)
    : name(std::move(of_name)),
      owner(this),
      sessions(this),
      attempts(this),
      tombstones(this),
      said_pins(this),
      asked(this),
      verdict(this),
      changes_(changes) {}

std::vector<Checkpoint*> CheckpointsAt(const Job& job, Step step) {
  std::vector<Checkpoint*> found;
  const auto& all = job.steps->all;
  for (auto at = all.lower_bound({step, 0, 0}); at != all.end() && at->first.step == step; ++at) {
    found.push_back(at->second.get());
  }
  return found;
}

Gain& Gain::operator+=(const Gain& other) {
  bytes += other.bytes;
  mapped_bytes += other.mapped_bytes;
  slabs += other.slabs;
  uncharged_bytes += other.uncharged_bytes;
  uncharged_slabs += other.uncharged_slabs;
  record_bytes += other.record_bytes;
  journal_bytes += other.journal_bytes;
  return *this;
}

Gain& Gain::operator-=(const Gain& other) {
  bytes -= other.bytes;
  mapped_bytes -= other.mapped_bytes;
  slabs -= other.slabs;
  uncharged_bytes -= other.uncharged_bytes;
  uncharged_slabs -= other.uncharged_slabs;
  record_bytes -= other.record_bytes;
  journal_bytes -= other.journal_bytes;
  return *this;
}

bool Checkpoint::InMemory() const {
  return content->open_parts > 0 || !memory->slabs.empty() ||
         static_cast<uint64_t>(content->committed) > manifests->absent;
}

Checkpoint* CheckpointOf(const Job& job, const CheckpointId& id) {
  const auto at = job.steps->all.find(id);
  return at == job.steps->all.end() ? nullptr : at->second.get();
}

}  // namespace cairn::engine
