// The back ends that every contract suite of the catalog is run over, one factory each: of MySQL, or all others.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "server/catalog/catalog.h"
#include "tests/catalog/faulty_catalog.h"
#include "tests/catalog/memory_catalog.h"
#ifdef CAIRN_CONTRACT_OF_MYSQL
#include "tests/catalog/mysql_factory.h"
#endif

namespace cairn::catalog {

#ifdef CAIRN_CONTRACT_OF_MYSQL
using Factories = ::testing::Types<MysqlFactory>;
#else
struct SqliteFactory {
  SqliteFactory() {
    std::string pattern = std::filesystem::temp_directory_path() / "cairn-catalog-XXXXXX";
    directory = mkdtemp(pattern.data());
  }
  ~SqliteFactory() { std::filesystem::remove_all(directory); }
  std::unique_ptr<Catalog> Open(const Author& author = {}) {
    std::string note;
    auto catalog = OpenSqliteCatalog(directory + "/catalog.sqlite", author, &note);
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    EXPECT_EQ(note, "");
    return *std::move(catalog);
  }
  std::string directory;
};

struct MemoryFactory {
  std::unique_ptr<Catalog> Open(const Author& author = {}) {
    return OpenMemoryCatalog(rows, author);
  }
  const std::shared_ptr<MemoryRows> rows = std::make_shared<MemoryRows>();
};

// The decorator with its faults off.
struct FaultlessFactory {
  std::unique_ptr<Catalog> Open(const Author& author = {}) {
    return MakeFaultyCatalog(inner.Open(author), std::make_shared<CatalogFaults>());
  }
  MemoryFactory inner;
};
using Factories = ::testing::Types<SqliteFactory, MemoryFactory, FaultlessFactory>;
#endif

template <typename Factory>
class ContractTest : public ::testing::Test {
 protected:
  Factory factory_;
  std::unique_ptr<Catalog> catalog_ = factory_.Open();

  void Reopen() {
    catalog_.reset();
    catalog_ = factory_.Open();
  }
};

}  // namespace cairn::catalog
