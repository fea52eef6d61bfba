#include "common/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn {
namespace {

using ::testing::HasSubstr;

TEST(Policies, EveryModeAndReaderHasAName) {
  EXPECT_EQ(PersistModeName(PersistMode::kOnDemand), "on-demand");
  EXPECT_EQ(PersistModeName(PersistMode::kEvery), "every");
  EXPECT_EQ(PersistModeName(PersistMode::kNewest), "newest");
  EXPECT_EQ(PersistModeName(static_cast<PersistMode>(9)), "unknown");
  EXPECT_EQ(ReadersName(Readers::kOwner), "owner");
  EXPECT_EQ(ReadersName(Readers::kGroup), "group");
  EXPECT_EQ(ReadersName(Readers::kAll), "all");
}

TEST(Policies, NamesParseToWhatTheyCameFrom) {
  for (const PersistMode mode :
       {PersistMode::kOnDemand, PersistMode::kEvery, PersistMode::kNewest}) {
    EXPECT_EQ(*ParsePersistMode(PersistModeName(mode)), mode);
  }
  for (const Readers readers : {Readers::kOwner, Readers::kGroup, Readers::kAll}) {
    EXPECT_EQ(*ParseReaders(ReadersName(readers)), readers);
  }
}

TEST(Policies, AnUnknownNameIsRefusedWithThoseThereAre) {
  const Status status = ParsePersistMode("some\ntimes").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("some\\ntimes"));
  EXPECT_THAT(status.message(), HasSubstr("on-demand, every, newest"));
  EXPECT_FALSE(ParsePersistMode("on_demand").ok()) << "there is one spelling";
  EXPECT_FALSE(ParseReaders("").ok());
}

}  // namespace
}  // namespace cairn
