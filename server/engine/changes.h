// What was changed since what is derived was last brought up to date.
#pragma once

#include <vector>

#include "absl/container/flat_hash_set.h"

namespace cairn::engine {

struct Checkpoint;
struct Job;

// Each thing stands in its list at most once.
class Changes {
 public:
  void Touch(Checkpoint* checkpoint);
  void Touch(Job* job);
  bool Empty() const { return checkpoints_.empty() && jobs_.empty(); }
  // Those touched so far; they stay listed, and more may join.
  const std::vector<Checkpoint*>& checkpoints() const { return checkpoints_; }
  std::vector<Checkpoint*> TakeCheckpoints();
  std::vector<Job*> TakeJobs();
  // It is about to go; nothing may touch it any more.
  void Forget(Checkpoint* checkpoint);
  void Forget(Job* job);

 private:
  // In the order in which they were touched, for equal events must give equal answers.
  std::vector<Checkpoint*> checkpoints_;
  std::vector<Job*> jobs_;
  absl::flat_hash_set<const Checkpoint*> listed_checkpoints_;
  absl::flat_hash_set<const Job*> listed_jobs_;
};

}  // namespace cairn::engine
