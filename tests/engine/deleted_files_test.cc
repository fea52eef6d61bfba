// Files of persisted checkpoints that are missing (promise 1). Gone whole, a user or a policy deleted them: they are not
// written again unless a user asks. Some of them gone is damage, when two looks a minute apart find it.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

constexpr MonotonicNanos kMinute = 60 * kNanosPerSecond;

class DeletedFiles : public EngineTest {
 protected:
  void SetUp() override {
    options.storage = true;
    Restart();
    session = HelloWith({.mode = PersistMode::kEvery});
  }
  SessionId HelloWith(JobPolicy policy) { return Hello({.policy = policy}); }
  // Storage is read again, as when the daemon starts.
  void LookAgain() {
    Restart();
    session = Hello({.writer = -1});
  }
  // As storage shows what lost files (PosixStorage::Read): published, without the part.
  void LoseFilesOf(Step step) { stored.at({"job", step, 1, 0}).parts.clear(); }
  Level LevelOf(Step step) { return Stat(session, step)->level; }

  SessionId session = 0;
};

TEST_F(DeletedFiles, WhatIsGoneWholeIsNotWrittenAgain) {
  Save(session, 1);
  Save(session, 2);
  stored.erase({"job", 1, 1, 0});
  LookAgain();
  EXPECT_EQ(LevelOf(1), Level::kCached) << "memory has it";
  EXPECT_EQ(LevelOf(2), Level::kPersisted);
  EXPECT_EQ(Status_().counters.at("files_missing"), 1);
  Advance(10 * kMinute);
  LookAgain();
  EXPECT_THAT(persists, SizeIs(2));
}

TEST_F(DeletedFiles, AUserWhoAsksHasItWrittenAgain) {
  Save(session, 1);
  stored.clear();
  written_parts.clear();
  LookAgain();
  event::PersistNow ask{From(session), {"job", 1}};
  Apply(ask);
  EXPECT_EQ(LevelOf(1), Level::kPersisted);
  EXPECT_TRUE(stored.contains({"job", 1, 1, 0}));
  LookAgain();
  EXPECT_EQ(LevelOf(1), Level::kPersisted) << "the journal knows that it is there again";
}

TEST_F(DeletedFiles, WhoWaitsForThemIsToldToAsk) {
  Save(session, 1);
  stored.clear();
  LookAgain();
  EXPECT_THAT(StatusOf(AnswerTo(Wait(session, 1, Level::kPersisted))),
              Fails(absl::StatusCode::kFailedPrecondition, "were deleted; ask to persist it"));
}

TEST_F(DeletedFiles, WhatThePolicyDeletedStaysDeletedInTheNextDaemon) {
  session = HelloWith({.mode = PersistMode::kEvery, .keep_last = 1});
  Save(session, 1);
  Save(session, 2);
  EXPECT_FALSE(stored.contains({"job", 1, 1, 0}));
  LookAgain();
  Advance(10 * kMinute);
  EXPECT_THAT(persists, SizeIs(2));
}

TEST_F(DeletedFiles, WhatLostSomeOfItsFilesIsWrittenAgainAfterTwoLooks) {
  Save(session, 1);
  LoseFilesOf(1);
  LookAgain();
  EXPECT_EQ(LevelOf(1), Level::kCached) << "it counts for nothing until it is looked at again";
  EXPECT_THAT(persists, SizeIs(1)) << "rm -rf may be under way";
  Advance(kMinute + 5 * kNanosPerSecond);
  EXPECT_THAT(persists, SizeIs(2));
  EXPECT_EQ(LevelOf(1), Level::kPersisted);
}

TEST_F(DeletedFiles, WhatWasBeingDeletedAtTheFirstLookIsNotWrittenAgain) {
  Save(session, 1);
  LoseFilesOf(1);
  LookAgain();
  stored.clear();
  Advance(10 * kMinute);
  EXPECT_THAT(persists, SizeIs(1));
  EXPECT_EQ(LevelOf(1), Level::kCached);
}

TEST_F(DeletedFiles,
       WhatIsWholeAtTheSecondLookIsPersisted) {  // a server that answered with an old listing
  Save(session, 1);
  auto whole = stored.at({"job", 1, 1, 0});
  LoseFilesOf(1);
  LookAgain();
  stored[whole.key] = whole;
  Advance(kMinute + 5 * kNanosPerSecond);
  EXPECT_EQ(LevelOf(1), Level::kPersisted);
  EXPECT_THAT(persists, SizeIs(1));
}

TEST_F(DeletedFiles, WhatCouldNotBeReadHasLostNothing) {
  Save(session, 1);
  LoseFilesOf(1);
  unread = {{1, "1: Input/output error"}};
  LookAgain();
  Advance(10 * kMinute);
  EXPECT_THAT(persists, SizeIs(1));
  EXPECT_FALSE(Status_().counters.contains("files_missing"));
}

// Two faults: storage goes away, and comes back as it was, between the two looks.
TEST_F(DeletedFiles, WhatLostFilesDoesNotCountBecauseStorageCameBack) {  // promise 1
  Save(session, 1);
  LoseFilesOf(1);
  LookAgain();
  SeeRoot(absl::UnavailableError("storage.root /mnt: cannot be opened"));
  hold_scans = true;
  SeeRoot(RootIdentity{"root-1", "instance-1"});
  EXPECT_EQ(Status_().jobs[0].latest_persisted, kNoStep);
}

TEST_F(DeletedFiles, TheLatestOfAFinishedJobStaysInMemoryUntilItsFilesWereLookedAt) {
  const SessionId other = Hello({.job = "other"});
  Save(other, 1, {{"model", kMiB}});
  Save(session, 1, {{"model", 40 * kMiB}});
  Advance(kNanosPerSecond);
  hold_scans = true;
  Die(session);
  EXPECT_FALSE(TrySave(other, 2, {{"model", 40 * kMiB}}).ok());
}

// Bug: memory let the last copy go because storage had had the files once.
TEST_F(DeletedFiles, TheLatestOfAFinishedJobStaysInMemoryWhileItsFilesAreDamaged) {
  Save(session, 1, {{"model", 40 * kMiB}});
  LoseFilesOf(1);
  Advance(kNanosPerSecond);
  Die(session);
  const SessionId other = Hello({.job = "other"});
  EXPECT_FALSE(TrySave(other, 1, {{"model", 40 * kMiB}}).ok());
  session = Hello({.writer = -1});
  EXPECT_TRUE(Stat(session, 1)->facts.resident);
  Advance(2 * kMinute);
  EXPECT_THAT(persists, SizeIs(2)) << "it was written again";
  EXPECT_TRUE(TrySave(other, 2, {{"model", 40 * kMiB}}).ok());
  EXPECT_EQ(LevelOf(1), Level::kEvicted);
}

// The last whole one is not deleted because a damaged one counts.
TEST_F(DeletedFiles, RetentionDoesNotCountWhatLostFiles) {
  session = HelloWith({.mode = PersistMode::kEvery, .keep_last = 2});
  Save(session, 1);
  Save(session, 2);
  LoseFilesOf(2);
  LookAgain();
  session = HelloWith({.mode = PersistMode::kEvery, .keep_last = 2});
  hold_persists = true;
  Save(session, 3);
  hold_persists = false;
  EXPECT_TRUE(stored.contains({"job", 1, 1, 0}));
}

// Files are lost after the last reading of the job: storage looks again before it deletes.
TEST_F(DeletedFiles, APolicyDeletesNothingWhileTheNewestHasLostFiles) {
  Save(session, 1);
  Save(session, 2);
  LoseFilesOf(2);
  Apply(event::SetPolicy{From(session), "job", {.mode = PersistMode::kEvery, .keep_last = 1}});
  EXPECT_TRUE(stored.contains({"job", 1, 1, 0}));
  Advance(2 * kMinute);
  EXPECT_THAT(persists, SizeIs(3)) << "the refusal made the node look, and it wrote the step again";
  Advance(10 * kMinute);
  EXPECT_FALSE(stored.contains({"job", 1, 1, 0}));
}

// A job that saves faster than storage writes has almost always a newer step in memory.
TEST_F(DeletedFiles, APolicyDeletesWhileTheNewestIsInMemoryAlone) {
  session = HelloWith({.mode = PersistMode::kEvery, .keep_last = 1});
  Save(session, 1);
  hold_persists = true;
  Save(session, 2);
  Save(session, 3);
  FinishPersist();
  CarryPending();
  EXPECT_TRUE(stored.contains({"job", 2, 1, 0}));
  EXPECT_FALSE(stored.contains({"job", 3, 1, 0}));
  EXPECT_FALSE(stored.contains({"job", 1, 1, 0}));
  EXPECT_THAT(logs, testing::Not(testing::Contains(testing::HasSubstr("deleting the files"))));
}

TEST_F(DeletedFiles, TheNewestIsWrittenFirst) {
  persist_status = absl::UnavailableError("full");
  for (Step step = 1; step <= 3; ++step) Save(session, step);
  persist_status = absl::OkStatus();
  persists.clear();
  persists_done = 0;
  Advance(10 * kMinute);
  std::vector<Step> order;
  for (const action::Persist& persist : persists) order.push_back(persist.checkpoint.step);
  EXPECT_THAT(order, ElementsAre(3, 2, 1));
}

}  // namespace
}  // namespace cairn::engine
