#include "server/catalog/mysql_catalog.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/catalog/mysql_link.h"
#include "server/catalog/mysql_schema.h"
#include "server/catalog/mysql_session.h"

namespace cairn::catalog {

namespace {

using Values = std::vector<MysqlValue>;

constexpr size_t kMaxClusterBytes = 64;
// How often a transaction that the server gave up for another one's sake is tried.
constexpr int kTries = 6;
// One statement writes as many rows as there are, by these sizes; each size is prepared once.
constexpr std::array<size_t, 4> kRowsAtOnce = {256, 32, 4, 1};

// --- tables

struct Table {
  const char* name;
  size_t
      keys;  // so many of its columns identify a row; the first is the cluster, the last its version
  std::vector<const char*> columns;
};

// In the order in which all write them, so that two who write at once wait for each other rather than in a circle.
enum TableNumber { kNodes, kJobs, kAttempts, kSteps, kParts, kTables };

const Table& TableAt(size_t number) {
  static const auto* const tables = new std::array<Table, kTables>{{
      {"nodes", 2, {"cluster", "node_rank", "address", "incarnation", "sequence"}},
      {"jobs",
       2,
       {"cluster", "job", "owner_uid", "owner_gid", "persist_mode", "every_steps", "keep_last",
        "keep_every", "readers", "sequence"}},
      {"attempts", 3, {"cluster", "job", "attempt", "comes_from", "began_unix_ms", "sequence"}},
      {"steps",
       5,
       {"cluster", "job", "step", "attempt", "revision", "world_size", "digest",
        "completed_unix_ms", "persisted", "removed", "sequence"}},
      {"parts",
       6,
       {"cluster", "job", "step", "attempt", "revision", "writer", "world_size", "digest", "bytes",
        "objects", "resident", "persisted", "broken", "removed", "holders", "sequence"}},
  }};
  return (*tables)[number];
}

// The columns of one row, as its table names them.
struct ValuesOf {
  const std::string& cluster;

  std::pair<TableNumber, Values> operator()(const NodeRow& row) const {
    return {kNodes, {cluster, row.rank, row.address, row.incarnation, row.sequence}};
  }
  std::pair<TableNumber, Values> operator()(const JobRow& row) const {
    return {kJobs,
            {cluster, row.job, int64_t{row.owner_uid}, int64_t{row.owner_gid},
             static_cast<int64_t>(row.policy.mode), row.policy.every, row.policy.keep_last,
             row.policy.keep_every, static_cast<int64_t>(row.policy.readers), row.sequence}};
  }
  std::pair<TableNumber, Values> operator()(const AttemptRow& row) const {
    return {kAttempts,
            {cluster, row.job, row.attempt, row.comes_from, row.began_unix_ms, row.sequence}};
  }
  std::pair<TableNumber, Values> operator()(const StepRow& row) const {
    const CheckpointKey& key = row.checkpoint;
    return {kSteps,
            {cluster, key.job, key.step, key.attempt, int64_t{key.revision},
             int64_t{row.world_size}, row.digest, row.completed_unix_ms, int64_t{row.persisted},
             int64_t{row.removed}, row.sequence}};
  }
  std::pair<TableNumber, Values> operator()(const PartRow& row) const {
    const CheckpointKey& key = row.part.checkpoint;
    return {
        kParts,
        {cluster, key.job, key.step, key.attempt, int64_t{key.revision}, int64_t{row.part.writer},
         int64_t{row.world_size}, row.digest, static_cast<int64_t>(row.bytes),
         static_cast<int64_t>(row.objects), int64_t{row.resident}, int64_t{row.persisted},
         int64_t{row.broken}, int64_t{row.removed}, row.holders, row.sequence}};
  }
};

// Of two versions of a row the newer one stays. The server assigns from left to right, and a column that was assigned
// reads as its new value: so the one that is compared comes last. MariaDB does not know MySQL's newer `AS new`.
std::string UpsertOf(const Table& table, size_t rows) {
  const std::string marks = absl::StrCat(
      "(", absl::StrJoin(std::vector<const char*>(table.columns.size(), "?"), ","), ")");
  std::string sql = absl::StrCat(
      "INSERT INTO ", table.name, " (", absl::StrJoin(table.columns, ", "), ") VALUES ",
      absl::StrJoin(std::vector<std::string>(rows, marks), ","), " ON DUPLICATE KEY UPDATE ");
  for (size_t i = table.keys; i + 1 < table.columns.size(); ++i) {
    const char* const column = table.columns[i];
    absl::StrAppend(&sql, column, "=IF(VALUES(sequence)>", table.name, ".sequence, VALUES(", column,
                    "), ", table.name, ".", column, "), ");
  }
  absl::StrAppend(&sql, "sequence=GREATEST(", table.name, ".sequence, VALUES(sequence))");
  return sql;
}

// --- what is removed

constexpr char kOfCheckpoint[] = "cluster=? AND job=? AND step=? AND attempt=? AND revision=?";

// In whichever order they came: of a step that is removed no older row of a part says that it is here.
constexpr char kForgetParts[] =
    "UPDATE parts JOIN steps USING (cluster, job, step, attempt, revision) "
    "SET parts.resident=0, parts.persisted=0, parts.removed=1, parts.holders='' "
    "WHERE parts.cluster=? AND parts.job=? AND parts.step=? AND parts.attempt=? AND "
    "parts.revision=? AND parts.removed=0 AND steps.removed=1 AND steps.sequence>parts.sequence";
constexpr char kOldRemovals[] =
    "SELECT step, attempt, revision FROM steps WHERE cluster=? AND job=? AND removed=1 AND "
    "sequence<? ORDER BY sequence LIMIT ?";
constexpr char kNewestRemovals[] =
    "SELECT sequence FROM steps WHERE cluster=? AND job=? AND removed=1 "
    "ORDER BY sequence DESC LIMIT 1 OFFSET ?";

Values Of(const std::string& cluster, const CheckpointKey& key) {
  return {cluster, key.job, key.step, key.attempt, int64_t{key.revision}};
}

// --- the catalog

class MysqlCatalog final : public Catalog {
 public:
  explicit MysqlCatalog(const MysqlOptions& options)
      : cluster_(options.cluster), writer_(options), asker_(options) {}

  Status Apply(const std::vector<Row>& rows) override {
    const Batch batch = BatchOf(rows);
    return writer_.With([&](MysqlSession* session) {
      absl::BitGen random;
      for (int tried = 1;; ++tried) {
        bool given_up = false;
        const Status status = Write(session, batch, &given_up);
        if (!given_up || tried == kTries) return status;
        absl::SleepFor(absl::Milliseconds(absl::Uniform(random, 1, 20 * tried)));
      }
    });
  }

  StatusOr<std::optional<JobRow>> Job(const std::string& job) override {
    std::optional<JobRow> found;
    CAIRN_RETURN_IF_ERROR(
        Ask("SELECT owner_uid, owner_gid, persist_mode, every_steps, keep_last, keep_every, "
            "readers, sequence FROM jobs WHERE cluster=? AND job=?",
            {cluster_, job}, [&](const MysqlColumns& row) {
              found.emplace();
              found->job = job;
              found->owner_uid = static_cast<uint32_t>(row.Int(0));
              found->owner_gid = static_cast<uint32_t>(row.Int(1));
              found->policy.mode = static_cast<PersistMode>(row.Int(2));
              found->policy.every = row.Int(3);
              found->policy.keep_last = row.Int(4);
              found->policy.keep_every = row.Int(5);
              found->policy.readers = static_cast<Readers>(row.Int(6));
              found->sequence = row.Int(7);
            }));
    return found;
  }

  StatusOr<std::vector<std::string>> Jobs() override {
    return Collect<std::string>("SELECT job FROM jobs WHERE cluster=? ORDER BY job", {cluster_},
                                [](const MysqlColumns& row) { return row.Bytes(0); });
  }

  StatusOr<std::vector<AttemptRow>> Attempts(const std::string& job) override {
    return Collect<AttemptRow>(
        "SELECT attempt, comes_from, began_unix_ms, sequence FROM attempts "
        "WHERE cluster=? AND job=? ORDER BY attempt",
        {cluster_, job}, [&job](const MysqlColumns& row) {
          return AttemptRow{.job = job,
                            .attempt = row.Int(0),
                            .comes_from = row.Int(1),
                            .began_unix_ms = row.Int(2),
                            .sequence = row.Int(3)};
        });
  }

  StatusOr<std::vector<StepRow>> Steps(const std::string& job, Step below, int limit) override {
    return Collect<StepRow>(
        "SELECT step, attempt, revision, world_size, digest, completed_unix_ms, persisted, "
        "sequence FROM steps WHERE cluster=? AND job=? AND step<? AND removed=0 "
        "ORDER BY step DESC, attempt DESC, revision DESC LIMIT ?",
        {cluster_, job, below, int64_t{limit}}, [&job](const MysqlColumns& row) {
          StepRow step;
          step.checkpoint = {job, row.Int(0), row.Int(1), static_cast<Revision>(row.Int(2))};
          step.world_size = static_cast<int32_t>(row.Int(3));
          step.digest = row.Bytes(4);
          step.completed_unix_ms = row.Int(5);
          step.persisted = row.Int(6) != 0;
          step.sequence = row.Int(7);
          return step;
        });
  }

  StatusOr<int64_t> NewestSequence() override {
    int64_t newest = 0;
    for (size_t table = 0; table < kTables; ++table) {
      CAIRN_RETURN_IF_ERROR(Ask(absl::StrCat("SELECT COALESCE(MAX(sequence), 0) FROM ",
                                             TableAt(table).name, " WHERE cluster=?"),
                                {cluster_}, [&newest](const MysqlColumns& row) {
                                  newest = std::max(newest, row.Int(0));
                                }));
    }
    return newest;
  }

  StatusOr<std::vector<CheckpointKey>> Present(const std::string& job, const CheckpointKey& after,
                                               int limit) override {
    // As (step, attempt, revision) > (?, ?, ?), in words for which the server uses the index.
    const auto after_it = [](const char* table) {
      return absl::StrCat(
          "(SELECT step, attempt, revision FROM ", table,
          " WHERE cluster=? AND job=? AND removed=0 AND step>=? AND (step>? OR "
          "attempt>? OR (attempt=? AND revision>?)) GROUP BY step, attempt, revision "
          "ORDER BY step, attempt, revision LIMIT ?)");
    };
    const Values of_each = {cluster_,
                            job,
                            after.step,
                            after.step,
                            after.attempt,
                            after.attempt,
                            int64_t{after.revision},
                            int64_t{limit}};
    Values values = of_each;
    values.insert(values.end(), of_each.begin(), of_each.end());
    values.emplace_back(int64_t{limit});
    return Collect<CheckpointKey>(
        absl::StrCat(after_it("parts"), " UNION ", after_it("steps"), " ORDER BY 1, 2, 3 LIMIT ?"),
        values, [&job](const MysqlColumns& row) {
          return CheckpointKey{job, row.Int(0), row.Int(1), static_cast<Revision>(row.Int(2))};
        });
  }

  StatusOr<std::vector<PartRow>> Parts(const CheckpointKey& checkpoint) override {
    return Collect<PartRow>(
        absl::StrCat("SELECT writer, world_size, digest, bytes, objects, resident, persisted, "
                     "broken, removed, holders, sequence FROM parts WHERE ",
                     kOfCheckpoint, " ORDER BY writer"),
        Of(cluster_, checkpoint), [&checkpoint](const MysqlColumns& row) {
          PartRow part;
          part.part = {checkpoint, static_cast<Writer>(row.Int(0))};
          part.world_size = static_cast<int32_t>(row.Int(1));
          part.digest = row.Bytes(2);
          part.bytes = static_cast<uint64_t>(row.Int(3));
          part.objects = static_cast<uint64_t>(row.Int(4));
          part.resident = row.Int(5) != 0;
          part.persisted = row.Int(6) != 0;
          part.broken = row.Int(7) != 0;
          part.removed = row.Int(8) != 0;
          part.holders = row.Bytes(9);
          part.sequence = row.Int(10);
          return part;
        });
  }

 private:
  struct Batch {
    std::array<std::vector<Values>, kTables> rows;  // of each table in the order of its keys
    std::set<CheckpointKey> touched;                // whose parts may be known to be removed
    std::set<std::string> removed_of;               // jobs of which something was removed
    size_t size = 0;
  };

  Batch BatchOf(const std::vector<Row>& rows) const {
    Batch batch;
    batch.size = rows.size();
    for (const Row& row : rows) {
      auto [table, values] = std::visit(ValuesOf{cluster_}, row);
      batch.rows[table].push_back(std::move(values));
      if (const auto* part = std::get_if<PartRow>(&row)) {
        batch.touched.insert(part->part.checkpoint);
      } else if (const auto* step = std::get_if<StepRow>(&row); step != nullptr && step->removed) {
        batch.touched.insert(step->checkpoint);
        batch.removed_of.insert(step->checkpoint.job);
      }
    }
    for (std::vector<Values>& of_table : batch.rows) std::sort(of_table.begin(), of_table.end());
    return batch;
  }

  // All of it, or nothing. `given_up`: for the sake of another transaction.
  Status Write(MysqlSession* session, const Batch& batch, bool* given_up) const {
    CAIRN_RETURN_IF_ERROR(session->Execute("START TRANSACTION"));
    Status status = WriteRows(session, batch);
    if (status.ok()) status = session->Execute("COMMIT");
    *given_up = session->given_up();
    if (!status.ok() && !session->broken()) session->Execute("ROLLBACK").IgnoreError();
    return status;
  }

  Status WriteRows(MysqlSession* session, const Batch& batch) const {
    for (size_t table = 0; table < kTables; ++table) {
      const std::vector<Values>& rows = batch.rows[table];
      for (size_t written = 0; written < rows.size();) {
        const size_t count = *std::find_if(kRowsAtOnce.begin(), kRowsAtOnce.end(),
                                           [&](size_t n) { return n <= rows.size() - written; });
        Values values;
        for (size_t i = 0; i < count; ++i, ++written) {
          values.insert(values.end(), rows[written].begin(), rows[written].end());
        }
        CAIRN_RETURN_IF_ERROR(session->Run(UpsertOf(TableAt(table), count), values));
      }
    }
    for (const CheckpointKey& key : batch.touched) {
      CAIRN_RETURN_IF_ERROR(session->Run(kForgetParts, Of(cluster_, key)));
    }
    for (const std::string& job : batch.removed_of) {
      CAIRN_RETURN_IF_ERROR(ForgetOldRemovals(session, job, batch.size));
    }
    return absl::OkStatus();
  }

  Status ForgetOldRemovals(MysqlSession* session, const std::string& job, size_t added) const {
    std::optional<int64_t> oldest_kept;
    CAIRN_RETURN_IF_ERROR(
        session->Query(kNewestRemovals, {cluster_, job, kKeptRemovals - 1},
                       [&](const MysqlColumns& row) { oldest_kept = row.Int(0); }));
    if (!oldest_kept.has_value()) return absl::OkStatus();
    // More than the batch can have added, so that what was left once goes, too.
    const auto most = static_cast<int64_t>(added) + kKeptRemovals;
    std::vector<CheckpointKey> old;
    CAIRN_RETURN_IF_ERROR(session->Query(
        kOldRemovals, {cluster_, job, *oldest_kept, most}, [&](const MysqlColumns& row) {
          old.push_back({job, row.Int(0), row.Int(1), static_cast<Revision>(row.Int(2))});
        }));
    for (const CheckpointKey& key : old) {
      CAIRN_RETURN_IF_ERROR(
          session->Run(absl::StrCat("DELETE FROM parts WHERE ", kOfCheckpoint, " AND removed=1"),
                       Of(cluster_, key)));
      CAIRN_RETURN_IF_ERROR(
          session->Run(absl::StrCat("DELETE FROM steps WHERE ", kOfCheckpoint, " AND removed=1"),
                       Of(cluster_, key)));
    }
    return absl::OkStatus();
  }

  Status Ask(const std::string& sql, const Values& values,
             const std::function<void(const MysqlColumns&)>& row) {
    return asker_.With([&](MysqlSession* session) { return session->Query(sql, values, row); });
  }
  template <typename T, typename Read>
  StatusOr<std::vector<T>> Collect(const std::string& sql, const Values& values, const Read& read) {
    std::vector<T> rows;
    CAIRN_RETURN_IF_ERROR(asker_.With([&](MysqlSession* session) {
      rows.clear();  // of an answer that broke off
      return session->Query(sql, values,
                            [&](const MysqlColumns& row) { rows.push_back(read(row)); });
    }));
    return rows;
  }

  const std::string cluster_;
  MysqlLink writer_, asker_;
};

}  // namespace

Status MysqlOptions::Validate() const {
  const auto invalid = [](absl::string_view field, absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("catalog.mysql.", field, ": ", why));
  };
  if (cluster.empty() || cluster.size() > kMaxClusterBytes) {
    return absl::InvalidArgumentError(absl::StrCat("ring.cluster: ", cluster.size(),
                                                   " bytes are not in 1 to ", kMaxClusterBytes));
  }
  if (host.empty() == socket.empty()) return invalid("host", "either it or a socket is needed");
  if (port < 1 || port > 65535) return invalid("port", absl::StrCat(port, " is not in 1 to 65535"));
  if (database.empty() || database.size() > 64) return invalid("database", "1 to 64 bytes");
  if (user.empty()) return invalid("user", "is missing");
  if (connect_timeout_s < 1 || call_timeout_s < 1) return invalid("timeout", "at least 1 s");
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<Catalog>> OpenMysqlCatalog(const MysqlOptions& options) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  CAIRN_RETURN_IF_ERROR(EnsureMysqlSchema(options));
  return std::unique_ptr<Catalog>(std::make_unique<MysqlCatalog>(options));
}

}  // namespace cairn::catalog
