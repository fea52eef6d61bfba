// A MariaDB server of a test's own: in a folder of its own, with a socket there and no port.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/status.h"
#include "server/catalog/mysql_session.h"

namespace cairn::testing {

class MariaDb {
 public:
  // Starts the server with an empty data directory. Ends the test program with the reason where that fails, as when
  // mariadbd is not installed.
  MariaDb();
  ~MariaDb();
  MariaDb(const MariaDb&) = delete;
  MariaDb& operator=(const MariaDb&) = delete;

  // A new, empty database of its own for each call, of a user who may do anything there and nothing elsewhere.
  catalog::MysqlOptions MakeDatabase();
  // As root, in no database or in `database`.
  void Run(const std::string& sql, const std::string& database = "mysql");
  // The first column of the first row; empty: there is none.
  std::string Ask(const std::string& sql, const std::string& database = "mysql");

  void Start(const std::vector<std::string>& more_options = {});
  void Kill();                    // SIGKILL; what was committed is there after the next Start
  void Pause(bool paused) const;  // SIGSTOP, SIGCONT
  const std::string& folder() const { return folder_; }

 private:
  catalog::MysqlOptions AsRoot(const std::string& database) const;

  std::string folder_, socket_;
  pid_t pid_ = -1;
  int databases_ = 0;
};

}  // namespace cairn::testing
