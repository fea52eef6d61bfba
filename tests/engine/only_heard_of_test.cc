// What a node of a ring only hears of: how long it stays known, and what it is asked for.
#include "tests/engine/ring_fixture.h"

namespace cairn::engine {
namespace {

using testing::Contains;

// Somebody asked about it here, and the home told.
TEST_F(PartsElsewhere, AJobOfOthersIsForgottenOnceTheyHaveForgottenIt) {
  const SessionId reader = Hello({.writer = -1, .world_size = 0});
  OneWriterCompletes(1);
  Hear();
  Die(reader);
  ASSERT_THAT(engine->JobNames(), Contains("job"));
  const auto pass = [&](int minutes) {
    for (int i = 0; i < 2 * minutes; ++i) {
      Apply(event::Exchanged{other.rank, other});
      Advance(30 * kNanosPerSecond);
    }
  };
  tells.clear();
  pass(9);
  EXPECT_EQ(LastSaid<peer::VerdictWanted>(other.rank), nullptr);
  pass(2);
  EXPECT_NE(LastSaid<peer::VerdictWanted>(other.rank), nullptr) << "nobody told of it any more";
  Hear();
  pass(25);
  EXPECT_THAT(engine->JobNames(), Contains("job")) << "the others have it";
  verdict.checkpoints.clear();
  verdict.latest = verdict.target = std::nullopt;
  Hear();
  pass(25);
  EXPECT_TRUE(engine->JobNames().empty());
}

// It is read from there by who opens it, part by part.
TEST_F(PartsElsewhere, WhatOnlyStorageHasWholeIsNotAskedForEachSecond) {
  OneOfTwo(2);
  Complete(1);
  CheckpointVerdict& said = verdict.checkpoints.at({1, 1, 0});
  said.in_memory = false;
  said.stored = true;
  verdict.latest = CheckpointId{1, 1, 0};
  Hear();
  said.in_memory = true;
  Hear();
  Advance(kNanosPerSecond);
  EXPECT_NE(LastSaid<peer::PlacesWanted>(other.rank), nullptr) << "some of it was away";
  said.in_memory = false;
  for (int i = 0; i < 5; ++i) {
    tells.clear();
    Hear();
    Advance(kNanosPerSecond);
  }
  EXPECT_EQ(LastSaid<peer::PlacesWanted>(other.rank), nullptr);
  said.in_memory = true;
  Hear();
  Advance(kNanosPerSecond);
  EXPECT_NE(LastSaid<peer::PlacesWanted>(other.rank), nullptr) << "it is back once more";
}

// A life on this node alone. The home has said nothing for 5 s, and a caller waits for the latest step.
class LifeHere : public PartsElsewhere {
 protected:
  void SetUp() override {
    PartsElsewhere::SetUp();
    writer = Hello();
    Hear();
    const event::Create create = CreateOf(writer, PartOf(writer, 1), {{"model", kMiB}});
    Apply(create);
    ASSERT_TRUE(AnswerTo(create.caller.request).ok());
  }
  void Ask() {
    Advance(5 * kNanosPerSecond);
    latest = {From(writer), "job", Soon()};
    Apply(latest);
    EXPECT_FALSE(Answered(latest.caller.request));
  }
  // Step 1 is complete here.
  bool Answers() {
    EXPECT_TRUE(Commit(writer, PartOf(writer, 1), {{"model", kMiB}}).ok());
    Advance(kNanosPerSecond);
    return Answered(latest.caller.request);
  }
  SessionId writer = 0;
  event::Latest latest;
};

TEST_F(LifeHere, AnswersWhoWaitedForTheMembersWhileItHearsThemAll) {
  Ask();
  ASSERT_TRUE(Answers());
  EXPECT_EQ(Take<reply::Latest>(latest.caller.request)->key.step, 1);
}

// Bug: a node that was cut off answered from what it had alone, and the job had moved on elsewhere (promise 1).
TEST_F(LifeHere, AnswersNothingAloneWhileAMemberIsSilent) {
  Apply(event::Exchanged{other.rank, std::nullopt});
  Ask();
  EXPECT_FALSE(Answers());
  for (int i = 0; i < 2 * kFailedExchanges; ++i) {
    Advance(3 * kNanosPerSecond);
    Apply(event::Exchanged{other.rank, std::nullopt});
  }
  Advance(kNanosPerSecond);
  EXPECT_EQ(LatestStep(writer), 1) << "it is lost: this node is the home";
}

TEST_F(LifeHere, AnswersNothingAloneAfterAMemberWasSilent) {
  Apply(event::Exchanged{other.rank, std::nullopt});
  Advance(kNanosPerSecond);
  Apply(event::Exchanged{other.rank, other});
  Ask();
  EXPECT_FALSE(Answers());
  Hear();
  EXPECT_TRUE(Answered(latest.caller.request));
}

TEST_F(LifeHere, AnswersNothingAloneAfterThisNodeStoodStill) {
  now += 60 * kNanosPerSecond;
  Apply(event::Tick{});
  Ask();
  EXPECT_FALSE(Answers());
}

TEST_F(LifeHere, AnswersNothingAloneUnderTheNextDaemon) {
  ASSERT_TRUE(Commit(writer, PartOf(writer, 1), {{"model", kMiB}}).ok());
  Restart();
  Apply(event::Exchanged{other.rank, other});
  const SessionId reader = Hello({.writer = -1});
  const event::Latest next{From(reader), "job", Soon()};
  Apply(next);
  EXPECT_FALSE(Answered(next.caller.request));
  Hear();
  EXPECT_TRUE(Answered(next.caller.request));
}

}  // namespace
}  // namespace cairn::engine
