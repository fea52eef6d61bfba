// What every catalog must do. A back end joins with a factory in factories.h.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/catalog/factories.h"

namespace cairn::catalog {
namespace {

template <typename Factory>
class CatalogContract : public ContractTest<Factory> {};
TYPED_TEST_SUITE(CatalogContract, Factories);

StepRow CompleteStep(const std::string& job, Step step, int64_t sequence) {
  return {.checkpoint = {job, step, 7, 0},
          .world_size = 2,
          .digest = "d" + std::to_string(step),
          .completed_unix_ms = 1000 + step,
          .sequence = sequence};
}

TYPED_TEST(CatalogContract, HoldsWhatWasAppliedAcrossReopening) {
  const JobRow job{
      .job = "run",
      .owner_uid = 1000,
      .owner_gid = 100,
      .policy = {.mode = PersistMode::kEvery, .every = 5, .keep_last = 3, .replicas = 2},
      .sequence = 1};
  const AttemptRow attempt{
      .job = "run", .attempt = 7, .comes_from = 4, .began_unix_ms = 99, .sequence = 2};
  const PartRow part{.part = {{"run", 5, 7, 0}, 1},
                     .world_size = 2,
                     .digest = "abc",
                     .bytes = 123,
                     .objects = 4,
                     .owner = "0",
                     .sequence = 3};
  const HolderRow holder{.part = part.part, .holder = "3", .resident = true, .sequence = 9};
  ASSERT_TRUE(this->catalog_->Apply({job, attempt, part, holder, CompleteStep("run", 5, 4)}).ok());
  this->Reopen();

  auto found = this->catalog_->Job("run");
  ASSERT_TRUE(found.ok() && found->has_value());
  EXPECT_EQ((*found)->owner_uid, 1000u);
  EXPECT_TRUE((*found)->policy == job.policy);
  auto attempts = this->catalog_->Attempts("run");
  ASSERT_EQ(attempts->size(), 1u);
  EXPECT_EQ(attempts->front().comes_from, 4);
  auto parts = this->catalog_->Parts({"run", 5, 7, 0});
  ASSERT_EQ(parts->size(), 1u);
  EXPECT_EQ(parts->front().part.writer, 1);
  EXPECT_EQ(parts->front().bytes, 123u);
  EXPECT_EQ(parts->front().owner, "0");
  EXPECT_FALSE(parts->front().persisted);
  auto holders = this->catalog_->Holders({"run", 5, 7, 0});
  ASSERT_EQ(holders->size(), 1u);
  EXPECT_EQ(holders->front().part, part.part);
  EXPECT_EQ(holders->front().holder, "3");
  EXPECT_TRUE(holders->front().resident);
}

TYPED_TEST(CatalogContract, AnUnknownJobIsAbsentNotAnError) {
  auto job = this->catalog_->Job("nobody");
  ASSERT_TRUE(job.ok());
  EXPECT_FALSE(job->has_value());
  EXPECT_TRUE(this->catalog_->Steps("nobody", 100, 10)->empty());
}

TYPED_TEST(CatalogContract, OnlyAHigherSequenceWins) {
  StepRow row = CompleteStep("run", 5, 10);
  ASSERT_TRUE(this->catalog_->Apply({row}).ok());
  row.persisted = true;
  row.sequence = 9;  // late: written before the one that is there
  ASSERT_TRUE(this->catalog_->Apply({row}).ok());
  EXPECT_FALSE(this->catalog_->Steps("run", 100, 10)->front().persisted);
  row.sequence = 11;
  ASSERT_TRUE(this->catalog_->Apply({row}).ok());
  EXPECT_TRUE(this->catalog_->Steps("run", 100, 10)->front().persisted);
}

// A mutant in which parts took whatever came last went unnoticed while only steps were asked.
TYPED_TEST(CatalogContract, OnlyAHigherSequenceWinsForRowsOfEveryKind) {
  JobRow job{.job = "run", .owner_uid = 1, .sequence = 10};
  AttemptRow attempt{.job = "run", .attempt = 7, .comes_from = 4, .sequence = 10};
  PartRow part{.part = {{"run", 5, 7, 0}, 1}, .world_size = 2, .bytes = 1, .sequence = 10};
  ASSERT_TRUE(this->catalog_->Apply({job, attempt, part}).ok());
  job.owner_uid = 2;
  attempt.comes_from = 3;
  part.bytes = 2;
  for (const int64_t sequence : {9, 10, 11}) {
    job.sequence = attempt.sequence = part.sequence = sequence;
    ASSERT_TRUE(this->catalog_->Apply({job, attempt, part}).ok());
    const bool newer = sequence == 11;
    EXPECT_EQ((*this->catalog_->Job("run"))->owner_uid, newer ? 2u : 1u) << sequence;
    EXPECT_EQ(this->catalog_->Attempts("run")->front().comes_from, newer ? 3 : 4) << sequence;
    EXPECT_EQ(this->catalog_->Parts({"run", 5, 7, 0})->front().bytes, newer ? 2u : 1u) << sequence;
  }
}

TYPED_TEST(CatalogContract, ReplayingABatchChangesNothing) {
  const std::vector<Row> batch{CompleteStep("run", 1, 1), CompleteStep("run", 2, 2)};
  ASSERT_TRUE(this->catalog_->Apply(batch).ok());
  ASSERT_TRUE(this->catalog_->Apply(batch).ok());
  EXPECT_EQ(this->catalog_->Steps("run", 100, 10)->size(), 2u);
}

TYPED_TEST(CatalogContract, StepsComeNewestFirstBelowABoundWithoutRemovedOnes) {
  StepRow removed = CompleteStep("run", 3, 3);
  removed.removed = true;
  ASSERT_TRUE(this->catalog_
                  ->Apply({CompleteStep("run", 1, 1), CompleteStep("run", 2, 2), removed,
                           CompleteStep("run", 4, 4), CompleteStep("other", 9, 5)})
                  .ok());
  auto steps = this->catalog_->Steps("run", 5, 2);
  ASSERT_EQ(steps->size(), 2u);
  EXPECT_EQ((*steps)[0].checkpoint.step, 4);
  EXPECT_EQ((*steps)[1].checkpoint.step, 2);
  EXPECT_EQ(this->catalog_->Steps("run", 2, 10)->size(), 1u);
}

// A step that is gone takes its parts along, in whichever order the rows come.
TYPED_TEST(CatalogContract, PartsOfARemovedStepAreNoLongerHere) {
  const CheckpointKey key{"run", 5, 7, 0};
  const PartRow first{.part = {key, 0}, .persisted = true, .sequence = 1};
  const PartRow second{.part = {key, 1}, .sequence = 2};
  const auto held = [&key](Writer writer, int64_t sequence) {
    return HolderRow{.part = {key, writer}, .holder = "0", .resident = true, .sequence = sequence};
  };
  const StepRow gone{.checkpoint = key, .removed = true, .sequence = 3};
  const PartRow anew{.part = {key, 0}, .sequence = 4};
  for (const auto& batch :
       std::vector<std::vector<Row>>{{first, held(0, 1)}, {gone}, {second, held(1, 2)}}) {
    ASSERT_TRUE(this->catalog_->Apply(batch).ok());
  }
  const auto parts = this->catalog_->Parts(key);
  ASSERT_EQ(parts->size(), 2u);
  for (const PartRow& part : *parts) EXPECT_TRUE(part.removed && !part.persisted);
  EXPECT_TRUE(this->catalog_->Holders(key)->empty());
  const PartRow alone{.part = {key, 2}, .persisted = true, .sequence = 2};
  ASSERT_TRUE(this->catalog_->Apply({alone}).ok());
  ASSERT_TRUE(this->catalog_->Apply({held(2, 2)}).ok());
  EXPECT_TRUE(this->catalog_->Parts(key)->at(2).removed);
  EXPECT_FALSE(this->catalog_->Parts(key)->at(2).persisted);
  EXPECT_TRUE(this->catalog_->Holders(key)->empty());
  ASSERT_TRUE(this->catalog_->Apply({anew, held(0, 5)}).ok());
  EXPECT_FALSE(this->catalog_->Parts(key)->at(0).removed) << "it was saved anew";
  EXPECT_EQ(this->catalog_->Holders(key)->size(), 1u);
}

// --- several who write (R21)

// Two homes, one after the other, whose sequences do not compare.
TYPED_TEST(CatalogContract, WhatAHomeSaysOfAStepOnlyRises) {
  StepRow complete = CompleteStep("run", 5, 1000);
  complete.of_home = true;
  StepRow persisted = complete;
  persisted.persisted = true;
  persisted.sequence = 10;
  StepRow removed{
      .checkpoint = complete.checkpoint, .removed = true, .of_home = true, .sequence = 5};
  ASSERT_TRUE(this->catalog_->Apply({complete}).ok());
  ASSERT_TRUE(this->catalog_->Apply({persisted}).ok());
  EXPECT_TRUE(this->catalog_->Steps("run", 9, 9)->front().persisted);
  complete.sequence = 2000;
  ASSERT_TRUE(this->catalog_->Apply({complete}).ok());
  EXPECT_TRUE(this->catalog_->Steps("run", 9, 9)->front().persisted);
  const PartRow part{.part = {complete.checkpoint, 0}, .sequence = 5000};
  const HolderRow holder{.part = part.part, .holder = "1", .resident = true, .sequence = 5000};
  ASSERT_TRUE(this->catalog_->Apply({part, holder, removed}).ok());
  ASSERT_TRUE(this->catalog_->Apply({complete, part, holder}).ok()) << "late";
  EXPECT_TRUE(this->catalog_->Steps("run", 9, 9)->empty());
  EXPECT_TRUE(this->catalog_->Parts(complete.checkpoint)->at(0).removed);
  EXPECT_TRUE(this->catalog_->Holders(complete.checkpoint)->empty());
}

TYPED_TEST(CatalogContract, APolicysVersionWinsThenItsRankThenTheSequence) {
  const auto policy = [](int64_t version, int32_t rank, int64_t sequence, int64_t every) {
    return JobRow{.job = "run",
                  .policy = {.mode = PersistMode::kEvery, .every = every},
                  .policy_version = version,
                  .policy_rank = rank,
                  .sequence = sequence};
  };
  const auto every = [this] { return (*this->catalog_->Job("run"))->policy.every; };
  ASSERT_TRUE(this->catalog_->Apply({policy(2, 1, 10, 1)}).ok());
  ASSERT_TRUE(this->catalog_->Apply({policy(1, 9, 99, 2)}).ok());
  EXPECT_EQ(every(), 1);
  ASSERT_TRUE(this->catalog_->Apply({policy(2, 0, 99, 3)}).ok());
  EXPECT_EQ(every(), 1);
  ASSERT_TRUE(this->catalog_->Apply({policy(2, 1, 9, 4)}).ok());
  EXPECT_EQ(every(), 1);
  ASSERT_TRUE(this->catalog_->Apply({policy(2, 1, 11, 5)}).ok());
  EXPECT_EQ(every(), 5);
  ASSERT_TRUE(this->catalog_->Apply({policy(2, 2, 1, 6)}).ok());
  EXPECT_EQ(every(), 6);
  ASSERT_TRUE(this->catalog_->Apply({policy(3, 0, 1, 7)}).ok());
  EXPECT_EQ(every(), 7);
  ASSERT_TRUE(this->catalog_->Apply({policy(3, 0, 1, 8)}).ok());
  EXPECT_EQ(every(), 7);
  const JobRow found = **this->catalog_->Job("run");
  EXPECT_EQ(std::tuple(found.policy_version, found.policy_rank, found.sequence),
            std::tuple(3, 0, 1));
}

TYPED_TEST(CatalogContract, AnOriginThatIsKnownStaysKnown) {
  AttemptRow attempt{.job = "run", .attempt = 7, .comes_from = kUnknownStep, .sequence = 1};
  const auto comes_from = [&] { return this->catalog_->Attempts("run")->front().comes_from; };
  ASSERT_TRUE(this->catalog_->Apply({attempt}).ok());
  EXPECT_EQ(comes_from(), kUnknownStep);
  attempt.comes_from = 4;
  attempt.sequence = 2;
  ASSERT_TRUE(this->catalog_->Apply({attempt}).ok());
  attempt.comes_from = kUnknownStep;
  attempt.sequence = 3;
  ASSERT_TRUE(this->catalog_->Apply({attempt}).ok());
  EXPECT_EQ(comes_from(), 4);
}

TYPED_TEST(CatalogContract, WhoLeavesACheckpointTakesOnlyItsOwnOlderRows) {
  const CheckpointKey key{"run", 5, 7, 0};
  const auto held = [&key](Writer writer, const std::string& holder, int64_t sequence) {
    return HolderRow{
        .part = {key, writer}, .holder = holder, .resident = true, .sequence = sequence};
  };
  ASSERT_TRUE(this->catalog_
                  ->Apply({held(0, "0", 1), held(1, "0", 2), held(0, "1", 3), held(2, "0", 9),
                           LeftRow{.checkpoint = key, .holder = "0", .sequence = 5}})
                  .ok());
  const auto left = this->catalog_->Holders(key);
  ASSERT_EQ(left->size(), 2u);
  EXPECT_EQ(left->at(0).holder, "1");
  EXPECT_EQ(left->at(1).part.writer, 2);
  HolderRow not_there = held(2, "0", 10);
  not_there.resident = false;
  ASSERT_TRUE(this->catalog_->Apply({not_there}).ok());
  EXPECT_EQ(this->catalog_->Holders(key)->size(), 1u);
}

// Nobody has it any more. A member that was lost brings it back, and then it is there as before.
TYPED_TEST(CatalogContract, WhatVanishedIsNotShownAndMayComeBack) {
  StepRow step = CompleteStep("run", 5, 1);
  step.of_home = true;
  StepRow removed = CompleteStep("run", 6, 1);
  removed.of_home = removed.removed = true;
  const PartRow part{.part = {step.checkpoint, 0}, .owner = "0", .sequence = 1};
  const HolderRow holder{.part = part.part, .holder = "0", .resident = true, .sequence = 1};
  ASSERT_TRUE(this->catalog_->Apply({step, part, holder, removed}).ok());
  ASSERT_TRUE(this->catalog_
                  ->Apply({VanishedRow{.checkpoint = step.checkpoint, .sequence = 2},
                           VanishedRow{.checkpoint = removed.checkpoint, .sequence = 3}})
                  .ok());
  EXPECT_TRUE(this->catalog_->Steps("run", 9, 9)->empty());
  EXPECT_TRUE(this->catalog_->Parts(step.checkpoint)->empty());
  EXPECT_TRUE(this->catalog_->Holders(step.checkpoint)->empty());
  ASSERT_TRUE(this->catalog_->Apply({step, part, holder}).ok());
  EXPECT_EQ(this->catalog_->Steps("run", 9, 9)->size(), 1u);
  EXPECT_EQ(this->catalog_->Holders(step.checkpoint)->size(), 1u);
  removed.removed = false;
  ASSERT_TRUE(this->catalog_->Apply({removed}).ok());
  EXPECT_EQ(this->catalog_->Steps("run", 9, 9)->size(), 1u) << "what was removed stays removed";
}

// R35: steps that never became complete leave no rows behind.
TYPED_TEST(CatalogContract, OfAStepThatWasNeverCompleteItsOwnersPartsGo) {
  const PartRow part{.part = {{"run", 5, 7, 0}, 0}, .owner = "0", .sequence = 1};
  PartRow of_another = part;
  of_another.part.writer = 1;
  of_another.owner = "1";
  PartRow of_complete = part;
  of_complete.part.checkpoint.step = 6;
  const auto leave = [](Step step) {
    return LeftRow{.checkpoint = {"run", step, 7, 0}, .holder = "0", .whole = true, .sequence = 9};
  };
  ASSERT_TRUE(
      this->catalog_
          ->Apply({part, of_another, of_complete, CompleteStep("run", 6, 2), leave(5), leave(6)})
          .ok());
  const auto left = this->catalog_->Parts({"run", 5, 7, 0});
  ASSERT_EQ(left->size(), 1u);
  EXPECT_EQ(left->front().owner, "1");
  EXPECT_EQ(this->catalog_->Parts({"run", 6, 7, 0})->size(), 1u);
}

TYPED_TEST(CatalogContract, AmongOthersAnAuthorsOwnRowsAreThoseOfItsPartsAndCopies) {
  PartRow part{.part = {{"job", 3, 7, 0}, 0}, .owner = "1", .sequence = 40};
  PartRow of_another{.part = {{"job", 4, 7, 0}, 0}, .owner = "2", .sequence = 90};
  HolderRow copy{.part = {{"job", 5, 7, 0}, 0}, .holder = "1", .resident = true, .sequence = 50};
  HolderRow let_go{.part = {{"job", 6, 7, 0}, 0}, .holder = "1", .sequence = 45};
  ASSERT_TRUE(this->catalog_
                  ->Apply({part, of_another, copy, let_go, JobRow{.job = "job", .sequence = 99},
                           CompleteStep("job", 8, 98)})
                  .ok());
  const auto mine = this->factory_.Open({.name = "1", .alone = false});
  EXPECT_EQ(*mine->NewestSequence(), 50);
  std::vector<Step> steps;
  const auto present = mine->Present("job", {"job", kNoStep, 0, 0}, 10);
  ASSERT_TRUE(present.ok()) << present.status();
  for (const CheckpointKey& key : *present) steps.push_back(key.step);
  EXPECT_EQ(steps, (std::vector<Step>{3, 5, 8}));
  const auto nobodys = this->factory_.Open({.name = "3", .alone = false});
  EXPECT_EQ(*nobodys->NewestSequence(), 0);
}

TYPED_TEST(CatalogContract, AnswersComeInOrder) {
  std::vector<Row> rows;
  int64_t sequence = 0;
  for (const int number : {2, 10, 1}) {
    rows.push_back(JobRow{.job = "job" + std::to_string(number), .sequence = ++sequence});
    rows.push_back(AttemptRow{.job = "run", .attempt = number, .sequence = ++sequence});
    rows.push_back(
        PartRow{.part = {{"run", 5, 7, 0}, number}, .removed = true, .sequence = ++sequence});
    StepRow step = CompleteStep("run", 5, ++sequence);
    step.checkpoint.attempt = number;
    rows.push_back(step);
  }
  ASSERT_TRUE(this->catalog_->Apply(rows).ok());
  EXPECT_EQ(*this->catalog_->Jobs(), (std::vector<std::string>{"job1", "job10", "job2"}));
  const auto begun = this->catalog_->Attempts("run");
  const auto parts = this->catalog_->Parts({"run", 5, 7, 0});
  const auto steps = this->catalog_->Steps("run", 9, 9);
  ASSERT_TRUE(begun.ok() && parts.ok() && steps.ok());
  std::vector<int64_t> attempts, writers, of_step;
  for (const AttemptRow& row : *begun) attempts.push_back(row.attempt);
  for (const PartRow& row : *parts) writers.push_back(row.part.writer);
  for (const StepRow& row : *steps) of_step.push_back(row.checkpoint.attempt);
  EXPECT_EQ(attempts, (std::vector<int64_t>{1, 2, 10}));
  EXPECT_EQ(writers, (std::vector<int64_t>{1, 2, 10}));
  EXPECT_EQ(of_step, (std::vector<int64_t>{10, 2, 1}));
}

// Keys compare as bytes: a default collation would join these.
TYPED_TEST(CatalogContract, JobsThatDifferInCaseOrSpaceAreDifferent) {
  ASSERT_TRUE(this->catalog_
                  ->Apply({JobRow{.job = "Run", .sequence = 1}, JobRow{.job = "run", .sequence = 1},
                           JobRow{.job = "run ", .sequence = 1}})
                  .ok());
  EXPECT_EQ(this->catalog_->Jobs()->size(), 3u);
}

TYPED_TEST(CatalogContract, EveryByteOfAKeyAndOfAValueComesBack) {
  std::string bytes;
  for (int byte = 0; byte < 120; ++byte) bytes += static_cast<char>(byte * 2 + byte % 2);
  const std::string owner = bytes.substr(0, 60);
  PartRow part{.part = {{bytes, 5, 7, 0}, 1}, .owner = owner, .sequence = 1};
  ASSERT_TRUE(this->catalog_->Apply({JobRow{.job = bytes, .sequence = 1}, part}).ok());
  EXPECT_EQ(this->catalog_->Jobs()->front(), bytes);
  const auto parts = this->catalog_->Parts(part.part.checkpoint);
  ASSERT_EQ(parts->size(), 1u);
  EXPECT_EQ(parts->front().owner, owner);
}

// Two versions of a row in one batch, and more rows than one statement takes.
TYPED_TEST(CatalogContract, ALargeBatchIsWrittenWhole) {
  std::vector<Row> rows;
  for (int writer = 0; writer < 700; ++writer) {
    rows.push_back(PartRow{
        .part = {{"run", 5, 7, 0}, writer}, .bytes = 1, .sequence = int64_t{writer} * 2 + 2});
    rows.push_back(PartRow{
        .part = {{"run", 5, 7, 0}, writer}, .bytes = 2, .sequence = int64_t{writer} * 2 + 1});
  }
  ASSERT_TRUE(this->catalog_->Apply(rows).ok());
  const auto parts = this->catalog_->Parts({"run", 5, 7, 0});
  ASSERT_EQ(parts->size(), 700u);
  for (const PartRow& part : *parts) EXPECT_EQ(part.bytes, 1u) << part.part.writer;
}

// R24: values are bound, never pasted.
TYPED_TEST(CatalogContract, SqlInAnyNameIsOnlyAName) {
  const std::string hostile = "x' OR 1=1); DROP TABLE jobs; -- \\";
  const CheckpointKey key{hostile, 5, 7, 0};
  const StepRow step{.checkpoint = key, .digest = hostile, .sequence = 2};
  const PartRow part{.part = {key, 0}, .digest = hostile, .owner = hostile, .sequence = 3};
  const HolderRow holder{.part = part.part, .holder = hostile, .resident = true, .sequence = 4};
  const LineRow line{.record = {hostile, 9, LineRecordKind::kUse, {{{7, 5}}}}, .sequence = 5};
  ASSERT_TRUE(this->catalog_
                  ->Apply({JobRow{.job = hostile, .sequence = 1}, JobRow{.job = "run"}, step, part,
                           holder, line, AttemptRow{.job = hostile, .attempt = 7, .sequence = 6},
                           AuthorRow{.name = hostile, .sequence = 7}})
                  .ok());
  EXPECT_EQ(this->catalog_->Jobs()->size(), 2u);
  EXPECT_TRUE(this->catalog_->Job(hostile)->has_value());
  EXPECT_EQ(this->catalog_->Attempts(hostile)->size(), 1u);
  EXPECT_EQ(this->catalog_->Steps(hostile, 9, 9)->at(0).digest, hostile);
  EXPECT_EQ(this->catalog_->Parts(key)->at(0).owner, hostile);
  EXPECT_EQ(this->catalog_->HolderCounts(key)->at(0).holder, hostile);
  EXPECT_EQ(this->catalog_->LineRecords(hostile)->size(), 1u);
  EXPECT_EQ((*this->catalog_->Latest(hostile))->checkpoint, key);
  EXPECT_EQ(this->catalog_->Present(hostile, {hostile, kNoStep, 0, 0}, 9)->size(), 1u);
  EXPECT_EQ(this->catalog_->Authors()->at(0).name, hostile);
  const auto as_hostile = this->factory_.Open({.name = hostile, .alone = false});
  EXPECT_EQ(*as_hostile->NewestSequence(), 7);
  ASSERT_TRUE(
      this->catalog_
          ->Apply({LeftRow{.checkpoint = key, .holder = hostile, .whole = true, .sequence = 8},
                   VanishedRow{.checkpoint = key, .sequence = 9},
                   ForgottenRow{.job = hostile, .sequence = 10}})
          .ok());
  EXPECT_EQ(*this->catalog_->Jobs(), std::vector<std::string>{"run"});
}

TEST(RowIdentity, TellsRowsOfOneCheckpointApart) {
  const CheckpointKey key{"run", 5, 7, 0};
  EXPECT_NE(RowIdentity(PartRow{.part = {key, 0}}), RowIdentity(PartRow{.part = {key, 1}}));
  EXPECT_NE(RowIdentity(PartRow{.part = {key, 0}}), RowIdentity(StepRow{.checkpoint = key}));
  EXPECT_EQ(RowIdentity(StepRow{.checkpoint = key, .persisted = true}),
            RowIdentity(StepRow{.checkpoint = key}));
}

TYPED_TEST(CatalogContract, TheNewestSequenceIsThatOfAnyRow) {
  EXPECT_EQ(*this->catalog_->NewestSequence(), 0);
  ASSERT_TRUE(this->catalog_->Apply({CompleteStep("job", 3, 9), JobRow{.job = "job"}}).ok());
  PartRow part;
  part.part = {{"job", 3, 7, 0}, 0};
  part.sequence = int64_t{1} << 62;
  ASSERT_TRUE(this->catalog_->Apply({part}).ok());
  this->Reopen();
  EXPECT_EQ(*this->catalog_->NewestSequence(), int64_t{1} << 62);
}

TYPED_TEST(CatalogContract, PresentIsWhatARowSaysIsThere) {
  const auto part = [](Step step, int64_t sequence) {
    PartRow row;
    row.part = {{"job", step, 7, 0}, 0};
    row.sequence = sequence;
    return row;
  };
  StepRow gone = CompleteStep("job", 2, 8);
  gone.removed = true;
  ASSERT_TRUE(this->catalog_
                  ->Apply({CompleteStep("job", 1, 1), part(1, 2), part(2, 3), gone, part(3, 4),
                           part(10, 5), CompleteStep("other", 4, 6)})
                  .ok());
  const auto steps = [this](Step after, int limit) {
    std::vector<Step> found;
    const auto present = this->catalog_->Present("job", {"job", after, 7, 0}, limit);
    EXPECT_TRUE(present.ok()) << present.status();
    for (const CheckpointKey& key : *present) found.push_back(key.step);
    return found;
  };
  EXPECT_EQ(steps(kNoStep, 10), (std::vector<Step>{1, 3, 10}));
  EXPECT_EQ(steps(1, 1), (std::vector<Step>{3}));
  EXPECT_EQ(steps(10, 10), std::vector<Step>{});
}

TYPED_TEST(CatalogContract, PresentGoesOnWithinAStep) {
  const std::vector<CheckpointKey> all = {
      {"job", 1, 2, 5}, {"job", 1, 3, 0}, {"job", 1, 3, 1}, {"job", 2, 1, 0}};
  int64_t sequence = 0;
  for (const CheckpointKey& key : all) {
    StepRow step = CompleteStep("job", key.step, ++sequence);
    step.checkpoint = key;
    ASSERT_TRUE(
        this->catalog_->Apply({step, PartRow{.part = {key, 0}, .sequence = sequence}}).ok());
  }
  CheckpointKey after{"job", kNoStep, 0, 0};
  for (const CheckpointKey& key : all) {
    const auto next = this->catalog_->Present("job", after, 1);
    ASSERT_TRUE(next.ok()) << next.status();
    ASSERT_EQ(next->size(), 1u) << key.DebugString();
    EXPECT_EQ(next->front(), key);
    after = key;
  }
  EXPECT_TRUE(this->catalog_->Present("job", after, 9)->empty());
}

}  // namespace
}  // namespace cairn::catalog
