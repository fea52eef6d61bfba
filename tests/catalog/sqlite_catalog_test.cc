// What is SQLite's own: damaged files, foreign files, other versions (R22).
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "server/catalog/catalog.h"

namespace cairn::catalog {
namespace {

class SqliteCatalogFile : public ::testing::Test {
 protected:
  SqliteCatalogFile() {
    std::string pattern = std::filesystem::temp_directory_path() / "cairn-sqlite-XXXXXX";
    directory_ = mkdtemp(pattern.data());
    path_ = directory_ + "/catalog.sqlite";
  }
  ~SqliteCatalogFile() override { std::filesystem::remove_all(directory_); }

  void Run(const std::string& sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(database);
  }

  std::string directory_, path_, note_;
};

TEST_F(SqliteCatalogFile, ADamagedFileIsMovedAsideAndMadeAnew) {
  std::ofstream(path_) << std::string(8192, 'x');
  auto catalog = OpenSqliteCatalog(path_, &note_);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_NE(note_.find(".broken-"), std::string::npos) << note_;
  EXPECT_TRUE((*catalog)->Apply({JobRow{.job = "run", .sequence = 1}}).ok());
  int aside = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    if (entry.path().string().find(".broken-") != std::string::npos) ++aside;
  }
  EXPECT_EQ(aside, 1);
}

TEST_F(SqliteCatalogFile, FlippedPagesAreFoundAtOpening) {
  {
    auto catalog = OpenSqliteCatalog(path_, &note_);
    std::vector<Row> rows;
    for (int i = 0; i < 2000; ++i) {
      rows.push_back(StepRow{.checkpoint = {"run", i, 1, 0}, .digest = "d", .sequence = i + 1});
    }
    ASSERT_TRUE((*catalog)->Apply(rows).ok());
  }
  {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    for (int page = 8; page < 12; ++page) {
      file.seekp(page * 4096);
      file << std::string(512, '\xff');
    }
  }
  auto catalog = OpenSqliteCatalog(path_, &note_);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_NE(note_, "");
}

TEST_F(SqliteCatalogFile, ANewerSchemaIsRefused) {
  ASSERT_TRUE(OpenSqliteCatalog(path_, &note_).ok());
  Run("UPDATE schema_version SET version = 2");
  auto catalog = OpenSqliteCatalog(path_, &note_);
  EXPECT_TRUE(absl::IsFailedPrecondition(catalog.status()));
  EXPECT_NE(catalog.status().message().find("schema version 2"), absl::string_view::npos);
}

TEST_F(SqliteCatalogFile, SomeoneElsesDatabaseIsRefusedAndLeftAlone) {
  Run("CREATE TABLE theirs (a INTEGER)");
  auto catalog = OpenSqliteCatalog(path_, &note_);
  EXPECT_TRUE(absl::IsFailedPrecondition(catalog.status())) << catalog.status();
  Run("INSERT INTO theirs VALUES (1)");
}

TEST_F(SqliteCatalogFile, ALockedDatabaseIsUnavailableNotBroken) {
  auto catalog = OpenSqliteCatalog(path_, &note_);
  ASSERT_TRUE(catalog.ok());
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_TRUE(absl::IsUnavailable((*catalog)->Apply({JobRow{.job = "run", .sequence = 1}})));
  sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr);
  sqlite3_close(other);
  EXPECT_TRUE((*catalog)->Apply({JobRow{.job = "run", .sequence = 1}}).ok());
}

TEST_F(SqliteCatalogFile, AMissingDirectoryIsNamed) {
  auto catalog = OpenSqliteCatalog(directory_ + "/none/catalog.sqlite", &note_);
  ASSERT_FALSE(catalog.ok());
  EXPECT_NE(catalog.status().message().find("none/catalog.sqlite"), absl::string_view::npos);
}

}  // namespace
}  // namespace cairn::catalog
