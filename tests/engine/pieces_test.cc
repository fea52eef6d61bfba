// What one event may not do at once, because it may be thousands.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::IsEmpty;
using testing::Not;

class Pieces : public EngineTest {
 protected:
  template <class T>
  static size_t Count(const std::vector<Fact>& facts) {
    size_t count = 0;
    for (const Fact& f : facts) count += std::holds_alternative<T>(f) ? 1 : 0;
    return count;
  }
};

TEST_F(Pieces, WhatADeadProcessHadMappedIsLetGoOverSeveralEvents) {
  constexpr size_t kSteps = 300;
  const SessionId session = Hello();
  for (Step step = 1; step <= static_cast<Step>(kSteps); ++step) {
    Save(session, step, {{"model", kPageBytes}});
  }
  const size_t before = Count<fact::Unlent>(journal);
  hold_probes = true;  // else each answer is an event
  Die(session);
  const size_t first = Count<fact::Unlent>(journal) - before;
  EXPECT_GT(first, 0u);
  EXPECT_LT(first, kSteps);
  EXPECT_EQ(wake_at, now + 1) << "nobody sees to the rest";
  Advance(kNanosPerMilli);
  EXPECT_EQ(Count<fact::Unlent>(journal) - before, kSteps);
  EXPECT_TRUE(Status_().sessions.empty());
}

TEST_F(Pieces, ADaemonThatDiesBetweenTwoPiecesLetsTheRestGo) {
  options.budget_bytes = 8 * kMiB;
  Restart();
  const SessionId session = Hello();
  for (Step step = 1; step <= 300; ++step) Save(session, step, {{"model", kPageBytes}});
  hold_probes = true;
  Die(session);
  hold_probes = false;
  Restart();
  Advance(kNanosPerSecond);
  const SessionId next = Hello({.attempt = 2});
  Save(next, 301, {{"model", 4 * kMiB}});
  EXPECT_TRUE(Status_().quarantined.empty());
}

// Answers that could not be delivered, of a process that has died meanwhile.
TEST_F(Pieces, AReadersLendThatFailedAfterItsSessionEndedWaitsForTheProbe) {
  const SessionId writer = Hello();
  Save(writer, 1);
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const auto open = Open(reader, 1);
  ASSERT_TRUE(open.ok());
  hold_probes = true;
  Die(reader);
  Apply(event::LendFailed{open->lend.lease});
  hold_probes = false;
  Advance(kNanosPerSecond);
  Save(writer, 2);
}

TEST_F(Pieces, ALendThatFailedBetweenTwoPiecesIsNotLetGoTwice) {
  options.ended_at_once = 1;
  Restart();
  const SessionId session = Hello();
  for (const Step step : {1, 2, 3}) Save(session, step, {{"model", kPageBytes}});
  LeaseId newest = 0;
  for (const Fact& f : journal) {
    if (const auto* lent = std::get_if<fact::Lent>(&f)) newest = lent->lease;
  }
  hold_probes = true;
  Die(session);
  Apply(event::LendFailed{newest});
  Advance(kNanosPerMilli);
  EXPECT_EQ(Count<fact::Unlent>(journal), 3u);
}

// Four writers whose steps of 10 MiB each are in storage too; memory holds two of them and a half.
class StepOfParts : public Pieces {
 protected:
  void SetUp() override {
    options.storage = true;
    options.budget_bytes = 100 * kMiB;
    Restart();
    JobPolicy policy;
    policy.mode = PersistMode::kEvery;
    for (Writer writer = 0; writer < 4; ++writer) {
      writers.push_back(
          Hello({.writer = writer, .world_size = 4, .local_writers = 4, .policy = policy}));
    }
    for (const Step step : {1, 2}) {
      for (Writer writer = 0; writer < 4; ++writer) SaveTheirs(step, writer);
    }
  }
  static std::string Name(Writer writer) { return absl::StrCat("model", writer); }
  void SaveTheirs(Step step, Writer writer) {
    Save(writers[writer], step, {{Name(writer), 10 * kMiB}});
  }
  // How many parts of step 1 are read from memory; the others are, from storage.
  int InMemory(SessionId reader) {
    int count = 0;
    for (Writer writer = 0; writer < 4; ++writer) {
      const auto open = Open(reader, 1, Name(writer));
      if (open.ok()) {
        ++count;
        Release(reader, open->lend.lease);
      } else {
        EXPECT_TRUE(OpenStored(reader, 1, Name(writer)).ok());
      }
    }
    return count;
  }
  std::vector<SessionId> writers;
};

TEST_F(StepOfParts, OnlyThePartsWhoseMemoryIsWantedAreEvicted) {
  for (Writer writer = 0; writer < 3; ++writer) SaveTheirs(3, writer);
  const int in_memory = InMemory(writers[0]);
  EXPECT_GT(in_memory, 0) << "all of step 1 went for one part of step 3";
  EXPECT_LT(in_memory, 4);
  EXPECT_EQ(Status_().counters.at("evicted_checkpoints"), 1);
  SaveTheirs(3, 3);
  for (Writer writer = 0; writer < 4; ++writer) SaveTheirs(4, writer);
  EXPECT_EQ(InMemory(writers[0]), 0);
  EXPECT_EQ(Stat(writers[0], 1)->level, Level::kEvicted);
}

TEST_F(StepOfParts, ALeaseOnOnePartHoldsBackNeitherTablesNorRecordsOfTheOthers) {
  SaveTheirs(3, 0);
  SaveTheirs(3, 1);
  Save(writers[2], 3, {{Name(2), 5 * kMiB}, {"more", 5 * kMiB}});
  const PartKey without_objects = PartOf(writers[3], 3);
  ASSERT_TRUE(Commit(writers[3], without_objects, {}).ok());
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const auto one = Open(reader, 3, Name(2)), two = Open(reader, 3, "more");
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_NE(one->lend.slab, two->lend.slab);
  for (const SessionId writer : writers) Die(writer);
  Save(Hello({.job = "other"}), 1, {{"model", 85 * kMiB}});
  EXPECT_TRUE(Open(reader, 3, Name(2)).ok());
  EXPECT_TRUE(OpenStored(reader, 3, Name(1)).ok());
  EXPECT_THAT(table_reads, Not(IsEmpty())) << "memory knows what only storage has";
  bool dropped = false;
  for (const Fact& f : journal) {
    const auto* gone = std::get_if<fact::PartDropped>(&f);
    dropped |= gone != nullptr && gone->part == without_objects;
  }
  EXPECT_TRUE(dropped) << "its record takes a page";
}

TEST_F(StepOfParts, SoItIsForAnotherJob) {
  for (const SessionId writer : writers) Die(writer);
  const SessionId other = Hello({.job = "other"});
  Save(other, 1, {{"model", 30 * kMiB}});
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const int in_memory = InMemory(reader);
  EXPECT_GT(in_memory, 0) << "all of step 1 went for another job's object";
  EXPECT_LT(in_memory, 4);
  Restart();
  EXPECT_EQ(InMemory(Hello({.writer = -1, .attempt = 0})), in_memory);
}

}  // namespace
}  // namespace cairn::engine
