#include "tests/sim/mirror.h"

#include <algorithm>
#include <variant>

namespace cairn::engine::sim {

void Mirror::Take(const Fact& fact) {
  std::visit([this](const auto& f) { On(f); }, fact);
}

bool Mirror::Removed(const CheckpointKey& key) const {
  const auto at = removed.find(key.job);
  return at != removed.end() && at->second.Forbids(key.step, key.attempt);
}

size_t Mirror::CommittedWriters(const CheckpointKey& key) const {
  const auto at = manifests.find(key);
  return at == manifests.end() ? 0 : at->second.size();
}

const std::map<std::string, Mirror::Object>* Mirror::ObjectsOf(const PartKey& part) const {
  const auto at = objects.find(part);
  return at == objects.end() ? nullptr : &at->second;
}

Attempt Mirror::NewestAttempt(const std::string& job) const {
  const auto at = attempts.find(job);
  Attempt newest = at == attempts.end() || at->second.empty() ? 0 : at->second.rbegin()->first;
  for (auto decided = decisions.lower_bound({job, newest + 1});
       decided != decisions.end() && decided->first.first == job; ++decided) {
    if (decided->second.kind == LineRecordKind::kUse) newest = decided->first.second;
  }
  return newest;
}

fact::PartCommitted* Mirror::Committed(const PartKey& part) {
  const auto at = manifests.find(part.checkpoint);
  if (at == manifests.end()) return nullptr;
  const auto committed = at->second.find(part.writer);
  return committed == at->second.end() ? nullptr : &committed->second;
}

void Mirror::Forget(const PartKey& part, const std::string& name) {
  const auto at = objects.find(part);
  if (at == objects.end()) return;
  const auto object = at->second.find(name);
  if (object == at->second.end()) return;
  const SlabId slab = object->second.extent.slab;
  at->second.erase(object);
  const bool left = std::none_of(at->second.begin(), at->second.end(), [&](const auto& other) {
    return other.second.extent.slab == slab;
  });
  if (at->second.empty()) objects.erase(at);
  fact::PartCommitted* committed = Committed(part);
  if (committed != nullptr && left) std::erase(committed->slabs, slab);
}

void Mirror::On(const fact::JobForgotten& f) {
  jobs.erase(f.job);
  attempts.erase(f.job);
  removed.erase(f.job);
  std::erase_if(decisions, [&](const auto& at) { return at.first.first == f.job; });
}

void Mirror::On(const fact::ObjectDropped& f) { Forget(f.part, f.name); }

void Mirror::On(const fact::PartCommitted& f) {
  manifests[f.part.checkpoint][f.part.writer] = f;
  objects.erase(f.part);
  const std::shared_ptr<const PartTable> table = read_(f);
  if (table == nullptr) return;
  for (size_t i = 0; i < table->entries.size(); ++i) {
    const bool there =
        std::find(f.slabs.begin(), f.slabs.end(), table->extents[i].slab) != f.slabs.end();
    const ObjectEntry& entry = *table->entries[i];
    if (there) objects[f.part][entry.name] = {true, entry, table->extents[i]};
  }
}

void Mirror::On(const fact::PartLeftSlab& f) {
  const auto at = objects.find(f.part);
  if (at == objects.end()) return;
  const std::map<std::string, Object> there = at->second;
  for (const auto& [name, object] : there) {
    if (object.extent.slab == f.slab) Forget(f.part, name);
  }
}

void Mirror::On(const fact::PartDropped& f) {
  objects.erase(f.part);
  const auto at = manifests.find(f.part.checkpoint);
  if (at == manifests.end()) return;
  at->second.erase(f.part.writer);
  if (at->second.empty()) manifests.erase(at);
}

void Mirror::On(const fact::StepRemoved& f) {
  removed[f.job].steps[f.step].Add(f.first_attempt, f.up_to_attempt);
}

void Mirror::On(const fact::Pinned& f) {
  if (f.pinned) {
    pinned.insert(f.checkpoint);
  } else {
    pinned.erase(f.checkpoint);
  }
}

}  // namespace cairn::engine::sim
