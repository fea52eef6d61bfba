// R32: storage goes away, is replaced, comes back, comes back with less. Promise 1: nothing is
// PERSISTED on what is not the node's storage.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

const Status kGone = absl::UnavailableError("storage.root /mnt: cannot be opened");

class StorageRootTest : public EngineTest {
 protected:
  void SetUp() override {
    options.storage = true;
    Restart();
  }
  SessionId HelloWith(PersistMode mode) {
    JobPolicy policy;
    policy.mode = mode;
    return Hello({.policy = policy});
  }
  // A copy of the root, or the root mounted anew.
  static RootIdentity Copy() { return {"root-1", "instance-2"}; }
  static RootIdentity Original() { return {"root-1", "instance-1"}; }
};

TEST_F(StorageRootTest, PersistedIsTakenBackWhileStorageIsAway) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  EXPECT_EQ(Stat(session, 1)->level, Level::kPersisted);
  SeeRoot(kGone);
  const auto info = Stat(session, 1);
  EXPECT_EQ(info->level, Level::kCached);
  EXPECT_FALSE(info->facts.persisted);
  EXPECT_THAT(info->why, HasSubstr("cannot be opened"));
  EXPECT_EQ(Status_().jobs[0].latest_persisted, kNoStep);
  EXPECT_EQ(Status_().jobs[0].unprotected_checkpoints, 1u);
  EXPECT_THAT(Status_().jobs[0].persist_problem, HasSubstr("cannot be opened"));
  EXPECT_THAT(Status_().storage_problem, HasSubstr("cannot be opened"));
  EXPECT_EQ(Status_().counters.at("storage_away"), 1);
}

TEST_F(StorageRootTest, SavingGoesOnAndIsWrittenWhenStorageReturns) {  // promise 4
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  SeeRoot(kGone);
  Save(session, 2);
  EXPECT_THAT(persists, SizeIs(1));
  const RequestId wait = Wait(session, 2, Level::kPersisted);
  const RequestId again = Wait(session, 1, Level::kPersisted);
  EXPECT_FALSE(Answered(wait));
  EXPECT_FALSE(Answered(again));
  SeeRoot(Original());
  EXPECT_TRUE(AnswerTo(wait).ok());
  EXPECT_TRUE(AnswerTo(again).ok());
  EXPECT_THAT(persists, SizeIs(2)) << "what is still there is not written again";
  EXPECT_EQ(Status_().storage_problem, "");
}

TEST_F(StorageRootTest, AWaitSaysAtItsDeadlineWhatIsWrongWithStorage) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  SeeRoot(kGone);
  Save(session, 1);
  const RequestId wait = Wait(session, 1, Level::kPersisted);
  Advance(11 * kNanosPerSecond);
  EXPECT_THAT(StatusOf(AnswerTo(wait)),
              Fails(absl::StatusCode::kDeadlineExceeded, "cannot be opened"));
}

TEST_F(StorageRootTest, AnotherRootIsNotUsed) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  SeeRoot(RootIdentity{"root-2", "instance-7"});
  Save(session, 2);
  EXPECT_THAT(persists, SizeIs(1));
  EXPECT_THAT(Status_().storage_problem, HasSubstr("root-2"));
  EXPECT_EQ(Status_().storage_id, "root-1");
  SeeRoot(Original());
  EXPECT_EQ(Stat(session, 2)->level, Level::kPersisted);
}

// It was restored from an older copy: what memory still has of the rest is written again.
TEST_F(StorageRootTest, ACopyWithFewerFilesIsFilledFromMemory) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  Save(session, 2);
  stored.erase({"job", 2, 1, 0});
  hold_scans = true;
  SeeRoot(Copy());
  EXPECT_EQ(Status_().jobs[0].latest_persisted, kNoStep) << "it counts once a scan has found it";
  hold_scans = false;
  FinishScan("job");
  CarryPending();
  EXPECT_EQ(Stat(session, 1)->level, Level::kPersisted);
  EXPECT_EQ(Stat(session, 2)->level, Level::kPersisted);
  EXPECT_TRUE(stored.contains({"job", 2, 1, 0}));
  EXPECT_THAT(persists, SizeIs(3));
}

TEST_F(StorageRootTest, ACopyThatGoesBeforeItIsReadIsNotBelievedWhenItReturns) {  // promise 1
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  stored.clear();
  hold_scans = true;
  SeeRoot(Copy());
  SeeRoot(kGone);
  SeeRoot(Copy());
  EXPECT_EQ(Status_().jobs[0].latest_persisted, kNoStep);
}

TEST_F(StorageRootTest, WhatOnlyALostFileHadIsGoneAndLatestSaysSo) {  // promise 3
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  Save(session, 2);
  event::Remove drop{From(session), {"job", 2}, /*memory_only=*/true, false, Soon()};
  Apply(drop);
  EXPECT_EQ(LatestStep(session), 2);
  SeeRoot(kGone);
  EXPECT_EQ(LatestStep(session), 1) << "the newest that can be loaded now";
  EXPECT_THAT(StatusOf(OpenStored(session, 2)),
              Fails(absl::StatusCode::kUnavailable, "cannot be opened"));
  SeeRoot(Original());
  EXPECT_EQ(LatestStep(session), 2);
  SeeRoot(kGone);
  stored.erase({"job", 2, 1, 0});
  SeeRoot(Copy());
  EXPECT_EQ(LatestStep(session), 1);
}

TEST_F(StorageRootTest, TheLastCopyInMemoryStaysWhileStorageIsAway) {
  const SessionId done = HelloWith(PersistMode::kNewest);
  Save(done, 1, {{"model", 40 * kMiB}});
  Die(done);
  SeeRoot(kGone);
  const SessionId other = Hello({.job = "other"});
  const auto create = CreateOf(other, PartOf(other, 1), {{"model", 40 * kMiB}});
  Apply(create);
  EXPECT_FALSE(Answered(create.caller.request));
  SeeRoot(Original());
  EXPECT_TRUE(AnswerTo(create.caller.request).ok());
}

TEST_F(StorageRootTest, ADaemonThatStartsWhileStorageIsAwayServesFromMemory) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  for (const StartFrom from : kFrom) {
    root = kGone;
    Restart(from);
    EXPECT_EQ(Stat(session, 1)->level, Level::kCached);
    EXPECT_TRUE(Open(session, 1).ok());
    SeeRoot(RootIdentity{"root-2", "instance-7"});
    EXPECT_EQ(Stat(session, 1)->level, Level::kCached) << "the journal knows which root it was";
    SeeRoot(Original());
    EXPECT_EQ(Stat(session, 1)->level, Level::kPersisted);
  }
}

TEST_F(StorageRootTest, ARestartWithAnOlderCopyFindsWhatIsMissing) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  Save(session, 2);
  stored.erase({"job", 2, 1, 0});
  root = Copy();
  Restart();
  EXPECT_EQ(Stat(session, 2)->level, Level::kPersisted);
  EXPECT_TRUE(stored.contains({"job", 2, 1, 0}));
}

TEST_F(StorageRootTest, ThatNobodyHasSeenYetStopsNoSave) {  // it hangs, say
  root_seen = false;
  Restart();
  const SessionId session = HelloWith(PersistMode::kEvery);
  const auto create = CreateOf(session, PartOf(session, 1), {{"model"}});
  Apply(create);
  Advance(2 * kNanosPerSecond);
  EXPECT_TRUE(AnswerTo(create.caller.request).ok());
  EXPECT_TRUE(Commit(session, PartOf(session, 1), {{"model"}}).ok());
  EXPECT_THAT(persists, IsEmpty());
  EXPECT_EQ(Stat(session, 1)->level, Level::kCached);
  SeeRoot(Original());
  EXPECT_EQ(Stat(session, 1)->level, Level::kPersisted);
}

// What memory has is told in a little while, though nobody can say whether it is in storage as well.
TEST_F(StorageRootTest, ThatNobodyHasSeenYetKeepsNobodyFromWhatMemoryHas) {
  SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  root_seen = false;
  Restart();
  event::StatCheckpoint stat{From(session), {"job", 1}, now + 60 * kNanosPerSecond};
  Apply(stat);
  Advance(2 * kNanosPerSecond);
  const auto info = Take<CheckpointInfo>(stat.caller.request);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_FALSE(info->facts.persisted);
}

// A life that begins while storage is away does not know where it comes from; when storage is back it does.
TEST_F(StorageRootTest, WhereALifeComesFromIsAskedAgainWhenStorageIsBack) {
  const SessionId first = HelloWith(PersistMode::kEvery);
  Save(first, 1);
  Die(first);
  SeeRoot(kGone);
  const SessionId second = Hello({.attempt = 2});
  Save(second, 2);
  SeeRoot(Original());
  const auto comes_from = [&] {
    Step step = kNoStep;
    for (const Fact& f : journal) {
      const auto* begun = std::get_if<fact::AttemptBegun>(&f);
      if (begun != nullptr && begun->attempt == 2) step = begun->lineage.step();
    }
    return step;
  };
  EXPECT_EQ(comes_from(), 1);
}

TEST_F(StorageRootTest, APersistThatEndsAfterStorageWentCountsWhenItIsFound) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  hold_persists = true;
  Save(session, 1);
  SeeRoot(kGone);
  FinishPersist();
  CarryPending();
  EXPECT_EQ(Stat(session, 1)->level, Level::kCached);
  SeeRoot(Copy());
  EXPECT_EQ(Stat(session, 1)->level, Level::kPersisted);
}

// The answer of a scan of before is not the answer of the one that was asked for since.
TEST_F(StorageRootTest, AScanFromBeforeItWentIsNotBelieved) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  SeeRoot(kGone);
  hold_scans = true;
  SeeRoot(Original());
  SeeRoot(kGone);
  const auto full = stored;
  SeeRoot(Copy());
  stored.clear();
  FinishScan("job");  // of the first time
  CarryPending();
  EXPECT_THAT(persists, SizeIs(1));
  stored = full;
  FinishScan("job");
  CarryPending();
  EXPECT_EQ(Stat(session, 1)->level, Level::kPersisted);
  EXPECT_THAT(persists, SizeIs(1));
}

TEST_F(StorageRootTest, NoFileIsDeletedWhileItIsAway) {
  JobPolicy policy;
  policy.mode = PersistMode::kEvery;
  policy.keep_last = 1;
  const SessionId session = Hello({.policy = policy});
  Save(session, 1);
  SeeRoot(kGone);
  for (Step step = 2; step <= 4; ++step) Save(session, step);
  EXPECT_THAT(deletes, IsEmpty());
  SeeRoot(Original());
  EXPECT_EQ(stored.size(), 1u);
  EXPECT_TRUE(stored.contains({"job", 4, 1, 0}));
}

}  // namespace
}  // namespace cairn::engine
