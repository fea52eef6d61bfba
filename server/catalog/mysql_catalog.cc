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
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/catalog/mysql_link.h"
#include "server/catalog/mysql_schema.h"
#include "server/catalog/mysql_session.h"
#include "server/catalog/mysql_statements.h"
#include "server/catalog/tables.h"

namespace cairn::catalog {

namespace {

constexpr size_t kMaxClusterBytes = 64;
// How often a transaction that the server gave up for another one's sake is tried.
constexpr int kTries = 6;
// One statement writes as many rows as there are, by these sizes; each size is prepared once.
constexpr std::array<size_t, 4> kRowsAtOnce = {256, 32, 4, 1};

// --- the catalog

class MysqlCatalog final : public Catalog {
 public:
  explicit MysqlCatalog(const MysqlOptions& options)
      : cluster_(options.cluster),
        author_(options.author),
        seat_(options.seat),
        writer_(options),
        asker_(options) {}

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
    CAIRN_ASSIGN_OR_RETURN(
        const std::vector<JobRow> found,
        Collect<JobRow>(
            absl::StrCat("SELECT ", kJobColumns, " FROM jobs WHERE cluster=? AND job=?"),
            {cluster_, job}, [&job](const MysqlColumns& row) { return JobFrom(job, row); }));
    return found.empty() ? std::nullopt : std::make_optional(found.front());
  }

  StatusOr<std::vector<std::string>> Jobs() override {
    return Collect<std::string>("SELECT job FROM jobs WHERE cluster=? ORDER BY job", {cluster_},
                                [](const MysqlColumns& row) { return row.Bytes(0); });
  }

  StatusOr<std::vector<JobRow>> JobsAfter(const std::string& after, int limit) override {
    return Collect<JobRow>(
        absl::StrCat("SELECT ", kJobColumns,
                     ", job FROM jobs WHERE cluster=? AND job>? ORDER BY job LIMIT ?"),
        {cluster_, after, int64_t{limit}},
        [](const MysqlColumns& row) { return JobFrom(row.Bytes(kJobColumnCount), row); });
  }

  StatusOr<std::vector<AttemptRow>> Attempts(const std::string& job) override {
    return Collect<AttemptRow>(
        absl::StrCat("SELECT ", kAttemptColumns,
                     " FROM attempts WHERE cluster=? AND job=? ORDER BY attempt"),
        {cluster_, job}, [&job](const MysqlColumns& row) { return AttemptFrom(job, row); });
  }

  StatusOr<std::vector<StepRow>> Steps(const std::string& job, Step below, int limit) override {
    return Collect<StepRow>(
        absl::StrCat("SELECT ", kStepColumns,
                     " FROM steps WHERE cluster=? AND job=? AND step<? AND removed=0 "
                     "ORDER BY step DESC, attempt DESC, revision DESC LIMIT ?"),
        {cluster_, job, below, int64_t{limit}},
        [&job](const MysqlColumns& row) { return StepFrom(job, row); });
  }

  StatusOr<std::vector<LineRow>> LineRecords(const std::string& job) override {
    return Collect<LineRow>(
        absl::StrCat("SELECT ", kLineColumns,
                     " FROM line_records WHERE cluster=? AND job=? ORDER BY number, kind"),
        {cluster_, job}, [&job](const MysqlColumns& row) { return LineFrom(job, row); });
  }

  StatusOr<std::optional<StepRow>> Latest(const std::string& job) override {
    return LatestBy(
        {.newest = [&] { return NewestOf(job); },
         .up_to =
             [&](Attempt attempt, Step step) {
               return FirstOf<StepRow>(
                   absl::StrCat("SELECT ", kStepColumns,
                                " FROM steps WHERE cluster=? AND job=? AND removed=0 AND "
                                "attempt=? AND step<=? ORDER BY step DESC, revision DESC LIMIT 1"),
                   {cluster_, job, attempt, step},
                   [&](const MysqlColumns& row) { return StepFrom(job, row); });
             },
         .record =
             [&](LineRecordKind kind, Attempt number) {
               return FirstOf<LineRow>(
                   absl::StrCat("SELECT ", kLineColumns,
                                " FROM line_records WHERE cluster=? AND job=? AND kind=? AND "
                                "number=?"),
                   {cluster_, job, static_cast<int64_t>(kind), number},
                   [&](const MysqlColumns& row) { return LineFrom(job, row); });
             }});
  }

  StatusOr<int64_t> NewestSequence() override {
    int64_t newest = 0;
    const auto ask = [&](const char* table, absl::string_view whose, const Values& values) {
      return Ask(
          absl::StrCat("SELECT COALESCE(MAX(sequence), 0) FROM ", table, " WHERE cluster=?", whose),
          values, [&newest](const MysqlColumns& row) { newest = std::max(newest, row.Int(0)); });
    };
    if (author_.alone) {
      for (size_t table = 0; table < kTables; ++table) {
        CAIRN_RETURN_IF_ERROR(ask(TableAt(table).name, "", {cluster_}));
      }
      return newest;
    }
    CAIRN_RETURN_IF_ERROR(ask("parts", " AND owner=?", {cluster_, author_.name}));
    CAIRN_RETURN_IF_ERROR(ask("holders", " AND holder=?", {cluster_, author_.name}));
    CAIRN_RETURN_IF_ERROR(ask("authors", " AND name=?", {cluster_, author_.name}));
    return newest;
  }

  StatusOr<std::vector<CheckpointKey>> Present(const std::string& job, const CheckpointKey& after,
                                               int limit) override {
    Values values;
    // As (step, attempt, revision) > (?, ?, ?), in words for which the server uses the index.
    const auto after_it = [&](const char* table, const std::string& whose) {
      for (const Value& value : Values{cluster_, job, after.step, after.step, after.attempt,
                                       after.attempt, int64_t{after.revision}}) {
        values.push_back(value);
      }
      if (!author_.alone && !whose.empty()) values.emplace_back(author_.name);
      values.emplace_back(int64_t{limit});
      return absl::StrCat("(SELECT step, attempt, revision FROM ", table,
                          " WHERE cluster=? AND job=? AND step>=? AND (step>? OR "
                          "attempt>? OR (attempt=? AND revision>?)) AND ",
                          table == std::string_view("holders") ? "resident=1" : "removed=0",
                          author_.alone ? "" : whose,
                          " GROUP BY step, attempt, revision "
                          "ORDER BY step, attempt, revision LIMIT ?)");
    };
    std::string sql = after_it("parts", " AND owner=?");  // one after the other, as their values
    absl::StrAppend(&sql, " UNION ", after_it("holders", " AND holder=?"));
    absl::StrAppend(&sql, " UNION ", after_it("steps", ""));
    absl::StrAppend(&sql, " ORDER BY 1, 2, 3 LIMIT ?");
    values.emplace_back(int64_t{limit});
    return Collect<CheckpointKey>(
        sql, values, [&job](const MysqlColumns& row) { return CheckpointFrom(job, row); });
  }

  StatusOr<std::vector<PartRow>> Parts(const CheckpointKey& checkpoint) override {
    return Collect<PartRow>(absl::StrCat("SELECT ", kPartColumns, " FROM parts WHERE ",
                                         kOfCheckpoint, " ORDER BY writer"),
                            Of(checkpoint), [&checkpoint](const MysqlColumns& row) {
                              return PartFrom(checkpoint, row);
                            });
  }

  StatusOr<std::vector<HolderRow>> Holders(const CheckpointKey& checkpoint) override {
    return Collect<HolderRow>(
        absl::StrCat("SELECT ", kHolderColumns, " FROM holders WHERE ", kOfCheckpoint,
                     " AND resident=1 ORDER BY writer, holder"),
        Of(checkpoint),
        [&checkpoint](const MysqlColumns& row) { return HolderFrom(checkpoint, row); });
  }

  StatusOr<std::vector<HolderCount>> HolderCounts(const CheckpointKey& checkpoint) override {
    return Collect<HolderCount>(
        absl::StrCat("SELECT holder, COUNT(*) FROM holders WHERE ", kOfCheckpoint,
                     " AND resident=1 GROUP BY holder ORDER BY holder"),
        Of(checkpoint), [](const MysqlColumns& row) {
          return HolderCount{.holder = row.Bytes(0), .parts = row.Int(1)};
        });
  }

  StatusOr<std::vector<AuthorRow>> Authors() override {
    return Collect<AuthorRow>(
        absl::StrCat("SELECT ", kAuthorColumns, " FROM authors WHERE cluster=? ORDER BY name"),
        {cluster_}, [](const MysqlColumns& row) { return AuthorFrom(row); });
  }

  StatusOr<int64_t> Marked() override {
    CAIRN_ASSIGN_OR_RETURN(
        const std::optional<int64_t> marked,
        FirstOf<int64_t>("SELECT sequence FROM authors WHERE cluster=? AND name=?",
                         {cluster_, author_.name},
                         [](const MysqlColumns& row) { return row.Int(0); }));
    return marked.value_or(0);
  }

 private:
  struct Batch {
    std::array<std::vector<Values>, kTables> rows;  // of each table in the order of its keys
    std::vector<VanishedRow> vanished;              // before any row
    std::vector<LeftRow> left;                      // after the rows of holders
    std::vector<ForgottenRow> forgotten;            // last, unless the job has a newer row here
    std::set<CheckpointKey> touched;                // whose parts may be known to be removed
    std::set<std::string> removed_of;               // jobs of which something was removed
    size_t size = 0;

    bool OneRow() const {
      return size == 1 && left.empty() && vanished.empty() && forgotten.empty() &&
             removed_of.empty();
    }
    // Whether the job is there anew: its row says so after it was forgotten.
    bool Renews(const ForgottenRow& row) const {
      return std::any_of(rows[kJobs].begin(), rows[kJobs].end(), [&row](const Values& values) {
        return std::get<std::string>(values[1]) == row.job &&
               std::get<int64_t>(values.back()) > row.sequence;
      });
    }
    template <typename OneRow>
    void Add(const std::string& cluster, const OneRow& row) {
      TableRow of = TableRowOf(row);
      of.values.insert(of.values.begin(), cluster);
      rows[of.table].push_back(std::move(of.values));
    }
  };

  Batch BatchOf(const std::vector<Row>& rows) const {
    Batch batch;
    batch.size = rows.size();
    const auto add = [&](const auto& row) { batch.Add(cluster_, row); };
    for (const Row& row : rows) {
      if (const auto* left = std::get_if<LeftRow>(&row)) {
        batch.left.push_back(*left);
      } else if (const auto* vanished = std::get_if<VanishedRow>(&row)) {
        batch.vanished.push_back(*vanished);
      } else if (const auto* forgotten = std::get_if<ForgottenRow>(&row)) {
        batch.forgotten.push_back(*forgotten);
      } else if (const auto* line = std::get_if<LineRow>(&row)) {
        add(*line);
      } else if (const auto* author = std::get_if<AuthorRow>(&row)) {
        add(*author);
      } else if (const auto* job = std::get_if<JobRow>(&row)) {
        add(*job);
      } else if (const auto* attempt = std::get_if<AttemptRow>(&row)) {
        add(*attempt);
      } else if (const auto* part = std::get_if<PartRow>(&row)) {
        add(*part);
        batch.touched.insert(part->part.checkpoint);
      } else if (const auto* holder = std::get_if<HolderRow>(&row)) {
        add(*holder);
        batch.touched.insert(holder->part.checkpoint);
      } else if (const auto* step = std::get_if<StepRow>(&row)) {
        add(*step);
        if (!step->removed) continue;
        batch.touched.insert(step->checkpoint);
        batch.removed_of.insert(step->checkpoint.job);
      }
    }
    for (std::vector<Values>& of_table : batch.rows) std::sort(of_table.begin(), of_table.end());
    return batch;
  }

  // All of it, or nothing. `given_up`: for the sake of another transaction.
  Status Write(MysqlSession* session, const Batch& batch, bool* given_up) const {
    if (batch.OneRow() && seat_.instance.empty()) {  // commits by itself
      const Status status = WriteOne(session, batch);
      *given_up = session->given_up();
      return status;
    }
    CAIRN_RETURN_IF_ERROR(session->Execute("START TRANSACTION"));
    Status status = WriteRows(session, batch);
    // Last, for whoever takes the rank waits from here on.
    if (status.ok()) status = CheckSeat(session);
    if (status.ok()) status = session->Execute("COMMIT");
    *given_up = session->given_up();
    if (!status.ok() && !session->broken()) session->Execute("ROLLBACK").IgnoreError();
    return status;
  }

  // The row of the rank stays as it is until this transaction has ended. FAILED_PRECONDITION: it is another's.
  Status CheckSeat(MysqlSession* session) const {
    if (seat_.instance.empty()) return absl::OkStatus();
    bool mine = false;
    CAIRN_RETURN_IF_ERROR(session->Query(
        "SELECT 1 FROM members WHERE cluster=? AND member_rank=? AND instance=? LOCK IN SHARE MODE",
        {cluster_, int64_t{seat_.rank}, seat_.instance},
        [&](const MysqlColumns&) { mine = true; }));
    if (mine) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "the ring's table does not give rank ", seat_.rank, " to this node: nothing is written"));
  }

  static Status WriteOne(MysqlSession* session, const Batch& batch) {
    for (size_t table = 0; table < kTables; ++table) {
      if (batch.rows[table].empty()) continue;
      const Table& of = TableAt(table);
      return session->Run(UpsertOf(of, 1, /*alone=*/true), BoundAlone(of, batch.rows[table][0]));
    }
    return absl::OkStatus();
  }

  Status WriteRows(MysqlSession* session, const Batch& batch) const {
    for (const VanishedRow& vanished : batch.vanished) {
      // The step last: it tells of the others whether they may go. MySQL deletes from no table that it asks.
      for (const char* table : {"holders", "parts"}) {
        Values values = Of(vanished.checkpoint);
        for (const Value& value : Of(vanished.checkpoint)) values.push_back(value);
        CAIRN_RETURN_IF_ERROR(
            session->Run(absl::StrCat("DELETE FROM ", table, " WHERE ", kOfCheckpoint,
                                      " AND NOT EXISTS (SELECT 1 FROM steps WHERE ", kOfCheckpoint,
                                      " AND removed=1)"),
                         values));
      }
      CAIRN_RETURN_IF_ERROR(
          session->Run(absl::StrCat("DELETE FROM steps WHERE ", kOfCheckpoint, " AND removed=0"),
                       Of(vanished.checkpoint)));
    }
    for (const ForgottenRow& forgotten : batch.forgotten) {
      if (batch.Renews(forgotten)) CAIRN_RETURN_IF_ERROR(ForgetJob(session, forgotten));
    }
    for (size_t table = 0; table < kTables; ++table) {
      CAIRN_RETURN_IF_ERROR(WriteTable(session, TableAt(table), batch.rows[table]));
    }
    for (const LeftRow& left : batch.left) CAIRN_RETURN_IF_ERROR(Leave(session, left));
    for (const CheckpointKey& key : batch.touched) {
      CAIRN_RETURN_IF_ERROR(session->Run(ForgetParts(), Of(key)));
      CAIRN_RETURN_IF_ERROR(session->Run(ForgetHolders(), Of(key)));
    }
    for (const std::string& job : batch.removed_of) {
      CAIRN_RETURN_IF_ERROR(ForgetOldRemovals(session, job, batch.size));
    }
    for (const ForgottenRow& forgotten : batch.forgotten) {
      if (!batch.Renews(forgotten)) CAIRN_RETURN_IF_ERROR(ForgetJob(session, forgotten));
    }
    return absl::OkStatus();
  }

  static Status WriteTable(MysqlSession* session, const Table& table,
                           const std::vector<Values>& rows) {
    for (size_t written = 0; written < rows.size();) {
      const size_t count = *std::find_if(kRowsAtOnce.begin(), kRowsAtOnce.end(),
                                         [&](size_t n) { return n <= rows.size() - written; });
      Values values;
      for (size_t i = 0; i < count; ++i, ++written) {
        values.insert(values.end(), rows[written].begin(), rows[written].end());
      }
      CAIRN_RETURN_IF_ERROR(session->Run(UpsertOf(table, count), values));
    }
    return absl::OkStatus();
  }

  Status Leave(MysqlSession* session, const LeftRow& left) const {
    Values values = Of(left.checkpoint);
    values.emplace_back(left.holder);
    values.emplace_back(left.sequence);
    CAIRN_RETURN_IF_ERROR(session->Run(
        absl::StrCat("DELETE FROM holders WHERE ", kOfCheckpoint, " AND holder=? AND sequence<?"),
        values));
    if (!left.whole) return absl::OkStatus();
    for (const Value& value : Of(left.checkpoint)) values.push_back(value);
    return session->Run(
        absl::StrCat("DELETE FROM parts WHERE ", kOfCheckpoint,
                     " AND owner=? AND sequence<? AND NOT EXISTS (SELECT 1 FROM steps WHERE ",
                     kOfCheckpoint, ")"),
        values);
  }

  Status ForgetJob(MysqlSession* session, const ForgottenRow& forgotten) const {
    const std::string& job = forgotten.job;
    for (const char* table : {"attempts", "line_records", "jobs"}) {
      CAIRN_RETURN_IF_ERROR(session->Run(
          absl::StrCat("DELETE FROM ", table, " WHERE cluster=? AND job=? AND (? OR sequence<?)",
                       kNothingIsThere),
          {cluster_, job, int64_t{forgotten.of_home}, forgotten.sequence, cluster_, job, cluster_,
           job, cluster_, job}));
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
    CAIRN_RETURN_IF_ERROR(
        session->Query(kOldRemovals, {cluster_, job, *oldest_kept, most},
                       [&](const MysqlColumns& row) { old.push_back(CheckpointFrom(job, row)); }));
    for (const CheckpointKey& key : old) {
      CAIRN_RETURN_IF_ERROR(session->Run(
          absl::StrCat("DELETE FROM parts WHERE ", kOfCheckpoint, " AND removed=1"), Of(key)));
      CAIRN_RETURN_IF_ERROR(session->Run(
          absl::StrCat("DELETE FROM holders WHERE ", kOfCheckpoint, " AND resident=0"), Of(key)));
      CAIRN_RETURN_IF_ERROR(session->Run(
          absl::StrCat("DELETE FROM steps WHERE ", kOfCheckpoint, " AND removed=1"), Of(key)));
    }
    return absl::OkStatus();
  }

  Values Of(const CheckpointKey& checkpoint) const {
    Values values = KeyOf(checkpoint);
    values.insert(values.begin(), cluster_);
    return values;
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

  template <typename T, typename Read>
  StatusOr<std::optional<T>> FirstOf(const std::string& sql, const Values& values,
                                     const Read& read) {
    CAIRN_ASSIGN_OR_RETURN(std::vector<T> rows, Collect<T>(sql, values, read));
    return rows.empty() ? std::nullopt : std::make_optional(std::move(rows.front()));
  }
  StatusOr<std::optional<NewestStep>> NewestOf(const std::string& job) {
    const auto decided = [](LineRecordKind kind) {
      return absl::StrCat(
          "COALESCE((SELECT MAX(number) FROM line_records WHERE cluster=? AND job=? AND kind=",
          static_cast<int>(kind), "),0)");
    };
    return FirstOf<NewestStep>(
        absl::StrCat("SELECT ", kStepColumns, ", GREATEST(", decided(LineRecordKind::kResume), ",",
                     decided(LineRecordKind::kUse),
                     ") FROM steps WHERE cluster=? AND job=? AND removed=0 "
                     "ORDER BY attempt DESC, step DESC, revision DESC LIMIT 1"),
        {cluster_, job, cluster_, job, cluster_, job}, [&job](const MysqlColumns& row) {
          return NewestStep{.step = StepFrom(job, row), .decided = row.Int(10)};
        });
  }

  const std::string cluster_;
  const Author author_;
  const MysqlOptions::Seat seat_;
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
  if (connect_timeout_s < 1 || call_timeout_s < 1 || idle_timeout_s < 1) {
    return invalid("timeout", "at least 1 s");
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<Catalog>> OpenMysqlCatalog(const MysqlOptions& options) {
  CAIRN_RETURN_IF_ERROR(options.Validate());
  CAIRN_RETURN_IF_ERROR(EnsureMysqlSchema(options));
  return std::unique_ptr<Catalog>(std::make_unique<MysqlCatalog>(options));
}

}  // namespace cairn::catalog
