#include "server/node/background_gate.h"

#include <gtest/gtest.h>

#include <future>

namespace cairn::node {
namespace {

constexpr MonotonicNanos kMilli = kNanosPerMilli;

struct SetClock : Clock {
  MonotonicNanos now = kNanosPerSecond;
  MonotonicNanos Now() const override { return now; }
  int64_t UnixMillis() const override { return 0; }
};

class BackgroundGateTest : public ::testing::Test {
 protected:
  // Of the next so many milliseconds, in how many it is shut.
  int ShutIn(int ms) {
    int shut = 0;
    for (int i = 0; i < ms; ++i, clock_.now += kMilli) shut += gate_.ShutFor() > 0 ? 1 : 0;
    return shut;
  }

  SetClock clock_;
  BackgroundGate gate_{&clock_, {.longest_shut = 100 * kMilli, .longest_step = 2000 * kMilli}};
};

TEST_F(BackgroundGateTest, IsShutWhileAClientWrites) {
  EXPECT_EQ(ShutIn(10), 0);
  gate_.SetWriting(1);
  EXPECT_EQ(ShutIn(50), 50);
  gate_.SetWriting(0);
  EXPECT_EQ(ShutIn(50), 0);
}

TEST_F(BackgroundGateTest, OfALongStepHalfOfTheTime) {
  gate_.SetWriting(1);
  EXPECT_EQ(ShutIn(100), 100);
  EXPECT_EQ(ShutIn(50), 0);
  EXPECT_EQ(ShutIn(1000), 500);
}

// Not one after the other: the second may be as important.
TEST_F(BackgroundGateTest, IsShutForTheNextStepAtOnce) {
  for (int i = 0; i < 2; ++i) {
    gate_.SetWriting(1);
    EXPECT_EQ(ShutIn(45), 45);
    gate_.SetWriting(0);
    EXPECT_EQ(ShutIn(5), 0);
  }
}

TEST_F(BackgroundGateTest, OfManyShortStepsHalfOfTheTimeToo) {
  int shut = 0;
  for (int i = 0; i < 50; ++i) {
    gate_.SetWriting(1);
    shut += ShutIn(30);
    gate_.SetWriting(0);
    shut += ShutIn(2);
  }
  EXPECT_GT(shut, 50 * 32 / 3);
  EXPECT_LE(shut, 50 * 32 / 2 + 100);
}

// Its writer hangs, or means it.
TEST_F(BackgroundGateTest, AStepThatIsNeverWrittenShutsNothingForLong) {
  gate_.SetWriting(1);
  clock_.now += 2000 * kMilli;
  EXPECT_EQ(ShutIn(1000), 0);
  gate_.SetWriting(2);
  EXPECT_GT(ShutIn(200), 0);
}

TEST_F(BackgroundGateTest, WhoWaitsGoesOnWhenItOpens) {
  BackgroundGate gate(RealClock(), {.longest_shut = 3600 * kNanosPerSecond,
                                    .longest_step = 3600 * kNanosPerSecond});
  // On a busy machine the thread may get there only when the gate is open again.
  for (int round = 0; gate.waited_ms() == 0 && round < 100; ++round) {
    gate.SetWriting(1);
    auto passes = std::async(std::launch::async, [&] { gate.Pass(); });
    EXPECT_EQ(passes.wait_for(std::chrono::milliseconds(30)), std::future_status::timeout);
    gate.SetWriting(0);
    passes.get();
  }
  EXPECT_GT(gate.waited_ms(), 0);
}

TEST_F(BackgroundGateTest, WhoWaitsGoesOnInTime) {
  BackgroundGate gate(RealClock(), {.longest_shut = 20 * kMilli});
  gate.SetWriting(1);
  gate.Pass();
  EXPECT_GE(gate.waited_ms(), 20);
}

}  // namespace
}  // namespace cairn::node
