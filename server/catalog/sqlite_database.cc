#include "server/catalog/sqlite_database.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/catalog/schema.h"

namespace cairn::catalog {
namespace {

constexpr int kBusyTimeoutMs = 2000;

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

// 0: it has nothing yet.
StatusOr<int64_t> VersionOf(sqlite3* database, const std::string& path) {
  {
    CAIRN_ASSIGN_OR_RETURN(Statement tables,
                           Statement::Prepare(database, "SELECT count(*) FROM sqlite_schema"));
    CAIRN_ASSIGN_OR_RETURN(const bool row, tables.Next());
    if (row && tables.Int(0) == 0) return 0;
  }
  StatusOr<Statement> version =
      Statement::Prepare(database, "SELECT max(version) FROM schema_version");
  if (!version.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "catalog.path: ", path, " is a database of something else (no schema_version)"));
  }
  CAIRN_ASSIGN_OR_RETURN(const bool row, version->Next());
  return row ? version->Int(0) : 0;
}

Status BringUpToDate(sqlite3* database, const std::string& path) {
  const auto known = static_cast<int64_t>(kSqliteSchemas.size());
  CAIRN_ASSIGN_OR_RETURN(int64_t version, VersionOf(database, path));
  if (version < known) {
    CAIRN_RETURN_IF_ERROR(Execute(database, "BEGIN IMMEDIATE"));
    StatusOr<int64_t> found = VersionOf(database, path);  // another may have been first
    Status made = found.status();
    for (int64_t from = found.value_or(known); made.ok() && from < known; ++from) {
      made = Execute(database, kSqliteSchemas[static_cast<size_t>(from)]);
    }
    if (made.ok()) made = Execute(database, "COMMIT");
    if (!made.ok()) {
      Execute(database, "ROLLBACK").IgnoreError();
      return made;
    }
    CAIRN_ASSIGN_OR_RETURN(version, VersionOf(database, path));
  }
  if (version == known) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("catalog.path: ", path, " has schema version ",
                                                    version, ", this build knows ", known));
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
  CAIRN_RETURN_IF_ERROR(BringUpToDate(database.get(), path));
  return database;
}

}  // namespace

StatusOr<Database> OpenDatabase(const std::string& path, std::string* note) {
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
  return database;
}

}  // namespace cairn::catalog
