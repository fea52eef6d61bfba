// What a ring's members tell of for a catalog that they share.
#include "server/engine/home_moves.h"
#include "tests/engine/ring_fixture.h"

namespace cairn::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

// This node is the job's home and has nothing of it; the other member has all.
class SharedCatalog : public RingTest {
 protected:
  void SetUp() override {
    const std::vector<Rank> order = HomeOrder("job", {0, 1});
    options.ring.cluster = "test";
    options.ring.rank = order.front();
    options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}};
    options.ring.replicas = 0;
    options.storage = false;
    options.shared_catalog = true;
    RingTest::SetUp();
    other = {order.back(), 1, std::string(kInstanceBytes, 'o')};
    OtherIsHeard();
  }
  void OtherIsHeard() { Apply(event::Exchanged{other.rank, other}); }
  // The other member saved these steps, whole, and let those go.
  void Says(const std::vector<Step>& has, const std::vector<Step>& let_go = {}) {
    ReportDelta delta;
    delta.job = "job";
    delta.after = number_;
    delta.number = ++number_;
    delta.owned = true;
    delta.owner_uid = delta.owner_gid = 1000;
    delta.attempts[1] = {0, {}, 1};
    for (const Step step : has) {
      PartReport& part = delta.parts[{{step, 1, 0}, 0}];
      part.world_size = 1;
      part.digest = "digest";
      part.owner = other.rank;
      part.in_memory = true;
      part.names = std::make_shared<const std::vector<uint64_t>>(1, NameHash("model"));
    }
    for (const Step step : let_go) delta.parts_gone.insert({{step, 1, 0}, 0});
    Apply(event::PeerSaid{other, peer::Report{delta}});
    Advance(kNanosPerMilli);
  }
  static CheckpointKey Key(Step step) { return {"job", step, 1, 0}; }

  MemberId other;

 private:
  uint64_t number_ = 0;
};

TEST_F(SharedCatalog, AHomeTellsOfAJobOfWhichItHasNothing) {
  Says({1});
  EXPECT_THAT(records, Contains(Key(1)));
  const Engine::Description told = engine->Describe("job", {Key(1)});
  EXPECT_TRUE(told.writes_checkpoints);
  EXPECT_TRUE(told.settled);
  ASSERT_EQ(told.complete.size(), 1u);
  EXPECT_EQ(told.complete[0].key, Key(1));
  EXPECT_THAT(told.parts, IsEmpty()) << "who has them tells of them";
}

TEST_F(SharedCatalog, WhatNobodyHasVanishesOnceWhatCameAfterItIsSafe) {
  Says({1, 2});
  EXPECT_THAT(engine->Describe("job", {Key(1)}).vanished, IsEmpty());
  Says({}, {1});
  const Engine::Description told = engine->Describe("job", {Key(1), Key(2)});
  EXPECT_THAT(told.vanished, ElementsAre(Key(1)));
  EXPECT_THAT(told.gone, IsEmpty()) << "nobody removed it";
  EXPECT_THAT(engine->Describe("job", {Key(3)}).vanished, IsEmpty()) << "it may yet be reported";
}

TEST_F(SharedCatalog, NothingVanishesWhileAMemberIsNotHeard) {
  Says({1, 2});
  Says({}, {1});
  Apply(event::Exchanged{other.rank, std::nullopt});
  Advance(4 * kNanosPerSecond);
  EXPECT_THAT(engine->Describe("job", {Key(1)}).vanished, IsEmpty());
  for (int i = 0; i < 15; ++i) {  // and when it is lost
    Apply(event::Exchanged{other.rank, std::nullopt});
    Advance(4 * kNanosPerSecond);
  }
  EXPECT_THAT(engine->Describe("job", {Key(1)}).vanished, IsEmpty());
}

TEST_F(SharedCatalog, WhatLeavesThisNodeIsToldOf) {
  action::Record record;
  record.job = "job";
  record.left = {Key(1), Key(9)};
  Says({1});
  const Engine::Description told = engine->Describe(record);
  ASSERT_EQ(told.left.size(), 2u);
  EXPECT_FALSE(told.left[0].whole) << "it is known";
  EXPECT_TRUE(told.left[1].whole);
}

TEST(HomeMoves, OnlyWhoWasLostMovesAHomeByComing) {
  HomeMoves moves;
  moves.MemberCame(1);
  EXPECT_FALSE(moves.Take());
  moves.MemberWent(1);
  EXPECT_FALSE(moves.Take());
  moves.MemberLost(1);
  EXPECT_TRUE(moves.Take());
  EXPECT_FALSE(moves.Take()) << "it was told";
  moves.MemberCame(1);
  EXPECT_TRUE(moves.Take());
  moves.MemberCame(1);
  EXPECT_FALSE(moves.Take());
}

}  // namespace
}  // namespace cairn::engine
