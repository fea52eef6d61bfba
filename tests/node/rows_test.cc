#include "server/node/rows.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cairn::node {
namespace {

using Description = engine::Engine::Description;

// A job of one life with one complete checkpoint, and one that is gone.
Description OfAJob() {
  Description all;
  all.job = fact::Job{"job", 1000, 1000, {}};
  all.attempts.push_back({"job", 1, 5, {}, 0});
  all.parts.push_back({.key = {{"job", 5, 1, 0}, 0}, .world_size = 2, .resident = true});
  all.parts.push_back(
      {.key = {{"job", 5, 1, 0}, 1}, .world_size = 2, .resident = true, .own = false});
  all.complete.emplace_back().key = {"job", 5, 1, 0};
  all.gone.push_back({"job", 4, 1, 0});
  return all;
}

template <class Row>
std::vector<Row> Of(const std::vector<catalog::Row>& rows) {
  std::vector<Row> of;
  for (const catalog::Row& row : rows) {
    if (const auto* one = std::get_if<Row>(&row)) of.push_back(*one);
  }
  return of;
}

TEST(Rows, APartsRowIsWrittenByItsOwnerAlone) {
  int64_t sequence = 0;
  const auto parts = Of<catalog::PartRow>(RowsOf(OfAJob(), "this node", &sequence));
  ASSERT_EQ(parts.size(), 1u) << "not by who holds a replica, and may drop it";
  EXPECT_EQ(parts[0].part.writer, 0);
  EXPECT_EQ(parts[0].holders, "this node");
}

TEST(Rows, OnlyTheHomeWritesWhatIsTheJobs) {
  int64_t sequence = 0;
  Description of_another_home = OfAJob();
  of_another_home.writes_checkpoints = false;
  const std::vector<catalog::Row> rows = RowsOf(of_another_home, "this node", &sequence);
  EXPECT_EQ(rows.size(), 1u);
  EXPECT_EQ(Of<catalog::PartRow>(rows).size(), 1u);
  EXPECT_EQ(sequence, 1);

  const std::vector<catalog::Row> of_home = RowsOf(OfAJob(), "this node", &sequence);
  EXPECT_EQ(Of<catalog::JobRow>(of_home).size(), 1u);
  EXPECT_EQ(Of<catalog::AttemptRow>(of_home).size(), 1u);
  const auto steps = Of<catalog::StepRow>(of_home);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_FALSE(steps[0].removed);
  EXPECT_TRUE(steps[1].removed);
}

TEST(Rows, EachRowHasAPlaceOfItsOwn) {
  int64_t sequence = 10;
  const std::vector<catalog::Row> rows = RowsOf(OfAJob(), "this node", &sequence);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(std::visit([](const auto& row) { return row.sequence; }, rows[i]),
              static_cast<int64_t>(11 + i));
  }
}

}  // namespace
}  // namespace cairn::node
