// The embedded catalog: one SQLite file in WAL mode, one connection behind a mutex. The recorder
// writes it and is rarely asked for anything, so a pool of connections would gain nothing.
#include <array>
#include <chrono>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/mutex.h"
#include "server/catalog/catalog.h"
#include "server/catalog/sqlite_database.h"
#include "server/catalog/sqlite_statement.h"
#include "server/catalog/tables.h"

namespace cairn::catalog {

namespace {

// "INSERT … ON CONFLICT DO UPDATE …", after which the newer version of a row is there. Every column that it names on the
// right has the value from before the statement.
std::string UpsertOf(const Table& table) {
  std::vector<std::string> names, marks, coming, there, sets;
  for (const Column& column : table.columns) {
    names.emplace_back(column.name);
    marks.emplace_back("?");
    if (column.rule != Rule::kOrders) continue;
    coming.push_back(absl::StrCat("excluded.", column.name));
    there.push_back(absl::StrCat(table.name, ".", column.name));
  }
  const std::string newer =
      absl::StrCat("(", absl::StrJoin(coming, ","), ")>(", absl::StrJoin(there, ","), ")");
  for (const Column& column : table.columns) {
    const std::string to = absl::StrCat("excluded.", column.name);
    const std::string from = absl::StrCat(table.name, ".", column.name);
    const auto set = [&](const std::string& condition, const std::string& value) {
      sets.push_back(absl::StrCat(column.name, "=CASE WHEN ", condition, " THEN ", value, " ELSE ",
                                  from, " END"));
    };
    switch (column.rule) {
      case Rule::kKey:
        break;
      case Rule::kNewer:
      case Rule::kOrders:
        set(newer, to);
        break;
      case Rule::kRises:
        set(absl::StrCat("excluded.of_home THEN max(", from, ",", to, ") WHEN ", newer), to);
        break;
      case Rule::kOrigin:
        set(absl::StrCat(newer, " AND (", to, "<>", kUnknownStep, " OR ", from, "=", kUnknownStep,
                         ")"),
            to);
        break;
    }
  }
  return absl::StrCat("INSERT INTO ", table.name, " (", absl::StrJoin(names, ","), ") VALUES (",
                      absl::StrJoin(marks, ","), ") ON CONFLICT DO UPDATE SET ",
                      absl::StrJoin(sets, ","));
}

#define CAIRN_OF_CHECKPOINT "job=?1 AND step=?2 AND attempt=?3 AND revision=?4"
// Of a step that is removed, in whichever order they came: no older row of a part says that it is here.
#define CAIRN_IS_REMOVED(table)                            \
  "EXISTS (SELECT 1 FROM steps WHERE " CAIRN_OF_CHECKPOINT \
  " AND removed=1 AND (of_home=1 OR steps.sequence>" table ".sequence))"
constexpr char kForgetParts[] = "UPDATE parts SET persisted=0, removed=1 WHERE " CAIRN_OF_CHECKPOINT
                                " AND removed=0 AND " CAIRN_IS_REMOVED("parts");
constexpr char kForgetHolders[] = "DELETE FROM holders WHERE " CAIRN_OF_CHECKPOINT
                                  " AND (resident=0 OR " CAIRN_IS_REMOVED("holders") ")";
constexpr char kNotRemoved[] =
    " WHERE " CAIRN_OF_CHECKPOINT " AND NOT EXISTS (SELECT 1 FROM steps WHERE " CAIRN_OF_CHECKPOINT
    " AND removed=1)";
constexpr char kLeaveParts[] =
    "DELETE FROM parts WHERE " CAIRN_OF_CHECKPOINT
    " AND owner=?5 AND sequence<?6 AND NOT EXISTS (SELECT 1 FROM steps WHERE " CAIRN_OF_CHECKPOINT
    ")";
constexpr char kLeave[] =
    "DELETE FROM holders WHERE " CAIRN_OF_CHECKPOINT " AND holder=?5 AND sequence<?6";

constexpr char kNothingIsThere[] =
    " AND NOT EXISTS (SELECT 1 FROM steps WHERE job=?1 AND removed=0)"
    " AND NOT EXISTS (SELECT 1 FROM parts WHERE job=?1 AND removed=0)"
    " AND NOT EXISTS (SELECT 1 FROM holders WHERE job=?1 AND resident=1)";

// Of each job the newest removals stay; what is older goes, a bounded number at a time.
constexpr char kOldRemovals[] =
    "SELECT step, attempt, revision FROM steps WHERE job=?1 AND removed=1 AND sequence<"
    "(SELECT sequence FROM steps WHERE job=?1 AND removed=1 ORDER BY sequence DESC "
    "LIMIT 1 OFFSET ?2) ORDER BY sequence LIMIT ?3";
constexpr char kDeleteParts[] = "DELETE FROM parts WHERE " CAIRN_OF_CHECKPOINT " AND removed=1";
constexpr char kDeleteStep[] = "DELETE FROM steps WHERE " CAIRN_OF_CHECKPOINT;

class SqliteCatalog final : public Catalog {
 public:
  SqliteCatalog(Database database, Author author)
      : database_(std::move(database)), author_(std::move(author)) {
    for (size_t table = 0; table < kTables; ++table) upserts_[table] = UpsertOf(TableAt(table));
  }

  Status Apply(const std::vector<Row>& rows) override {
    MutexLock lock(&mu_);
    CAIRN_RETURN_IF_ERROR(Execute(database_.get(), "BEGIN IMMEDIATE"));
    for (const Row& row : rows) {
      const Status status = std::visit(
          [this](const auto& r) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return Write(r); }, row);
      if (!status.ok()) {
        Execute(database_.get(), "ROLLBACK").IgnoreError();
        return Annotate(status, RowIdentity(row));
      }
    }
    const Status forgotten = ForgetOldRemovals(rows);
    if (!forgotten.ok()) {
      Execute(database_.get(), "ROLLBACK").IgnoreError();
      return forgotten;
    }
    const Status committed = Execute(database_.get(), "COMMIT");
    if (!committed.ok()) Execute(database_.get(), "ROLLBACK").IgnoreError();
    return committed;
  }

  StatusOr<std::optional<JobRow>> Job(const std::string& job) override {
    MutexLock lock(&mu_);
    const std::string sql = absl::StrCat("SELECT ", kJobColumns, " FROM jobs WHERE job=?");
    CAIRN_ASSIGN_OR_RETURN(Statement * query, Prepared(sql));
    query->Reset().BindBytes(job);
    CAIRN_ASSIGN_OR_RETURN(
        const std::vector<JobRow> found,
        Collect<JobRow>(query, [&job](const Statement& row) { return JobFrom(job, row); }));
    return found.empty() ? std::nullopt : std::make_optional(found.front());
  }

  StatusOr<std::vector<std::string>> Jobs() override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(Statement * query, Prepared("SELECT job FROM jobs ORDER BY job"));
    query->Reset();
    return Collect<std::string>(query, [](const Statement& row) { return row.Bytes(0); });
  }

  StatusOr<std::vector<JobRow>> JobsAfter(const std::string& after, int limit) override {
    MutexLock lock(&mu_);
    const std::string sql =
        absl::StrCat("SELECT ", kJobColumns, ", job FROM jobs WHERE job>? ORDER BY job LIMIT ?");
    CAIRN_ASSIGN_OR_RETURN(Statement * query, Prepared(sql));
    query->Reset().BindBytes(after).Bind(limit);
    return Collect<JobRow>(
        query, [](const Statement& row) { return JobFrom(row.Bytes(kJobColumnCount), row); });
  }

  StatusOr<std::vector<AttemptRow>> Attempts(const std::string& job) override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(Statement * query,
                           Prepared(absl::StrCat("SELECT ", kAttemptColumns,
                                                 " FROM attempts WHERE job=? ORDER BY attempt")));
    query->Reset().BindBytes(job);
    return Collect<AttemptRow>(query,
                               [&job](const Statement& row) { return AttemptFrom(job, row); });
  }

  StatusOr<std::vector<StepRow>> Steps(const std::string& job, Step below, int limit) override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(
        Statement * query,
        Prepared(absl::StrCat("SELECT ", kStepColumns,
                              " FROM steps WHERE job=? AND step<? AND removed=0 "
                              "ORDER BY step DESC, attempt DESC, revision DESC LIMIT ?")));
    query->Reset().BindBytes(job).Bind(below).Bind(limit);
    return Collect<StepRow>(query, [&job](const Statement& row) { return StepFrom(job, row); });
  }

  StatusOr<std::vector<LineRow>> LineRecords(const std::string& job) override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(
        Statement * query,
        Prepared(absl::StrCat("SELECT ", kLineColumns,
                              " FROM line_records WHERE job=? ORDER BY number, kind")));
    query->Reset().BindBytes(job);
    return Collect<LineRow>(query, [&job](const Statement& row) { return LineFrom(job, row); });
  }

  StatusOr<std::optional<StepRow>> Latest(const std::string& job) override {
    MutexLock lock(&mu_);
    return LatestBy(
        {.newest = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return NewestOf(job); },
         .up_to =
             [&](Attempt attempt, Step step) ABSL_NO_THREAD_SAFETY_ANALYSIS {
               return FirstOf<StepRow>(
                   absl::StrCat("SELECT ", kStepColumns,
                                " FROM steps WHERE job=? AND removed=0 AND attempt=? AND step<=? "
                                "ORDER BY step DESC, revision DESC LIMIT 1"),
                   {job, attempt, step}, [&](const Statement& row) { return StepFrom(job, row); });
             },
         .record =
             [&](LineRecordKind kind, Attempt number) ABSL_NO_THREAD_SAFETY_ANALYSIS {
               return FirstOf<LineRow>(
                   absl::StrCat("SELECT ", kLineColumns,
                                " FROM line_records WHERE job=? AND kind=? AND number=?"),
                   {job, static_cast<int64_t>(kind), number},
                   [&](const Statement& row) { return LineFrom(job, row); });
             }});
  }

  StatusOr<int64_t> NewestSequence() override {
    MutexLock lock(&mu_);
    std::vector<std::string> own = {"SELECT sequence FROM parts WHERE owner=?1",
                                    "SELECT sequence FROM holders WHERE holder=?1",
                                    "SELECT sequence FROM authors WHERE name=?1"};
    if (author_.alone) {
      own.clear();
      for (size_t table = 0; table < kTables; ++table) {
        own.push_back(
            absl::StrCat("SELECT sequence FROM ", TableAt(table).name, " WHERE ?1 IS NOT NULL"));
      }
    }
    CAIRN_ASSIGN_OR_RETURN(Statement * query,
                           Prepared(absl::StrCat("SELECT coalesce(max(sequence),0) FROM (",
                                                 absl::StrJoin(own, " UNION ALL "), ")")));
    query->Reset().BindBytes(author_.name);
    CAIRN_ASSIGN_OR_RETURN(
        const std::vector<int64_t> newest,
        Collect<int64_t>(query, [](const Statement& row) { return row.Int(0); }));
    return newest.empty() ? 0 : newest[0];
  }

  StatusOr<std::vector<CheckpointKey>> Present(const std::string& job, const CheckpointKey& after,
                                               int limit) override {
    MutexLock lock(&mu_);
    const auto of = [](const char* table, const char* whose) {
      return absl::StrCat("SELECT step, attempt, revision FROM ", table, " WHERE job=?1 AND ",
                          whose, " AND (step, attempt, revision) > (?2, ?3, ?4)");
    };
    CAIRN_ASSIGN_OR_RETURN(
        Statement * query,
        Prepared(absl::StrCat(of("parts", "removed=0 AND (owner=?5 OR ?6)"), " UNION ",
                              of("holders", "resident=1 AND (holder=?5 OR ?6)"), " UNION ",
                              of("steps", "removed=0"), " ORDER BY 1, 2, 3 LIMIT ?7")));
    query->Reset().BindBytes(job).Bind(after.step).Bind(after.attempt).Bind(after.revision);
    query->BindBytes(author_.name).Bind(author_.alone).Bind(limit);
    return Collect<CheckpointKey>(
        query, [&job](const Statement& row) { return CheckpointFrom(job, row); });
  }

  StatusOr<std::vector<PartRow>> Parts(const CheckpointKey& checkpoint) override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(
        Statement * query,
        Prepared(absl::StrCat("SELECT ", kPartColumns,
                              " FROM parts WHERE " CAIRN_OF_CHECKPOINT " ORDER BY writer")));
    Bind(query, KeyOf(checkpoint));
    return Collect<PartRow>(
        query, [&checkpoint](const Statement& row) { return PartFrom(checkpoint, row); });
  }

  StatusOr<std::vector<HolderRow>> Holders(const CheckpointKey& checkpoint) override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(Statement * query,
                           Prepared(absl::StrCat("SELECT ", kHolderColumns,
                                                 " FROM holders WHERE " CAIRN_OF_CHECKPOINT
                                                 " AND resident=1 ORDER BY writer, holder")));
    Bind(query, KeyOf(checkpoint));
    return Collect<HolderRow>(
        query, [&checkpoint](const Statement& row) { return HolderFrom(checkpoint, row); });
  }

  StatusOr<std::vector<HolderCount>> HolderCounts(const CheckpointKey& checkpoint) override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(
        Statement * query,
        Prepared("SELECT holder, count(*) FROM holders WHERE " CAIRN_OF_CHECKPOINT
                 " AND resident=1 GROUP BY holder ORDER BY holder"));
    Bind(query, KeyOf(checkpoint));
    return Collect<HolderCount>(query, [](const Statement& row) {
      return HolderCount{.holder = row.Bytes(0), .parts = row.Int(1)};
    });
  }

  StatusOr<std::vector<AuthorRow>> Authors() override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(
        Statement * query,
        Prepared(absl::StrCat("SELECT ", kAuthorColumns, " FROM authors ORDER BY name")));
    query->Reset();
    return Collect<AuthorRow>(query, [](const Statement& row) { return AuthorFrom(row); });
  }

  StatusOr<int64_t> Marked() override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(
        const std::optional<int64_t> marked,
        FirstOf<int64_t>("SELECT sequence FROM authors WHERE name=?", {author_.name},
                         [](const Statement& row) { return row.Int(0); }));
    return marked.value_or(0);
  }

 private:
  // Statements are prepared once, by their text.
  StatusOr<Statement*> Prepared(const std::string& sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    auto it = statements_.find(sql);
    if (it == statements_.end()) {
      CAIRN_ASSIGN_OR_RETURN(Statement statement, Statement::Prepare(database_.get(), sql));
      it = statements_.emplace(sql, std::move(statement)).first;
    }
    return &it->second;
  }

  static void Bind(Statement* statement, const Values& values) {
    statement->Reset();
    for (const Value& value : values) {
      if (const auto* number = std::get_if<int64_t>(&value)) {
        statement->Bind(*number);
      } else {
        statement->BindBytes(std::get<std::string>(value));
      }
    }
  }
  Status Run(const std::string& sql, const Values& values) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CAIRN_ASSIGN_OR_RETURN(Statement * statement, Prepared(sql));
    Bind(statement, values);
    return statement->Run();
  }

  template <typename T, typename Read>
  StatusOr<std::vector<T>> Collect(Statement* query, const Read& read)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<T> rows;
    while (true) {
      StatusOr<bool> more = query->Next();
      if (!more.ok()) {
        query->Reset();
        return more.status();
      }
      if (!*more) break;
      rows.push_back(read(*query));
    }
    query->Reset();
    return rows;
  }

  template <typename T, typename Read>
  StatusOr<std::optional<T>> FirstOf(const std::string& sql, const Values& values, const Read& read)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CAIRN_ASSIGN_OR_RETURN(Statement * query, Prepared(sql));
    Bind(query, values);
    CAIRN_ASSIGN_OR_RETURN(std::vector<T> found, Collect<T>(query, read));
    return found.empty() ? std::nullopt : std::make_optional(std::move(found.front()));
  }
  StatusOr<std::optional<NewestStep>> NewestOf(const std::string& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto decided = [](LineRecordKind kind) {
      return absl::StrCat("coalesce((SELECT max(number) FROM line_records WHERE job=?1 AND kind=",
                          static_cast<int>(kind), "),0)");
    };
    return FirstOf<NewestStep>(
        absl::StrCat("SELECT ", kStepColumns, ", max(", decided(LineRecordKind::kResume), ",",
                     decided(LineRecordKind::kUse),
                     ") FROM steps WHERE job=?1 AND removed=0 "
                     "ORDER BY attempt DESC, step DESC, revision DESC LIMIT 1"),
        {job}, [&job](const Statement& row) {
          return NewestStep{.step = StepFrom(job, row), .decided = row.Int(10)};
        });
  }

  template <typename OneRow>
  Status Upsert(const OneRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const TableRow of = TableRowOf(row);
    return Run(upserts_[of.table], of.values);
  }
  template <typename OneRow>
  Status Write(const OneRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return Upsert(row);
  }
  Status Write(const PartRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CAIRN_RETURN_IF_ERROR(Upsert(row));
    return Run(kForgetParts, KeyOf(row.part.checkpoint));
  }
  Status Write(const HolderRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CAIRN_RETURN_IF_ERROR(Upsert(row));
    return Run(kForgetHolders, KeyOf(row.part.checkpoint));
  }
  Status Write(const LeftRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Values values = KeyOf(row.checkpoint);
    values.emplace_back(row.holder);
    values.emplace_back(row.sequence);
    CAIRN_RETURN_IF_ERROR(Run(kLeave, values));
    return row.whole ? Run(kLeaveParts, values) : absl::OkStatus();
  }
  Status Write(const VanishedRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const char* table : {"holders", "parts", "steps"}) {
      CAIRN_RETURN_IF_ERROR(
          Run(absl::StrCat("DELETE FROM ", table, kNotRemoved), KeyOf(row.checkpoint)));
    }
    return absl::OkStatus();
  }
  Status Write(const ForgottenRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const char* table : {"attempts", "line_records", "jobs"}) {
      CAIRN_RETURN_IF_ERROR(
          Run(absl::StrCat("DELETE FROM ", table, " WHERE job=?1 AND (?2 OR sequence<?3)",
                           kNothingIsThere),
              {row.job, int64_t{row.of_home}, row.sequence}));
    }
    return absl::OkStatus();
  }
  Status Write(const StepRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CAIRN_RETURN_IF_ERROR(Upsert(row));
    if (!row.removed) return absl::OkStatus();
    CAIRN_RETURN_IF_ERROR(Run(kForgetParts, KeyOf(row.checkpoint)));
    return Run(kForgetHolders, KeyOf(row.checkpoint));
  }
  // Of the jobs of which the rows say that something was removed.
  Status ForgetOldRemovals(const std::vector<Row>& rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::set<std::string> jobs;
    for (const Row& row : rows) {
      const auto* step = std::get_if<StepRow>(&row);
      if (step != nullptr && step->removed) jobs.insert(step->checkpoint.job);
    }
    // More than the rows can have added, so that what an earlier build left goes, too.
    const auto most = static_cast<int64_t>(rows.size()) + kKeptRemovals;
    for (const std::string& job : jobs) {
      CAIRN_ASSIGN_OR_RETURN(Statement * query, Prepared(kOldRemovals));
      query->Reset().BindBytes(job).Bind(kKeptRemovals - 1).Bind(most);
      CAIRN_ASSIGN_OR_RETURN(const std::vector<CheckpointKey> old,
                             Collect<CheckpointKey>(query, [&job](const Statement& row) {
                               return CheckpointFrom(job, row);
                             }));
      for (const CheckpointKey& key : old) {
        CAIRN_RETURN_IF_ERROR(Run(kDeleteParts, KeyOf(key)));
        CAIRN_RETURN_IF_ERROR(Run(kDeleteStep, KeyOf(key)));
      }
    }
    return absl::OkStatus();
  }

  Mutex mu_;
  const Database database_;  // declared before the statements: they go first
  const Author author_;
  std::array<std::string, kTables> upserts_;
  std::map<std::string, Statement> statements_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

StatusOr<std::unique_ptr<Catalog>> OpenSqliteCatalog(const std::string& path, const Author& author,
                                                     std::string* note) {
  StatusOr<Database> database = OpenDatabase(path, note);
  if (!database.ok()) return database.status();
  return std::unique_ptr<Catalog>(new SqliteCatalog(*std::move(database), author));
}

}  // namespace cairn::catalog
