// The tables of a catalog, the same in every database: their columns, and which of two versions of a row stays.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/catalog/catalog.h"

namespace cairn::catalog {

using Value = std::variant<int64_t, std::string>;  // a string is bytes, whatever is in it
using Values = std::vector<Value>;

// What becomes of a column when a row comes that is there.
enum class Rule : uint8_t {
  kKey,     // it identifies the row
  kNewer,   // that of the newer version
  kRises,   // where the version that comes says so (of_home): the greater; else as kNewer
  kOrigin,  // a known one stays before an unknown one; else as kNewer
  kOrders,  // says which version is newer: by the first such column, then by the next
};

struct Column {
  const char* name;
  Rule rule = Rule::kNewer;
};

struct Table {
  const char* name;
  std::vector<Column> columns;
};

// In the order in which all write them, so that two who write at once wait for each other rather than in a circle.
enum TableNumber : size_t {
  kJobs,
  kAttempts,
  kSteps,
  kParts,
  kHolders,
  kLineRecords,
  kAuthors,
  kTables
};
const Table& TableAt(size_t number);

// A row of a table, in the order of its columns. Of a row that is no table's, LeftRow, there is none.
struct TableRow {
  TableNumber table;
  Values values;
};
TableRow TableRowOf(const JobRow& row);
TableRow TableRowOf(const AttemptRow& row);
TableRow TableRowOf(const StepRow& row);
TableRow TableRowOf(const PartRow& row);
TableRow TableRowOf(const HolderRow& row);
TableRow TableRowOf(const LineRow& row);
TableRow TableRowOf(const AuthorRow& row);

// Job, step, attempt and revision, by which the rows of a checkpoint are found.
Values KeyOf(const CheckpointKey& checkpoint);

// --- what queries read: the columns, and a row of them. `Columns` has Int(i) and Bytes(i).

inline constexpr char kJobColumns[] =
    "owner_uid, owner_gid, persist_mode, every_steps, keep_last, keep_every, readers, replicas, "
    "policy_version, policy_rank, sequence";
inline constexpr int kJobColumnCount = 11;
template <typename Columns>
JobRow JobFrom(const std::string& job, const Columns& row) {
  JobRow read;
  read.job = job;
  read.owner_uid = static_cast<uint32_t>(row.Int(0));
  read.owner_gid = static_cast<uint32_t>(row.Int(1));
  read.policy.mode = static_cast<PersistMode>(row.Int(2));
  read.policy.every = row.Int(3);
  read.policy.keep_last = row.Int(4);
  read.policy.keep_every = row.Int(5);
  read.policy.readers = static_cast<Readers>(row.Int(6));
  read.policy.replicas = static_cast<int32_t>(row.Int(7));
  read.policy_version = row.Int(8);
  read.policy_rank = static_cast<int32_t>(row.Int(9));
  read.sequence = row.Int(10);
  return read;
}

inline constexpr char kAttemptColumns[] = "attempt, comes_from, began_unix_ms, sequence";
template <typename Columns>
AttemptRow AttemptFrom(const std::string& job, const Columns& row) {
  return {.job = job,
          .attempt = row.Int(0),
          .comes_from = row.Int(1),
          .began_unix_ms = row.Int(2),
          .sequence = row.Int(3)};
}

inline constexpr char kStepColumns[] =
    "step, attempt, revision, world_size, digest, completed_unix_ms, persisted, removed, of_home, "
    "sequence";
template <typename Columns>
CheckpointKey CheckpointFrom(const std::string& job, const Columns& row) {
  return {job, row.Int(0), row.Int(1), static_cast<Revision>(row.Int(2))};
}
template <typename Columns>
StepRow StepFrom(const std::string& job, const Columns& row) {
  return {.checkpoint = CheckpointFrom(job, row),
          .world_size = static_cast<int32_t>(row.Int(3)),
          .digest = row.Bytes(4),
          .completed_unix_ms = row.Int(5),
          .persisted = row.Int(6) != 0,
          .removed = row.Int(7) != 0,
          .of_home = row.Int(8) != 0,
          .sequence = row.Int(9)};
}

inline constexpr char kPartColumns[] =
    "writer, world_size, digest, bytes, objects, persisted, broken, removed, owner, sequence";
template <typename Columns>
PartRow PartFrom(const CheckpointKey& checkpoint, const Columns& row) {
  return {.part = {checkpoint, static_cast<Writer>(row.Int(0))},
          .world_size = static_cast<int32_t>(row.Int(1)),
          .digest = row.Bytes(2),
          .bytes = static_cast<uint64_t>(row.Int(3)),
          .objects = static_cast<uint64_t>(row.Int(4)),
          .persisted = row.Int(5) != 0 && row.Int(7) == 0,
          .broken = row.Int(6) != 0,
          .removed = row.Int(7) != 0,
          .owner = row.Bytes(8),
          .sequence = row.Int(9)};
}

inline constexpr char kHolderColumns[] = "writer, holder, resident, sequence";
template <typename Columns>
HolderRow HolderFrom(const CheckpointKey& checkpoint, const Columns& row) {
  return {.part = {checkpoint, static_cast<Writer>(row.Int(0))},
          .holder = row.Bytes(1),
          .resident = row.Int(2) != 0,
          .sequence = row.Int(3)};
}

inline constexpr char kLineColumns[] =
    "kind, number, lineage, said_unix_ms, said_version, sequence";
// A lineage that cannot be read is unknown.
template <typename Columns>
LineRow LineFrom(const std::string& job, const Columns& row) {
  return {.record = {.job = job,
                     .number = row.Int(1),
                     .kind = static_cast<LineRecordKind>(row.Int(0)),
                     .lineage = DecodeLineage(row.Bytes(2)).value_or(Lineage::OfUnknown())},
          .said_unix_ms = row.Int(3),
          .version = row.Int(4),
          .sequence = row.Int(5)};
}

inline constexpr char kAuthorColumns[] =
    "name, incarnation, seen_unix_ms, budget_bytes, used_bytes, replica_bytes, sequence";
template <typename Columns>
AuthorRow AuthorFrom(const Columns& row) {
  return {.name = row.Bytes(0),
          .incarnation = row.Int(1),
          .seen_unix_ms = row.Int(2),
          .budget_bytes = static_cast<uint64_t>(row.Int(3)),
          .used_bytes = static_cast<uint64_t>(row.Int(4)),
          .replica_bytes = static_cast<uint64_t>(row.Int(5)),
          .sequence = row.Int(6)};
}

// --- Latest, in parts that read one row each by an index

struct NewestStep {
  StepRow step;
  Attempt decided = 0;  // the greatest number of a `resume` or `use`
};
struct LatestReads {
  // Of the newest attempt that has one, the highest that is complete and not removed.
  std::function<StatusOr<std::optional<NewestStep>>()> newest;
  // The same of this attempt up to this step.
  std::function<StatusOr<std::optional<StepRow>>(Attempt, Step)> up_to;
  std::function<StatusOr<std::optional<LineRow>>(LineRecordKind, Attempt)> record;
};
StatusOr<std::optional<StepRow>> LatestBy(const LatestReads& reads);

}  // namespace cairn::catalog
