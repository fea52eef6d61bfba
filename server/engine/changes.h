// What was changed since what is derived was last brought up to date.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace cairn::engine {

struct Checkpoint;
struct Job;
struct Part;

// Each thing stands in its list at most once.
class Changes {
 public:
  ~Changes();
  void Touch(Checkpoint* checkpoint);
  void Touch(Job* job);
  void Touch(Part* part);  // and its checkpoint
  bool Empty() const { return checkpoints_.empty() && jobs_.empty() && parts_.empty(); }
  // Those touched so far; they stay listed, and more may join.
  const std::vector<Checkpoint*>& checkpoints() const { return checkpoints_; }
  std::vector<Checkpoint*> TakeCheckpoints();
  std::vector<Job*> TakeJobs();
  std::vector<Part*> TakeParts();  // nullptr: it has gone
  // It is about to go; nothing may touch it any more.
  void Forget(Checkpoint* checkpoint);
  void Forget(Job* job);
  void Forget(Part* part);

 private:
  // In the order in which they were touched, for equal events must give equal answers.
  std::vector<Checkpoint*> checkpoints_;
  std::vector<Job*> jobs_;
  std::vector<Part*> parts_;
  absl::flat_hash_set<const Checkpoint*> listed_checkpoints_;
  absl::flat_hash_set<const Job*> listed_jobs_;
  absl::flat_hash_map<const Part*, size_t> listed_parts_;  // → where: a step may have thousands
};

}  // namespace cairn::engine
