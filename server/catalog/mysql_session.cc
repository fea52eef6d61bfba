#include "server/catalog/mysql_session.h"

#include <cppconn/connection.h>
#include <cppconn/driver.h>
#include <cppconn/exception.h>
#include <cppconn/prepared_statement.h>
#include <cppconn/resultset.h>
#include <cppconn/statement.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace cairn::catalog {
namespace {

// By the server's error numbers, of MySQL 8 and MariaDB 10.6. It gave this transaction up for another one's sake:
bool GaveUp(int code) {
  switch (code) {
    case 1205:  // lock wait timeout
    case 1213:  // deadlock
      return true;
    default:
      return false;
  }
}

// What this server will not do, another one behind the same address may.
bool EndsConnection(int code) {
  switch (code) {
    case 1053:  // shutdown in progress
    case 1290:  // --read-only
    case 1792:  // in a read-only transaction
    case 1836:  // in read-only mode
    case 1927:  // connection was killed
    case 4031:  // nothing was asked for long
      return true;
    default:
      return false;
  }
}

// It passes by itself.
bool Passes(int code) {
  switch (code) {
    case 3:     // writing a file
    case 1020:  // record has changed
    case 1021:  // disk full
    case 1030:  // storage engine
    case 1040:  // too many connections
    case 1041:  // out of memory
    case 1077:  // normal shutdown
    case 1114:  // table is full
    case 1129:  // host is blocked
    case 1135:  // cannot create a thread
    case 1180:  // during COMMIT
    case 1203:  // user has too many connections
    case 1226:  // user has exceeded a resource
    case 1317:  // interrupted
    case 1461:  // too many prepared statements
    case 1637:  // too many transactions
    case 1969:  // max_statement_time
    case 3024:  // max_execution_time
      return true;
    default:
      return GaveUp(code) || EndsConnection(code);
  }
}

bool MayNot(int code) {
  switch (code) {
    case 1044:  // access to the database
    case 1045:  // access, by user and password
    case 1130:  // host may not connect
    case 1142:  // command on a table
    case 1143:  // on a column
    case 1227:  // a privilege is needed
    case 1698:  // access, without a password
      return true;
    default:
      return false;
  }
}

bool IsMissing(int code) {
  switch (code) {
    case 1046:  // no database selected
    case 1049:  // unknown database
    case 1054:  // unknown column
    case 1146:  // no such table
      return true;
    default:
      return false;
  }
}

bool IsThere(int code) {
  switch (code) {
    case 1060:  // duplicate column name
    case 1061:  // duplicate key name
      return true;
    default:
      return false;
  }
}

// Errors of the client library: of the connection (CR_CONNECTION_ERROR …), or of TLS.
bool OfConnection(int code) { return code >= 2000 && code < 2100; }

Status StatusOf(const sql::SQLException& e, absl::string_view what) {
  const int code = e.getErrorCode();
  const std::string message = absl::StrCat("mysql: ", what, ": ", e.what(), " (", code, ")");
  // Without a number the connector itself refuses, as when its connection was closed.
  if (code == 0 || OfConnection(code) || Passes(code)) return absl::UnavailableError(message);
  if (MayNot(code)) return absl::PermissionDeniedError(message);
  if (IsThere(code)) return absl::AlreadyExistsError(message);
  if (IsMissing(code)) return absl::FailedPreconditionError(message);
  return absl::InternalError(message);
}

void Bind(sql::PreparedStatement* statement, const Values& values) {
  unsigned int at = 0;
  for (const Value& value : values) {
    if (const auto* number = std::get_if<int64_t>(&value)) {
      statement->setInt64(++at, *number);
    } else {
      statement->setString(++at, std::get<std::string>(value));
    }
  }
}

}  // namespace

int64_t MysqlColumns::Int(int column) const {
  return result_->getInt64(static_cast<uint32_t>(column + 1));
}

std::string MysqlColumns::Bytes(int column) const {
  return result_->getString(static_cast<uint32_t>(column + 1)).asStdString();
}

MysqlSession::MysqlSession(std::unique_ptr<sql::Connection> connection)
    : connection_(std::move(connection)) {}

MysqlSession::~MysqlSession() {
  // Each may speak to a server that is away.
  try {
    statements_.clear();
    connection_->close();
  } catch (const std::exception&) {
  }
}

StatusOr<std::unique_ptr<MysqlSession>> MysqlSession::Connect(const MysqlOptions& options) {
  sql::ConnectOptionsMap map;
  if (!options.host.empty()) {
    map["hostName"] = sql::SQLString(absl::StrCat("tcp://", options.host, ":", options.port));
  } else {
    map["hostName"] = sql::SQLString(absl::StrCat("unix://", options.socket));
  }
  map["userName"] = sql::SQLString(options.user);
  map["OPT_LOCAL_INFILE"] = 0;  // no server reads files of this machine
  map["password"] = sql::SQLString(options.password);
  map["schema"] = sql::SQLString(options.database);
  map["OPT_CONNECT_TIMEOUT"] = options.connect_timeout_s;
  map["OPT_READ_TIMEOUT"] = options.call_timeout_s;
  map["OPT_WRITE_TIMEOUT"] = options.call_timeout_s;
  if (!options.tls_ca.empty()) {
    map["sslCA"] = sql::SQLString(options.tls_ca);
    map["sslEnforce"] = true;
    map["sslVerify"] = true;
  }
  std::unique_ptr<sql::Connection> connection;
  try {
    // Its first call is not thread-safe.
    static sql::Driver* const driver = get_driver_instance();
    connection.reset(driver->connect(map));
  } catch (const sql::SQLException& e) {
    return StatusOf(e, "connecting");
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("mysql: connecting: ", e.what()));
  }
  std::unique_ptr<MysqlSession> session(new MysqlSession(std::move(connection)));
  // Bytes are bytes; what does not fit is an error; a lock is waited for less long than a statement may take.
  const int lock_s = std::max(1, options.call_timeout_s / 2);
  for (const std::string& setting :
       {std::string("SET NAMES binary"), std::string("SET SESSION sql_mode = 'STRICT_ALL_TABLES'"),
        absl::StrCat("SET SESSION innodb_lock_wait_timeout = ", lock_s),
        absl::StrCat("SET SESSION lock_wait_timeout = ", lock_s),
        absl::StrCat("SET SESSION wait_timeout = ", options.idle_timeout_s),
        std::string("SET SESSION autocommit = 1")}) {
    CAIRN_RETURN_IF_ERROR(session->Execute(setting));
  }
  return session;
}

Status MysqlSession::Guard(absl::string_view what, const std::function<void()>& call) {
  given_up_ = false;
  try {
    call();
    ++succeeded_;
    return absl::OkStatus();
  } catch (const sql::SQLException& e) {
    const int code = e.getErrorCode();
    given_up_ = GaveUp(code);
    broken_ = broken_ || code == 0 || OfConnection(code) || EndsConnection(code);
    return StatusOf(e, what);
  } catch (const std::exception& e) {
    broken_ = true;  // what the connector's own state is now nobody knows
    return absl::InternalError(absl::StrCat("mysql: ", what, ": ", e.what()));
  }
}

sql::PreparedStatement* MysqlSession::Prepared(const std::string& sql, const Values& values) {
  std::unique_ptr<sql::PreparedStatement>& statement = statements_[sql];
  if (statement == nullptr) statement.reset(connection_->prepareStatement(sql));
  Bind(statement.get(), values);
  return statement.get();
}

Status MysqlSession::Execute(const std::string& sql) {
  return Guard(sql.substr(0, sql.find('\n')), [&] {
    const std::unique_ptr<sql::Statement> statement(connection_->createStatement());
    statement->execute(sql);
  });
}

Status MysqlSession::Run(const std::string& sql, const Values& values) {
  return Guard(absl::string_view(sql).substr(0, sql.find('(')),
               [&] { Prepared(sql, values)->executeUpdate(); });
}

StatusOr<int64_t> MysqlSession::Change(const std::string& sql, const Values& values) {
  int64_t rows = 0;
  CAIRN_RETURN_IF_ERROR(Guard(absl::string_view(sql).substr(0, 40),
                              [&] { rows = Prepared(sql, values)->executeUpdate(); }));
  return rows;
}

Status MysqlSession::Query(const std::string& sql, const Values& values,
                           const std::function<void(const MysqlColumns&)>& row) {
  return Guard(absl::string_view(sql).substr(0, 40), [&] {
    const std::unique_ptr<sql::ResultSet> result(Prepared(sql, values)->executeQuery());
    const MysqlColumns columns(result.get());
    while (result->next()) row(columns);
  });
}

}  // namespace cairn::catalog
