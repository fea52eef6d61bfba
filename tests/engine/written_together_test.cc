// A step that several nodes write to storage: who writes what, when, and how one that has written hears that it is
// published.
#include "server/engine/job_record.h"
#include "tests/engine/ring_fixture.h"

namespace cairn::engine {
namespace {

using testing::HasSubstr;
using testing::Not;

class AwaitingOthers : public PartsElsewhere {
 protected:
  void SetUp() override {
    PartsElsewhere::SetUp();
    hold_persists = true;
    writer = Hello();
    Hear();
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

// A restarted node reads storage before the home knows of the deletion.
TEST_F(AwaitingOthers, WhatWasDeletedIsNotWrittenAgainWhereTheHomeStillCountsIt) {  // promise 9
  Save(writer, 2);
  for (const Step step : {1, 2}) {
    Wrote(step, /*all=*/true);
    OneWriterCompletes(step);
    verdict.checkpoints.at({step, 1, 0}).stored = true;
  }
  ASSERT_TRUE(stored.empty()) << "another node deleted them";
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    persists.clear();
    RestartInTheRing(from);
    EXPECT_THAT(persists, testing::IsEmpty());
  }
}

// A step of which each of two members has a part.
class SharedStep : public PartsElsewhere {
 protected:
  void SetUp() override {
    PartsElsewhere::SetUp();
    hold_persists = true;
    writer = OneOfTwo(1);
  }
  // The other member's part, as it writes it.
  void OtherWrites(Step step) { WritePart(ManifestOf({{"job", step, 1, 0}, 1}, 2, kMiB)); }

  SessionId writer = 0;
};

TEST_F(SharedStep, ANodeWritesItsOwnPartsOnceAllAreKnownToBeThere) {
  Save(writer, 1);
  EXPECT_TRUE(persists.empty());
  Complete(1);
  Hear();
  ASSERT_EQ(persists.size(), 1u);
  ASSERT_EQ(persists[0].parts.size(), 1u);
  EXPECT_EQ(persists[0].parts[0]->head.writer, 0);
}

TEST_F(SharedStep, AStepThatIsOwedWhileItIsNotCompleteKeepsItsTurnWhenItIsAskedFor) {
  Save(writer, 1);
  Complete(1);
  Hear();
  Save(writer, 2);
  Complete(2);
  Hear();  // it waits for step 1, which is being written
  CheckpointVerdict& second = verdict.checkpoints.at({2, 1, 0});
  second.complete = false;
  Hear();  // who has the other part is away
  JobRecord record;
  record.job = "job";
  record.owner = JobRecord::Owner{1000, 1000};
  record.Ask({2, 1, 0});
  Apply(event::PeerSaid{other, peer::Record{record.job, EncodeJobRecord(record), 1}});
  EXPECT_EQ(engine->CheckInvariants(), "");
  FinishPersist();
  EXPECT_EQ(persists.size(), 1u);
  second.complete = true;
  Hear();
  ASSERT_EQ(persists.size(), 2u);
  EXPECT_EQ(persists.back().checkpoint.step, 2);
}

TEST_F(SharedStep, WhoHearsThatItIsPublishedLooksAtOnce) {
  Save(writer, 1);
  Complete(1);
  Hear();
  FinishPersist();
  CarryPending();
  Advance(kNanosPerSecond);
  ASSERT_EQ(persists.size(), 1u) << "the other has not written its part";
  OtherWrites(1);
  verdict.checkpoints.at({1, 1, 0}).stored = true;
  Hear();
  ASSERT_EQ(persists.size(), 2u);
  FinishPersist();
  CarryPending();
  const StatusOr<CheckpointInfo> info = Stat(writer, 1);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_TRUE(info->facts.persisted);
  EXPECT_EQ(engine->Describe("job", {{"job", 1, 1, 0}}).parts.size(), 2u)
      << "the other's part is known from there";
}

TEST_F(SharedStep, TheTargetIsWrittenBeforeWhatIsNewer) {
  Save(writer, 1);
  Save(writer, 2);
  Complete(1);
  Complete(2);
  verdict.target = CheckpointId{1, 1, 0};
  Hear();
  ASSERT_EQ(persists.size(), 1u);
  EXPECT_EQ(persists[0].checkpoint.step, 1);
  FinishPersist();
  CarryPending();
  Advance(kNanosPerSecond);
  EXPECT_EQ(persists.size(), 1u) << "the newer one waits until the target is whole";
  OtherWrites(1);
  Advance(4 * kNanosPerSecond);
  ASSERT_EQ(persists.size(), 2u);
  FinishPersist();
  CarryPending();
  ASSERT_EQ(persists.size(), 3u);
  EXPECT_EQ(persists[2].checkpoint.step, 2);
}

TEST_F(SharedStep, APartKeptForAnotherIsNotThisNodesToWrite) {
  Replicate({{"job", 1, 1, 0}, 1}, 2, kMiB);
  EXPECT_TRUE(persists.empty());
  Save(writer, 1);
  ASSERT_EQ(persists.size(), 1u) << "complete here, with the other's replica";
  EXPECT_EQ(persists[0].parts.size(), 1u);
}

}  // namespace
}  // namespace cairn::engine
