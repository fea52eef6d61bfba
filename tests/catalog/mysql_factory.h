// The server of a test program, and a catalog in a database of its own there.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "server/catalog/mysql_catalog.h"
#include "tests/support/mariadb.h"

namespace cairn::catalog {

// One for all tests of the program; it is killed with it.
inline testing::MariaDb& TheMariaDb() {
  static testing::MariaDb server;
  return server;
}

struct MysqlFactory {
  std::unique_ptr<Catalog> Open(const Author& author = {}) {
    MysqlOptions as_author = options;
    as_author.author = author;
    auto catalog = OpenMysqlCatalog(as_author);
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    return *std::move(catalog);
  }
  const MysqlOptions options = TheMariaDb().MakeDatabase();
};

}  // namespace cairn::catalog
