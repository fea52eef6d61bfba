// NCCL_IB_HCA, as NCCL documents it.
#include "server/transport/nic_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const NicPort kMlx0 = {"mlx5_0", 1}, kMlx1 = {"mlx5_1", 1}, kMlx10 = {"mlx5_10", 1},
              kMlx1Second = {"mlx5_1", 2}, kBond = {"bond0", 1};

std::vector<NicPort> All() { return {kMlx0, kMlx1, kMlx1Second, kMlx10, kBond}; }

TEST(NicChoice, AnEmptyTextChoosesAll) { EXPECT_EQ(*ChooseNics("", All()), All()); }

TEST(NicChoice, NamesAreBeginnings) {
  EXPECT_THAT(*ChooseNics("mlx5", All()), ElementsAre(kMlx0, kMlx1, kMlx1Second, kMlx10));
  EXPECT_THAT(*ChooseNics("mlx5_1", All()), ElementsAre(kMlx1, kMlx1Second, kMlx10));
  EXPECT_THAT(*ChooseNics("mlx5_0,bond", All()), ElementsAre(kMlx0, kBond));
}

TEST(NicChoice, AnEqualsSignMeansTheWholeName) {
  EXPECT_THAT(*ChooseNics("=mlx5_1", All()), ElementsAre(kMlx1, kMlx1Second));
  EXPECT_THAT(*ChooseNics("=mlx5_0,mlx5_10", All()), ElementsAre(kMlx0, kMlx10));
}

TEST(NicChoice, ACaretMeansAllButThose) {
  EXPECT_THAT(*ChooseNics("^mlx5", All()), ElementsAre(kBond));
  EXPECT_THAT(*ChooseNics("^=mlx5_1,bond0", All()), ElementsAre(kMlx0, kMlx10));
}

TEST(NicChoice, APortIsOne) {
  EXPECT_THAT(*ChooseNics("=mlx5_1:2", All()), ElementsAre(kMlx1Second));
  EXPECT_THAT(*ChooseNics("^=mlx5_1:2", All()), ElementsAre(kMlx0, kMlx1, kMlx10, kBond));
  EXPECT_THAT(*ChooseNics("mlx5_1:1", All()), ElementsAre(kMlx1, kMlx10));
}

TEST(NicChoice, NoneIsAnErrorAndNeverAll) {
  for (const char* const text : {"mlx4", "=mlx5", "^mlx5,bond", "=mlx5_1:3"}) {
    const auto none = ChooseNics(text, All());
    EXPECT_TRUE(absl::IsInvalidArgument(none.status())) << text;
    EXPECT_THAT(none.status().message(), HasSubstr("mlx5_0:1, mlx5_1:1, mlx5_1:2"));
  }
  EXPECT_THAT(ChooseNics("mlx5", {}).status().message(), HasSubstr("there are none"));
}

TEST(NicChoice, WhatIsNoneOfTheseIsRefused) {
  for (const char* const text : {"^", "=", "a,,b", "a:", "a:x", "a:0", ":1", ","}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ChooseNics(text, All()).status())) << text;
  }
}

}  // namespace
}  // namespace cairn::transport
