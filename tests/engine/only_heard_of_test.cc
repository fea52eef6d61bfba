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

// The other member is silent, and was never lost.
TEST_F(PartsElsewhere, WhatIsSavedHereAnswersWhoWaitedForTheMembers) {
  const SessionId writer = Hello();
  Hear();
  const event::Create create = CreateOf(writer, PartOf(writer, 1), {{"model", kMiB}});
  Apply(create);
  ASSERT_TRUE(AnswerTo(create.caller.request).ok());
  Apply(event::Exchanged{other.rank, std::nullopt});
  Advance(5 * kNanosPerSecond);
  const event::Latest latest{From(writer), "job", Soon()};
  Apply(latest);
  EXPECT_FALSE(Answered(latest.caller.request));
  ASSERT_TRUE(Commit(writer, PartOf(writer, 1), {{"model", kMiB}}).ok());
  Advance(kNanosPerSecond);
  const auto answer = Take<reply::Latest>(latest.caller.request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->key.step, 1);
}

}  // namespace
}  // namespace cairn::engine
