// Which members live, as far as a node can tell from exchanges of its own.
#include "server/engine/members.h"

#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

class MembersTest : public EngineTest {
 protected:
  void SetUp() override {
    options.ring.cluster = "test";
    options.ring.rank = 0;
    options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}};
    options.ring.lost_after_seconds = 30;
    options.storage = false;
    EngineTest::SetUp();
    Apply(event::Exchanged{1, other});
  }
  void Fail(int exchanges) {
    for (int i = 0; i < exchanges; ++i) Apply(event::Exchanged{1, std::nullopt});
  }
  std::string State() { return Status_().ring.members.at(0).state; }

  MemberId other{1, 1, std::string(kInstanceBytes, 'o')};
};

TEST_F(MembersTest, OneIsLostAfterManyFailedExchangesOverThatTime) {
  EXPECT_EQ(State(), "up");
  Fail(1);
  EXPECT_EQ(State(), "silent");
  Advance(31 * kNanosPerSecond);
  Fail(Members::kFailedExchanges - 2);
  EXPECT_EQ(State(), "silent") << "time alone makes nobody lost";
  Fail(1);
  EXPECT_EQ(State(), "lost");
  Apply(event::Exchanged{1, other});
  EXPECT_EQ(State(), "up");
}

TEST_F(MembersTest, ManyFailedExchangesInAMomentMakeNobodyLost) {
  Fail(10 * Members::kFailedExchanges);
  EXPECT_EQ(State(), "silent");
}

// A node that was stopped itself has heard nobody.
TEST_F(MembersTest, ATimerOfItsOwnThatRanLateStartsTheCountAnew) {
  Fail(Members::kFailedExchanges - 1);
  now += 40 * kNanosPerSecond;  // nothing ran
  Apply(event::Tick{});
  Fail(1);
  EXPECT_EQ(State(), "silent");
  Advance(31 * kNanosPerSecond);
  Fail(Members::kFailedExchanges - 2);
  EXPECT_EQ(State(), "silent");
  Fail(1);
  EXPECT_EQ(State(), "lost");
}

}  // namespace
}  // namespace cairn::engine
