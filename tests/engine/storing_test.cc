// Parts that go straight into storage (storing.h).
#include "server/engine/storing.h"

#include <utility>

#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::HasSubstr;

class StraightSaves : public EngineTest {
 protected:
  void SetUp() override {
    options.storage = true;
    EngineTest::SetUp();
  }
  event::Store StoreOf(SessionId session, Step step, const std::vector<Spec>& specs = {{"model"}},
                       Revision revision = 0) {
    event::Store store;
    store.caller = From(session);
    store.call = ++last_call;
    store.part = PartOf(session, step, revision);
    store.world_size = sessions.at(session).world_size;
    for (const Spec& spec : specs) {
      ObjectEntry entry;
      entry.name = spec.name;
      entry.length = spec.length;
      entry.block_crcs.assign(BlockCount(spec.length, kBlockBytes), 7);
      store.objects.push_back(std::move(entry));
    }
    store.unix_ms = kUnix;
    store.stream = 1;
    store.deadline = Soon();
    store.fence = fences;
    return store;
  }
  StatusOr<reply::Commit> TakeStored(const event::Store& store) {
    return Take<reply::Commit>(store.caller.request);
  }
  StatusOr<reply::Commit> Store(SessionId session, Step step,
                                const std::vector<Spec>& specs = {{"model"}},
                                Revision revision = 0) {
    const event::Store store = StoreOf(session, step, specs, revision);
    Apply(store);
    return TakeStored(store);
  }
  uint64_t Used() { return Status_().used_bytes; }
};

TEST_F(StraightSaves, TakeNoMemoryAndAreCompleteWhenTheyArePublished) {
  const SessionId s = Hello();
  Save(s, 1);
  const uint64_t used = Used();
  const size_t slabs = makes.size();
  const auto stored_now = Store(s, 2, {{"huge", 4 * options.budget_bytes}});
  ASSERT_TRUE(stored_now.ok()) << stored_now.status();
  EXPECT_TRUE(stored_now->complete);
  EXPECT_EQ(Used(), used);
  EXPECT_EQ(makes.size(), slabs);
  const auto latest = Latest(s);
  ASSERT_TRUE(latest.ok());
  EXPECT_EQ(latest->key.step, 2);
  EXPECT_TRUE(latest->in_storage && !latest->in_memory);
  EXPECT_TRUE(OpenStored(s, 2, "huge").ok());
  EXPECT_TRUE(Open(s, 1).ok());
  Save(s, 3);
  EXPECT_EQ(LatestStep(s), 3);
}

TEST_F(StraightSaves, OfSeveralWritersCountTogether) {
  const SessionId a = Hello({.writer = 0, .world_size = 2, .local_writers = 2});
  const SessionId b = Hello({.writer = 1, .world_size = 2, .local_writers = 2});
  const auto first = Store(a, 5, {{"a"}});
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(first->complete);
  EXPECT_EQ(LatestStep(a), kNoStep);
  const auto second = Store(b, 5, {{"b"}});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(second->complete);
  EXPECT_EQ(LatestStep(a), 5);
  EXPECT_TRUE(OpenStored(a, 5, "b").ok());
}

TEST_F(StraightSaves, ARepeatWaitsForTheSameOrIsToldTheSame) {
  const SessionId s = Hello();
  hold_stores = true;
  const event::Store first = StoreOf(s, 1);
  event::Store again = StoreOf(s, 1);
  Apply(first);
  Apply(again);
  EXPECT_FALSE(Answered(first.caller.request));
  EXPECT_EQ(stores.size(), 1u);
  FinishStore();
  CarryPending();
  ASSERT_TRUE(TakeStored(first).ok()) << TakeStored(first).status();
  EXPECT_EQ(TakeStored(again)->digest, TakeStored(first)->digest);
  const auto later = Store(s, 1);
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_TRUE(later->complete);
  EXPECT_EQ(later->digest, TakeStored(first)->digest);
  EXPECT_EQ(stores.size(), 1u);
  EXPECT_THAT(StatusOf(Store(s, 1, {{"other"}})),
              Fails(absl::StatusCode::kAlreadyExists, "revision"));
}

TEST_F(StraightSaves, GoOnWhenTheTimeOfACallIsUp) {
  const SessionId s = Hello();
  hold_stores = true;
  const event::Store first = StoreOf(s, 1);
  Apply(first);
  Advance(11 * kNanosPerSecond);
  EXPECT_THAT(StatusOf(TakeStored(first)),
              Fails(absl::StatusCode::kDeadlineExceeded, "still being written"));
  EXPECT_EQ(Status_().jobs.at(0).refused_saves, 0u) << "it goes on";
  const event::Store again = StoreOf(s, 1);
  Apply(again);
  FinishStore();
  CarryPending();
  EXPECT_TRUE(TakeStored(again).ok()) << TakeStored(again).status();
  EXPECT_EQ(stores.size(), 1u);
}

TEST_F(StraightSaves, ThatFailLeaveNothing) {
  const SessionId s = Hello();
  Save(s, 1);
  store_status = absl::ResourceExhaustedError("storage is full");
  EXPECT_THAT(StatusOf(Store(s, 2)), Fails(absl::StatusCode::kResourceExhausted, "full"));
  EXPECT_EQ(LatestStep(s), 1);
  EXPECT_FALSE(Stat(s, 2).ok());
  store_status = absl::OkStatus();
  Save(s, 2, {{"model"}}, 1);  // the writer enters the step once more
  EXPECT_EQ(LatestStep(s), 2);
  ASSERT_TRUE(Store(s, 3).ok());
  EXPECT_EQ(LatestStep(s), 3);
}

TEST_F(StraightSaves, OutliveNoDaemonBeforeTheyArePublished) {
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    LoseMemory();
    stored.clear();
    written_parts.clear();
    line_records.clear();
    stores.clear();
    stores_done = 0;
    const SessionId s = Hello();
    Save(s, 1);
    hold_stores = true;
    Apply(StoreOf(s, 2));
    Restart(from);
    stores.clear();
    EXPECT_EQ(LatestStep(s), 1);
    hold_stores = false;
    ASSERT_TRUE(Store(s, 2).ok());
    EXPECT_EQ(LatestStep(s), 2);
    Restart(from);
    EXPECT_EQ(LatestStep(s), 2);
    EXPECT_TRUE(OpenStored(s, 2).ok());
  }
}

TEST_F(StraightSaves, BeginAnAttemptAndAreFencedByANewerOne) {
  const SessionId old = Hello({.attempt = 1, .process = "old"});
  ASSERT_TRUE(Store(old, 1).ok());
  ASSERT_TRUE(stores.back().origin.has_value());
  EXPECT_EQ(stores.back().origin->number, 1);
  const SessionId young = Hello({.attempt = 2, .process = "young"});
  ASSERT_TRUE(Store(young, 2).ok());
  const event::Store late = StoreOf(old, 3);
  Apply(late);
  EXPECT_THAT(StatusOf(TakeStored(late)),
              Fails(absl::StatusCode::kFailedPrecondition, "superseded"));
  EXPECT_EQ(replies.at(late.caller.request).superseded_by, 2);
  EXPECT_EQ(LatestStep(young), 2);
}

TEST_F(StraightSaves, NeedStorage) {
  const SessionId s = Hello();
  SeeRoot(absl::UnavailableError("the mount is gone"));
  EXPECT_THAT(StatusOf(Store(s, 1)), Fails(absl::StatusCode::kUnavailable, "the mount is gone"));
  EXPECT_TRUE(stores.empty());
  options.storage = false;
  Restart();
  EXPECT_THAT(StatusOf(Store(s, 1)), Fails(absl::StatusCode::kFailedPrecondition, "storage.root"));
}

TEST_F(StraightSaves, WhoseStepIsRemovedMeanwhileAreNotComplete) {
  const SessionId s = Hello();
  Save(s, 1);
  Save(s, 2);
  hold_stores = true;
  const event::Store store = StoreOf(s, 2, {{"model"}}, /*revision=*/1);
  Apply(store);
  Apply(event::Remove{From(s), {"job", 2}, /*memory_only=*/false, /*force=*/true, Soon()});
  FinishStore();
  CarryPending();
  EXPECT_THAT(StatusOf(TakeStored(store)), Fails(absl::StatusCode::kFailedPrecondition, "removed"));
  EXPECT_EQ(LatestStep(s), 1);
  ASSERT_FALSE(deletes.empty());
  EXPECT_EQ(deletes.back().checkpoint, store.part.checkpoint);
}

TEST_F(StraightSaves, TakeThePlaceOfAnOlderRevision) {
  const SessionId s = Hello();
  Save(s, 1);
  Save(s, 2);
  ASSERT_TRUE(Store(s, 2, {{"model"}}, /*revision=*/1).ok());
  const auto latest = Latest(s);
  ASSERT_TRUE(latest.ok());
  EXPECT_EQ(latest->key.step, 2);
  EXPECT_EQ(latest->key.revision, 1);
  Save(s, 2, {{"model"}}, /*revision=*/2);
  EXPECT_EQ(Latest(s)->key.revision, 2);
}

TEST_F(StraightSaves, TakeThePlaceOfTheFilesOfAnOlderRevision) {
  const SessionId s = Hello();
  ASSERT_TRUE(Store(s, 2).ok());
  stored.erase(PartOf(s, 2, 0).checkpoint);  // as Publish does
  ASSERT_TRUE(Store(s, 2, {{"model"}}, /*revision=*/1).ok());
  SeeRoot(RootIdentity{"root-1", "instance-2"});  // all is read again
  EXPECT_THAT(logs, testing::Not(testing::Contains(HasSubstr("not in storage any more"))));
  EXPECT_EQ(Latest(s)->key.revision, 1);
}

// Costs do not grow with history.
TEST_F(StraightSaves, AreDeletedByTheJobsPolicyAsOthersAre) {
  JobPolicy policy;
  policy.keep_last = 2;
  const SessionId s = Hello({.policy = policy});
  for (Step step = 1; step <= 6; ++step) ASSERT_TRUE(Store(s, step).ok());
  EXPECT_EQ(stored.size(), 2u);
  EXPECT_EQ(LatestStep(s), 6);
}

TEST_F(StraightSaves, OfAnAttemptThatEndedMeanwhileAreNotItsSuccessors) {
  const SessionId old = Hello({.attempt = 1, .process = "old"});
  hold_stores = true;
  const event::Store store = StoreOf(old, 7);
  Apply(store);
  const SessionId young = Hello({.attempt = 2, .process = "young"});
  Save(young, 1);
  Die(old);
  FinishStore();
  CarryPending();
  EXPECT_EQ(LatestStep(young), 1);
  Restart();
  EXPECT_EQ(LatestStep(young), 1);
}

TEST_F(StraightSaves, OfAnAttemptThatIsFencedMeanwhileAreToldSo) {
  const SessionId old = Hello({.attempt = 1, .process = "old"});
  hold_stores = true;
  const event::Store store = StoreOf(old, 7);
  Apply(store);
  const SessionId young = Hello({.attempt = 2, .process = "young"});
  Save(young, 1);
  FinishStore();
  CarryPending();
  EXPECT_THAT(StatusOf(TakeStored(store)),
              Fails(absl::StatusCode::kFailedPrecondition, "superseded"));
  EXPECT_EQ(replies.at(store.caller.request).superseded_by, 2);
  EXPECT_EQ(LatestStep(young), 1);
}

// Else one of the two would be told that the other's bytes are his.
TEST_F(StraightSaves, AreNotSavedThroughMemoryToo) {
  const SessionId s = Hello();
  hold_stores = true;
  const event::Store store = StoreOf(s, 1);
  Apply(store);
  EXPECT_THAT(StatusOf(Create(s, store.part, {{"model"}})),
              Fails(absl::StatusCode::kFailedPrecondition, "straight into storage"));
  EXPECT_THAT(StatusOf(Commit(s, store.part, {})),
              Fails(absl::StatusCode::kFailedPrecondition, "straight into storage"));
  FinishStore();
  CarryPending();
  ASSERT_TRUE(TakeStored(store).ok()) << TakeStored(store).status();
  EXPECT_TRUE(TakeStored(store)->complete);
  EXPECT_THAT(StatusOf(Create(s, store.part, {{"model"}})),
              Fails(absl::StatusCode::kAlreadyExists, "revision"));
}

// Each holds a descriptor and its checksums, whether or not its caller waits.
TEST_F(StraightSaves, AreFewAtOnceOfASessionAndOfAUser) {
  hold_stores = true;
  const SessionId s = Hello();
  for (Step step = 1; step <= 4; ++step) Apply(StoreOf(s, step));
  Advance(11 * kNanosPerSecond);  // none of them is waited for any more
  const event::Store fifth = StoreOf(s, 5);
  Apply(fifth);
  EXPECT_THAT(StatusOf(TakeStored(fifth)),
              Fails(absl::StatusCode::kResourceExhausted, "of this session"));
  for (int more = 1; more < 16; ++more) {
    const SessionId next = Hello({.job = absl::StrCat("job", more)});
    for (Step step = 1; step <= 4; ++step) Apply(StoreOf(next, step));
  }
  EXPECT_EQ(stores.size(), 64u);
  const event::Store late = StoreOf(Hello({.job = "late"}), 1);
  Apply(late);
  EXPECT_THAT(StatusOf(TakeStored(late)),
              Fails(absl::StatusCode::kResourceExhausted, "of this user"));
  FinishStore();
  CarryPending();
  const event::Store again = StoreOf(Hello({.job = "late"}), 1);
  Apply(again);
  EXPECT_EQ(stores.size(), 65u);
}

TEST_F(StraightSaves, HoldFewChecksums) {
  hold_stores = true;
  const SessionId s = Hello();
  event::Store large = StoreOf(s, 1);
  large.objects.front().length = (uint64_t{17} << 20) * kBlockBytes;
  large.objects.front().block_crcs.assign(uint64_t{17} << 20, 7);
  Apply(large);
  EXPECT_THAT(StatusOf(TakeStored(large)),
              Fails(absl::StatusCode::kResourceExhausted, "of this user"));
  EXPECT_TRUE(stores.empty());
}

// A reading of storage that began before knows nothing of it.
TEST_F(StraightSaves, AreNotLostByAReadingThatBeganBefore) {
  const SessionId s = Hello();
  ASSERT_TRUE(Store(s, 1).ok());
  hold_scans = true;
  SeeRoot(RootIdentity{"root-1", "instance-2"});  // mounted anew: all is read again
  ASSERT_FALSE(scans.empty());
  const Reading before = ReadingOf("job");
  ASSERT_TRUE(Store(s, 2).ok());
  hold_scans = false;
  Apply(event::JobScanned{"job", before, 1000, 1000});
  EXPECT_THAT(logs, testing::Not(testing::Contains(HasSubstr("not in storage any more"))));
  EXPECT_EQ(LatestStep(s), 2);
  EXPECT_TRUE(OpenStored(s, 2).ok());
}

TEST_F(StraightSaves, OfADeadWriterEndUnheard) {
  const SessionId s = Hello();
  hold_stores = true;
  Apply(StoreOf(s, 1));
  Die(s);
  store_status = absl::UnavailableError("the writer has gone");
  FinishStore();
  CarryPending();
  store_status = absl::OkStatus();
  hold_stores = false;
  const SessionId next = Hello({.attempt = 2});
  ASSERT_TRUE(Store(next, 1).ok());
  EXPECT_EQ(LatestStep(next), 1);
}

}  // namespace
}  // namespace cairn::engine
