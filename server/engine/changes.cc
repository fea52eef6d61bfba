#include "server/engine/changes.h"

#include <utility>

#include "server/engine/model.h"

namespace cairn::engine {

Changes::~Changes() = default;

void Changes::Touch(Checkpoint* checkpoint) {
  if (listed_checkpoints_.insert(checkpoint).second) checkpoints_.push_back(checkpoint);
}

void Changes::Touch(Job* job) {
  if (listed_jobs_.insert(job).second) jobs_.push_back(job);
}

void Changes::Touch(Part* part) {
  if (listed_parts_.emplace(part, parts_.size()).second) parts_.push_back(part);
  Touch(part->checkpoint);
}

std::vector<Part*> Changes::TakeParts() {
  listed_parts_.clear();
  return std::exchange(parts_, {});
}

void Changes::Forget(Part* part) {
  const auto at = listed_parts_.find(part);
  if (at == listed_parts_.end()) return;
  parts_[at->second] = nullptr;
  listed_parts_.erase(at);
}

std::vector<Checkpoint*> Changes::TakeCheckpoints() {
  listed_checkpoints_.clear();
  return std::exchange(checkpoints_, {});
}

std::vector<Job*> Changes::TakeJobs() {
  listed_jobs_.clear();
  return std::exchange(jobs_, {});
}

void Changes::Forget(Checkpoint* checkpoint) {
  if (listed_checkpoints_.erase(checkpoint) > 0) std::erase(checkpoints_, checkpoint);
}

void Changes::Forget(Job* job) {
  if (listed_jobs_.erase(job) > 0) std::erase(jobs_, job);
}

}  // namespace cairn::engine
