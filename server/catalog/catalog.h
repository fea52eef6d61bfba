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

// `sequence` orders the versions of one row that its author wrote. Its own only grow, from one of its lives to the next
// too, whatever its clock does.
struct JobRow {
  std::string job;
  uint32_t owner_uid = 0;
  uint32_t owner_gid = 0;
  JobPolicy policy;
  // In a ring: how often the policy was said, and by which rank last. The greater wins, then the sequence.
  int64_t policy_version = 0;
  int32_t policy_rank = 0;
  int64_t sequence = 0;
};
struct AttemptRow {
  std::string job;
  Attempt attempt = 0;
  Step comes_from = kNoStep;  // kUnknownStep: not known yet
  int64_t began_unix_ms = 0;
  int64_t sequence = 0;
};
// One writer's part of a step, as the node knows it whose writer committed it.
struct PartRow {
  PartKey part;
  int32_t world_size = 0;
  std::string digest;
  uint64_t bytes = 0;
  uint64_t objects = 0;
  bool persisted = false;
  bool broken = false;
  bool removed = false;
  std::string owner;
  int64_t sequence = 0;
};
// Whether a node has a part in memory, its own or another's.
struct HolderRow {
  PartKey part;
  std::string holder;
  bool resident = false;
  int64_t sequence = 0;
};
// A node has nothing of a checkpoint in memory any more. No row of a table: it takes the author's older holder rows; and
// with `whole` those of its parts, too, where no row says that the checkpoint was ever complete.
struct LeftRow {
  CheckpointKey checkpoint;
  std::string holder;
  bool whole = false;
  int64_t sequence = 0;
};
// One checkpoint, once it is complete or gone. When it is removed, so are its parts and holders that older rows
// speak of. A catalog may forget all but a job's last kKeptRemovals.
struct StepRow {
  CheckpointKey checkpoint;
  int32_t world_size = 0;
  std::string digest;
  int64_t completed_unix_ms = 0;
  bool persisted = false;
  bool removed = false;
  // Said by the job's home in a ring: another may have been the home before, or be it later. Then flags only rise, and
  // what is removed takes every row of its parts, whatever their sequence.
  bool of_home = false;
  int64_t sequence = 0;
};
// Nobody has a checkpoint any more that was not removed. No row of a table: it takes all rows of it, but those that say
// that it was removed; who has it after all writes them anew.
struct VanishedRow {
  CheckpointKey checkpoint;
  int64_t sequence = 0;
};
// A removal need be remembered only for as long as an older row of what was removed may still come.
inline constexpr int64_t kKeptRemovals = 1000;
using Row = std::variant<JobRow, AttemptRow, PartRow, HolderRow, LeftRow, VanishedRow, StepRow>;

// Who writes through a catalog, and so which rows are its own: those of the parts that it owns, and of those that it
// holds; all, where it is alone.
struct Author {
  std::string name;  // in a ring its rank
  bool alone = true;
};

// Identifies a row: later rows of one identity replace earlier ones in the recorder's dirty set.
std::string RowIdentity(const Row& row);

class Catalog {
 public:
  virtual ~Catalog() = default;
  // Writes all rows or none. Of two versions of a row the newer one is kept (tables.h), in whichever order they come,
  // so a batch may be applied again. UNAVAILABLE, from this and every query, when the database is away or locked: try
  // again.
  virtual Status Apply(const std::vector<Row>& rows) = 0;

  // What is not in the catalog is absent or empty, never an error.
  virtual StatusOr<std::optional<JobRow>> Job(const std::string& job) = 0;
  virtual StatusOr<std::vector<std::string>> Jobs() = 0;                           // in byte order
  virtual StatusOr<std::vector<AttemptRow>> Attempts(const std::string& job) = 0;  // oldest first
  // Complete checkpoints of a job that are not removed, of steps below `below`: the newest step
  // first, and of one step the newest attempt and revision; at most `limit`.
  virtual StatusOr<std::vector<StepRow>> Steps(const std::string& job, Step below, int limit) = 0;
  // The greatest sequence of the author's own rows; 0 when there is none. May read all of them.
  virtual StatusOr<int64_t> NewestSequence() = 0;
  // Checkpoints of the job after `after`, in order, that are complete and not removed, or of which the author's own
  // rows say that something is there; at most `limit`.
  virtual StatusOr<std::vector<CheckpointKey>> Present(const std::string& job,
                                                       const CheckpointKey& after, int limit) = 0;
  // By writer; also those that were removed lately.
  virtual StatusOr<std::vector<PartRow>> Parts(const CheckpointKey& checkpoint) = 0;
  // Of parts that are in memory somewhere, by writer and holder.
  virtual StatusOr<std::vector<HolderRow>> Holders(const CheckpointKey& checkpoint) = 0;
};

// `path` is created with its schema; an older schema is replaced, and what it held forgotten, for it is only an index. A schema version that this build does not know is
// FAILED_PRECONDITION. A file that is not a database, or fails its integrity check, is moved to
// "<path>.broken-<ms>" and made anew, for it is only an index; `*note` then says so, for the
// caller's log, and is otherwise empty.
StatusOr<std::unique_ptr<Catalog>> OpenSqliteCatalog(const std::string& path, const Author& author,
                                                     std::string* note);

}  // namespace cairn::catalog
