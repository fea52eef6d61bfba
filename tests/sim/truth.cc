// What is true of a node's checkpoints, worked out from its journal, its memory and storage,
// without asking the engine.
#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/sim/node.h"
#include "tests/sim/world.h"
#include "tests/support/line.h"

namespace cairn::engine::sim {

bool Node::MemoryHas(const CheckpointKey& key) const {
  const auto world_size = world.promises.complete.find(key);
  const auto manifests = mirror.manifests.find(key);
  if (world_size == world.promises.complete.end() || manifests == mirror.manifests.end() ||
      static_cast<int32_t>(manifests->second.size()) != world_size->second) {
    return false;
  }
  for (const auto& [writer, committed] : manifests->second) {
    const PartPromise* promise = world.promises.Find(committed.part);
    if (promise == nullptr) return false;
    if (promise->objects.empty()) continue;
    const auto* objects = mirror.ObjectsOf(committed.part);
    if (objects == nullptr || objects->size() != promise->objects.size()) return false;
  }
  return true;
}

History Node::HistoryOf(const std::string& job) const {
  History history;
  if (const auto begun = mirror.attempts.find(job); begun != mirror.attempts.end()) {
    for (const auto& [attempt, fact] : begun->second) {
      history.attempts[attempt] = {fact.first_step, fact.lineage, {}};
    }
  }
  for (auto at = mirror.decisions.lower_bound({job, 0});
       at != mirror.decisions.end() && at->first.first == job; ++at) {
    history.decisions[at->first.second] = at->second.lineage;
  }
  const auto add = [&](const CheckpointKey& key) {
    if (key.job != job || mirror.Removed(key) || !KnownToBeHad(key)) return;
    const auto at = history.attempts.find(key.attempt);
    if (at == history.attempts.end()) return;
    Revision& revision = at->second.complete.try_emplace(key.step, key.revision).first->second;
    revision = std::max(revision, key.revision);
  };
  for (const auto& [key, writers] : mirror.manifests) add(key);
  for (const CheckpointKey& key : known_stored) add(key);
  return history;
}

std::optional<CheckpointKey> Node::LatestNow(const std::string& job) const {
  const std::optional<LineStep> latest = LatestOfLine(HistoryOf(job));
  if (!latest) return std::nullopt;
  return CheckpointKey{job, latest->step, latest->attempt, latest->revision};
}

bool Node::Matters(const std::string& job, Attempt attempt) const {
  const auto begun = mirror.attempts.find(job);
  if (begun == mirror.attempts.end() || begun->second.empty()) return false;
  if (begun->second.rbegin()->first == attempt) return true;
  const auto is_of = [&](const CheckpointKey& key) {
    return key.job == job && key.attempt == attempt;
  };
  return std::any_of(known_stored.begin(), known_stored.end(), is_of) ||
         std::any_of(unconfirmed.begin(), unconfirmed.end(), is_of) ||
         std::any_of(mirror.manifests.begin(), mirror.manifests.end(),
                     [&](const auto& at) { return is_of(at.first); }) ||
         std::any_of(mirror.objects.begin(), mirror.objects.end(),
                     [&](const auto& at) { return is_of(at.first.checkpoint); });
}

std::string Node::WrongCheckpoint(const CheckpointKey& key) const {
  if (!world.promises.EverComplete(key)) {
    return absl::StrCat(key.DebugString(), " was never complete");
  }
  if (world.storage.Published(key)) return "";
  if (!MemoryHas(key)) {
    return absl::StrCat(key.DebugString(), " is neither in memory nor in storage");
  }
  for (const auto& [writer, committed] : mirror.manifests.at(key)) {
    const PartPromise* promise = world.promises.Find(committed.part);
    for (const auto& [name, bytes] : promise->objects) {
      const ExtentRef& extent = mirror.objects.at(committed.part).at(name).extent;
      const std::string wrong = memory.WrongBytes(extent, bytes);
      if (!wrong.empty()) return absl::StrCat(key.DebugString(), " ", name, ": ", wrong);
    }
  }
  return "";
}

std::string Node::WrongManifest(const fact::PartCommitted& committed,
                                const PartPromise& promise) const {
  const std::shared_ptr<const PartTable> table = memory.RecordOf(committed);
  if (table == nullptr) return "without its record";
  if (table->entries.size() != promise.objects.size()) {
    return absl::StrCat("with ", table->entries.size(), " objects of ", promise.objects.size());
  }
  const auto* created = mirror.ObjectsOf(committed.part);
  for (const auto& [name, bytes] : promise.objects) {
    const size_t at = table->Find(name);
    if (at == PartTable::kNone || table->entries[at]->block_crcs != CrcsOf(bytes)) {
      return absl::StrCat("without ", name, " as it was sealed");
    }
    if (created == nullptr || !created->contains(name) ||
        created->at(name).extent != table->extents[at]) {
      return absl::StrCat("with ", name, " where it was not written");
    }
  }
  return "";
}

}  // namespace cairn::engine::sim
