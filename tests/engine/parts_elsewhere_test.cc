// A node of a ring that has some parts of a checkpoint, while others have the rest: what it keeps, what it
// writes to storage, what its own writers are expected to need.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kPart = 40 * kMiB;  // of one writer: the budget holds one of them

class PartsElsewhere : public EngineTest {
 protected:
  void SetUp() override {
    options.ring.cluster = "test";
    options.ring.rank = 0;
    options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}};
    EngineTest::SetUp();
  }
  // One of a job's two writers; the other one runs on the other member.
  SessionId OneOfTwo(Attempt attempt) {
    return Hello({.writer = 0, .world_size = 2, .attempt = attempt, .local_writers = 1});
  }
  Status Asks(SessionId session, Step step, uint64_t bytes) {
    const event::Create create = CreateOf(session, PartOf(session, step), {{"model", bytes}});
    Apply(create);
    if (!Answered(create.caller.request)) Advance(11 * kNanosPerSecond);
    return AnswerTo(create.caller.request).status();
  }
  // The part that each writer of an earlier life has in storage.
  void StoreWhole(Step step, Attempt attempt, int32_t world_size, uint64_t bytes_each) {
    for (Writer writer = 0; writer < world_size; ++writer) {
      Manifest manifest;
      manifest.job = "job";
      manifest.step = step;
      manifest.attempt = attempt;
      manifest.writer = writer;
      manifest.world_size = world_size;
      manifest.owner_uid = manifest.owner_gid = 1000;
      manifest.first = step;
      ObjectEntry entry;
      entry.name = absl::StrCat("model-", writer);
      entry.length = bytes_each;
      entry.block_crcs.assign(BlockCount(bytes_each, kBlockBytes), 7);
      manifest.objects.push_back(entry);
      WritePart(manifest);
    }
    line_records[{attempt, LineRecordKind::kOrigin}] = {
        "job", attempt, LineRecordKind::kOrigin, {}};
  }
};

// --- memory

TEST_F(PartsElsewhere, AFencedStepStaysWhileItMayBeCompleteWithTheOthers) {
  const SessionId old = OneOfTwo(1);
  Save(old, 1, {{"model", kPart}});
  Die(old);
  const SessionId next = OneOfTwo(2);
  EXPECT_THAT(Asks(next, 1, kPart), Fails(absl::StatusCode::kResourceExhausted, "memory"));
  EXPECT_TRUE(Stat(next, 1, 1).ok()) << "this node's part of it may be the last copy";
}

TEST_F(PartsElsewhere, AFencedStepAllOfWhoseWritersAreHereGoes) {
  const Who of_two{.writer = 0, .world_size = 2, .local_writers = 2};
  const SessionId old = Hello(of_two);
  Save(old, 1, {{"model", kPart}});
  Die(old);
  Who newer = of_two;
  newer.attempt = 2;
  EXPECT_TRUE(Asks(Hello(newer), 1, kPart).ok());
}

TEST_F(PartsElsewhere, AStepLeftBehindByThisNodesWriterStays) {
  const SessionId writer = OneOfTwo(1);
  Save(writer, 1, {{"model", kPart}});
  sessions[writer].world_size = 1;  // a step of this writer alone, which is complete
  Save(writer, 2, {{"small", kMiB}});
  sessions[writer].world_size = 2;
  EXPECT_THAT(Asks(writer, 3, kPart), Fails(absl::StatusCode::kResourceExhausted, "memory"));
  EXPECT_TRUE(Stat(writer, 1).ok());
}

TEST_F(PartsElsewhere, AloneWhatIsLeftBehindGoesAsBefore) {
  options.ring = {};
  Restart();
  const SessionId writer = OneOfTwo(1);
  Save(writer, 1, {{"model", kPart}});
  sessions[writer].world_size = 1;
  Save(writer, 2, {{"small", kMiB}});
  sessions[writer].world_size = 2;
  EXPECT_TRUE(Asks(writer, 3, kPart).ok());
}

// --- admission

// Eight writers on eight nodes: what all of them saved would not fit here, and need not.
TEST_F(PartsElsewhere, TheWholeRingsLastStepIsNotTakenForThisNodes) {
  StoreWhole(1, 1, 8, 30 * kMiB);
  const SessionId writer = Hello({.writer = 3, .world_size = 8, .attempt = 2, .local_writers = 1});
  EXPECT_EQ(LatestStep(writer), 1);
  EXPECT_TRUE(TrySave(writer, 2, {{"model-3", 30 * kMiB}}).ok());
}

TEST_F(PartsElsewhere, OfTheLastStepTheWritersThatAreHereCount) {
  StoreWhole(1, 1, 4, 30 * kMiB);
  const Who here{.writer = 0, .world_size = 4, .attempt = 2, .local_writers = 2};
  const SessionId zero = Hello(here);
  Who other = here;
  other.writer = 1;
  const SessionId one = Hello(other);
  ASSERT_EQ(LatestStep(zero), 1);
  // Another job's step takes what the second writer would need.
  const SessionId else_where = Hello({.job = "other"});
  Save(else_where, 1, {{"model", 10 * kMiB}});
  EXPECT_THAT(Asks(zero, 2, 30 * kMiB), Fails(absl::StatusCode::kResourceExhausted, "60"));
  Die(one);
}

// --- storage

class AwaitingOthers : public PartsElsewhere {
 protected:
  void SetUp() override {
    PartsElsewhere::SetUp();
    hold_persists = true;
    writer = Hello();
    Save(writer, 1);
    ASSERT_EQ(persists.size(), 1u);
  }
  void Wrote(Step step, bool all) {
    Apply(event::Persisted{{"job", step, 1, 0}, absl::OkStatus(), Location("/root/job"), !all});
  }

  SessionId writer = 0;
};

TEST_F(AwaitingOthers, ANodeThatHasWrittenLooksAgainUntilItIsPublished) {
  const RequestId wait = Wait(writer, 1, Level::kPersisted);
  Wrote(1, /*all=*/false);
  EXPECT_FALSE(Stat(writer, 1)->facts.persisted);
  EXPECT_FALSE(Answered(wait)) << "it is not refused, and will be";
  EXPECT_THAT(Stat(writer, 1)->why, Not(HasSubstr("not persisted"))) << "nothing has failed";
  Advance(4 * kNanosPerSecond);
  EXPECT_EQ(persists.size(), 1u);
  Advance(kNanosPerSecond);
  ASSERT_EQ(persists.size(), 2u) << "after 5 s";
  EXPECT_EQ(persists.back().parts.size(), 1u) << "a sweep may have taken what was there";
  Wrote(1, /*all=*/false);
  Advance(9 * kNanosPerSecond);
  EXPECT_EQ(persists.size(), 2u);
  Advance(kNanosPerSecond);
  ASSERT_EQ(persists.size(), 3u) << "after 10 s more";
  Wrote(1, /*all=*/true);
  EXPECT_TRUE(Stat(writer, 1)->facts.persisted);
  Advance(600 * kNanosPerSecond);
  EXPECT_EQ(persists.size(), 3u);
}

TEST_F(AwaitingOthers, TheLooksGetNoFurtherApartThanAMinute) {
  for (int i = 0; i < 8; ++i) {
    Wrote(1, /*all=*/false);
    const size_t before = persists.size();
    Advance(60 * kNanosPerSecond);
    ASSERT_EQ(persists.size(), before + 1);
  }
}

TEST_F(AwaitingOthers, ANewerStepTakesItsTurnAtOnce) {
  Wrote(1, /*all=*/false);
  Save(writer, 2);
  ASSERT_EQ(persists.size(), 2u);
  EXPECT_EQ(persists.back().checkpoint.step, 2);
}

TEST_F(AwaitingOthers, ADaemonThatStopsLeavesTheRestToTheOthers) {
  Apply(event::Drain{Soon()});
  EXPECT_FALSE(drained);
  Wrote(1, /*all=*/false);
  EXPECT_TRUE(drained);
}

TEST_F(AwaitingOthers, WhatWasWrittenIsWrittenAgainOnAnotherStorage) {
  Wrote(1, /*all=*/false);
  SeeRoot(absl::UnavailableError("away"));
  Advance(60 * kNanosPerSecond);
  EXPECT_EQ(persists.size(), 1u) << "storage is away";
  SeeRoot(RootIdentity{"root-1", "instance-2"});
  EXPECT_EQ(persists.size(), 2u);
}

TEST_F(AwaitingOthers, AfterARestartItIsWrittenOnceMore) {
  Wrote(1, /*all=*/false);
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    persists.clear();
    Restart(from);
    EXPECT_EQ(persists.size(), 1u);
  }
}

// --- the catalog

TEST_F(PartsElsewhere, ADroppedCopyIsNotGoneForTheOthers) {
  const SessionId writer = OneOfTwo(1);
  Save(writer, 1, {{"model", kMiB}});
  const CheckpointKey step{"job", 1, 1, 0};
  const Engine::Description there = engine->Describe("job", {step});
  ASSERT_EQ(there.parts.size(), 1u);
  EXPECT_TRUE(there.parts[0].own);
  EXPECT_FALSE(there.writes_checkpoints) << "the job's home does";
  const Engine::Description gone = engine->Describe("job", {{"job", 9, 1, 0}});
  EXPECT_THAT(gone.gone, testing::IsEmpty()) << "others may have it";
  Apply(event::Remove{From(writer), {"job", 1}, /*memory_only=*/false, /*force=*/true, Soon()});
  EXPECT_THAT(engine->Describe("job", {step}).gone, ElementsAre(step)) << "it was removed";
}

}  // namespace
}  // namespace cairn::engine
