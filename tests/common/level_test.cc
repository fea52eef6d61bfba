#include "common/level.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/info.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;

TEST(Levels, FollowFromTheFacts) {
  Facts facts;
  EXPECT_EQ(LevelOf(facts, /*written=*/false), Level::kWriting);
  EXPECT_EQ(LevelOf(facts, /*written=*/true), Level::kCached);
  facts.replicas_asked = 2;
  facts.replicas = 1;
  EXPECT_EQ(LevelOf(facts, true), Level::kCached) << "one replica of two";
  facts.replicas = 2;
  EXPECT_EQ(LevelOf(facts, true), Level::kReplicated);
  facts.persisted = true;
  EXPECT_EQ(LevelOf(facts, true), Level::kEvicted);
  facts.resident = true;
  EXPECT_EQ(LevelOf(facts, true), Level::kPersisted);
  facts.broken = true;
  EXPECT_EQ(LevelOf(facts, true), Level::kBroken);
}

TEST(Levels, WithoutReplicasAskedForNoneIsReplicated) {
  EXPECT_EQ(LevelOf(Facts{.replicas = 3}, true), Level::kCached);
}

TEST(Levels, NamesParseToWhatTheyCameFrom) {
  for (const Level level : {Level::kWriting, Level::kCached, Level::kReplicated, Level::kPersisted,
                            Level::kEvicted, Level::kBroken}) {
    EXPECT_EQ(ParseLevel(LevelName(level)), level);
  }
  EXPECT_EQ(LevelName(Level::kReplicated), "REPLICATED");
  EXPECT_EQ(LevelName(static_cast<Level>(6)), "UNKNOWN");
  EXPECT_EQ(ParseLevel("cached"), std::nullopt);
  EXPECT_EQ(ParseLevel("UNKNOWN"), std::nullopt);
}

TEST(Fields, OfACheckpointHaveTheContractsNamesInItsOrder) {
  std::vector<std::string> names;
  VisitFields(CheckpointInfo{}, [&](const char* name, const auto&) { names.push_back(name); });
  EXPECT_THAT(names, ElementsAre("job", "step", "attempt", "revision", "world_size",
                                 "missing_writers", "bytes", "objects", "facts", "level",
                                 "created_unix_ms", "why", "on_line", "digest"));
}

}  // namespace
}  // namespace cairn
