// What the journal is told of what storage holds.
#include "server/engine/attempts.h"
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

class WhatStorageTells : public EngineTest {
 protected:
  const JobPolicy kEvery = {.mode = PersistMode::kEvery, .every = 1};

  void SetUp() override {
    options.storage = true;
    Restart();
  }
  template <class F>
  static size_t Count(const std::vector<Fact>& facts) {
    return std::count_if(facts.begin(), facts.end(),
                         [](const Fact& f) { return std::holds_alternative<F>(f); });
  }
  // Each with a file, and a daemon that knows none of them.
  void LoseMemoryAfterLives(int count) {
    for (int life = 1; life <= count; ++life) {
      const SessionId session = Hello({.attempt = life, .policy = kEvery});
      Save(session, life, {{"model", 4096}});
      Die(session);
    }
    LoseMemory();
  }
};

// R35: the journal holds the newest of them, however many there were.
TEST_F(WhatStorageTells, OfManyLivesIsKnownAndTheJournalHoldsAFew) {
  LoseMemoryAfterLives(100);
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  EXPECT_EQ(LatestStep(reader), 100);
  EXPECT_EQ(Count<fact::AttemptBegun>(journal), kJournaledLives);
  EXPECT_EQ(Count<fact::AttemptBegun>(engine->Snapshot()), kJournaledLives);
  EXPECT_TRUE(Stat(reader, 1).ok());
  EXPECT_EQ(Stat(reader, 1)->key.attempt, 1);
}

// Lives that this node saw itself are no different once memory has nothing of them.
TEST_F(WhatStorageTells, OfLivesThatLivedHereASnapshotHoldsAFew) {
  options.budget_bytes = 64 * kMiB;
  Restart();
  for (int life = 1; life <= 100; ++life) {
    const SessionId session = Hello({.attempt = life, .policy = kEvery});
    Save(session, life, {{"model", 8 * kMiB}});
    Die(session);
  }
  EXPECT_LE(Count<fact::AttemptBegun>(engine->Snapshot()), 2 * kJournaledLives);
  EXPECT_LE(Count<fact::WriterProcess>(engine->Snapshot()), 2 * kJournaledLives);
  Restart(StartFrom::kSnapshot);
  const SessionId next = Hello({.attempt = 101});
  EXPECT_EQ(LatestStep(next), 100);
  Save(next, 101);
  EXPECT_EQ(LatestStep(next), 101);
}

// R38: the node does not die of one job's directory.
TEST_F(WhatStorageTells, OfAJobThatTheJournalHasNoRoomForIsThatJobsError) {
  LoseMemoryAfterLives(100);
  engine->SetJournalRoom(850'000, 1'000'000);
  for (Step step = 1000; step < 3000; ++step) removed.steps[step].Add(1, 1);
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  event::Latest latest{From(reader), "job", Soon()};
  Apply(latest);
  Advance(60 * kNanosPerSecond);
  EXPECT_THAT(AnswerTo(latest.caller.request).status().message(),
              testing::HasSubstr("what storage tells of job job may cost"));
  EXPECT_EQ(Count<fact::StepRemoved>(journal), 0u);
  // Unless a snapshot makes the room.
  FinishScan("job");
  EXPECT_EQ(engine->JournalHelpFor(pending.back()), Engine::JournalHelp::kSnapshot);
  pending.clear();
  const SessionId other = Hello({.job = "other"});
  EXPECT_TRUE(TrySave(other, 1).ok());
  engine->SetJournalRoom(100'000, 1'000'000);
  Advance(60 * kNanosPerSecond);
  EXPECT_EQ(LatestStep(reader), 100);
}

// Of steps that only storage has the next daemon learns there.
TEST_F(WhatStorageTells, IsNotInASnapshot) {
  const SessionId session = Hello({.policy = kEvery});
  for (Step step = 1; step <= 100; ++step) Save(session, step, {{"model", 16 * kMiB}});
  const std::vector<Fact> facts = engine->Snapshot();
  const size_t in_memory = Count<fact::PartCommitted>(facts);
  EXPECT_LT(in_memory, 20u);
  EXPECT_EQ(Count<fact::StepWorld>(facts), in_memory);
}

}  // namespace
}  // namespace cairn::engine
