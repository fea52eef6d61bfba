// The catalog of a cluster: tables in MySQL 8, or MariaDB 10.6 or newer, that all its nodes share.
#pragma once

#include <memory>
#include <string>

#include "common/status.h"
#include "server/catalog/catalog.h"

namespace cairn::catalog {

struct MysqlOptions {
  std::string cluster;  // all rows are of this one; 1 to 64 bytes
  Author author;
  // Which member of the cluster's ring writes, where the members stand in the database (ring_table.h): nothing is
  // written once another has its rank. Without an instance it is not asked.
  struct Seat {
    int32_t rank = -1;
    std::string instance;
  };
  Seat seat;
  std::string host;      // a name or an address; empty: `socket`
  int port = 3306;       // 1 to 65535
  std::string socket;    // of a server on this machine; only without `host`
  std::string database;  // which exists; its tables are made
  std::string user;
  std::string password;  // whoever fills this reads it from a file
  // A file with the certificates by which the server is known; empty: no TLS.
  std::string tls_ca;
  int connect_timeout_s = 2;
  int call_timeout_s = 5;  // of one statement, in seconds
  // The server ends a connection on which nothing was said for so long, and its transaction with it: a node that is
  // stopped in the middle of one holds nobody up for longer.
  int idle_timeout_s = 30;

  // INVALID_ARGUMENT, naming the field.
  Status Validate() const;
};

// Two connections, one to write and one to ask, which are made anew when they break. A database without a schema gets
// it. PERMISSION_DENIED or FAILED_PRECONDITION, saying what is missing, where that cannot be, or where there is another
// version of it than this build knows; UNAVAILABLE when no server answers.
StatusOr<std::unique_ptr<Catalog>> OpenMysqlCatalog(const MysqlOptions& options);

}  // namespace cairn::catalog
