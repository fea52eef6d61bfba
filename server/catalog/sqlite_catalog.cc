// The embedded catalog: one SQLite file in WAL mode, one connection behind a mutex. The recorder
// writes it and is rarely asked for anything, so a pool of connections would gain nothing.
#include <chrono>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "server/catalog/catalog.h"
#include "server/catalog/sqlite_statement.h"

namespace cairn::catalog {

extern const char kSqliteSchema1[];

namespace {

constexpr int64_t kSchemaVersion = 1;
constexpr int kBusyTimeoutMs = 2000;

// Every upsert ends alike: the newer version of a row wins, a replay changes nothing.
constexpr char kUpsertNode[] =
    "INSERT INTO nodes (node_rank, address, incarnation, sequence) VALUES (?,?,?,?) "
    "ON CONFLICT DO UPDATE SET address=excluded.address, incarnation=excluded.incarnation, "
    "sequence=excluded.sequence WHERE excluded.sequence > nodes.sequence";
constexpr char kUpsertJob[] =
    "INSERT INTO jobs (job, owner_uid, owner_gid, persist_mode, every_steps, keep_last, "
    "keep_every, "
    "readers, sequence) VALUES (?,?,?,?,?,?,?,?,?) "
    "ON CONFLICT DO UPDATE SET owner_uid=excluded.owner_uid, owner_gid=excluded.owner_gid, "
    "persist_mode=excluded.persist_mode, every_steps=excluded.every_steps, "
    "keep_last=excluded.keep_last, keep_every=excluded.keep_every, readers=excluded.readers, "
    "sequence=excluded.sequence WHERE excluded.sequence > jobs.sequence";
constexpr char kUpsertAttempt[] =
    "INSERT INTO attempts (job, attempt, comes_from, began_unix_ms, sequence) VALUES (?,?,?,?,?) "
    "ON CONFLICT DO UPDATE SET comes_from=excluded.comes_from, "
    "began_unix_ms=excluded.began_unix_ms, sequence=excluded.sequence "
    "WHERE excluded.sequence > attempts.sequence";
constexpr char kUpsertPart[] =
    "INSERT INTO parts (job, step, attempt, revision, writer, world_size, digest, bytes, objects, "
    "resident, persisted, broken, removed, holders, sequence) "
    "VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) "
    "ON CONFLICT DO UPDATE SET world_size=excluded.world_size, digest=excluded.digest, "
    "bytes=excluded.bytes, objects=excluded.objects, resident=excluded.resident, "
    "persisted=excluded.persisted, broken=excluded.broken, removed=excluded.removed, "
    "holders=excluded.holders, sequence=excluded.sequence "
    "WHERE excluded.sequence > parts.sequence";
constexpr char kUpsertStep[] =
    "INSERT INTO steps (job, step, attempt, revision, world_size, digest, completed_unix_ms, "
    "persisted, removed, sequence) VALUES (?,?,?,?,?,?,?,?,?,?) "
    "ON CONFLICT DO UPDATE SET world_size=excluded.world_size, digest=excluded.digest, "
    "completed_unix_ms=excluded.completed_unix_ms, persisted=excluded.persisted, "
    "removed=excluded.removed, sequence=excluded.sequence WHERE excluded.sequence > steps.sequence";

// In whichever order they came: of a step that is removed no older row of a part says that it is here.
constexpr char kForgetParts[] =
    "UPDATE parts SET resident=0, persisted=0, removed=1, holders='' "
    "WHERE job=? AND step=? AND attempt=? AND revision=? AND removed=0 AND EXISTS "
    "(SELECT 1 FROM steps WHERE steps.job=parts.job AND steps.step=parts.step "
    "AND steps.attempt=parts.attempt AND steps.revision=parts.revision "
    "AND steps.removed=1 AND steps.sequence>parts.sequence)";

// Of each job the newest removals stay; what is older goes, a bounded number at a time.
constexpr char kOldRemovals[] =
    "SELECT step, attempt, revision FROM steps WHERE job=?1 AND removed=1 AND sequence<"
    "(SELECT sequence FROM steps WHERE job=?1 AND removed=1 ORDER BY sequence DESC "
    "LIMIT 1 OFFSET ?2) ORDER BY sequence LIMIT ?3";
constexpr char kDeleteParts[] =
    "DELETE FROM parts WHERE job=? AND step=? AND attempt=? AND revision=? AND removed=1";
constexpr char kDeleteStep[] =
    "DELETE FROM steps WHERE job=? AND step=? AND attempt=? AND revision=?";
// Not part of the schema's version: a build that does not know it keeps it up all the same.
constexpr char kIndexRemovals[] =
    "CREATE INDEX IF NOT EXISTS removals ON steps (job, sequence) WHERE removed=1";

class SqliteCatalog final : public Catalog {
 public:
  explicit SqliteCatalog(Database database) : database_(std::move(database)) {}

  Status Apply(const std::vector<Row>& rows) override {
    MutexLock lock(&mu_);
    CAIRN_RETURN_IF_ERROR(Execute(database_.get(), "BEGIN IMMEDIATE"));
    for (const Row& row : rows) {
      const Status status = std::visit(
          [this](const auto& r) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return Upsert(r); }, row);
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
    CAIRN_ASSIGN_OR_RETURN(
        Statement * query,
        Prepared("SELECT owner_uid, owner_gid, persist_mode, every_steps, keep_last, keep_every, "
                 "readers, sequence FROM jobs WHERE job=?"));
    query->Reset().BindBytes(job);
    CAIRN_ASSIGN_OR_RETURN(const bool found, query->Next());
    std::optional<JobRow> row;
    if (found) {
      row.emplace();
      row->job = job;
      row->owner_uid = static_cast<uint32_t>(query->Int(0));
      row->owner_gid = static_cast<uint32_t>(query->Int(1));
      row->policy.mode = static_cast<PersistMode>(query->Int(2));
      row->policy.every = query->Int(3);
      row->policy.keep_last = query->Int(4);
      row->policy.keep_every = query->Int(5);
      row->policy.readers = static_cast<Readers>(query->Int(6));
      row->sequence = query->Int(7);
    }
    query->Reset();
    return row;
  }

  StatusOr<std::vector<std::string>> Jobs() override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(Statement * query, Prepared("SELECT job FROM jobs ORDER BY job"));
    query->Reset();
    return Collect<std::string>(query, [](const Statement& row) { return row.Bytes(0); });
  }

  StatusOr<std::vector<AttemptRow>> Attempts(const std::string& job) override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(
        Statement * query,
        Prepared("SELECT attempt, comes_from, began_unix_ms, sequence FROM attempts WHERE job=? "
                 "ORDER BY attempt"));
    query->Reset().BindBytes(job);
    return Collect<AttemptRow>(query, [&job](const Statement& row) {
      return AttemptRow{.job = job,
                        .attempt = row.Int(0),
                        .comes_from = row.Int(1),
                        .began_unix_ms = row.Int(2),
                        .sequence = row.Int(3)};
    });
  }

  StatusOr<std::vector<StepRow>> Steps(const std::string& job, Step below, int limit) override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(
        Statement * query,
        Prepared(
            "SELECT step, attempt, revision, world_size, digest, completed_unix_ms, persisted, "
            "sequence FROM steps WHERE job=? AND step<? AND removed=0 "
            "ORDER BY step DESC, attempt DESC, revision DESC LIMIT ?"));
    query->Reset().BindBytes(job).Bind(below).Bind(limit);
    return Collect<StepRow>(query, [&job](const Statement& row) {
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
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(Statement * query,
                           Prepared("SELECT max((SELECT coalesce(max(sequence),0) FROM nodes), "
                                    "(SELECT coalesce(max(sequence),0) FROM jobs), "
                                    "(SELECT coalesce(max(sequence),0) FROM attempts), "
                                    "(SELECT coalesce(max(sequence),0) FROM parts), "
                                    "(SELECT coalesce(max(sequence),0) FROM steps))"));
    query->Reset();
    CAIRN_ASSIGN_OR_RETURN(
        const std::vector<int64_t> newest,
        Collect<int64_t>(query, [](const Statement& row) { return row.Int(0); }));
    return newest.empty() ? 0 : newest[0];
  }

  StatusOr<std::vector<CheckpointKey>> Present(const std::string& job, const CheckpointKey& after,
                                               int limit) override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(
        Statement * query,
        Prepared("SELECT step, attempt, revision FROM parts "
                 "WHERE job=?1 AND removed=0 AND (step, attempt, revision) > (?2, ?3, ?4) "
                 "UNION SELECT step, attempt, revision FROM steps "
                 "WHERE job=?1 AND removed=0 AND (step, attempt, revision) > (?2, ?3, ?4) "
                 "ORDER BY 1, 2, 3 LIMIT ?5"));
    query->Reset().BindBytes(job).Bind(after.step).Bind(after.attempt).Bind(after.revision);
    query->Bind(limit);
    return Collect<CheckpointKey>(query, [&job](const Statement& row) {
      return CheckpointKey{job, row.Int(0), row.Int(1), static_cast<Revision>(row.Int(2))};
    });
  }

  StatusOr<std::vector<PartRow>> Parts(const CheckpointKey& checkpoint) override {
    MutexLock lock(&mu_);
    CAIRN_ASSIGN_OR_RETURN(
        Statement * query,
        Prepared("SELECT writer, world_size, digest, bytes, objects, resident, persisted, broken, "
                 "removed, holders, sequence FROM parts "
                 "WHERE job=? AND step=? AND attempt=? AND revision=? ORDER BY writer"));
    query->Reset()
        .BindBytes(checkpoint.job)
        .Bind(checkpoint.step)
        .Bind(checkpoint.attempt)
        .Bind(checkpoint.revision);
    return Collect<PartRow>(query, [&checkpoint](const Statement& row) {
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
  // Statements are prepared once; `sql` is a literal, so its address names it.
  StatusOr<Statement*> Prepared(const char* sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    auto it = statements_.find(sql);
    if (it == statements_.end()) {
      CAIRN_ASSIGN_OR_RETURN(Statement statement, Statement::Prepare(database_.get(), sql));
      it = statements_.emplace(sql, std::move(statement)).first;
    }
    return &it->second;
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

  Status Upsert(const NodeRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CAIRN_ASSIGN_OR_RETURN(Statement * upsert, Prepared(kUpsertNode));
    return upsert->Reset()
        .Bind(row.rank)
        .BindBytes(row.address)
        .Bind(row.incarnation)
        .Bind(row.sequence)
        .Run();
  }
  Status Upsert(const JobRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CAIRN_ASSIGN_OR_RETURN(Statement * upsert, Prepared(kUpsertJob));
    return upsert->Reset()
        .BindBytes(row.job)
        .Bind(row.owner_uid)
        .Bind(row.owner_gid)
        .Bind(static_cast<int64_t>(row.policy.mode))
        .Bind(row.policy.every)
        .Bind(row.policy.keep_last)
        .Bind(row.policy.keep_every)
        .Bind(static_cast<int64_t>(row.policy.readers))
        .Bind(row.sequence)
        .Run();
  }
  Status Upsert(const AttemptRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CAIRN_ASSIGN_OR_RETURN(Statement * upsert, Prepared(kUpsertAttempt));
    return upsert->Reset()
        .BindBytes(row.job)
        .Bind(row.attempt)
        .Bind(row.comes_from)
        .Bind(row.began_unix_ms)
        .Bind(row.sequence)
        .Run();
  }
  Status Upsert(const PartRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CAIRN_ASSIGN_OR_RETURN(Statement * upsert, Prepared(kUpsertPart));
    const CheckpointKey& key = row.part.checkpoint;
    CAIRN_RETURN_IF_ERROR(upsert->Reset()
                              .BindBytes(key.job)
                              .Bind(key.step)
                              .Bind(key.attempt)
                              .Bind(key.revision)
                              .Bind(row.part.writer)
                              .Bind(row.world_size)
                              .BindBytes(row.digest)
                              .Bind(static_cast<int64_t>(row.bytes))
                              .Bind(static_cast<int64_t>(row.objects))
                              .Bind(row.resident)
                              .Bind(row.persisted)
                              .Bind(row.broken)
                              .Bind(row.removed)
                              .BindBytes(row.holders)
                              .Bind(row.sequence)
                              .Run());
    return ForgetParts(key);
  }
  Status Upsert(const StepRow& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CAIRN_ASSIGN_OR_RETURN(Statement * upsert, Prepared(kUpsertStep));
    CAIRN_RETURN_IF_ERROR(upsert->Reset()
                              .BindBytes(row.checkpoint.job)
                              .Bind(row.checkpoint.step)
                              .Bind(row.checkpoint.attempt)
                              .Bind(row.checkpoint.revision)
                              .Bind(row.world_size)
                              .BindBytes(row.digest)
                              .Bind(row.completed_unix_ms)
                              .Bind(row.persisted)
                              .Bind(row.removed)
                              .Bind(row.sequence)
                              .Run());
    return row.removed ? ForgetParts(row.checkpoint) : absl::OkStatus();
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
      CAIRN_ASSIGN_OR_RETURN(
          const std::vector<CheckpointKey> old,
          Collect<CheckpointKey>(query, [&job](const Statement& row) {
            return CheckpointKey{job, row.Int(0), row.Int(1), static_cast<Revision>(row.Int(2))};
          }));
      for (const CheckpointKey& key : old) {
        for (const char* sql : {kDeleteParts, kDeleteStep}) {
          CAIRN_ASSIGN_OR_RETURN(Statement * forget, Prepared(sql));
          CAIRN_RETURN_IF_ERROR(forget->Reset()
                                    .BindBytes(key.job)
                                    .Bind(key.step)
                                    .Bind(key.attempt)
                                    .Bind(key.revision)
                                    .Run());
        }
      }
    }
    return absl::OkStatus();
  }
  Status ForgetParts(const CheckpointKey& checkpoint) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CAIRN_ASSIGN_OR_RETURN(Statement * forget, Prepared(kForgetParts));
    return forget->Reset()
        .BindBytes(checkpoint.job)
        .Bind(checkpoint.step)
        .Bind(checkpoint.attempt)
        .Bind(checkpoint.revision)
        .Run();
  }

  Mutex mu_;
  const Database database_;  // declared before the statements: they go first
  std::map<const char*, Statement> statements_ ABSL_GUARDED_BY(mu_);
};

StatusOr<Database> OpenFile(const std::string& path) {
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &raw,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, nullptr);
  Database database(raw);
  if (code != SQLITE_OK) {
    return raw == nullptr ? Status(absl::ResourceExhaustedError("sqlite: out of memory"))
                          : SqliteStatus(raw, absl::StrCat("catalog.path: ", path));
  }
  sqlite3_busy_timeout(raw, kBusyTimeoutMs);
  return database;
}

// OK and a ready database; DATA_LOSS when the file is not one or is damaged.
StatusOr<Database> OpenAndCheck(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(Database database, OpenFile(path));
  // NORMAL loses at most the last transactions on power loss, never consistency: right for an
  // index.
  CAIRN_RETURN_IF_ERROR(
      Execute(database.get(), "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"));
  {
    CAIRN_ASSIGN_OR_RETURN(Statement check,
                           Statement::Prepare(database.get(), "PRAGMA quick_check(1)"));
    CAIRN_ASSIGN_OR_RETURN(const bool row, check.Next());
    if (!row || check.Bytes(0) != "ok") {
      return absl::DataLossError(absl::StrCat("catalog.path: ", path, ": ", check.Bytes(0)));
    }
  }
  const auto is_fresh = [&]() -> StatusOr<bool> {
    CAIRN_ASSIGN_OR_RETURN(
        Statement tables, Statement::Prepare(database.get(), "SELECT count(*) FROM sqlite_schema"));
    CAIRN_ASSIGN_OR_RETURN(const bool row, tables.Next());
    return row && tables.Int(0) == 0;
  };
  CAIRN_ASSIGN_OR_RETURN(bool fresh, is_fresh());
  if (fresh) {
    CAIRN_RETURN_IF_ERROR(Execute(database.get(), "BEGIN IMMEDIATE"));
    CAIRN_ASSIGN_OR_RETURN(fresh, is_fresh());  // another may have been first
    CAIRN_RETURN_IF_ERROR(
        Execute(database.get(), absl::StrCat(fresh ? kSqliteSchema1 : "", ";COMMIT")));
  }
  StatusOr<Statement> version =
      Statement::Prepare(database.get(), "SELECT max(version) FROM schema_version");
  if (!version.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "catalog.path: ", path, " is a database of something else (no schema_version)"));
  }
  CAIRN_ASSIGN_OR_RETURN(const bool row, version->Next());
  const int64_t found = row ? version->Int(0) : 0;
  if (found != kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat("catalog.path: ", path,
                                                      " has schema version ", found,
                                                      ", this build knows ", kSchemaVersion));
  }
  CAIRN_RETURN_IF_ERROR(Execute(database.get(), kIndexRemovals));
  return database;
}

}  // namespace

StatusOr<std::unique_ptr<Catalog>> OpenSqliteCatalog(const std::string& path, std::string* note) {
  note->clear();
  StatusOr<Database> database = OpenAndCheck(path);
  if (absl::IsDataLoss(database.status())) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const std::string aside = absl::StrCat(
        path, ".broken-", std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
    if (std::rename(path.c_str(), aside.c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("catalog.path: moving the damaged ", path, " aside"));
    }
    // A log of the damaged file must not be replayed into the new one.
    std::remove(absl::StrCat(path, "-wal").c_str());
    std::remove(absl::StrCat(path, "-shm").c_str());
    *note = absl::StrCat(database.status().message(), "; moved to ", aside, " and made anew");
    database = OpenAndCheck(path);
  }
  if (!database.ok()) return database.status();
  return std::unique_ptr<Catalog>(new SqliteCatalog(*std::move(database)));
}

}  // namespace cairn::catalog
