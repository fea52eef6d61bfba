// An index of what exists in the cluster; manifests are enough to rebuild it. It is never on the
// save path: the recorder writes it afterwards, and nothing acknowledged depends on it.
//
// One write and a handful of queries. Implementations are thread-safe, block, and pass one contract
// suite (tests/catalog).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/keys.h"
#include "common/policy.h"
#include "common/status.h"

namespace cairn::catalog {

// `sequence` orders the versions of one row. The writer's only grow, from one of its lives to the next
// too, whatever its clock does: it begins above NewestSequence.
struct NodeRow {
  int32_t rank = 0;
  std::string address;
  int64_t incarnation = 0;
  int64_t sequence = 0;
};
struct JobRow {
  std::string job;
  uint32_t owner_uid = 0;
  uint32_t owner_gid = 0;
  JobPolicy policy;
  int64_t sequence = 0;
};
struct AttemptRow {
  std::string job;
  Attempt attempt = 0;
  Step comes_from = kNoStep;
  int64_t began_unix_ms = 0;
  int64_t sequence = 0;
};
// One writer's part of a step.
struct PartRow {
  PartKey part;
  int32_t world_size = 0;
  std::string digest;
  uint64_t bytes = 0;
  uint64_t objects = 0;
  bool resident = false;
  bool persisted = false;
  bool broken = false;
  bool removed = false;
  std::string holders;
  int64_t sequence = 0;
};
// One checkpoint, once it is complete or gone. When it is removed, so are its parts that older rows
// speak of. A catalog may forget all but a job's last kKeptRemovals.
struct StepRow {
  CheckpointKey checkpoint;
  int32_t world_size = 0;
  std::string digest;
  int64_t completed_unix_ms = 0;
  bool persisted = false;
  bool removed = false;
  int64_t sequence = 0;
};
// A removal need be remembered only for as long as an older row of what was removed may still come.
inline constexpr int64_t kKeptRemovals = 1000;
using Row = std::variant<NodeRow, JobRow, AttemptRow, PartRow, StepRow>;

// Identifies a row: later rows of one identity replace earlier ones in the recorder's dirty set.
std::string RowIdentity(const Row& row);

class Catalog {
 public:
  virtual ~Catalog() = default;
  // Writes all rows or none. Of two versions of a row the one with the higher sequence is kept, in
  // whichever order they come, so a batch may be applied again. UNAVAILABLE, from this and every
  // query, when the database is away or locked: try again.
  virtual Status Apply(const std::vector<Row>& rows) = 0;

  // What is not in the catalog is absent or empty, never an error.
  virtual StatusOr<std::optional<JobRow>> Job(const std::string& job) = 0;
  virtual StatusOr<std::vector<std::string>> Jobs() = 0;                           // in byte order
  virtual StatusOr<std::vector<AttemptRow>> Attempts(const std::string& job) = 0;  // oldest first
  // Complete checkpoints of a job that are not removed, of steps below `below`: the newest step
  // first, and of one step the newest attempt and revision; at most `limit`.
  virtual StatusOr<std::vector<StepRow>> Steps(const std::string& job, Step below, int limit) = 0;
  // The greatest sequence of any row; 0 when there is none. Reads every row.
  virtual StatusOr<int64_t> NewestSequence() = 0;
  // Checkpoints of the job after `after`, in order, of which a row says that they are there, be it a part
  // of one that is not complete; at most `limit`.
  virtual StatusOr<std::vector<CheckpointKey>> Present(const std::string& job,
                                                       const CheckpointKey& after, int limit) = 0;
  // By writer; also those that were removed lately.
  virtual StatusOr<std::vector<PartRow>> Parts(const CheckpointKey& checkpoint) = 0;
};

// `path` is created with its schema. A schema version that this build does not know is
// FAILED_PRECONDITION. A file that is not a database, or fails its integrity check, is moved to
// "<path>.broken-<ms>" and made anew, for it is only an index; `*note` then says so, for the
// caller's log, and is otherwise empty.
StatusOr<std::unique_ptr<Catalog>> OpenSqliteCatalog(const std::string& path, std::string* note);

}  // namespace cairn::catalog
