// Persisting, opening from storage, waiting for levels, removal and drain.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class Stored : public EngineTest {
 protected:
  void SetUp() override {
    options.storage = true;
    Restart();
  }
  SessionId HelloWith(PersistMode mode, int64_t every = 1) {
    JobPolicy policy;
    policy.mode = mode;
    policy.every = every;
    return Hello({.policy = policy});
  }
  std::vector<Step> PersistedSteps() const {
    std::vector<Step> steps;
    for (const auto& persist : persists) steps.push_back(persist.checkpoint.step);
    return steps;
  }
};

TEST_F(Stored, NewestIsPersistedAndSupersededOnesAreSkipped) {
  options.max_persists = 1;
  Restart();
  const SessionId session = HelloWith(PersistMode::kNewest);
  hold_persists = true;
  for (Step step : {1, 2, 3}) Save(session, step);
  EXPECT_THAT(PersistedSteps(), ElementsAre(1));
  FinishPersist();
  Apply(event::Tick{});
  EXPECT_THAT(PersistedSteps(), ElementsAre(1, 3));
}

// What hangs below one job's directory holds one thread, whatever else the job owes.
TEST_F(Stored, AJobHasOnePersistUnderWayAndTheOthersGoOn) {
  options.max_persists = 3;
  Restart();
  hold_persists = true;
  const JobPolicy every{.mode = PersistMode::kEvery, .every = 1};
  const SessionId hangs = HelloWith(PersistMode::kEvery);
  for (Step step : {1, 2, 3}) Save(hangs, step);
  EXPECT_THAT(PersistedSteps(), ElementsAre(1));
  const SessionId other = Hello({.job = "other", .policy = every});
  for (Step step : {7, 8}) Save(other, step);
  EXPECT_THAT(PersistedSteps(), ElementsAre(1, 7));
}

TEST_F(Stored, EveryKthStepIsPersisted) {
  const SessionId session = HelloWith(PersistMode::kEvery, 3);
  for (Step step = 1; step <= 7; ++step) Save(session, step, {{"m", 100}});
  EXPECT_THAT(PersistedSteps(), ElementsAre(3, 6));
  EXPECT_EQ(Stat(session, 6)->level, Level::kPersisted);
  EXPECT_EQ(Stat(session, 7)->level, Level::kCached);
}

TEST_F(Stored, OnDemandPersistsWhatWasAskedFor) {
  const SessionId session = HelloWith(PersistMode::kOnDemand);
  Save(session, 1);
  Save(session, 2);
  EXPECT_THAT(PersistedSteps(), IsEmpty());
  EXPECT_THAT(StatusOf(AnswerTo(Wait(session, 1, Level::kPersisted))),
              Fails(absl::StatusCode::kFailedPrecondition, "on demand"));
  hold_persists = true;
  Apply(event::PersistNow{From(session), {"job", 1}});
  const RequestId wait = Wait(session, 1, Level::kPersisted);
  EXPECT_FALSE(Answered(wait));
  FinishPersist();
  Apply(event::Tick{});
  EXPECT_TRUE(AnswerTo(wait).ok()) << StatusOf(AnswerTo(wait));
  EXPECT_THAT(PersistedSteps(), ElementsAre(1));
}

TEST_F(Stored, FailingStorageIsRetriedWithBackOffAndSavingGoesOn) {  // promise 4
  persist_status = absl::ResourceExhaustedError("write: No space left on device");
  const SessionId session = HelloWith(PersistMode::kNewest);
  Save(session, 1);
  EXPECT_THAT(persists, SizeIs(1));
  EXPECT_THAT(Status_().jobs[0].persist_problem, testing::HasSubstr("No space left"));
  EXPECT_EQ(Status_().jobs[0].unprotected_checkpoints, 1u);
  Save(session, 2);
  EXPECT_THAT(persists, SizeIs(1)) << "no retry before the pause is over";
  Advance(kNanosPerSecond + 1);
  EXPECT_THAT(persists, SizeIs(2));
  Advance(kNanosPerSecond + 1);
  EXPECT_THAT(persists, SizeIs(2)) << "the pause doubles";
  persist_status = absl::OkStatus();
  Advance(2 * kNanosPerSecond);
  EXPECT_EQ(Stat(session, 2)->level, Level::kPersisted);
  EXPECT_EQ(Status_().jobs[0].persist_problem, "");
}

TEST_F(Stored, BytesUnderAPersistAreNotFreed) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  hold_persists = true;
  Save(session, 1, {{"model", 20 * kMiB}});
  const SlabId slab = persists[0].parts[0]->extents[0].slab;
  Save(session, 2, {{"model", 20 * kMiB}});
  event::Remove remove{From(session), {"job", 1}, false, true, Soon()};
  Apply(remove);
  EXPECT_FALSE(Answered(remove.caller.request));
  EXPECT_TRUE(keeper.contains(slab));
  const auto create = Create(session, PartOf(session, 3), {{"model", 20 * kMiB}});
  ASSERT_TRUE(create.ok());
  EXPECT_NE(create->extents[0].slab, slab);
  FinishPersist();
  Apply(event::Tick{});
  EXPECT_TRUE(AnswerTo(remove.caller.request).ok());
  EXPECT_FALSE(stored.contains({"job", 1, 1, 0}))
      << "a persist that ends late does not bring a removed step back";
}

TEST_F(Stored, EvictedStepIsOpenedFromStorage) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  for (Step step = 1; step <= 5; ++step) Save(session, step, {{"model", 20 * kMiB}});
  EXPECT_EQ(Stat(session, 1)->level, Level::kEvicted);
  const auto open = OpenStored(session, 1);
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(open->object.length, 20 * kMiB);
  EXPECT_THAT(open->object.block_crcs, SizeIs(5));
  EXPECT_EQ(open->checkpoint.location, Location("/root/job/1"));
}

TEST_F(Stored, StepsFoundInStorageAreOnTheLine) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  Save(session, 2);
  Die(session);
  journal.clear();
  keeper.clear();
  manifests.clear();
  Restart();
  const SessionId next = Hello({.attempt = 2});
  const auto latest = Latest(next);
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ(latest->key.step, 2);
  EXPECT_TRUE(latest->in_storage);
  EXPECT_FALSE(latest->in_memory);
  EXPECT_TRUE(OpenStored(next, 1).ok());
  Save(next, 3);
  for (const Fact& f : journal) {
    const auto* begun = std::get_if<fact::AttemptBegun>(&f);
    if (begun != nullptr && begun->attempt == 2) {
      EXPECT_EQ(begun->lineage.step(), 2);
    }
  }
  event::ChooseAttempt choose{From(next), "job", Soon(), 1};
  Apply(choose);
  EXPECT_EQ(Take<reply::Attempt>(choose.caller.request)->attempt, 3);
}

TEST_F(Stored, JobOfAnotherUidInStorageIsDenied) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  Die(session);
  journal.clear();
  keeper.clear();
  Restart();
  const SessionId other = Hello({.uid = 1001});
  EXPECT_THAT(StatusOf(Latest(other)), Fails(absl::StatusCode::kPermissionDenied, "uid 1000"));
  EXPECT_THAT(TrySave(other, 1), Fails(absl::StatusCode::kPermissionDenied, "uid 1000"));
}

TEST_F(Stored, StorageThatIsAwayBlocksNeitherSavingNorLoading) {  // promise 4
  scan_status = absl::UnavailableError("stale file handle");
  const SessionId session = HelloWith(PersistMode::kNewest);
  EXPECT_THAT(StatusOf(Latest(session)),
              Fails(absl::StatusCode::kUnavailable, "stale file handle"));
  Save(session, 1);
  EXPECT_TRUE(Open(session, 1).ok());
  EXPECT_EQ(LatestStep(session), 1);
}

TEST_F(Stored, StorageThatHangsDelaysSavingABoundedTime) {  // promise 4
  hold_scans = true;
  const SessionId session = HelloWith(PersistMode::kNewest);
  const auto create = CreateOf(session, PartOf(session, 1), {{"model"}});
  Apply(create);
  EXPECT_FALSE(Answered(create.caller.request));
  Advance(2 * kNanosPerSecond);
  EXPECT_TRUE(AnswerTo(create.caller.request).ok());
  ASSERT_TRUE(Commit(session, PartOf(session, 1), {{"model"}}).ok());
  EXPECT_EQ(LatestStep(session), 1) << "no later call waits for that scan";
  Save(session, 2);
  const event::Latest unknown{From(session), "other", Soon()};
  Apply(unknown);
  Advance(11 * kNanosPerSecond);
  EXPECT_FALSE(AnswerTo(unknown.caller.request).ok());
}

TEST_F(Stored, WhatNeedsStorageIsNotHalfDoneWhereItHangs) {
  const SessionId session = Hello({});
  hold_scans = true;
  const event::List list{From(session), "other", "", 10, Soon()};
  const event::Remove remove{From(session), {"other", 1}, false, /*force=*/true, Soon()};
  const event::Use use{From(session), {"other", 1}, /*fence=*/true, Soon()};
  Apply(list);
  Apply(remove);
  Apply(use);
  const event::ChooseAttempt choose{From(session), "other", Soon(), kUnix};
  Apply(choose);
  Advance(11 * kNanosPerSecond);
  EXPECT_TRUE(AnswerTo(choose.caller.request).ok()) << "promise 4: a life begins without it";
  for (const Caller& caller : {list.caller, remove.caller, use.caller}) {
    EXPECT_THAT(AnswerTo(caller.request).status(),
                Fails(absl::StatusCode::kUnavailable, "has not answered in time"));
  }
}

TEST_F(Stored, WaitIsAnsweredWhenItsLevelIsReached) {
  const SessionId session = HelloWith(PersistMode::kNewest);
  hold_persists = true;
  const RequestId cached = Wait(session, 1, Level::kCached);
  const RequestId persisted = Wait(session, 1, Level::kPersisted);
  const RequestId after = Wait(session, kNoStep, Level::kCached, 1);
  EXPECT_FALSE(Answered(cached));
  Save(session, 1);
  EXPECT_TRUE(AnswerTo(cached).ok());
  EXPECT_FALSE(Answered(persisted));
  EXPECT_FALSE(Answered(after));
  Save(session, 4);
  EXPECT_EQ(Take<CheckpointInfo>(after)->key.step, 4);
  FinishPersist();
  Apply(event::Tick{});
  EXPECT_TRUE(AnswerTo(persisted).ok());
}

TEST_F(Stored, WaitThatCanNeverEndFailsAtOnce) {
  const SessionId session = HelloWith(PersistMode::kNewest);
  EXPECT_THAT(StatusOf(AnswerTo(Wait(session, 1, Level::kReplicated))),
              Fails(absl::StatusCode::kFailedPrecondition, "0 replicas"));
  EXPECT_THAT(StatusOf(AnswerTo(Wait(session, 1, Level::kWriting))),
              Fails(absl::StatusCode::kInvalidArgument, "WRITING"));
  hold_persists = true;
  Save(session, 1);
  const RequestId first = Wait(session, 1, Level::kPersisted);
  Save(session, 2);
  EXPECT_FALSE(Answered(first)) << "1 is being written";
  Save(session, 3);
  EXPECT_THAT(StatusOf(AnswerTo(Wait(session, 2, Level::kPersisted))),
              Fails(absl::StatusCode::kFailedPrecondition, "superseded before its turn"));
}

TEST_F(Stored, WaitEndsAtItsDeadline) {  // promise 4
  const SessionId session = HelloWith(PersistMode::kNewest);
  const RequestId wait = Wait(session, 1, Level::kCached);
  Advance(10 * kNanosPerSecond);
  EXPECT_THAT(StatusOf(AnswerTo(wait)), Fails(absl::StatusCode::kDeadlineExceeded, "CACHED"));
}

TEST_F(Stored, KeepLastDeletesFilesButNeverTheNewest) {
  JobPolicy policy;
  policy.mode = PersistMode::kEvery;
  policy.keep_last = 2;
  policy.keep_every = 4;
  const SessionId session = Hello({.policy = policy});
  for (Step step = 1; step <= 9; ++step) Save(session, step, {{"m", 100}});
  std::vector<Step> left;
  for (const auto& [key, checkpoint] : stored) left.push_back(key.step);
  EXPECT_THAT(left, ElementsAre(4, 8, 9));
}

// R42, line rule 21: a life that starts from scratch, by mistake perhaps, takes nothing away for a day.
TEST_F(Stored, KeepLastSparesWhatTheLineHasLeftUntilTheNewLifeIsThereToStay) {
  JobPolicy policy;
  policy.mode = PersistMode::kEvery;
  policy.keep_last = 2;
  const auto left = [&] {
    std::vector<Step> steps;
    for (const auto& [key, checkpoint] : stored) steps.push_back(key.step);
    return steps;
  };
  const SessionId first = Hello({.attempt = 1, .policy = policy});
  for (const Step step : {100, 200, 300}) Save(first, step, {{"m", 100}});
  Die(first);
  const SessionId second = Hello({.attempt = 2, .policy = policy});
  for (const Step step : {0, 1, 2}) Save(second, step, {{"m", 100}});
  EXPECT_EQ(LatestStep(second), 2);
  EXPECT_TRUE(Stat(second, 300, 1)->facts.abandoned);
  EXPECT_THAT(left(), ElementsAre(1, 2, 200, 300));
  Advance(24 * 3600 * kNanosPerSecond - 60 * kNanosPerSecond);
  Save(second, 3, {{"m", 100}});
  EXPECT_THAT(left(), ElementsAre(2, 3, 200, 300));
  Advance(120 * kNanosPerSecond);
  Save(second, 4, {{"m", 100}});
  EXPECT_THAT(left(), ElementsAre(3, 4));
}

TEST_F(Stored, KeepLastSparesWhatTheLineHasLeftUntilTheNewLifeHasAsMuch) {
  options.keep_abandoned_seconds = 0;
  Restart();
  JobPolicy policy;
  policy.mode = PersistMode::kEvery;
  policy.keep_last = 2;
  const SessionId first = Hello({.attempt = 1, .policy = policy});
  for (const Step step : {100, 200, 300}) Save(first, step, {{"m", 100}});
  Die(first);
  const SessionId second = Hello({.attempt = 2, .policy = policy});
  Save(second, 0, {{"m", 100}});
  EXPECT_TRUE(stored.contains({"job", 300, 1, 0}));
  Save(second, 1, {{"m", 100}});
  EXPECT_FALSE(stored.contains({"job", 300, 1, 0}));
}

TEST_F(Stored, RemoveRefusesTheLastCopyUnlessForced) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  const auto remove = [&](bool memory_only, bool force) {
    event::Remove event{From(session), {"job", 1}, memory_only, force, Soon()};
    Apply(event);
    return StatusOf(AnswerTo(event.caller.request));
  };
  EXPECT_THAT(remove(false, false),
              Fails(absl::StatusCode::kFailedPrecondition, "in memory and in storage"));
  EXPECT_TRUE(remove(true, false).ok()) << "storage has it too";
  EXPECT_EQ(Stat(session, 1)->level, Level::kEvicted);
  EXPECT_TRUE(remove(false, true).ok());
  EXPECT_THAT(stored, IsEmpty());
  EXPECT_THAT(remove(false, true), Fails(absl::StatusCode::kNotFound, "step: 1"));
  EXPECT_THAT(TrySave(session, 1, {{"m"}}, 1),
              Fails(absl::StatusCode::kFailedPrecondition, "was removed"));
  ASSERT_THAT(deletes, SizeIs(1));
  EXPECT_TRUE(deletes[0].tombstone);
}

TEST_F(Stored, RemovalOutlivesARestart) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1);
  Save(session, 2);
  const auto files = stored;
  Apply(event::Remove{From(session), {"job", 2}, false, true, Soon()});
  stored = files;  // the daemon died before the files were deleted
  Restart();
  EXPECT_EQ(LatestStep(session), 1);
  EXPECT_FALSE(stored.contains({"job", 2, 1, 0}));
}

TEST_F(Stored, NewRevisionTakesTheOldOnesPlaceInStorage) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1, {{"a"}});
  hold_persists = true;
  Save(session, 1, {{"b"}}, 1);
  EXPECT_TRUE(Stat(session, 1)->key.revision == 1);
  FinishPersist();
  Apply(event::Tick{});
  EXPECT_EQ(Stat(session, 1)->level, Level::kPersisted);
  event::StatCheckpoint old{From(session), {"job", 1, 1, 0}, Soon()};
  Apply(old);
  const auto info = Take<CheckpointInfo>(old.caller.request);
  EXPECT_FALSE(info.ok() && info->facts.persisted);
}

TEST_F(Stored, DrainPersistsTheNewestAndThenEnds) {
  const SessionId session = HelloWith(PersistMode::kOnDemand);
  Save(session, 1);
  Save(session, 2);
  hold_persists = true;
  Apply(event::Drain{Soon()});
  EXPECT_THAT(PersistedSteps(), ElementsAre(2));
  EXPECT_FALSE(drained);
  EXPECT_THAT(TrySave(session, 3), Fails(absl::StatusCode::kUnavailable, "draining"));
  FinishPersist();
  Apply(event::Tick{});
  EXPECT_TRUE(drained);
}

TEST_F(Stored, DrainFinishesCommitsAndIsBoundedByItsDeadline) {
  persist_status = absl::UnavailableError("away");
  const SessionId session = HelloWith(PersistMode::kNewest);
  ASSERT_TRUE(Create(session, PartOf(session, 1), {{"model"}}).ok());
  Apply(event::Drain{now + 3 * kNanosPerSecond});
  EXPECT_TRUE(drained) << "no step is complete, so storage lacks none";
  EXPECT_TRUE(Commit(session, PartOf(session, 1), {{"model"}}).ok());
  drained = false;
  Restart();
  Save(session, 2);
  Apply(event::Drain{now + 3 * kNanosPerSecond});
  EXPECT_FALSE(drained);
  Advance(4 * kNanosPerSecond);
  EXPECT_TRUE(drained);
}

// A commit whose manifest is being written when the daemon is told to stop: it is finished, and what
// it completes is persisted.
TEST_F(Stored, DrainWaitsForACommitUnderWay) {
  const SessionId session = HelloWith(PersistMode::kNewest);
  ASSERT_TRUE(Create(session, PartOf(session, 1), {{"model"}}).ok());
  hold_manifests = true;
  const auto commit = CommitOf(session, PartOf(session, 1), {{"model"}});
  Apply(commit);
  Apply(event::Drain{now + 3 * kNanosPerSecond});
  EXPECT_FALSE(drained);
  FinishManifest();
  CarryPending();
  EXPECT_TRUE(Take<reply::Commit>(commit.caller.request).ok());
  EXPECT_TRUE(drained);
  EXPECT_EQ(persists.size(), 1u) << "what became complete meanwhile is owed to storage";
}

// The create is parked before the other job's writer leaves: that is what makes the memory there
// available, once a file holds it.
TEST_F(Stored, CreateThatWaitsIsServedWhenAnotherJobsLastWriterLeaves) {
  const SessionId done = HelloWith(PersistMode::kOnDemand);
  Save(done, 1, {{"model", 40 * kMiB}});
  const SessionId other = Hello({.job = "other"});
  const auto create = CreateOf(other, PartOf(other, 1), {{"model", 40 * kMiB}});
  Apply(create);
  EXPECT_FALSE(Answered(create.caller.request));
  Die(done);
  ASSERT_TRUE(Answered(create.caller.request)) << "the finished job's step was not given up";
  EXPECT_TRUE(Take<reply::Create>(create.caller.request).ok());
}

// Of two parts one is leased when the checkpoint's memory goes, and goes later: the catalog's rows are
// about parts, so the recorder hears of each.
TEST_F(Stored, RecorderHearsOfEachDropOfACheckpointsMemory) {
  JobPolicy policy;
  policy.mode = PersistMode::kNewest;
  const SessionId zero =
      Hello({.writer = 0, .world_size = 2, .local_writers = 2, .policy = policy});
  const SessionId one = Hello({.writer = 1, .world_size = 2, .local_writers = 2});
  Save(zero, 1, {{"zero"}});
  Save(one, 1, {{"one"}});
  const auto open = Open(zero, 1, "one");
  ASSERT_TRUE(open.ok()) << open.status();
  const auto drop = [&] {
    records.clear();
    Apply(event::Remove{From(zero), {"job", 1}, /*memory_only=*/true, false, Soon()});
    return records.size();
  };
  EXPECT_EQ(drop(), 1u) << "one part left";
  EXPECT_EQ(drop(), 0u) << "nothing changed";
  Release(zero, open->lend.lease);
  EXPECT_EQ(drop(), 1u) << "the other part left";
}

TEST_F(Stored, FinishedJobsLatestMakesRoomOnceItIsPersisted) {
  const SessionId done = HelloWith(PersistMode::kNewest);
  Save(done, 1, {{"model", 40 * kMiB}});
  Die(done);
  const SessionId other = Hello({.job = "other"});
  EXPECT_TRUE(TrySave(other, 1, {{"model", 40 * kMiB}}).ok());
  const SessionId back = Hello({.attempt = 0});
  EXPECT_EQ(Stat(back, 1)->level, Level::kEvicted);
}

// A daemon that is not root cannot write as another user, and there may be no storage at all.
TEST_F(Stored, FinishedJobThatNoStorageTakesMakesRoomAfterADay) {
  for (const bool has_storage : {true, false}) {
    options.storage = has_storage;
    journal.clear();
    keeper.clear();
    Restart();
    persist_status = absl::PermissionDeniedError("uid 1000: this daemon runs as uid 7");
    const std::string job = has_storage ? "refused" : "without";
    const SessionId done = Hello({.job = job});
    Save(done, 1, {{"model", 40 * kMiB}});
    Die(done);
    const SessionId other = Hello({.job = "other"});
    EXPECT_FALSE(TrySave(other, 1, {{"model", 40 * kMiB}}).ok()) << "it finished just now";
    Advance(23 * 3600 * kNanosPerSecond);
    EXPECT_FALSE(TrySave(other, 2, {{"model", 40 * kMiB}}).ok());
    Restart();  // and does not know when it finished
    Advance(23 * 3600 * kNanosPerSecond);
    EXPECT_FALSE(TrySave(other, 3, {{"model", 40 * kMiB}}).ok());
    const SessionId back = Hello({.job = job, .attempt = 9});
    Advance(2 * 3600 * kNanosPerSecond);
    EXPECT_FALSE(TrySave(other, 4, {{"model", 40 * kMiB}}).ok()) << "it goes on";
    Die(back);
    Advance(23 * 3600 * kNanosPerSecond);
    EXPECT_FALSE(TrySave(other, 5, {{"model", 40 * kMiB}}).ok());
    Advance(3600 * kNanosPerSecond);
    EXPECT_TRUE(TrySave(other, 6, {{"model", 40 * kMiB}}).ok());
    Die(other);
  }
}

TEST_F(Stored, PersistThatFindsBadBytesNamesTheObjectAndGivesUp) {  // R11
  const SessionId session = HelloWith(PersistMode::kEvery);
  Save(session, 1, {{"good"}});
  rotten.insert("bad");
  persist_status = absl::DataLossError("block 0 of bad");
  Save(session, 2, {{"bad"}, {"also"}});
  persist_status = absl::OkStatus();
  EXPECT_EQ(Stat(session, 2, 1)->level, Level::kBroken);
  EXPECT_THAT(Stat(session, 2, 1)->why, testing::HasSubstr("bad"));
  EXPECT_EQ(LatestStep(session), 1) << "latest names a step that can be loaded";
  EXPECT_THAT(StatusOf(Open(session, 2, "also")),
              Fails(absl::StatusCode::kDataLoss, "no good copy"));
}

}  // namespace
}  // namespace cairn::engine
