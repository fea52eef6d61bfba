// What is known of checkpoints and objects, in the words of `stat` and `ls`; and which checkpoint a
// reference means. Changes nothing: several threads may ask at once between two Applies.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/engine.h"
#include "server/engine/standing.h"

namespace cairn::engine {

class Describing {
 public:
  Describing(const Options& options, const Outbox* out, const Jobs* jobs, const Standing* standing)
      : options_(options), out_(*out), jobs_(*jobs), standing_(*standing) {}
  // Whether this node is the home of the job of this name, and so writes the rows that are the job's.
  void set_is_home(std::function<bool(const std::string&)> call) { is_home_ = std::move(call); }

  CheckpointInfo InfoOf(const Checkpoint& checkpoint) const;
  ObjectInfo InfoOf(const ObjectRef& object, bool with_crcs) const;
  // What is true of all objects of a checkpoint's that other members have.
  ObjectInfo Elsewhere(const Checkpoint& checkpoint) const;
  reply::Latest LatestOf(const Checkpoint& checkpoint) const;

  // The checkpoint meant, for reading: complete and obtainable, else why not.
  StatusOr<Checkpoint*> Resolve(const Job& job, const CheckpointRef& ref) const;
  // For showing rather than loading: the line's, else the newest there is of it; nullptr: none.
  Checkpoint* ForShow(const Job& job, const CheckpointRef& ref) const;
  // For the recorder.
  Engine::Description Describe(const action::Record& record) const;
  // All that there is of these checkpoints, and of the job.
  Engine::Description Describe(const std::string& job,
                               const std::vector<CheckpointKey>& checkpoints) const;
  std::vector<std::string> JobNames() const;
  std::vector<CheckpointKey> CheckpointsOf(const CheckpointKey& after, int limit) const;

 private:
  Facts ObjectFactsOf(const Checkpoint& checkpoint) const;
  void CountReplicas(const Checkpoint& checkpoint, Facts* facts) const;
  StatusOr<Checkpoint*> ResolveLatest(const Job& job) const;
  static Status NothingYet(const Job& job);
  Engine::Description::Part PartOf(const Part& part) const;
  static void DescribeLine(const Job& job, Engine::Description* description);
  bool IsGone(const Job& job, const CheckpointKey& key) const;
  bool Vanished(const Job& job, const CheckpointKey& key) const;

  const Options& options_;
  const Outbox& out_;
  std::function<bool(const std::string&)> is_home_;
  const Jobs& jobs_;
  const Standing& standing_;
};

// Writers of it that have not committed, the first kMostMissingWritersNamed.
std::vector<Writer> MissingWriters(const Checkpoint& checkpoint);
StatusOr<ObjectRef> ObjectNamed(const Checkpoint& checkpoint, const std::string& name);

// What callers hear of a complete checkpoint that is not obtainable, and of a step that `rm` took.
Status NoGoodCopy(const Checkpoint& checkpoint);
Status StepWasRemoved(const Job& job, Step step);

// Why the files that it owes could not be written so far; empty: no try has failed.
std::string PersistProblem(const Checkpoint& checkpoint);

}  // namespace cairn::engine
