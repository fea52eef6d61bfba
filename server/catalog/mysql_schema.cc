#include "server/catalog/mysql_schema.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/catalog/mysql_session.h"
#include "server/catalog/schema.h"

namespace cairn::catalog {

namespace {

Status WrongDatabase(const MysqlOptions& options, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("catalog.mysql.database: \"", options.database, "\" ", why));
}

StatusOr<std::set<std::string>> TablesIn(MysqlSession* session, const std::string& database) {
  std::set<std::string> tables;
  CAIRN_RETURN_IF_ERROR(
      session->Query("SELECT table_name FROM information_schema.tables WHERE table_schema=?",
                     {database}, [&](const MysqlColumns& row) { tables.insert(row.Bytes(0)); }));
  return tables;
}

// 0: it has none yet, or half of one.
StatusOr<int64_t> VersionIn(MysqlSession* session, const MysqlOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const std::set<std::string> tables, TablesIn(session, options.database));
  if (!tables.contains("schema_version")) {
    if (tables.empty()) return 0;
    return WrongDatabase(options, absl::StrCat("is of something else: it has the table ",
                                               *tables.begin(), ", and no schema_version"));
  }
  int64_t version = 0;
  CAIRN_RETURN_IF_ERROR(session->Query("SELECT COALESCE(MAX(version), 0) FROM schema_version", {},
                                       [&](const MysqlColumns& row) { version = row.Int(0); }));
  return version;
}

// Makes version `from` + 1 of version `from`. A statement of these commits by itself, so whoever was here before may have
// ended half way: what it made is taken for done.
Status MakeNext(MysqlSession* session, size_t from) {
  for (absl::string_view statement : absl::StrSplit(kMysqlSchemas[from], ";\n")) {
    std::string sql;
    for (absl::string_view line : absl::StrSplit(statement, '\n')) {
      if (!absl::StartsWith(line, "--")) absl::StrAppend(&sql, line, "\n");
    }
    if (absl::StripAsciiWhitespace(sql).empty()) continue;
    const Status made = session->Execute(std::string(absl::StripAsciiWhitespace(sql)));
    if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  }
  return absl::OkStatus();
}

// One at a time. The lock goes with the connection.
Status Lock(MysqlSession* session, const MysqlOptions& options) {
  int64_t locked = 0;
  CAIRN_RETURN_IF_ERROR(session->Query("SELECT GET_LOCK('cairn.schema', ?)",
                                       {int64_t{std::max(1, options.call_timeout_s / 2)}},
                                       [&](const MysqlColumns& row) { locked = row.Int(0); }));
  if (locked == 1) return absl::OkStatus();
  return absl::UnavailableError("mysql: another node is making the schema");
}

}  // namespace

Status EnsureMysqlSchema(const MysqlOptions& options) {
  const auto known = static_cast<int64_t>(kMysqlSchemas.size());
  CAIRN_ASSIGN_OR_RETURN(const auto session, MysqlSession::Connect(options));
  CAIRN_ASSIGN_OR_RETURN(int64_t version, VersionIn(session.get(), options));
  if (version < known) {
    CAIRN_RETURN_IF_ERROR(Lock(session.get(), options));
    // Another one may have made it meanwhile.
    CAIRN_ASSIGN_OR_RETURN(version, VersionIn(session.get(), options));
    for (; version < known; ++version) {
      const Status made = MakeNext(session.get(), static_cast<size_t>(version));
      if (!made.ok()) {
        return Annotate(made, absl::StrCat("catalog.mysql.database: \"", options.database,
                                           "\" has schema version ", version, ", and version ",
                                           version + 1, " cannot be made"));
      }
    }
    CAIRN_ASSIGN_OR_RETURN(version, VersionIn(session.get(), options));
  }
  if (version == known) return absl::OkStatus();
  return WrongDatabase(options,
                       absl::StrCat("has schema version ", version, ", this build knows ", known));
}

}  // namespace cairn::catalog
