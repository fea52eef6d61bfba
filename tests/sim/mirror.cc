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

void Mirror::On(const fact::ObjectDropped& f) {
  const auto part = objects.find(f.part);
  if (part == objects.end()) return;
  part->second.erase(f.name);
  if (part->second.empty()) objects.erase(part);
}

void Mirror::On(const fact::ManifestDropped& f) {
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
