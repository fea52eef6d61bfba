// What was changed since what is derived was last brought up to date.
#pragma once

#include <utility>
#include <vector>

namespace cairn::engine {

struct Checkpoint;
struct Job;

class Touchable {
 private:
  friend class Changes;
  bool touched_ = false;
};

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
  // It is about to go: what touches it from now on does nothing.
  void Forget(Checkpoint* checkpoint);
  void Forget(Job* job);

 private:
  std::vector<Checkpoint*> checkpoints_;
  std::vector<Job*> jobs_;
};

}  // namespace cairn::engine
