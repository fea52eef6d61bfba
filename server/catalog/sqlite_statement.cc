#include "server/catalog/sqlite_statement.h"

#include "absl/strings/str_cat.h"

namespace cairn::catalog {

Status SqliteStatus(sqlite3* database, absl::string_view what) {
  const int code = sqlite3_errcode(database) & 0xff;
  const std::string message = absl::StrCat(what, ": ", sqlite3_errmsg(database));
  switch (code) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
      return absl::OkStatus();
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN:
    case SQLITE_READONLY:
    case SQLITE_NOMEM:
      return absl::UnavailableError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    default:
      return absl::InternalError(message);
  }
}

Status Execute(sqlite3* database, const std::string& sql) {
  if (sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
    return SqliteStatus(database, sql.substr(0, 40));
  }
  return absl::OkStatus();
}

StatusOr<Statement> Statement::Prepare(sqlite3* database, absl::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  if (sqlite3_prepare_v3(database, sql.data(), static_cast<int>(sql.size()),
                         SQLITE_PREPARE_PERSISTENT, &statement, nullptr) != SQLITE_OK) {
    return SqliteStatus(database, sql);
  }
  return Statement(database, statement);
}

Statement& Statement::Reset() {
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
  next_parameter_ = 1;
  bind_error_ = SQLITE_OK;
  return *this;
}

Statement& Statement::Bind(int64_t value) {
  const int code = sqlite3_bind_int64(statement_.get(), next_parameter_++, value);
  if (code != SQLITE_OK) bind_error_ = code;
  return *this;
}

Statement& Statement::BindBytes(absl::string_view value) {
  // An empty view may hold nullptr, which would bind NULL.
  const char* data = value.empty() ? "" : value.data();
  const int code = sqlite3_bind_blob64(statement_.get(), next_parameter_++, data, value.size(),
                                       SQLITE_TRANSIENT);
  if (code != SQLITE_OK) bind_error_ = code;
  return *this;
}

StatusOr<bool> Statement::Next() {
  if (bind_error_ != SQLITE_OK) {
    return absl::InternalError(absl::StrCat("binding a parameter: ", sqlite3_errstr(bind_error_)));
  }
  switch (sqlite3_step(statement_.get())) {
    case SQLITE_ROW:
      return true;
    case SQLITE_DONE:
      return false;
    default:
      return SqliteStatus(database_, "running a statement");
  }
}

Status Statement::Run() {
  StatusOr<bool> row = Next();
  // A statement left unreset would hold its read transaction open.
  const Status status = row.ok() ? absl::OkStatus() : row.status();
  sqlite3_reset(statement_.get());
  return status;
}

std::string Statement::Bytes(int column) const {
  const void* data = sqlite3_column_blob(statement_.get(), column);
  const int length = sqlite3_column_bytes(statement_.get(), column);
  return data == nullptr ? std::string()
                         : std::string(static_cast<const char*>(data), static_cast<size_t>(length));
}

}  // namespace cairn::catalog
