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
#include "common/line_record.h"
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
// What was decided about a job's line, and where an attempt comes from. Of two versions the one that was said later
// stays (`version`: a `resume` may be said anew, and an origin gets known), then the sequence's.
struct LineRow {
  LineRecord record;
  int64_t said_unix_ms = 0;
  int64_t version = 0;
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
// Nobody has anything of the job any more. No row of a table: it takes the job's own row and those of its attempts and line
// records, unless a row says that a checkpoint or part of it is there. Of a home all of them, whatever their sequence;
// else older ones.
struct ForgottenRow {
  std::string job;
  bool of_home = false;
  int64_t sequence = 0;
};
// One author, when it last said so: how far it had come, and what it had in memory. Who reads that it had come less far
// than it has reads an older copy of the database.
struct AuthorRow {
  std::string name;
  int64_t incarnation = 0;  // 0: in no ring
  int64_t seen_unix_ms = 0;
  uint64_t budget_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t replica_bytes = 0;  // kept for others, among those
  int64_t sequence = 0;
};
// A removal need be remembered only for as long as an older row of what was removed may still come.
inline constexpr int64_t kKeptRemovals = 1000;
using Row = std::variant<JobRow, AttemptRow, LineRow, PartRow, HolderRow, LeftRow, VanishedRow,
                         ForgottenRow, StepRow, AuthorRow>;

// How many parts of a checkpoint a node has in memory.
struct HolderCount {
  std::string holder;
  int64_t parts = 0;
};

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
  virtual StatusOr<std::vector<std::string>> Jobs() = 0;  // in byte order
  // The same as rows: of jobs after `after`, at most `limit`.
  virtual StatusOr<std::vector<JobRow>> JobsAfter(const std::string& after, int limit) = 0;
  virtual StatusOr<std::vector<AttemptRow>> Attempts(const std::string& job) = 0;  // oldest first
  // Complete checkpoints of a job that are not removed, of steps below `below`: the newest step
  // first, and of one step the newest attempt and revision; at most `limit`.
  virtual StatusOr<std::vector<StepRow>> Steps(const std::string& job, Step below, int limit) = 0;
  // The job's line records, by number, then kind.
  virtual StatusOr<std::vector<LineRow>> LineRecords(const std::string& job) = 0;
  // The checkpoint that `latest` names by rules 7 and 8 of docs/line.md, where what is complete and not removed can be
  // had: one read by an index over attempt and step, and where a decision is newer than every complete attempt, another
  // for each entry of its lineage until one is there. Absent: nothing on the line is complete, or where the decision's
  // checkpoint came from is not known.
  virtual StatusOr<std::optional<StepRow>> Latest(const std::string& job) = 0;
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
  // The same, counted by holder, in byte order.
  virtual StatusOr<std::vector<HolderCount>> HolderCounts(const CheckpointKey& checkpoint) = 0;
  virtual StatusOr<std::vector<AuthorRow>> Authors() = 0;  // by name, in byte order
  // The sequence of this author's own AuthorRow; 0: there is none.
  virtual StatusOr<int64_t> Marked() = 0;
};

// `path` is created with its schema; an older schema is brought up to date, which forgets what version 1 held. A schema version that this build does not know is
// FAILED_PRECONDITION. A file that is not a database, or fails its integrity check, is moved to
// "<path>.broken-<ms>" and made anew, for it is only an index; `*note` then says so, for the
// caller's log, and is otherwise empty.
StatusOr<std::unique_ptr<Catalog>> OpenSqliteCatalog(const std::string& path, const Author& author,
                                                     std::string* note);

}  // namespace cairn::catalog
