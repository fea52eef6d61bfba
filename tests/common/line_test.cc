#include "common/line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/line.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

AttemptLine Life(Attempt attempt, Step comes_from, const std::vector<Step>& complete) {
  AttemptLine life{attempt, comes_from, /*resumed=*/false, {}};
  for (Step step : complete) life.complete[step] = 0;
  return life;
}

// "step@attempt" for each entry.
std::vector<std::string> Words(const std::vector<LineStep>& steps) {
  std::vector<std::string> words;
  for (const LineStep& s : steps) {
    words.push_back(std::to_string(s.step) + "@" + std::to_string(s.attempt));
  }
  return words;
}

std::string Latest(const std::vector<AttemptLine>& attempts) {
  const auto latest = LatestOfLine(attempts);
  return latest.has_value() ? Words({*latest})[0] : "none";
}

TEST(Line, OfNothingIsEmpty) {
  EXPECT_THAT(ComputeLine({}), IsEmpty());
  EXPECT_EQ(Latest({}), "none");
  EXPECT_EQ(ComesFrom({}, 5), kNoStep);
  EXPECT_THAT(Abandoned({}), IsEmpty());
}

TEST(Line, OfOneLifeIsItsCompleteSteps) {
  const auto attempts = {Life(1, kNoStep, {3, 1, 2})};
  EXPECT_THAT(Words(ComputeLine(attempts)), ElementsAre("1@1", "2@1", "3@1"));
  EXPECT_EQ(Latest(attempts), "3@1");
}

TEST(Line, GoesOnAcrossARestart) {
  const auto attempts = {Life(1, kNoStep, {1, 2, 3}), Life(2, 3, {4, 5})};
  EXPECT_THAT(Words(ComputeLine(attempts)), ElementsAre("1@1", "2@1", "3@1", "4@2", "5@2"));
  EXPECT_THAT(Abandoned(attempts), IsEmpty());
}

// Killed in its first step, interrupted, refused for want of room: `latest` stays where it was.
TEST(Line, ALifeThatCompletesNothingMovesNothing) {
  const auto begun = {Life(1, kNoStep, {1, 2, 3, 4}), Life(2, 2, {}), Life(3, kNoStep, {})};
  EXPECT_EQ(Latest(begun), "4@1");
  EXPECT_THAT(Abandoned(begun), IsEmpty());
  EXPECT_EQ(ComesFrom(begun, 3), 2) << "of the next one, too";
}

TEST(Line, AResumedLifeMovesTheLineAtOnce) {
  AttemptLine resumed = Life(2, 2, {});
  resumed.resumed = true;
  const auto begun = {Life(1, kNoStep, {1, 2, 3, 4}), resumed, Life(3, 2, {})};
  EXPECT_EQ(Latest(begun), "2@1");
  EXPECT_THAT(Abandoned(begun), IsEmpty()) << "before it has a complete step of its own";
  const auto done_after = {Life(1, kNoStep, {1, 2, 3, 4}), resumed, Life(3, 2, {5})};
  EXPECT_THAT(Words(ComputeLine(done_after)), ElementsAre("1@1", "2@1", "5@3"));
}

TEST(Line, FollowsARollbackFromItsFirstCompleteStep) {
  const auto done = {Life(1, kNoStep, {1, 2, 3, 4}), Life(2, 2, {3})};
  EXPECT_THAT(Words(ComputeLine(done)), ElementsAre("1@1", "2@1", "3@2"));
  EXPECT_THAT(Words(Abandoned(done)), ElementsAre("3@1", "4@1"));
}

TEST(Line, OfALifeThatBeganAnewHoldsNothingOlder) {
  const auto attempts = {Life(1, kNoStep, {5, 6}), Life(2, kNoStep, {1})};
  EXPECT_EQ(Latest(attempts), "1@2");
  EXPECT_THAT(Words(Abandoned(attempts)), ElementsAre("5@1", "6@1"));
}

TEST(Line, ALifeThatCompletedNothingCutsNothingOffForLaterOnes) {
  const auto attempts = {Life(1, kNoStep, {1, 2, 3, 4}), Life(2, 1, {}), Life(3, 4, {5})};
  EXPECT_THAT(Words(ComputeLine(attempts)), ElementsAre("1@1", "2@1", "3@1", "4@1", "5@3"));
  EXPECT_THAT(Abandoned(attempts), IsEmpty());
}

TEST(Line, AChainOfRollbacksKeepsOnlyWhatEachCameFrom) {
  const auto attempts = {Life(1, kNoStep, {10, 20, 30}), Life(2, 20, {25, 35}), Life(3, 10, {15})};
  EXPECT_THAT(Words(ComputeLine(attempts)), ElementsAre("10@1", "15@3"));
  EXPECT_THAT(Words(Abandoned(attempts)), ElementsAre("20@1", "30@1", "25@2", "35@2"));
}

TEST(Line, WhatWasAbandonedOnceStaysAbandonedWhenTheNextLifeGoesFurtherBack) {
  AttemptLine anew = Life(3, kNoStep, {});
  anew.resumed = true;
  const auto attempts = {Life(1, kNoStep, {1, 2, 3}), Life(2, 1, {2}), anew};
  EXPECT_EQ(Latest(attempts), "none");
  EXPECT_THAT(Words(Abandoned(attempts)), ElementsAre("2@1", "3@1"));
}

TEST(Line, AStepSavedAgainByALaterLifeStandsForTheOlderOne) {
  const auto attempts = {Life(1, kNoStep, {1, 2, 3}), Life(2, 3, {2, 4})};
  EXPECT_THAT(Words(ComputeLine(attempts)), ElementsAre("1@1", "2@2", "3@1", "4@2"));
  EXPECT_THAT(Words(Abandoned(attempts)), ElementsAre("2@1"));
}

TEST(Line, CarriesTheNewestRevision) {
  AttemptLine life{1, kNoStep, false, {{7, 3}}};
  EXPECT_EQ(LatestOfLine({life}), (LineStep{7, 1, 3}));
}

TEST(ComingFrom, IsTheHighestCompleteStepBelowTheFirst) {
  const auto attempts = {Life(1, kNoStep, {10, 20, 30})};
  EXPECT_EQ(ComesFrom(attempts, 31), 30);
  EXPECT_EQ(ComesFrom(attempts, 30), 20);
  EXPECT_EQ(ComesFrom(attempts, 11), 10);
  EXPECT_EQ(ComesFrom(attempts, 10), kNoStep);
  EXPECT_EQ(ComesFrom(attempts, 0), kNoStep);
}

TEST(ComingFrom, LooksAlongTheLineNotAtAbandonedSteps) {
  const auto attempts = {Life(1, kNoStep, {10, 20, 30}), Life(2, 10, {12})};
  EXPECT_EQ(ComesFrom(attempts, 31), 12);
  EXPECT_EQ(ComesFrom(attempts, 12), 10);
}

}  // namespace
}  // namespace cairn
