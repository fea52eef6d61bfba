#include "server/keeper/restart_policy.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cairn::keeper {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr MonotonicNanos kSecond = kNanosPerSecond;

class RestartPolicyTest : public ::testing::Test {
 protected:
  void DieThrice() {
    for (int i = 0; i < 3; ++i) policy_.Died(now_, "signal 9 (Killed)");
  }
  MonotonicNanos SafeModeLength() const { return policy_.safe_until() - policy_.start_at(); }
  void LeaveSafeMode() {
    now_ = policy_.safe_until();
    policy_.LeaveSafeMode(now_);
  }

  MonotonicNanos now_ = 1'000'000 * kSecond;
  RestartPolicy policy_{RestartOptions{}, now_};
};

TEST_F(RestartPolicyTest, FirstDeathIsFollowedAtOnceLaterOnesEverMoreSlowly) {
  policy_.Died(now_, "x");
  EXPECT_EQ(policy_.start_at(), now_);
  policy_.Died(now_, "x");
  EXPECT_EQ(policy_.start_at(), now_ + 100 * kNanosPerMilli);
  policy_.Died(now_, "x");
  EXPECT_EQ(policy_.start_at(), now_ + 200 * kNanosPerMilli);
  for (int i = 0; i < 30; ++i) policy_.Died(now_, "x");
  EXPECT_EQ(policy_.start_at(), now_ + 5 * kSecond);
  now_ += 60 * kSecond;
  policy_.Died(now_, "x");
  EXPECT_EQ(policy_.start_at(), now_);
  EXPECT_EQ(policy_.deaths(), 34);
}

TEST_F(RestartPolicyTest, OneThatIsWantedStartsAtOnceAndOneASecondAtMost) {
  policy_.Replace(now_);
  EXPECT_EQ(policy_.start_at(), now_);
  policy_.Replace(now_ + kSecond / 10);
  EXPECT_EQ(policy_.start_at(), now_ + kSecond);
  now_ += 60 * kSecond;
  policy_.Replace(now_);
  EXPECT_EQ(policy_.start_at(), now_);
  EXPECT_EQ(policy_.deaths(), 0);
  EXPECT_THAT(policy_.safe_mode(), IsEmpty());
}

TEST_F(RestartPolicyTest, ThreeDeathsInAMinuteMeanSafeModeThreeInAnHourDoNot) {
  DieThrice();
  EXPECT_THAT(policy_.safe_mode(), HasSubstr("died 3 times within a minute"));
  RestartPolicy other(RestartOptions{}, now_);
  for (int i = 0; i < 3; ++i) other.Died(now_ + i * 31 * kSecond, "x");
  EXPECT_THAT(other.safe_mode(), IsEmpty());
}

TEST_F(RestartPolicyTest, SafeModeLastsAMinuteThenTwiceAsLongUpToAnHour) {
  for (const int minutes : {1, 2, 4, 8, 16, 32, 60, 60}) {
    DieThrice();
    EXPECT_EQ(SafeModeLength(), minutes * 60 * kSecond);
    LeaveSafeMode();
    EXPECT_THAT(policy_.safe_mode(), IsEmpty());
    EXPECT_EQ(policy_.start_at(), now_);
  }
  now_ += 3600 * kSecond;
  DieThrice();
  EXPECT_EQ(SafeModeLength(), 60 * kSecond);
}

TEST_F(RestartPolicyTest, DeathInSafeModeProlongsIt) {
  DieThrice();
  now_ += 59 * kSecond;
  policy_.Died(now_ + 10 * kSecond, "signal 11");
  EXPECT_THAT(policy_.safe_mode(), HasSubstr("died in safe mode with signal 11"));
  EXPECT_EQ(SafeModeLength(), 120 * kSecond);
}

TEST_F(RestartPolicyTest, NewOptionsBeginAnew) {
  DieThrice();
  policy_.Forget(now_);
  EXPECT_THAT(policy_.safe_mode(), IsEmpty());
  policy_.Died(now_, "x");
  EXPECT_EQ(policy_.start_at(), now_);
  EXPECT_THAT(policy_.safe_mode(), IsEmpty());
  policy_.Died(now_, "x");
  policy_.Died(now_, "x");
  EXPECT_EQ(SafeModeLength(), 60 * kSecond);
}

TEST_F(RestartPolicyTest, StartsThatFailAreTriedAgainEverMoreSlowlyAndAreNoDeaths) {
  policy_.NotStarted(now_);
  EXPECT_EQ(policy_.start_at(), now_ + 100 * kNanosPerMilli);
  for (int i = 0; i < 20; ++i) policy_.NotStarted(now_);
  EXPECT_EQ(policy_.start_at(), now_ + 5 * kSecond);
  EXPECT_EQ(policy_.deaths(), 0);
  EXPECT_THAT(policy_.safe_mode(), IsEmpty());
}

}  // namespace
}  // namespace cairn::keeper
