// Owners of SQLite's handles, and prepared statements that bind and read by position.
#pragma once

#include <sqlite3.h>

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace cairn::catalog {

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

// What went wrong on `database`: BUSY and LOCKED, FULL and I/O errors are UNAVAILABLE (try again),
// CORRUPT and NOTADB are DATA_LOSS, the rest INTERNAL.
Status SqliteStatus(sqlite3* database, absl::string_view what);

// Runs SQL without results.
Status Execute(sqlite3* database, const std::string& sql);

// One prepared statement. Not thread-safe; outlived by its database.
class Statement {
 public:
  static StatusOr<Statement> Prepare(sqlite3* database, absl::string_view sql);

  // Starts over: clears the previous run and its bindings. Binding fills parameters left to right.
  Statement& Reset();
  Statement& Bind(int64_t value);
  Statement& BindBytes(absl::string_view value);

  // True: a row is there. False: done. A failed binding shows here.
  StatusOr<bool> Next();
  // Runs a statement that returns no rows.
  Status Run();

  // Columns of the current row, from 0.
  int64_t Int(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  std::string Bytes(int column) const;

 private:
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  Statement(sqlite3* database, sqlite3_stmt* statement)
      : database_(database), statement_(statement) {}

  sqlite3* database_;
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int next_parameter_ = 1;
  int bind_error_ = SQLITE_OK;
};

}  // namespace cairn::catalog
