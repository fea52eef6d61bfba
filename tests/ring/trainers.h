// A training job: its ranks on some nodes, life after life, as its launcher, torch and libcairn would have
// them. All ranks of a life say hello, agree on the attempt that the greatest of their nodes' answers names,
// and on the step that rank 0's node calls latest; then each creates, writes, commits step after step, and
// nobody begins a step before all are through with the last. When a node is lost, or by chance, the life
// ends, with goodbyes or without, and another begins on the nodes that are there.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/policy.h"
#include "tests/ring/node.h"

namespace cairn::engine::ringsim {

struct World;

struct JobShape {
  std::string name;
  int writers = 1;
  int hosts = 1;                  // nodes that its ranks are spread over
  std::vector<uint64_t> objects;  // their lengths, of each rank
  JobPolicy policy;
  MonotonicNanos step_time = 0;
  bool steady = false;  // one life without mishaps, which no node's death ends
};

class Job {
 public:
  Job(World* world, JobShape shape);

  void BeginSoon(MonotonicNanos delay);
  // The node is gone with the ranks on it, and the launcher will notice.
  void NodeDied(const SimNode* node);
  void EndLife(bool goodbye);
  // So many steps more, then the ranks stay and save nothing.
  void Finish(int steps) { steps_left_ = steps; }
  bool finished() const { return left_ || (steps_left_ == 0 && ranks_busy_ == 0 && training_); }
  // The ranks of one that has finished end. While they stay they keep mapped what they saved in.
  void Leave();

  const std::string& name() const { return shape_.name; }
  const JobShape& shape() const { return shape_; }
  Attempt attempt() const { return attempt_; }

 private:
  struct RankState {
    SimNode* node = nullptr;
    SessionId session = 0;
    std::vector<SlabId> unmapped;
    int retries = 0;  // of the call that is out
  };

  // What follows an answer belongs to the life that asked.
  Answer InThisLife(std::function<void(const StatusOr<reply::Body>&)> then);
  void In(MonotonicNanos delay, std::function<void()> what);
  void Begin();
  void Choose();
  void FindLatest(int tries);
  void TakeLatest(const reply::Latest& latest);
  void Resume(Step from);
  void Load(const reply::Latest& latest);
  void LifeFailed(const std::string& why);

  void NextStep();
  void Create(Writer writer, int64_t call, int rounds);
  void Write(Writer writer, const reply::Create& granted);
  void Commit(Writer writer, int64_t call, const std::vector<event::Seal>& seals);
  void RankDone(Writer writer, const Status& status);
  void AskProtected();
  std::string Name(Writer writer, size_t object) const;
  PartKey Part(Writer writer) const { return {{shape_.name, step_, attempt_, revision_}, writer}; }

  World& world_;
  const JobShape shape_;
  uint64_t life_ = 0;
  std::vector<RankState> ranks_;
  bool training_ = false;
  bool left_ = false;
  int ranks_busy_ = 0;   // with the step, or with the beginning
  int committed_ = 0;    // of the step
  int steps_left_ = -1;  // -1: any number
  bool superseded_ = false;
  int refused_ = 0;  // steps of the life, for the number of its attempt
  Attempt attempt_ = 0;
  Step step_ = 0;
  Revision revision_ = 0;
  int64_t last_call_ = 0;
};

}  // namespace cairn::engine::ringsim
