#include "server/node/rows.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cairn::node {
namespace {

using Description = engine::Engine::Description;

const catalog::Author kMember{.name = "3", .alone = false}, kAlone{.name = "host", .alone = true};

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
  const std::vector<catalog::Row> rows = RowsOf(OfAJob(), kMember, &sequence);
  const auto parts = Of<catalog::PartRow>(rows);
  ASSERT_EQ(parts.size(), 1u) << "not by who holds a replica, and may drop it";
  EXPECT_EQ(parts[0].part.writer, 0);
  EXPECT_EQ(parts[0].owner, "3");
  const auto holders = Of<catalog::HolderRow>(rows);
  ASSERT_EQ(holders.size(), 2u) << "who holds a replica says so";
  for (const catalog::HolderRow& holder : holders) {
    EXPECT_EQ(holder.holder, "3");
    EXPECT_TRUE(holder.resident);
  }
}

TEST(Rows, OnlyTheHomeWritesWhatIsTheJobs) {
  int64_t sequence = 0;
  Description of_another_home = OfAJob();
  of_another_home.writes_checkpoints = false;
  const std::vector<catalog::Row> rows = RowsOf(of_another_home, kMember, &sequence);
  EXPECT_EQ(rows.size(), 3u);
  EXPECT_EQ(Of<catalog::PartRow>(rows).size(), 1u);
  EXPECT_EQ(Of<catalog::HolderRow>(rows).size(), 2u);
  EXPECT_EQ(sequence, 3);

  const std::vector<catalog::Row> of_home = RowsOf(OfAJob(), kMember, &sequence);
  EXPECT_EQ(Of<catalog::JobRow>(of_home).size(), 1u);
  EXPECT_EQ(Of<catalog::AttemptRow>(of_home).size(), 1u);
  const auto steps = Of<catalog::StepRow>(of_home);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_FALSE(steps[0].removed);
  EXPECT_TRUE(steps[1].removed);
  for (const catalog::StepRow& step : steps) EXPECT_TRUE(step.of_home);
}

// Alone the order tells which policy is newer: a job that was forgotten counts them from the beginning again.
TEST(Rows, APolicysVersionCountsAmongOthersOnly) {
  int64_t sequence = 0;
  Description said = OfAJob();
  said.job->policy_version = 4;
  said.job->policy_rank = 2;
  const auto job = [&](const catalog::Author& author) {
    return Of<catalog::JobRow>(RowsOf(said, author, &sequence)).at(0);
  };
  EXPECT_EQ(job(kMember).policy_version, 4);
  EXPECT_EQ(job(kMember).policy_rank, 2);
  EXPECT_EQ(job(kAlone).policy_version, 0);
  const auto steps = Of<catalog::StepRow>(RowsOf(said, kAlone, &sequence));
  EXPECT_FALSE(steps.at(0).of_home);
}

TEST(Rows, TheHomeWritesWhatWasSaidOfTheLine) {
  int64_t sequence = 0;
  Description said = OfAJob();
  said.line.push_back(
      {{"job", 9, LineRecordKind::kUse, {{{1, 5}}}}, /*unix_ms=*/77, /*version=*/2});
  const auto lines = [&](const catalog::Author& author) {
    return Of<catalog::LineRow>(RowsOf(said, author, &sequence));
  };
  ASSERT_EQ(lines(kMember).size(), 1u);
  EXPECT_EQ(lines(kMember)[0].record.lineage.step(), 5);
  EXPECT_EQ(lines(kMember)[0].said_unix_ms, 77);
  EXPECT_EQ(lines(kMember)[0].version, 2);
  EXPECT_EQ(lines(kAlone).at(0).version, 0) << "alone the order tells";
  said.writes_checkpoints = false;
  EXPECT_TRUE(lines(kMember).empty());
}

TEST(Rows, AForgottenJobIsSaidLast) {
  int64_t sequence = 0;
  Description forgotten;
  forgotten.forgotten = "job";
  forgotten.gone.push_back({"job", 4, 1, 0});
  const std::vector<catalog::Row> rows = RowsOf(forgotten, kMember, &sequence);
  ASSERT_EQ(rows.size(), 2u);
  const auto* last = std::get_if<catalog::ForgottenRow>(&rows[1]);
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(last->job, "job");
  EXPECT_TRUE(last->of_home);
}

TEST(Rows, WhatLeavesComesBeforeWhatIsStillHere) {
  int64_t sequence = 0;
  Description some_left = OfAJob();
  some_left.left.push_back({{"job", 5, 1, 0}, /*whole=*/false});
  const std::vector<catalog::Row> rows = RowsOf(some_left, kMember, &sequence);
  const auto left = Of<catalog::LeftRow>(rows);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].holder, "3");
  for (const auto& holder : Of<catalog::HolderRow>(rows)) {
    EXPECT_GT(holder.sequence, left[0].sequence);
  }
}

TEST(Rows, EachRowHasAPlaceOfItsOwn) {
  int64_t sequence = 10;
  const std::vector<catalog::Row> rows = RowsOf(OfAJob(), kMember, &sequence);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(std::visit([](const auto& row) { return row.sequence; }, rows[i]),
              static_cast<int64_t>(11 + i));
  }
}

}  // namespace
}  // namespace cairn::node
