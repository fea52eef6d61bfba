#include "server/engine/changes.h"

#include "server/engine/model.h"

namespace cairn::engine {

void Changes::Touch(Checkpoint* checkpoint) {
  if (!std::exchange(checkpoint->touched_, true)) checkpoints_.push_back(checkpoint);
}

void Changes::Touch(Job* job) {
  if (!std::exchange(job->touched_, true)) jobs_.push_back(job);
}

std::vector<Checkpoint*> Changes::TakeCheckpoints() {
  for (Checkpoint* checkpoint : checkpoints_) checkpoint->touched_ = false;
  return std::exchange(checkpoints_, {});
}

std::vector<Job*> Changes::TakeJobs() {
  for (Job* job : jobs_) job->touched_ = false;
  return std::exchange(jobs_, {});
}

// It stays marked as touched, so that it is not listed again while it is taken apart.
void Changes::Forget(Checkpoint* checkpoint) {
  std::erase(checkpoints_, checkpoint);
  checkpoint->touched_ = true;
}

void Changes::Forget(Job* job) {
  std::erase(jobs_, job);
  job->touched_ = true;
}

}  // namespace cairn::engine
