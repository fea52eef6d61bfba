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

// --- the line

class LineForTheCatalog : public EngineTest {
 protected:
  // Number and kind of what is described.
  std::vector<std::pair<Attempt, LineRecordKind>> Described() {
    std::vector<std::pair<Attempt, LineRecordKind>> all;
    for (const auto& said : engine->Describe("job", {}).line) {
      all.emplace_back(said.record.number, said.record.kind);
    }
    return all;
  }
};

TEST_F(LineForTheCatalog, DecisionsAndOriginsAreDescribedWithTheirLineage) {
  Who who;
  const SessionId first = Hello(who);
  ASSERT_TRUE(Commit(first, PartOf(first, 5), {}).ok());
  Die(first);
  who.attempt = 2;
  const SessionId second = Hello(who);
  ASSERT_TRUE(Commit(second, PartOf(second, 6), {}).ok());
  Die(second);
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const event::Use use{From(reader), {"job", 5, 1}, false, Soon()};
  Apply(use);
  const auto used = Take<reply::Latest>(use.caller.request);
  ASSERT_TRUE(used.ok()) << used.status();
  EXPECT_THAT(Described(),
              testing::UnorderedElementsAre(std::pair(Attempt{1}, LineRecordKind::kOrigin),
                                            std::pair(Attempt{2}, LineRecordKind::kOrigin),
                                            std::pair(used->head, LineRecordKind::kUse)));
  for (const auto& said : engine->Describe("job", {}).line) {
    const Lineage& lineage = said.record.lineage;
    EXPECT_EQ(lineage.step(), said.record.number == 1 ? kNoStep : 5);
    EXPECT_GT(said.version, 0);
    EXPECT_GT(said.unix_ms, 0);
  }
}

// Promise 8: each lineage may be long.
TEST_F(LineForTheCatalog, OnlyTheNewestOriginsAreDescribed) {
  Who who;
  for (who.attempt = 1; who.attempt <= 40; ++who.attempt) {
    const SessionId session = Hello(who);
    ASSERT_TRUE(Commit(session, PartOf(session, who.attempt), {}).ok());
    Die(session);
  }
  const auto described = Described();
  ASSERT_EQ(described.size(), Engine::kDescribedRecords);
  EXPECT_EQ(described.back().first, 40);
}

TEST_F(LineForTheCatalog, AJobOfWhichNothingIsLeftIsToldOfOnce) {
  const SessionId session = Hello();
  ASSERT_TRUE(Commit(session, PartOf(session, 1), {}).ok());
  const event::Remove remove{From(session), {"job", 1}, false, /*force=*/true, Soon()};
  Apply(remove);
  ASSERT_TRUE(AnswerTo(remove.caller.request).ok());
  Die(session);
  Advance(300 * kNanosPerSecond);
  EXPECT_THAT(forgotten, IsEmpty()) << "a launcher may start it again";
  Advance(1500 * kNanosPerSecond);
  EXPECT_THAT(forgotten, ElementsAre("job"));
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
