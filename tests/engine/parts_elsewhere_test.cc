// A node of a ring that has some parts of a checkpoint, while others have the rest: what it keeps, and what its own
// writers are expected to need.
#include "tests/engine/ring_fixture.h"

namespace cairn::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
constexpr uint64_t kPart = 40 * kMiB;  // of one writer: the budget holds one of them

// --- memory

TEST_F(PartsElsewhere, AFencedStepStaysWhileItMayBeCompleteWithTheOthers) {
  const SessionId old = OneOfTwo(1);
  Save(old, 1, {{"model", kPart}});
  Die(old);
  const SessionId next = OneOfTwo(2);
  EXPECT_THAT(Asks(next, 1, kPart), Fails(absl::StatusCode::kResourceExhausted, "memory"));
  EXPECT_TRUE(Holds(1)) << "this node's part of it may be the last copy";
}

TEST_F(PartsElsewhere, AFencedStepAllOfWhoseWritersAreHereGoes) {
  const Who of_two{.writer = 0, .world_size = 2, .local_writers = 2};
  const SessionId old = Hello(of_two);
  Hear();
  Save(old, 1, {{"model", 30 * kMiB}});
  Die(old);
  Who newer = of_two;
  newer.attempt = 2;
  const SessionId next = Hello(newer);
  Hear();
  // Of a new name, so that as much is expected of the other writer.
  EXPECT_TRUE(Asks(next, 1, 30 * kMiB, "another").ok());
  EXPECT_FALSE(Holds(1));
}

TEST_F(PartsElsewhere, AStepThatNobodyWillCompleteGoesOnceTheMembersSaySo) {
  const SessionId old = OneOfTwo(1);
  Save(old, 1, {{"model", kPart}});
  Die(old);
  const SessionId next = OneOfTwo(2);
  CheckpointVerdict& said = verdict.checkpoints[{1, 1, 0}];
  said.world_size = 2;
  said.hopeless = true;
  Hear();
  EXPECT_TRUE(Asks(next, 1, kPart).ok());
  EXPECT_FALSE(Holds(1));
}

TEST_F(PartsElsewhere, AStepLeftBehindByThisNodesWriterStays) {
  const SessionId writer = OneOfTwo(1);
  Save(writer, 1, {{"model", kPart}});
  sessions[writer].world_size = 1;  // a step of this writer alone, which is complete
  Save(writer, 2, {{"small", kMiB}});
  sessions[writer].world_size = 2;
  EXPECT_THAT(Asks(writer, 3, kPart), Fails(absl::StatusCode::kResourceExhausted, "memory"));
  EXPECT_TRUE(Holds(1));
}

TEST_F(PartsElsewhere, AloneWhatIsLeftBehindGoesAsBefore) {
  options.ring = {};
  Restart();
  const SessionId writer = Hello({.writer = 0, .world_size = 2, .local_writers = 1});
  Save(writer, 1, {{"model", kPart}});
  sessions[writer].world_size = 1;
  Save(writer, 2, {{"small", kMiB}});
  sessions[writer].world_size = 2;
  EXPECT_TRUE(Asks(writer, 3, kPart).ok());
}

// Steps of 15 MiB here, of which the budget holds four.
class SeveralSteps : public PartsElsewhere {
 protected:
  void SetUp() override {
    storage = false;
    PartsElsewhere::SetUp();
    writer = OneOfTwo(1);
    for (const Step step : {1, 2, 3, 4}) {
      Save(writer, step, {{"model", 15 * kMiB}});
      Complete(step);
    }
  }
  // The other member reads this node's part of it.
  void GiveToTheOther(Step step) {
    const event::GrantAsked question{From(0), other, {PartOf(writer, step), ""}};
    Apply(question);
    const StatusOr<reply::Granted> granted = Take<reply::Granted>(question.caller.request);
    ASSERT_TRUE(granted.ok()) << granted.status();
    Apply(event::GrantEnded{granted->grant});
  }
  // The other member, this node's backup, has read its part of it.
  void TheOtherHolds(Step step) {
    const PartKey part = PartOf(writer, step);
    peer::HaveList list;
    list.version = 1;
    list.haves.push_back({part, engine->Describe("job", {part.checkpoint}).parts.at(0).digest,
                          peer::HaveState::kHeld});
    Apply(event::PeerSaid{other, list});
  }
  // A home that has not heard everybody.
  void HearPartly() {
    verdict.target = CheckpointId{1, 1, 0};
    verdict.final = false;
    Apply(event::PeerSaid{other, peer::VerdictSaid{verdict}});
  }
  void AnotherIsWantedAtOnce() {
    const event::Create create = CreateOf(writer, PartOf(writer, 5), {{"model", 15 * kMiB}});
    Apply(create);
    EXPECT_TRUE(AnswerTo(create.caller.request).ok());
  }
  // Which are left, in memory, when another one is wanted.
  std::vector<Step> LeftAfterAnother() {
    EXPECT_TRUE(Asks(writer, 5, 15 * kMiB).ok());
    std::vector<Step> left;
    for (const Step step : {1, 2, 3, 4}) {
      if (Holds(step)) left.push_back(step);
    }
    return left;
  }

  SessionId writer = 0;
};

TEST_F(SeveralSteps, TheProtectedOneAndTheTargetStayWhateverIsNewer) {
  Complete(1, /*replicas=*/1);
  verdict.protect = CheckpointId{1, 1, 0};
  verdict.target = CheckpointId{2, 1, 0};
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(1, 2, 4));
}

TEST_F(SeveralSteps, WhoWaitsForReplicasOfOneThatWasPassedOverIsTold) {
  Hear();
  const RequestId wait = Wait(writer, 2, Level::kReplicated);
  const RequestId newest = Wait(writer, 4, Level::kReplicated);
  EXPECT_FALSE(Answered(wait));
  Complete(3, /*replicas=*/1);
  verdict.protect = verdict.target = CheckpointId{3, 1, 0};
  Hear();
  EXPECT_THAT(AnswerTo(wait).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "is superseded by step 3"));
  EXPECT_FALSE(Answered(newest));
}

TEST_F(SeveralSteps, WhatAProtectedOneSupersedesGoesFirst) {
  Complete(3, /*replicas=*/1);
  verdict.protect = verdict.target = CheckpointId{3, 1, 0};
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(2, 3, 4));
}

TEST_F(SeveralSteps, WithoutAnythingProtectedTheOldestOfThoseThatOweACopyGoes) {
  verdict.target = CheckpointId{1, 1, 0};
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(1, 3, 4));
}

// Promise 1: the ring fell apart, and each side has half of what was protected.
TEST_F(SeveralSteps, OneThatWasProtectedStaysWhileThoseWhoHaveTheRestAreCutOff) {
  Complete(2, /*replicas=*/1);
  verdict.protect = CheckpointId{2, 1, 0};
  Hear();
  CheckpointVerdict& half = verdict.checkpoints.at({2, 1, 0});
  half.complete = half.in_memory = false;
  half.hopeless = true;
  verdict.protect.reset();
  verdict.target = CheckpointId{1, 1, 0};
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(1, 2, 4));
}

TEST_F(SeveralSteps, AlsoWhereOnlyTheRecordTellsThatItWas) {
  verdict.safe = {1, 2};
  verdict.target = CheckpointId{1, 1, 0};
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(1, 2, 4));
}

TEST_F(SeveralSteps, AlsoForANewDaemonThatHasHeardNobodyYet) {
  Complete(2, /*replicas=*/1);
  verdict.protect = CheckpointId{2, 1, 0};
  Hear();
  for (const StartFrom from : kFrom) {
    Restart(from);
    const auto facts = engine->Snapshot();
    EXPECT_THAT(facts, Contains(Fact(fact::StepSafe{"job", 1, 2}))) << NameOf(from);
  }
  // As on a side of the ring that lacks the others' parts.
  Apply(event::Exchanged{other.rank, other});
  CheckpointVerdict& half = verdict.checkpoints.at({2, 1, 0});
  half.complete = half.in_memory = false;
  half.hopeless = true;
  verdict.protect.reset();
  verdict.target = CheckpointId{1, 1, 0};
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(1, 2, 4));
}

// Another home may have said so, to somebody else.
TEST_F(SeveralSteps, OneThatTheBackupsHaveMayBeProtectedAndStays) {
  TheOtherHolds(2);
  HearPartly();
  AnotherIsWantedAtOnce();
  EXPECT_TRUE(Holds(2));
  EXPECT_FALSE(Holds(3));
}

// The backup has read it, and what it says since does not come through.
TEST_F(SeveralSteps, OneThatWasGivenToABackupMayBeProtectedAndStays) {
  GiveToTheOther(2);
  HearPartly();
  AnotherIsWantedAtOnce();
  EXPECT_TRUE(Holds(2));
  EXPECT_FALSE(Holds(3));
}

// What the other writer saved of the newer one may be nowhere.
TEST_F(SeveralSteps, AlsoWhereTheBackupHasThisNodesPartOfANewerOne) {
  GiveToTheOther(2);
  TheOtherHolds(4);
  HearPartly();
  AnotherIsWantedAtOnce();
  EXPECT_TRUE(Holds(2));
  EXPECT_FALSE(Holds(3));
}

// A home that has heard all members within the last seconds may not have heard of the copy.
TEST_F(SeveralSteps, OneThatWasGivenToABackupJustNowStaysWhateverIsHeard) {
  verdict.target = CheckpointId{1, 1, 0};
  GiveToTheOther(2);
  Hear();
  AnotherIsWantedAtOnce();
  EXPECT_TRUE(Holds(2));
  EXPECT_FALSE(Holds(3));
}

TEST_F(SeveralSteps, OneThatWasGivenToABackupGoesOnceAllAreHeardToSayThatItIsNot) {
  GiveToTheOther(2);
  verdict.target = CheckpointId{1, 1, 0};
  for (int i = 0; i < 6; ++i) {  // what they say now was heard from who has it since
    Hear();
    Advance(kNanosPerSecond);
  }
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(1, 3, 4));
}

// Said of a part that this node has since let go, by a backup that came too late for it.
TEST_F(SeveralSteps, ARefusalOfWhatIsNotWantedAnyMoreEndsNoWait) {
  verdict.target = CheckpointId{4, 1, 0};
  Hear();
  peer::HaveList list;
  list.version = 1;
  const auto refuse = [&](Step step) {
    list.haves = {{PartOf(writer, step), "digest", peer::HaveState::kRefused, "no room"}};
    Apply(event::PeerSaid{other, list});
  };
  refuse(1);
  const RequestId wait = Wait(writer, 4, Level::kReplicated);
  EXPECT_FALSE(Answered(wait));
  refuse(4);
  EXPECT_THAT(AnswerTo(Wait(writer, 4, Level::kReplicated)).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "no room"));
}

// A new life goes on from step 1. Of what it left behind the newest that is protected stays, until it has something
// protected of its own.
TEST_F(SeveralSteps, AnAbandonedOneThatIsProtectedStaysUntilTheNewLifeHasOne) {
  verdict.safe = {1, 4};
  Complete(1, /*replicas=*/1);
  Complete(3, /*replicas=*/1);
  verdict.protect = CheckpointId{1, 1, 0};
  verdict.attempts[2] = {2, Lineage{{{1, 1}}, false}, kUnix};
  CheckpointVerdict& of_new_life = verdict.checkpoints[{2, 2, 0}];
  of_new_life = verdict.checkpoints.at({2, 1, 0});
  Hear();
  const SessionId session = OfAnotherJob();
  const auto presses = [&] {
    const event::Create create = CreateOf(session, PartOf(session, 1), {{"model", 30 * kMiB}});
    Apply(create);
  };
  presses();
  EXPECT_TRUE(Holds(3));
  EXPECT_TRUE(Holds(1)) << "it is protected now, though a later one was once";
  of_new_life.replicas = 1;
  verdict.protect = CheckpointId{2, 2, 0};
  Hear();
  presses();
  EXPECT_FALSE(Holds(3));
}

TEST_F(SeveralSteps, OfAJobThatAsksForNoReplicasTheNewestIsEnough) {
  Hear();
  verdict.asked = 0;
  Apply(event::PeerSaid{other, peer::VerdictSaid{verdict}});
  const SessionId same = writer;
  const event::Create create = CreateOf(same, PartOf(same, 5), {{"model", 15 * kMiB}});
  Apply(create);
  EXPECT_TRUE(AnswerTo(create.caller.request).ok());
  EXPECT_FALSE(Holds(1));
}

// A newer life has begun somewhere, and nobody knows yet from where it goes on.
TEST_F(SeveralSteps, WhileItsLineHasNoneNothingThatIsCompleteGoes) {
  verdict.asked = 0;
  Hear();
  const SessionId reader = Hello({.writer = -1, .world_size = 0});
  EXPECT_EQ(LatestStep(reader), 4);
  verdict.attempts[2].lineage = Lineage::OfUnknown();
  Apply(event::PeerSaid{other, peer::VerdictSaid{verdict}});
  EXPECT_EQ(engine->CheckInvariants(), "");
}

// --- admission

// Eight writers on eight nodes: what all of them saved would not fit here, and need not.
// Neither storage nor the members answer, and its time is up: each of the two waits gives up, and they must not
// begin anew in turn.
TEST_F(PartsElsewhere, AFirstStepThatHearsOfNobodyGoesOnAtItsDeadline) {
  hold_scans = true;
  const SessionId session = Hello({.writer = 0, .world_size = 2, .attempt = 1});
  event::Create create = CreateOf(session, PartOf(session, 1), {{"model", kMiB}});
  create.deadline = now + kNanosPerSecond;
  Apply(create);
  Advance(2 * kNanosPerSecond);
  EXPECT_TRUE(Answered(create.caller.request));
}

// Both nodes that had it are lost: to say that there is nothing would make scripts begin from nothing.
TEST_F(PartsElsewhere, LatestOfAJobOfWhichASafeStepWasLostIsDataLossUntilSomebodyDecides) {
  const SessionId reader = Hello({.writer = -1, .world_size = 0});
  verdict.owned = true;
  verdict.owner_uid = verdict.owner_gid = 1000;
  verdict.safe = {1, 5};
  Hear();
  EXPECT_THAT(Latest(reader).status(), Fails(absl::StatusCode::kDataLoss, "step 5 of attempt 1"));
  const SessionId writer = Hello({.attempt = 2});
  const event::ResumeFrom resume{From(writer), "job", 2, kNoStep, Soon(), /*fence=*/true};
  Apply(resume);
  Hear();
  EXPECT_THAT(Latest(reader).status(), Fails(absl::StatusCode::kNotFound, ""));
}

TEST_F(PartsElsewhere, TheWholeRingsLastStepIsNotTakenForThisNodes) {
  StoreWhole(1, 1, 8, 30 * kMiB);
  const SessionId writer = Hello({.writer = 3, .world_size = 8, .attempt = 2, .local_writers = 1});
  Hear();
  EXPECT_EQ(LatestStep(writer), 1);
  EXPECT_TRUE(TrySave(writer, 2, {{"model-3", 30 * kMiB}}).ok());
}

TEST_F(PartsElsewhere, OfTheLastStepTheWritersThatAreHereCount) {
  StoreWhole(1, 1, 4, 30 * kMiB);
  const Who here{.writer = 0, .world_size = 4, .attempt = 2, .local_writers = 2};
  const SessionId zero = Hello(here);
  Who second = here;
  second.writer = 1;
  const SessionId one = Hello(second);
  Hear();
  ASSERT_EQ(LatestStep(zero), 1);
  const event::Create create = CreateOf(zero, PartOf(zero, 2), {{"model-0", 20 * kMiB}});
  Apply(create);
  ASSERT_TRUE(AnswerTo(create.caller.request).ok());
  EXPECT_TRUE(TrySave(one, 2, {{"model-1", 30 * kMiB}}).ok()) << "it was set aside";
}

// Of three writers two are here. What the other member's writer saved is no word of theirs.
TEST_F(PartsElsewhere, WhatIsSetAsideForThisNodesWritersIsNotEndedByAnothersPart) {
  const Who here{.writer = 0, .world_size = 3, .local_writers = 2};
  Who second = here;
  second.writer = 1;
  const SessionId zero = Hello(here), one = Hello(second);
  Hear();
  const PartKey part = PartOf(zero, 1);
  ASSERT_TRUE(Create(zero, part, {{"zero", 20 * kMiB}}).ok());
  Replicate({part.checkpoint, 2}, 3, 2 * kMiB);
  ASSERT_TRUE(Commit(zero, part, {{"zero", 20 * kMiB}}).ok());
  const SessionId greedy = OfAnotherJob();
  Apply(CreateOf(greedy, PartOf(greedy, 1), {{"model", 30 * kMiB}}));
  EXPECT_TRUE(TrySave(one, 1, {{"one", 20 * kMiB}}).ok());
}

// --- waiting

// Promise 1: copies may have been lost since the home answered last.
TEST_F(PartsElsewhere, AWaitForCopiesIsNotAnsweredByAnOldVerdict) {
  const SessionId reader = Hello({.writer = -1, .world_size = 0});
  verdict.owned = true;
  verdict.owner_uid = verdict.owner_gid = 1000;
  Complete(1, /*replicas=*/1);
  verdict.checkpoints.at({1, 1, 0}).stored = true;
  Hear();
  for (const Level level : {Level::kReplicated, Level::kPersisted, Level::kCached}) {
    Hear();
    EXPECT_TRUE(Answered(Wait(reader, 1, level)));
    Advance(10 * kNanosPerSecond);
    tells.clear();
    const RequestId wait = Wait(reader, 1, level);
    EXPECT_FALSE(Answered(wait)) << LevelName(level);
    EXPECT_NE(LastSaid<peer::VerdictWanted>(other.rank), nullptr) << "the home is asked again";
    Hear();
    EXPECT_TRUE(AnswerTo(wait).ok()) << LevelName(level);
  }
  Advance(10 * kNanosPerSecond);
  const RequestId wait = Wait(reader, 1, Level::kReplicated);
  Complete(1, /*replicas=*/0);
  Hear();
  EXPECT_FALSE(Answered(wait)) << "a copy was lost";
}

TEST_F(PartsElsewhere, WhoWaitsWhereNothingOfTheJobIsHearsOfIt) {
  const SessionId reader = Hello({.writer = -1, .world_size = 0});
  verdict.owned = true;
  verdict.owner_uid = verdict.owner_gid = 1000;
  Hear();
  tells.clear();
  const RequestId wait = Wait(reader, 1, Level::kReplicated);
  EXPECT_NE(LastSaid<peer::VerdictWanted>(other.rank), nullptr);
  Complete(1);
  Hear();
  EXPECT_FALSE(Answered(wait));
  tells.clear();
  for (int i = 0; i < 3; ++i) {
    Apply(event::Exchanged{other.rank, other});
    Advance(kNanosPerSecond);
  }
  EXPECT_NE(LastSaid<peer::VerdictWanted>(other.rank), nullptr) << "it asks again and again";
  Complete(1, /*replicas=*/1);
  Hear();
  EXPECT_TRUE(Answered(wait));
  tells.clear();
  for (int i = 0; i < 3; ++i) Advance(kNanosPerSecond);
  EXPECT_EQ(LastSaid<peer::VerdictWanted>(other.rank), nullptr) << "nobody waits any more";
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

// Bug: steps that a replicated one supersedes were called UNPROTECTED.
class Unprotected : public PartsElsewhere {
 protected:
  Unprotected() { storage = false; }
  uint64_t Count() {
    Hear();
    return Status_().jobs.at(0).unprotected_checkpoints;
  }
};

TEST_F(Unprotected, IsOnlyWhatNoSafeStepSupersedes) {
  const SessionId session = Hello({});
  Hear();
  for (const Step step : {1, 2}) {
    Save(session, step);
    Complete(step);
    CheckpointVerdict& said = verdict.checkpoints.at({step, 1, 0});
    said.world_size = 1;
    said.digest = engine->Describe("job", {{"job", step, 1, 0}}).parts.at(0).digest;
  }
  EXPECT_EQ(Count(), 2u);
  CheckpointVerdict& newest = verdict.checkpoints.at({2, 1, 0});
  newest.replicas = 1;
  verdict.protect = CheckpointId{2, 1, 0};
  EXPECT_EQ(Count(), 0u);
  newest.replicas = 0;  // its backup is lost
  verdict.protect.reset();
  EXPECT_EQ(Count(), 2u);
}

}  // namespace
}  // namespace cairn::engine
