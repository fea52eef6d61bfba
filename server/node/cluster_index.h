// What the catalog of a whole ring tells that no living member may know: jobs, their complete checkpoints, who had
// these in memory, and when each node last said so.
//
// It is asked on a thread of its own, over a connection of its own, and under none of the node's locks: a database that
// hangs holds up this class's callers alone, to their deadlines.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/catalog/catalog.h"
#include "server/node/executor.h"
#include "server/node/recorder.h"

namespace cairn::node {

struct IndexQuestion {
  std::string job;     // empty: which jobs there are
  std::string cursor;  // of jobs: after this one
  int limit = 100;     // of jobs or checkpoints, at most kMostIndexed; 0: the nodes alone
  // Who asks: the owner sees a job, those whom its policy lets read it, and who sees all.
  uint32_t uid = 0;
  uint32_t gid = 0;
  bool sees_all = false;
};
inline constexpr int kMostIndexed = 1000;

struct IndexedCheckpoint {
  catalog::StepRow step;
  std::vector<catalog::HolderCount> holders;  // as they last said
};
struct IndexedJob {
  catalog::JobRow job;
  std::optional<IndexedCheckpoint> latest;  // Catalog::Latest
};
struct IndexAnswer {
  std::vector<IndexedJob> jobs;  // the one that was asked for, or those that the caller may see
  std::vector<IndexedCheckpoint>
      checkpoints;                        // of the one that was asked for, the highest step first
  std::vector<catalog::AuthorRow> nodes;  // who has ever written, when last, and what it had then
  bool more = false;                      // beyond the limit; of jobs, after the last of them
  std::string last;                       // the cursor for what follows; empty: there is nothing
};

// Thread-safe.
class ClusterIndex {
 public:
  // `open` runs on the thread of this class, again after a failure; null: no catalog is shared.
  ClusterIndex(OpenCatalog open, Clock* clock);
  ~ClusterIndex() { Stop(); }

  // UNAVAILABLE: no catalog is shared, it is away, or has not answered by the deadline. NOT_FOUND and PERMISSION_DENIED
  // name the job. RESOURCE_EXHAUSTED: kMostWaiting questions wait already.
  StatusOr<IndexAnswer> Ask(const IndexQuestion& question, MonotonicNanos deadline);
  void Stop();

 private:
  static constexpr int kMostWaiting = 32;
  struct Waiting {
    bool done = false;
    StatusOr<IndexAnswer> answer = absl::UnavailableError("the daemon stops");
  };

  StatusOr<IndexAnswer> Answer(const IndexQuestion& question, MonotonicNanos deadline);
  StatusOr<IndexAnswer> Read(const IndexQuestion& question, MonotonicNanos deadline);
  Status ReadJobs(const IndexQuestion& question, MonotonicNanos deadline, IndexAnswer* answer);
  Status ReadJob(const IndexQuestion& question, MonotonicNanos deadline, IndexAnswer* answer);
  bool Late(MonotonicNanos deadline);
  StatusOr<IndexedCheckpoint> WithHolders(const catalog::StepRow& step);

  const OpenCatalog open_;
  Clock* const clock_;
  std::unique_ptr<catalog::Catalog> catalog_;  // the thread's own

  Mutex mu_;
  CondVar answered_;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Executor thread_{"index", 1};  // last: its tasks use the members above
};

}  // namespace cairn::node
