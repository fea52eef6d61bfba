// What happens to a checkpoint that storage does not take, and to those beside it.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

class NotPersisted : public EngineTest {
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
  std::vector<Step> PersistedSteps() const {
    std::vector<Step> steps;
    for (const auto& persist : persists) steps.push_back(persist.checkpoint.step);
    return steps;
  }
};

const Status kForeign = absl::AlreadyExistsError("/root/job/1 stands there and is not Cairn's");

TEST_F(NotPersisted, StepsThatCannotBePublishedDelayNoOther) {  // more of them than there are slots
  const SessionId session = HelloWith(PersistMode::kEvery);
  persist_status_of = {{1, kForeign}, {2, kForeign}, {3, absl::DataLossError("pwrite: EIO")}};
  for (Step step = 1; step <= 8; ++step) Save(session, step, {{"m", 100}});
  for (Step step = 4; step <= 8; ++step) {
    EXPECT_EQ(Stat(session, step)->level, Level::kPersisted) << step;
  }
  EXPECT_THAT(PersistedSteps(), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8)) << "each was tried once";
}

TEST_F(NotPersisted, WhatFailedBacksOffAlone) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  persist_status_of[1] = absl::DataLossError("pwrite: Input/output error");
  Save(session, 1);
  for (const MonotonicNanos wait : {1, 2, 4}) {
    const size_t tries = persists.size();
    Advance(wait * kNanosPerSecond - 2);
    EXPECT_THAT(persists, SizeIs(tries)) << "its pause doubles";
    Advance(2);
    EXPECT_THAT(persists, SizeIs(tries + 1));
  }
  persist_status_of.clear();
  Advance(8 * kNanosPerSecond);
  EXPECT_EQ(Stat(session, 1)->level, Level::kPersisted);
  EXPECT_EQ(Stat(session, 1)->why, "");
  EXPECT_EQ(Status_().jobs[0].persist_problem, "");
}

TEST_F(NotPersisted, WhatARetryCannotMendIsParkedAndShown) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  persist_status_of[1] = kForeign;
  Save(session, 1);
  Save(session, 2);
  Advance(10 * options.persist_retry_max);
  EXPECT_THAT(PersistedSteps(), ElementsAre(1, 2)) << "no try soon";
  EXPECT_EQ(Stat(session, 1)->why, "not persisted: /root/job/1 stands there and is not Cairn's");
  EXPECT_THAT(Status_().jobs[0].persist_problem, testing::HasSubstr("/root/job/1"));
  persist_status_of.clear();  // the user has moved the directory
  Advance(options.persist_retry_parked);
  EXPECT_THAT(PersistedSteps(), ElementsAre(1, 2, 1));
  EXPECT_EQ(Stat(session, 1)->level, Level::kPersisted);
  EXPECT_EQ(Status_().jobs[0].persist_problem, "");
}

TEST_F(NotPersisted, ParkedStepIsTriedAgainAsSoonAsSomebodyAsks) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  persist_status_of[1] = kForeign;
  Save(session, 1);
  Apply(event::PersistNow{From(session), {"job", 1}});
  EXPECT_THAT(PersistedSteps(), ElementsAre(1, 1));
  EXPECT_THAT(Stat(session, 1)->why, testing::HasSubstr("not Cairn's"));
  persist_status_of.clear();
  Apply(event::PersistNow{From(session), {"job", 1}});
  EXPECT_EQ(Stat(session, 1)->level, Level::kPersisted);
}

TEST_F(NotPersisted, WaitingForAStepThatCannotBePublishedSaysWhatStandsInItsPlace) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  hold_persists = true;
  persist_status_of[1] = kForeign;
  Save(session, 1);
  const RequestId before = Wait(session, 1, Level::kPersisted);
  EXPECT_FALSE(Answered(before));
  FinishPersist();
  Apply(event::Tick{});
  EXPECT_THAT(StatusOf(AnswerTo(before)),
              Fails(absl::StatusCode::kAlreadyExists, "/root/job/1 stands there"));
  EXPECT_THAT(StatusOf(AnswerTo(Wait(session, 1, Level::kPersisted))),
              Fails(absl::StatusCode::kAlreadyExists, "/root/job/1 stands there"));
}

TEST_F(NotPersisted, ParkedNewestDoesNotHoldTheDrain) {
  const SessionId session = HelloWith(PersistMode::kEvery);
  persist_status_of[1] = kForeign;
  Save(session, 1);
  Apply(event::Drain{now + 60 * kNanosPerSecond});
  EXPECT_TRUE(drained);
  EXPECT_THAT(PersistedSteps(), ElementsAre(1, 1)) << "it was tried once more";
}

// Seed 2348 of the simulator, with storage that fails and a clock that steps: a writer of no objects
// repeats its commit, whose answer was lost, after the step was removed from memory.
TEST_F(NotPersisted, PersistThatEndsLateSaysNothingOfWhatWasBegunAnew) {
  JobPolicy policy;
  policy.mode = PersistMode::kEvery;
  const SessionId zero = Hello({.writer = 0, .world_size = 2, .policy = policy});
  const SessionId one = Hello({.writer = 1, .world_size = 2, .policy = policy});
  hold_persists = true;
  Save(zero, 1);
  ASSERT_TRUE(Commit(one, PartOf(one, 1), {}).ok());
  ASSERT_EQ(persists.size(), 1u);
  event::Remove remove{From(zero), {"job", 1}, /*memory_only=*/true, true, Soon()};
  Apply(remove);
  ASSERT_TRUE(AnswerTo(remove.caller.request).ok());
  ASSERT_TRUE(Commit(one, PartOf(one, 1), {}).ok());
  FinishPersist();
  Apply(event::Tick{});
  EXPECT_EQ(Stat(zero, 1)->level, Level::kWriting) << "what is in memory is not what was persisted";
}

}  // namespace
}  // namespace cairn::engine
