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
    : key{of->key, writer}, checkpoint(of), content(of), manifest(of) {}

Checkpoint::Checkpoint(Job* of, const CheckpointKey& of_key, uint64_t number, Changes* changes)
    : key(of_key),
      job(of),
      sequence(number),
      content(this),
      absent_manifests(this),
      files(this),
      verdict(this),
      memory(this),
      pinned(this, of->pins->contains(Id())),
      changes_(changes) {}

Job::Job(std::string of_name, Changes* changes)
    : name(std::move(of_name)), owner(this), sessions(this), attempts(this), changes_(changes) {}

std::vector<Checkpoint*> CheckpointsAt(const Job& job, Step step) {
  std::vector<Checkpoint*> found;
  const auto& all = job.steps->all;
  for (auto at = all.lower_bound({step, 0, 0}); at != all.end() && at->first.step == step; ++at) {
    found.push_back(at->second.get());
  }
  return found;
}

Checkpoint* CheckpointOf(const Job& job, const CheckpointId& id) {
  const auto at = job.steps->all.find(id);
  return at == job.steps->all.end() ? nullptr : at->second.get();
}

}  // namespace cairn::engine
