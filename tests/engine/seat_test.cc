// Where the members of a ring stand in the catalog: what the engine is told of its seat, and does without one. An operator
// who takes a node out of service.
#include "server/engine/ring.h"
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Instance(char of) { return std::string(kInstanceBytes, of); }

fact::RingSeat SeatAt(Rank rank, int64_t incarnation, char instance) {
  fact::RingSeat seat;
  seat.instance = Instance(instance);
  seat.rank = rank;
  seat.incarnation = incarnation;
  seat.epoch = 1;
  seat.incarnations = {1, 1};
  seat.nodes = "0=10.0.0.1:1,1=10.0.0.2:1";
  return seat;
}

// The daemon of a seat, as daemon/ring_options.h makes its ring.
class Seated : public EngineTest {
 protected:
  void SetUp() override {
    options.ring.cluster = "test";
    options.ring.from_catalog = true;
    options.ring.replicas = 0;
    HasRank(1);
    EngineTest::SetUp();
    Apply(event::SeatChanged{SeatAt(1, 3, 's')});
    Restart();
  }
  void HasRank(Rank rank) {
    options.ring.rank = rank;
    options.ring.members = {{0, "10.0.0.1:1"}, {1, ""}, {rank, "10.0.0.2:1"}};
  }
  // One step of a job of one writer, while the other member is up.
  SessionId SaveOne() {
    Apply(event::Exchanged{0, MemberId{0, 1, Instance('o')}});
    const SessionId session = Hello();
    const PartKey part = PartOf(session, 1);
    const event::Create create = CreateOf(session, part, {{"model"}});
    Apply(create);
    if (!Answered(create.caller.request)) Advance(3 * kNanosPerSecond);
    EXPECT_TRUE(AnswerTo(create.caller.request).ok());
    EXPECT_TRUE(Commit(session, part, {{"model"}}).ok());
    return session;
  }
  MemberId Self() { return Status_().ring.self; }
  std::string Why() { return Status_().ring.superseded; }
};

TEST_F(Seated, ALifeIsThatOfItsSeat) {
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_EQ(Self(), (MemberId{1, 3, Instance('s')})) << NameOf(from);
  }
}

TEST_F(Seated, AGreaterIncarnationOutlivesTheDaemon) {
  Apply(event::LifeMet{0, {1, 8, Instance('x')}});
  EXPECT_EQ(Self().incarnation, 9);
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_EQ(Self(), (MemberId{1, 9, Instance('s')})) << NameOf(from);
  }
}

TEST_F(Seated, ByTheCatalogsWordAlsoALifeIsFencedThatNobodyHasMet) {
  Apply(event::Fenced{{1, 4, Instance('x')}});
  EXPECT_THAT(Why(), HasSubstr("superseded: incarnation 4 of rank 1 has it by the catalog"));
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_THAT(Why(), HasSubstr("superseded")) << NameOf(from);
  }
}

TEST_F(Seated, ANewSeatIsNotSupersededByWhatTheOldOneWas) {
  Apply(event::Fenced{{1, 4, Instance('x')}});
  Apply(event::SeatChanged{SeatAt(1, 7, 'n')});
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_THAT(Why(), IsEmpty()) << NameOf(from);
    EXPECT_EQ(Self(), (MemberId{1, 7, Instance('n')})) << NameOf(from);
  }
}

TEST_F(Seated, WithoutARankNothingIsGuessedOfWhatOthersMayKnow) {
  Apply(event::SeatChanged{SeatAt(kNoRank, 0, 'n')});
  HasRank(kNoRank);
  Restart();
  EXPECT_EQ(Self().rank, kNoRank);
  const SessionId session = Hello();
  const event::Latest latest{From(session), "job", Soon()};
  Apply(latest);
  Advance(kNanosPerSecond * 60);
  EXPECT_THAT(AnswerTo(latest.caller.request).status(), Fails(absl::StatusCode::kUnavailable, ""))
      << "others may know the job";
}

// What it knows may be old, and nobody would hear of it.
TEST_F(Seated, WithoutARankItDecidesNothingAndTellsNoLatest) {
  const SessionId session = SaveOne();
  Apply(event::SeatChanged{SeatAt(kNoRank, 0, 'n')});
  HasRank(kNoRank);
  Restart();
  const event::Latest latest{From(session), "job", Soon()};
  Apply(latest);
  Advance(kNanosPerSecond * 60);
  EXPECT_THAT(AnswerTo(latest.caller.request).status(), Fails(absl::StatusCode::kUnavailable, ""));
  event::Remove remove{From(session), {"job", 1}};
  remove.force = true;
  remove.deadline = Soon();
  Apply(remove);
  EXPECT_THAT(AnswerTo(remove.caller.request).status(),
              Fails(absl::StatusCode::kUnavailable, "no rank"));
  EXPECT_TRUE(Open(session, 1).ok());
}

// As an earlier build leaves it, which journaled no word of the operator's but the seat.
TEST_F(Seated, ADrainedSeatStaysOutOfServiceUntilItIsTakenBack) {
  fact::RingSeat seat = SeatAt(kNoRank, 0, 'n');
  seat.drained = true;
  Apply(event::SeatChanged{seat});
  HasRank(kNoRank);
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_TRUE(Status_().leaving) << NameOf(from);
  }
  Apply(event::Leave{From(Hello()), false});
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_FALSE(Status_().leaving) << NameOf(from);
  }
}

TEST_F(Seated, WhatIsNotHeardOfIsOnlyHere) {
  const SessionId session = SaveOne();
  Apply(event::Leave{From(session), true});
  EXPECT_EQ(Status_().only_here_count, 1);
}

// --- out of service

TEST_F(EngineTest, ANodeThatIsTakenOutOfServiceAdmitsNothing) {
  const SessionId session = Hello();
  Save(session, 1);
  const event::Leave leave{From(session), true};
  Apply(leave);
  EXPECT_TRUE(AnswerTo(leave.caller.request).ok());
  EXPECT_THAT(Create(session, PartOf(session, 2), {{"model"}}).status(),
              Fails(absl::StatusCode::kUnavailable, "taken out of service"));
  EXPECT_TRUE(Open(session, 1).ok());
  const event::Leave back{From(session), false};
  Apply(back);
  EXPECT_TRUE(Create(session, PartOf(session, 2), {{"model"}}).ok());
}

TEST_F(EngineTest, WhatIsOnlyHereIsTold) {
  options.storage = false;
  Restart();
  const SessionId session = Hello();
  Save(session, 1);
  EXPECT_EQ(Status_().only_here_count, 0) << "nobody asks";
  Apply(event::Leave{From(session), true});
  EXPECT_THAT(Status_().only_here, ElementsAre("job/1"));
  EXPECT_EQ(Status_().only_here_count, 1);
}

TEST_F(EngineTest, WhatIsOnlyHereGoesToStorageWhateverThePolicy) {
  options.storage = true;
  Restart();
  const SessionId session = Hello();
  Save(session, 1);
  Apply(event::Leave{From(session), true});
  EXPECT_TRUE(Stat(session, 1)->facts.persisted);
  EXPECT_THAT(Status_().only_here, IsEmpty());
}

TEST_F(EngineTest, ANodeThatIsTakenOutOfServiceStaysSoWhenItsDaemonDies) {
  const SessionId session = Hello();
  Apply(event::Leave{From(session), true});
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_TRUE(Status_().leaving) << NameOf(from);
    EXPECT_THAT(Create(Hello(), PartOf(session, 2), {{"model"}}).status(),
                Fails(absl::StatusCode::kUnavailable, "taken out of service"))
        << NameOf(from);
  }
  Apply(event::Leave{From(session), false});
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_FALSE(Status_().leaving) << NameOf(from);
  }
}

// Whatever the policy: a save that was under way, and what is pinned.
TEST_F(EngineTest, WhatCompletesAndWhatIsPinnedGoesToStorageToo) {
  options.storage = true;
  Restart();
  const SessionId session = Hello();
  Save(session, 1);
  ASSERT_TRUE(Stat(session, 1)->facts.persisted) << "by its policy";
  Apply(event::SetPolicy{From(session), "job", {.mode = PersistMode::kOnDemand}});
  for (const Step step : {2, 3, 4}) Save(session, step);
  ASSERT_FALSE(Stat(session, 4)->facts.persisted);
  ASSERT_TRUE(Create(session, PartOf(session, 5), {{"model"}}).ok());
  event::Pin pin{From(session), {"job", 2}, true};
  Apply(pin);
  Apply(event::Leave{From(session), true});
  pin = {From(session), {"job", 3}, true};
  Apply(pin);
  ASSERT_TRUE(Commit(session, PartOf(session, 5), {{"model"}}).ok());
  for (const Step step : {2, 3, 4, 5}) EXPECT_TRUE(Stat(session, step)->facts.persisted) << step;
  EXPECT_THAT(Status_().only_here, IsEmpty());
}

// As `cairn drain` does while it waits: what failed has its pause all the same.
TEST_F(EngineTest, ADrainThatIsSaidAgainDoesNotTryAgain) {
  options.storage = true;
  Restart();
  const SessionId session = Hello();
  Save(session, 1);
  Apply(event::SetPolicy{From(session), "job", {.mode = PersistMode::kOnDemand}});
  Save(session, 2);
  persist_status = absl::UnavailableError("away");
  persists.clear();
  persists_done = 0;
  for (int i = 0; i < 10; ++i) Apply(event::Leave{From(session), true});
  EXPECT_EQ(persists.size(), 1u);
  EXPECT_THAT(Status_().only_here, ElementsAre("job/2"));
  persist_status = absl::OkStatus();
  Advance(5 * kNanosPerSecond);
  EXPECT_THAT(Status_().only_here, IsEmpty());
}

TEST_F(EngineTest, WhatIsPinnedIsOnlyHereToo) {
  options.storage = false;
  Restart();
  const SessionId session = Hello();
  for (const Step step : {1, 2, 3}) Save(session, step);
  event::Pin pin{From(session), {"job", 1}, true};
  Apply(pin);
  Apply(event::Leave{From(session), true});
  EXPECT_THAT(Status_().only_here, ElementsAre("job/3", "job/1"));
}

TEST_F(EngineTest, OnlyWhoRunsTheDaemonTakesItOutOfService) {
  Hello();
  event::Leave leave{From(0), true};
  leave.caller.uid = 4321;
  Apply(leave);
  EXPECT_THAT(AnswerTo(leave.caller.request).status(),
              Fails(absl::StatusCode::kPermissionDenied, "drain"));
}

}  // namespace
}  // namespace cairn::engine
