// One connection to MySQL or MariaDB: prepared statements, and what went wrong in words of the catalog.
//
// Connector/C++ throws; nothing above this file sees its types or its exceptions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "common/status.h"
#include "server/catalog/mysql_catalog.h"
#include "server/catalog/tables.h"

namespace sql {
class Connection;
class PreparedStatement;
class ResultSet;
}  // namespace sql

namespace cairn::catalog {

// Columns of one row of an answer, from 0.
class MysqlColumns {
 public:
  explicit MysqlColumns(sql::ResultSet* result) : result_(result) {}
  int64_t Int(int column) const;
  std::string Bytes(int column) const;

 private:
  sql::ResultSet* const result_;
};

// Not thread-safe. Any of its calls returns, besides what it says:
//   UNAVAILABLE        the server is away, too slow, read-only or full, or gave this transaction up: try again
//   PERMISSION_DENIED  the user may not do this
//   FAILED_PRECONDITION  no such database, table or column
//   ALREADY_EXISTS     a column or an index that is to be made
//   INTERNAL           anything else
class MysqlSession {
 public:
  static StatusOr<std::unique_ptr<MysqlSession>> Connect(const MysqlOptions& options);
  ~MysqlSession();

  // SQL without parameters or results, which is not kept: a schema, the end of a transaction.
  Status Execute(const std::string& sql);
  // A prepared statement, which is kept by its text.
  Status Run(const std::string& sql, const Values& values);
  // The same; returns how many rows it has changed.
  StatusOr<int64_t> Change(const std::string& sql, const Values& values);
  // Calls `row` for each row of the answer.
  Status Query(const std::string& sql, const Values& values,
               const std::function<void(const MysqlColumns&)>& row);

  // How many of its calls have succeeded.
  uint64_t succeeded() const { return succeeded_; }
  // Whether the connection is of no use any more.
  bool broken() const { return broken_; }
  // Whether the last call ended because the server gave its transaction up for another one's sake: the same
  // transaction may succeed at once.
  bool given_up() const { return given_up_; }

 private:
  explicit MysqlSession(std::unique_ptr<sql::Connection> connection);
  // What `call` throws, as a Status.
  Status Guard(absl::string_view what, const std::function<void()>& call);
  sql::PreparedStatement* Prepared(const std::string& sql, const Values& values);

  std::unique_ptr<sql::Connection> connection_;
  std::map<std::string, std::unique_ptr<sql::PreparedStatement>> statements_;
  uint64_t succeeded_ = 0;
  bool broken_ = false;
  bool given_up_ = false;
};

}  // namespace cairn::catalog
