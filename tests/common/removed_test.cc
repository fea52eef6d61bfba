#include "common/removed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace cairn {
namespace {

using ::testing::ElementsAre;
using Range = AttemptRanges::Range;

TEST(AttemptRanges, MergeWhenTheyTouch) {
  AttemptRanges ranges;
  ranges.Add(10, 20);
  ranges.Add(30, 40);
  EXPECT_THAT(ranges.ranges(), ElementsAre(Range{10, 20}, Range{30, 40}));
  ranges.Add(1, 5);
  ranges.Add(41, 41);
  EXPECT_THAT(ranges.ranges(), ElementsAre(Range{1, 5}, Range{10, 20}, Range{30, 41}));
  ranges.Add(21, 29);
  EXPECT_THAT(ranges.ranges(), ElementsAre(Range{1, 5}, Range{10, 41}));
  ranges.Add(1, std::numeric_limits<Attempt>::max());
  ranges.Add(7, 7);
  EXPECT_THAT(ranges.ranges(), ElementsAre(Range{1, std::numeric_limits<Attempt>::max()}));
}

TEST(AttemptRanges, ContainWhatWasAddedAndNothingElse) {
  AttemptRanges ranges;
  EXPECT_FALSE(ranges.Contains(1));
  ranges.Add(5, 7);
  ranges.Add(9, 9);
  for (Attempt attempt : {5, 6, 7, 9}) EXPECT_TRUE(ranges.Contains(attempt)) << attempt;
  for (Attempt attempt : {1, 4, 8, 10}) EXPECT_FALSE(ranges.Contains(attempt)) << attempt;
  EXPECT_TRUE(ranges.Covers({5, 7}));
  EXPECT_FALSE(ranges.Covers({5, 9}));
}

TEST(RemovedSteps, ForbidWhatTheirStepSays) {
  RemovedSteps removed;
  removed.steps[5].Add(1, 100);
  EXPECT_TRUE(removed.Forbids(5, 100));
  EXPECT_FALSE(removed.Forbids(5, 101));
  EXPECT_FALSE(removed.Forbids(6, 100));
}

TEST(AttemptRanges, HaveNamesThatParseBack) {
  Range range;
  EXPECT_EQ(RangeName({5, 17}), "5-17");
  EXPECT_TRUE(ParseRangeName("5-17", &range));
  EXPECT_EQ(range, (Range{5, 17}));
  for (const char* name : {"", "-", "5", "5-", "-5", "0-5", "05-7", "9-5", "5-7-9", "5-7 ", "+5-7",
                           "5-99999999999999999999"}) {
    EXPECT_FALSE(ParseRangeName(name, &range)) << name;
  }
}

}  // namespace
}  // namespace cairn
