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

  int Count(const std::string& table) {
    sqlite3* database = nullptr;
    EXPECT_EQ(sqlite3_open(path_.c_str(), &database), SQLITE_OK);
    int count = -1;
    const auto read = [](void* to, int, char** values, char**) {
      *static_cast<int*>(to) = std::atoi(values[0]);
      return 0;
    };
    const std::string sql = "SELECT count(*) FROM " + table;
    EXPECT_EQ(sqlite3_exec(database, sql.c_str(), read, &count, nullptr), SQLITE_OK);
    sqlite3_close(database);
    return count;
  }

  std::string directory_, path_, note_;
};

TEST_F(SqliteCatalogFile, ADamagedFileIsMovedAsideAndMadeAnew) {
  std::ofstream(path_) << std::string(8192, 'x');
  auto catalog = OpenSqliteCatalog(path_, {}, &note_);
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
    auto catalog = OpenSqliteCatalog(path_, {}, &note_);
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
  auto catalog = OpenSqliteCatalog(path_, {}, &note_);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_NE(note_, "");
}

// R35: a job that keeps three steps has rows of three steps and of its last removals, whatever it saved.
TEST_F(SqliteCatalogFile, OldRemovalsAreForgotten) {
  auto catalog = OpenSqliteCatalog(path_, {}, &note_);
  ASSERT_TRUE(catalog.ok());
  constexpr Step kSteps = 6000, kBatch = 100;
  int64_t sequence = 0;
  for (Step first = 0; first < kSteps; first += kBatch) {
    std::vector<Row> rows;
    for (Step step = first; step < first + kBatch; ++step) {
      rows.push_back(PartRow{.part = {{"run", step, 7, 0}, 0}, .sequence = ++sequence});
      rows.push_back(StepRow{.checkpoint = {"run", step, 7, 0}, .sequence = ++sequence});
      if (step < 3) continue;
      rows.push_back(
          StepRow{.checkpoint = {"run", step - 3, 7, 0}, .removed = true, .sequence = ++sequence});
    }
    ASSERT_TRUE((*catalog)->Apply(rows).ok());
  }
  const std::vector<StepRow> left = *(*catalog)->Steps("run", kSteps, 100);
  ASSERT_EQ(left.size(), 3u);
  EXPECT_EQ(left.back().checkpoint.step, kSteps - 3);
  EXPECT_EQ((*catalog)->Parts({"run", kSteps - 1, 7, 0})->size(), 1u);
  EXPECT_EQ((*catalog)->Parts({"run", 10, 7, 0})->size(), 0u);
  EXPECT_EQ(*(*catalog)->NewestSequence(), sequence);
  EXPECT_EQ(Count("steps"), 1003);
  EXPECT_EQ(Count("parts"), 1003);
}

TEST_F(SqliteCatalogFile, ANewerSchemaIsRefused) {
  ASSERT_TRUE(OpenSqliteCatalog(path_, {}, &note_).ok());
  Run("UPDATE schema_version SET version = 99");
  auto catalog = OpenSqliteCatalog(path_, {}, &note_);
  EXPECT_TRUE(absl::IsFailedPrecondition(catalog.status()));
  EXPECT_NE(catalog.status().message().find("schema version 99"), absl::string_view::npos);
}

TEST_F(SqliteCatalogFile, AnOlderSchemaIsReplacedAndFilledAnew) {
  Run("CREATE TABLE schema_version (version INTEGER NOT NULL); "
      "INSERT INTO schema_version VALUES (1); "
      "CREATE TABLE nodes (node_rank INTEGER PRIMARY KEY, address BLOB, incarnation INTEGER, "
      "sequence INTEGER); "
      "CREATE TABLE parts (job BLOB, resident INTEGER, holders BLOB, sequence INTEGER); "
      "INSERT INTO parts VALUES ('run', 1, '0', 7)");
  auto catalog = OpenSqliteCatalog(path_, {}, &note_);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ(*(*catalog)->NewestSequence(), 0);
  EXPECT_TRUE((*catalog)->Apply({PartRow{.part = {{"run", 5, 7, 0}, 0}, .sequence = 1}}).ok());
  catalog->reset();
  catalog = OpenSqliteCatalog(path_, {}, &note_);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ((*catalog)->Parts({"run", 5, 7, 0})->size(), 1u);
}

// Version 2 had no line records; what it holds stays.
TEST_F(SqliteCatalogFile, WhatVersion2HoldsStays) {
  {
    auto catalog = OpenSqliteCatalog(path_, {}, &note_);
    ASSERT_TRUE((*catalog)
                    ->Apply({JobRow{.job = "run", .sequence = 1},
                             StepRow{.checkpoint = {"run", 5, 7, 0}, .sequence = 2}})
                    .ok());
  }
  Run("DROP TABLE line_records; DROP TABLE authors; DROP INDEX by_attempt; "
      "UPDATE schema_version SET version = 2");
  auto catalog = OpenSqliteCatalog(path_, {}, &note_);
  ASSERT_TRUE(catalog.ok()) << catalog.status();
  EXPECT_EQ(note_, "");
  EXPECT_EQ((*(*catalog)->Latest("run"))->checkpoint.step, 5);
  EXPECT_TRUE((*catalog)->Apply({AuthorRow{.name = "host", .sequence = 3}}).ok());
}

TEST_F(SqliteCatalogFile, SomeoneElsesDatabaseIsRefusedAndLeftAlone) {
  Run("CREATE TABLE theirs (a INTEGER)");
  auto catalog = OpenSqliteCatalog(path_, {}, &note_);
  EXPECT_TRUE(absl::IsFailedPrecondition(catalog.status())) << catalog.status();
  Run("INSERT INTO theirs VALUES (1)");
}

TEST_F(SqliteCatalogFile, ALockedDatabaseIsUnavailableNotBroken) {
  auto catalog = OpenSqliteCatalog(path_, {}, &note_);
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
  auto catalog = OpenSqliteCatalog(directory_ + "/none/catalog.sqlite", {}, &note_);
  ASSERT_FALSE(catalog.ok());
  EXPECT_NE(catalog.status().message().find("none/catalog.sqlite"), absl::string_view::npos);
}

}  // namespace
}  // namespace cairn::catalog
