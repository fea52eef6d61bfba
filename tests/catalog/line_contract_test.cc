// What every catalog tells of a job's line, and of a job of which nothing is left.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/line.h"
#include "tests/catalog/factories.h"

namespace cairn::catalog {
namespace {

using Id = std::pair<Step, Attempt>;

template <typename Factory>
class CatalogLine : public ContractTest<Factory> {
 protected:
  Status Write(std::vector<Row> rows) {
    for (Row& row : rows) {
      std::visit([this](auto& one) { one.sequence = ++sequence_; }, row);
    }
    return this->catalog_->Apply(rows);
  }
  static StepRow Complete(Step step, Attempt attempt, Revision revision = 0) {
    return {.checkpoint = {"run", step, attempt, revision}, .world_size = 1, .of_home = true};
  }
  static StepRow Removed(Step step, Attempt attempt) {
    StepRow row = Complete(step, attempt);
    row.removed = true;
    return row;
  }
  static LineRow Said(LineRecordKind kind, Attempt number, Lineage lineage) {
    return {.record = {"run", number, kind, std::move(lineage)}, .said_unix_ms = 1000 + number};
  }
  static LineRow Use(Attempt number, Lineage lineage) {
    return Said(LineRecordKind::kUse, number, std::move(lineage));
  }
  static LineRow Resume(Attempt number, Lineage lineage) {
    return Said(LineRecordKind::kResume, number, std::move(lineage));
  }
  static LineRow Origin(Attempt number, Lineage lineage) {
    return Said(LineRecordKind::kOrigin, number, std::move(lineage));
  }
  // Step and attempt; nullopt: there is none.
  std::optional<Id> Latest(const std::string& job = "run") {
    const auto latest = this->catalog_->Latest(job);
    EXPECT_TRUE(latest.ok()) << latest.status();
    if (!latest.ok() || !latest->has_value()) return std::nullopt;
    return Id{(*latest)->checkpoint.step, (*latest)->checkpoint.attempt};
  }

  int64_t sequence_ = 0;
};
TYPED_TEST_SUITE(CatalogLine, Factories);

TYPED_TEST(CatalogLine, HoldsWhatWasSaidAcrossReopening) {
  const Lineage lineage{{{5, 40}, {3, 20}}};
  ASSERT_TRUE(this->Write({this->Origin(7, lineage), this->Use(8, {{{5, 30}}}),
                           this->Resume(6, Lineage()), this->Origin(8, Lineage::OfUnknown())})
                  .ok());
  this->Reopen();
  const auto records = this->catalog_->LineRecords("run");
  ASSERT_TRUE(records.ok()) << records.status();
  ASSERT_EQ(records->size(), 4u);
  EXPECT_EQ(records->at(0).record, this->Resume(6, Lineage()).record);
  EXPECT_EQ(records->at(1).record.lineage, lineage);
  EXPECT_EQ(records->at(1).said_unix_ms, 1007);
  EXPECT_EQ(records->at(2).record.kind, LineRecordKind::kUse);
  EXPECT_TRUE(records->at(3).record.lineage.Unknown());
  EXPECT_TRUE(this->catalog_->LineRecords("other")->empty());
}

// A `resume` may be said anew before its attempt begins, at another home, too, whose sequences do not compare.
TYPED_TEST(CatalogLine, OfARecordTheLaterSayingStays) {
  LineRow said = this->Resume(9, {{{5, 40}}});
  said.version = 2;
  said.sequence = 10;
  ASSERT_TRUE(this->catalog_->Apply({said}).ok());
  said.record.lineage = {{{5, 30}}};
  said.version = 1;
  said.sequence = 99;
  ASSERT_TRUE(this->catalog_->Apply({said}).ok());
  EXPECT_EQ(this->catalog_->LineRecords("run")->at(0).record.lineage.step(), 40);
  said.version = 3;
  said.sequence = 1;
  ASSERT_TRUE(this->catalog_->Apply({said}).ok());
  EXPECT_EQ(this->catalog_->LineRecords("run")->at(0).record.lineage.step(), 30);
}

TYPED_TEST(CatalogLine, LatestOfNothingIsAbsent) {
  EXPECT_EQ(this->Latest(), std::nullopt);
  ASSERT_TRUE(this->Write({this->Use(9, {{{5, 40}}})}).ok());
  EXPECT_EQ(this->Latest(), std::nullopt);
}

// The newest life has gone back: its lower step counts, not the highest number.
TYPED_TEST(CatalogLine, AfterARollbackLatestIsTheNewAttempts) {
  ASSERT_TRUE(this->Write({this->Complete(40, 5), this->Complete(50, 5),
                           this->Origin(7, {{{5, 40}}}), this->Complete(41, 7)})
                  .ok());
  EXPECT_EQ(this->Latest(), Id(41, 7));
  ASSERT_TRUE(this->Write({this->Complete(42, 7)}).ok());
  EXPECT_EQ(this->Latest(), Id(42, 7));
}

TYPED_TEST(CatalogLine, AnAttemptThatCompletedNothingMovesNothing) {
  ASSERT_TRUE(this->Write({this->Complete(40, 5), AttemptRow{.job = "run", .attempt = 9},
                           this->Origin(9, {{{5, 30}}})})
                  .ok());
  EXPECT_EQ(this->Latest(), Id(40, 5));
}

TYPED_TEST(CatalogLine, AUseThatIsNewerThanEveryAttemptCounts) {
  ASSERT_TRUE(this->Write({this->Complete(30, 5), this->Complete(40, 5), this->Complete(50, 6),
                           this->Use(7, {{{5, 35}, {4, 20}}})})
                  .ok());
  EXPECT_EQ(this->Latest(), Id(30, 5)) << "the highest up to the point that can be had";
  ASSERT_TRUE(this->Write({this->Complete(36, 8)}).ok());
  EXPECT_EQ(this->Latest(), Id(36, 8)) << "a newer attempt has completed something";
}

// Rule 13: it moves the head at once, and once its attempt has completed something that is the head.
TYPED_TEST(CatalogLine, AResumeCountsUntilItsAttemptHasAStep) {
  ASSERT_TRUE(
      this->Write({this->Complete(30, 5), this->Complete(40, 5), this->Resume(8, {{{5, 30}}})})
          .ok());
  EXPECT_EQ(this->Latest(), Id(30, 5));
  ASSERT_TRUE(this->Write({this->Complete(31, 8)}).ok());
  EXPECT_EQ(this->Latest(), Id(31, 8));
  ASSERT_TRUE(this->Write({this->Resume(9, Lineage())}).ok());
  EXPECT_EQ(this->Latest(), std::nullopt) << "it goes on from nothing";
}

TYPED_TEST(CatalogLine, OfSeveralDecisionsTheGreatestNumberCounts) {
  ASSERT_TRUE(this->Write({this->Complete(30, 5), this->Complete(40, 5), this->Use(8, {{{5, 30}}}),
                           this->Resume(9, {{{5, 40}}})})
                  .ok());
  EXPECT_EQ(this->Latest(), Id(40, 5));
  ASSERT_TRUE(this->Write({this->Use(10, {{{5, 30}}})}).ok());
  EXPECT_EQ(this->Latest(), Id(30, 5));
}

TYPED_TEST(CatalogLine, WhatWasRemovedDoesNotCount) {
  ASSERT_TRUE(this->Write({this->Complete(30, 4), this->Complete(40, 5), this->Complete(41, 7),
                           this->Complete(42, 7), this->Removed(42, 7)})
                  .ok());
  EXPECT_EQ(this->Latest(), Id(41, 7));
  ASSERT_TRUE(this->Write({this->Removed(41, 7)}).ok());
  EXPECT_EQ(this->Latest(), Id(40, 5)) << "the attempt has nothing any more";
  ASSERT_TRUE(this->Write({this->Use(8, {{{5, 40}, {4, 30}}}), this->Removed(40, 5)}).ok());
  EXPECT_EQ(this->Latest(), Id(30, 4)) << "what the point came from";
}

TYPED_TEST(CatalogLine, AnOpenLineageIsClosedByTheOriginThatIsKnownByNow) {
  ASSERT_TRUE(
      this->Write({this->Complete(30, 4), this->Complete(41, 6), this->Use(8, {{{5, 40}}, true})})
          .ok());
  EXPECT_EQ(this->Latest(), std::nullopt) << "where 5 came from is not known";
  ASSERT_TRUE(this->Write({this->Complete(45, 5), this->Origin(5, {{{4, 35}}})}).ok());
  EXPECT_EQ(this->Latest(), Id(30, 4));
}

TYPED_TEST(CatalogLine, OfOneStepTheNewestRevisionCounts) {
  ASSERT_TRUE(this->Write({this->Complete(5, 7, 0), this->Complete(5, 7, 2),
                           this->Complete(5, 7, 1), this->Complete(4, 7, 9)})
                  .ok());
  const auto latest = this->catalog_->Latest("run");
  ASSERT_TRUE(latest.ok() && latest->has_value());
  EXPECT_EQ((*latest)->checkpoint, (CheckpointKey{"run", 5, 7, 2}));
}

// Lives that go on from anywhere, decisions, and steps that go: always what common/line.h says.
TYPED_TEST(CatalogLine, LatestIsWhatTheRuleSaysOfAnyHistory) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % n); };
    const std::string job = "job" + std::to_string(seed);
    History history;
    std::vector<Row> rows;
    const auto of_job = [&](LineRow row) {
      row.record.job = job;
      rows.emplace_back(row);
    };
    for (Attempt number = 1; number <= 9; ++number) {
      const std::vector<LineStep> line = ComputeLine(history);
      Lineage from;
      if (!line.empty() && below(5) > 0) {
        const LineStep& point = line[below(line.size())];
        from = LineageFrom(point.step, point.attempt, history.attempts[point.attempt].lineage);
      }
      const bool decision = below(3) == 0;
      if (decision) {
        history.decisions[number] = from;
        of_job(below(2) == 0 ? this->Use(number, from) : this->Resume(number, from));
      }
      if (decision && below(2) == 0) continue;
      AttemptLine life;
      life.lineage = from;
      life.first = from.step() + 1;
      for (Step step = from.step() + 1; step < from.step() + 4; ++step) {
        if (below(3) == 0) continue;
        StepRow row = this->Complete(step, number);
        row.checkpoint.job = job;
        rows.emplace_back(row);
        if (below(4) > 0) {
          life.complete[step] = 0;
          continue;
        }
        row.removed = true;
        rows.emplace_back(row);
      }
      of_job(this->Origin(number, from));
      history.attempts[number] = life;
    }
    ASSERT_TRUE(this->Write(rows).ok()) << "seed " << seed;
    std::optional<Id> expected;
    const std::vector<LineStep> line = ComputeLine(history);
    if (!line.empty()) expected = Id(line.back().step, line.back().attempt);
    EXPECT_EQ(this->Latest(job), expected) << "seed " << seed;
  }
}

// --- who has it, and who said so

TYPED_TEST(CatalogLine, HoldersAreCountedByTheirParts) {
  const CheckpointKey key{"run", 5, 7, 0};
  std::vector<Row> rows;
  for (const auto& [writer, holder] : {std::pair(0, "1"), std::pair(1, "1"), std::pair(0, "10")}) {
    rows.emplace_back(HolderRow{.part = {key, writer}, .holder = holder, .resident = true});
  }
  ASSERT_TRUE(this->Write(rows).ok());
  const auto counts = this->catalog_->HolderCounts(key);
  ASSERT_TRUE(counts.ok()) << counts.status();
  ASSERT_EQ(counts->size(), 2u);
  EXPECT_EQ(counts->at(0).holder, "1");
  EXPECT_EQ(counts->at(0).parts, 2);
  EXPECT_EQ(counts->at(1).parts, 1);
}

TYPED_TEST(CatalogLine, AnAuthorsNewestWordStaysAndIsItsOwn) {
  AuthorRow author{.name = "1",
                   .incarnation = 3,
                   .seen_unix_ms = 500,
                   .budget_bytes = 9,
                   .used_bytes = 8,
                   .replica_bytes = 7,
                   .sequence = 60};
  AuthorRow older = author;
  older.seen_unix_ms = 400;
  older.sequence = 59;
  ASSERT_TRUE(this->catalog_->Apply({AuthorRow{.name = "0", .sequence = 99}, author}).ok());
  ASSERT_TRUE(this->catalog_->Apply({older}).ok());
  const auto authors = this->catalog_->Authors();
  ASSERT_TRUE(authors.ok()) << authors.status();
  ASSERT_EQ(authors->size(), 2u);
  const AuthorRow& found = authors->at(1);
  EXPECT_EQ(std::tuple(found.name, found.incarnation, found.seen_unix_ms, found.budget_bytes,
                       found.used_bytes, found.replica_bytes),
            std::tuple("1", 3, 500, 9u, 8u, 7u));
  const auto own = this->factory_.Open({.name = "1", .alone = false});
  EXPECT_EQ(*own->NewestSequence(), 60);
  EXPECT_EQ(*own->Marked(), 60);
  EXPECT_EQ(*this->factory_.Open({.name = "2", .alone = false})->Marked(), 0);
}

// --- a job of which nothing is left

TYPED_TEST(CatalogLine, OfAForgottenJobNothingStaysButWhatWasRemoved) {
  ASSERT_TRUE(this->Write({JobRow{.job = "run", .policy_version = 9}, JobRow{.job = "other"},
                           AttemptRow{.job = "run", .attempt = 7}, this->Origin(7, Lineage()),
                           this->Complete(5, 7), this->Removed(5, 7)})
                  .ok());
  ASSERT_TRUE(this->Write({ForgottenRow{.job = "run"}}).ok());
  EXPECT_EQ(*this->catalog_->Jobs(), std::vector<std::string>{"other"});
  EXPECT_TRUE(this->catalog_->Attempts("run")->empty());
  EXPECT_TRUE(this->catalog_->LineRecords("run")->empty());
  ASSERT_TRUE(this->Write({JobRow{.job = "run", .owner_uid = 5, .policy_version = 1}}).ok());
  EXPECT_EQ((*this->catalog_->Job("run"))->owner_uid, 5u) << "the name is free";
}

TYPED_TEST(CatalogLine, AJobOfWhichSomethingIsThereIsNotForgotten) {
  const auto forget = [this] { return this->Write({ForgottenRow{.job = "run", .of_home = true}}); };
  const CheckpointKey key{"run", 6, 7, 0};
  const std::vector<Row> there = {this->Complete(6, 7), PartRow{.part = {key, 0}, .owner = "1"},
                                  HolderRow{.part = {key, 0}, .holder = "1", .resident = true}};
  for (const Row& row : there) {
    ASSERT_TRUE(this->Write({JobRow{.job = "run"}, row}).ok());
    ASSERT_TRUE(forget().ok());
    EXPECT_EQ(this->catalog_->Jobs()->size(), 1u) << RowIdentity(row);
    ASSERT_TRUE(this->Write({VanishedRow{.checkpoint = key}}).ok());
  }
  ASSERT_TRUE(forget().ok());
  EXPECT_TRUE(this->catalog_->Jobs()->empty());
}

// In one batch, as they wait after an outage.
TYPED_TEST(CatalogLine, AJobThatIsThereAnewStays) {
  ASSERT_TRUE(this->Write({JobRow{.job = "run", .owner_uid = 1, .policy_version = 9},
                           AttemptRow{.job = "run", .attempt = 7}})
                  .ok());
  ASSERT_TRUE(this->Write({ForgottenRow{.job = "run"},
                           JobRow{.job = "run", .owner_uid = 2, .policy_version = 1},
                           AttemptRow{.job = "run", .attempt = 8}})
                  .ok());
  EXPECT_EQ((*this->catalog_->Job("run"))->owner_uid, 2u);
  const auto attempts = this->catalog_->Attempts("run");
  ASSERT_EQ(attempts->size(), 1u);
  EXPECT_EQ(attempts->front().attempt, 8);
}

// Another node's sequences do not compare: a home forgets whatever they are, others only what is older.
TYPED_TEST(CatalogLine, OnlyAHomeForgetsWhatWasWrittenLater) {
  JobRow job{.job = "run", .sequence = 100};
  ASSERT_TRUE(this->catalog_->Apply({job}).ok());
  ASSERT_TRUE(this->catalog_->Apply({ForgottenRow{.job = "run", .sequence = 50}}).ok());
  EXPECT_EQ(this->catalog_->Jobs()->size(), 1u);
  ASSERT_TRUE(
      this->catalog_->Apply({ForgottenRow{.job = "run", .of_home = true, .sequence = 50}}).ok());
  EXPECT_TRUE(this->catalog_->Jobs()->empty());
}

}  // namespace
}  // namespace cairn::catalog
