// Two clusters that share a database: each writes, asks and deletes among its own rows alone, in every table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/catalog/mysql_factory.h"

namespace cairn::catalog {
namespace {

using ::testing::IsEmpty;

class TwoClusters : public ::testing::Test {
 protected:
  std::unique_ptr<Catalog> Open(const std::string& cluster) {
    MysqlOptions options = options_;
    options.cluster = cluster;
    options.author = {.name = "1", .alone = false};
    auto catalog = OpenMysqlCatalog(options);
    EXPECT_TRUE(catalog.ok()) << catalog.status();
    return *std::move(catalog);
  }
  // One row of each kind, under the same keys in both clusters; `mark` tells them apart.
  static std::vector<Row> Rows(int64_t mark) {
    const auto uid = static_cast<uint32_t>(mark);
    return {JobRow{.job = "run", .owner_uid = uid, .sequence = mark},
            AttemptRow{.job = "run", .attempt = 7, .began_unix_ms = mark, .sequence = mark},
            LineRow{.record = {"run", 7, LineRecordKind::kOrigin, {}},
                    .said_unix_ms = mark,
                    .sequence = mark},
            StepRow{.checkpoint = kKey, .completed_unix_ms = mark, .sequence = mark},
            PartRow{.part = {kKey, 0}, .bytes = uid, .owner = "1", .sequence = mark},
            HolderRow{.part = {kKey, 0}, .holder = "1", .resident = true, .sequence = mark},
            AuthorRow{.name = "1", .seen_unix_ms = mark, .sequence = mark}};
  }
  static void ShowsItsOwn(Catalog* catalog, int64_t mark) {
    EXPECT_EQ((*catalog->Job("run"))->owner_uid, mark);
    EXPECT_EQ(*catalog->Jobs(), std::vector<std::string>{"run"});
    EXPECT_EQ(catalog->Attempts("run")->at(0).began_unix_ms, mark);
    const auto lines = catalog->LineRecords("run");
    ASSERT_EQ(lines->size(), 1u);
    EXPECT_EQ(lines->at(0).said_unix_ms, mark);
    EXPECT_EQ(catalog->Steps("run", 9, 9)->at(0).completed_unix_ms, mark);
    EXPECT_EQ((*catalog->Latest("run"))->completed_unix_ms, mark);
    EXPECT_FALSE(catalog->Parts(kKey)->at(0).removed);
    EXPECT_EQ(catalog->Parts(kKey)->at(0).bytes, mark);
    EXPECT_EQ(catalog->Holders(kKey)->size(), 1u);
    EXPECT_EQ(catalog->HolderCounts(kKey)->at(0).parts, 1);
    EXPECT_EQ(catalog->Authors()->at(0).seen_unix_ms, mark);
    EXPECT_EQ(*catalog->Marked(), mark);
    EXPECT_EQ(*catalog->NewestSequence(), mark);
    EXPECT_EQ(catalog->Present("run", {"run", kNoStep, 0, 0}, 9)->size(), 1u);
  }

  static inline const CheckpointKey kKey{"run", 5, 7, 0};
  const MysqlOptions options_ = TheMariaDb().MakeDatabase();
  const std::unique_ptr<Catalog> first_ = Open("first"), second_ = Open("second");
};

TEST_F(TwoClusters, HaveRowsOfTheirOwnUnderTheSameKeys) {
  ASSERT_TRUE(first_->Apply(Rows(1)).ok());
  ASSERT_TRUE(second_->Apply(Rows(2)).ok());
  ShowsItsOwn(first_.get(), 1);
  ShowsItsOwn(second_.get(), 2);
}

TEST_F(TwoClusters, DoNotSeeWhatOnlyTheOtherHas) {
  const CheckpointKey later{"run", 6, 8, 0};
  ASSERT_TRUE(first_->Apply(Rows(1)).ok());
  ASSERT_TRUE(
      second_
          ->Apply({JobRow{.job = "other", .sequence = 9},
                   AttemptRow{.job = "run", .attempt = 8, .sequence = 9},
                   LineRow{.record = {"run", 8, LineRecordKind::kOrigin, {}}, .sequence = 9},
                   StepRow{.checkpoint = later, .sequence = 9},
                   PartRow{.part = {later, 0}, .owner = "1", .sequence = 9},
                   HolderRow{.part = {later, 0}, .holder = "1", .resident = true, .sequence = 9},
                   AuthorRow{.name = "1", .sequence = 9}})
          .ok());
  ShowsItsOwn(first_.get(), 1);
  EXPECT_EQ(first_->Attempts("run")->size(), 1u);
  EXPECT_EQ(first_->Steps("run", 9, 9)->size(), 1u);
  EXPECT_EQ(first_->Authors()->size(), 1u);
  EXPECT_THAT(*first_->Parts(later), IsEmpty());
  EXPECT_THAT(*first_->Holders(later), IsEmpty());
  EXPECT_THAT(*first_->HolderCounts(later), IsEmpty());
}

// What one decides, removes, leaves or forgets is nothing to the other.
TEST_F(TwoClusters, DoNotTouchEachOther) {
  ASSERT_TRUE(first_->Apply(Rows(1)).ok());
  ASSERT_TRUE(second_->Apply(Rows(2)).ok());
  const std::vector<std::vector<Row>> harmful = {
      {LineRow{.record = {"run", 9, LineRecordKind::kUse, {}}, .sequence = 3}},
      {LeftRow{.checkpoint = kKey, .holder = "1", .whole = true, .sequence = 4}},
      {VanishedRow{.checkpoint = kKey, .sequence = 5}},
      {ForgottenRow{.job = "run", .of_home = true, .sequence = 6}},
      {StepRow{.checkpoint = kKey, .removed = true, .of_home = true, .sequence = 7}}};
  for (const std::vector<Row>& rows : harmful) {
    ASSERT_TRUE(second_->Apply(rows).ok());
    ShowsItsOwn(first_.get(), 1);
  }
  EXPECT_THAT(*second_->Jobs(), IsEmpty());
  EXPECT_FALSE(second_->Latest("run")->has_value());
}

}  // namespace
}  // namespace cairn::catalog
