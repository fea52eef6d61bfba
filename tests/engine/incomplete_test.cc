// Steps that lack a writer's part: how long what the others committed stays in memory.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

constexpr uint64_t kShare = 13 * kMiB;  // of one of two writers: the budget holds 2.3 steps

class Incomplete : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    zero = Hello({.writer = 0, .world_size = 2, .local_writers = 2, .process = "zero"});
    one = Hello({.writer = 1, .world_size = 2, .local_writers = 2, .process = "one"});
    ASSERT_TRUE(SaveZero(1).ok());
    ASSERT_TRUE(SaveOne(1).ok());
  }
  Status SaveZero(Step step) { return TrySave(zero, step, {{"zero", kShare}}); }
  Status SaveOne(Step step) { return TrySave(one, step, {{"one", kShare}}); }
  void BeginOne(Step step) { ASSERT_TRUE(Create(one, PartOf(one, step), {{"one", kShare}}).ok()); }
  void AbortOne(Step step) { Apply(event::Abort{From(one), PartOf(one, step)}); }
  // Whether what is left of the step may be given up: another job wants more than is free.
  bool MayGo(Step step) {
    const SessionId other = Hello({.job = "other"});
    const auto create = CreateOf(other, PartOf(other, 1), {{"model", 36 * kMiB}});
    Apply(create);
    Apply(event::Abort{From(other), PartOf(other, 1)});
    Die(other);
    return !Stat(zero, step).ok();
  }

  SessionId zero = 0, one = 0;
};

// The recorder was told of its parts, and must hear that they are gone.
TEST_F(Incomplete, RecorderHearsThatOneIsGone) {
  ASSERT_TRUE(SaveZero(2).ok());
  records.clear();
  Apply(event::Remove{From(zero), {"job", 2}, /*memory_only=*/false, /*force=*/true, Soon()});
  EXPECT_THAT(records, testing::ElementsAre(PartOf(zero, 2).checkpoint));
}

// One writer's part stayed in memory for ever, and every later step was refused.
TEST_F(Incomplete, JobWhoseWriterFailedOneStepSavesTheNext) {
  ASSERT_TRUE(SaveZero(2).ok());
  BeginOne(2);
  AbortOne(2);
  EXPECT_TRUE(SaveZero(3).ok());
  EXPECT_TRUE(SaveOne(3).ok());
  EXPECT_EQ(LatestStep(zero), 3);
}

TEST_F(Incomplete, WriterThatWithdrewBeforeItHeldAnythingIsNotWaitedFor) {
  AbortOne(2);
  ASSERT_TRUE(SaveZero(2).ok());
  EXPECT_TRUE(MayGo(2));
}

TEST_F(Incomplete, WriterThatHasEnteredALaterStepIsNotWaitedFor) {
  ASSERT_TRUE(SaveZero(2).ok());
  const auto third = CreateOf(zero, PartOf(zero, 3), {{"zero", kShare}});
  Apply(third);
  EXPECT_FALSE(Answered(third.caller.request)) << "writer one may still come to step 2";
  const auto its = CreateOf(one, PartOf(one, 3), {{"one", kShare}});
  Apply(its);
  EXPECT_TRUE(AnswerTo(third.caller.request).ok()) << StatusOf(AnswerTo(third.caller.request));
  EXPECT_TRUE(AnswerTo(its.caller.request).ok()) << StatusOf(AnswerTo(its.caller.request));
}

TEST_F(Incomplete, WriterThatHasEnteredTheStepAnewIsNotWaitedFor) {
  ASSERT_TRUE(SaveZero(2).ok());
  Save(one, 2, {{"one", kShare}}, /*revision=*/1);
  Save(zero, 2, {{"zero", kShare}}, /*revision=*/1);
  EXPECT_EQ(LatestStep(zero), 2);
}

TEST_F(Incomplete, WriterThatEndedIsNotWaitedFor) {
  ASSERT_TRUE(SaveZero(2).ok());
  Die(one);
  EXPECT_TRUE(MayGo(2));
}

TEST_F(Incomplete, WriterThatWasRefusedIsNotWaitedFor) {
  ASSERT_TRUE(SaveZero(2).ok());
  EXPECT_THAT(StatusOf(Create(one, PartOf(one, 2), {{"one", 40 * kMiB}})),
              Fails(absl::StatusCode::kResourceExhausted, ""));
  EXPECT_TRUE(MayGo(2));
}

TEST_F(Incomplete, WriterThatMayStillComeIsWaitedFor) {
  ASSERT_TRUE(SaveZero(2).ok());
  EXPECT_FALSE(MayGo(2)) << "it has not entered the step yet";
  BeginOne(2);
  EXPECT_FALSE(MayGo(2)) << "it is writing";
  EXPECT_TRUE(Commit(one, PartOf(one, 2), {{"one", kShare}}).ok());
  EXPECT_EQ(LatestStep(zero), 2);
}

TEST_F(Incomplete, WriterThatCameBackIsWaitedFor) {
  ASSERT_TRUE(SaveZero(2).ok());
  AbortOne(2);
  BeginOne(2);
  EXPECT_FALSE(MayGo(2));
  EXPECT_TRUE(Commit(one, PartOf(one, 2), {{"one", kShare}}).ok());
  EXPECT_EQ(LatestStep(zero), 2);
}

TEST_F(Incomplete, WriterThatWasNeverSeenHereMayBeOnItsWay) {
  Die(zero);
  Die(one);
  zero = Hello({.writer = 0, .world_size = 2, .attempt = 2});
  ASSERT_TRUE(SaveZero(2).ok());
  EXPECT_FALSE(MayGo(2));
}

TEST_F(Incomplete, AbortInAJobInWhichNothingHasBegunIsAnswered) {
  const SessionId session = Hello({.job = "new", .attempt = 0});
  const event::Abort abort{From(session), PartOf(session, 1)};
  Apply(abort);
  EXPECT_TRUE(AnswerTo(abort.caller.request).ok());
}

TEST_F(Incomplete, AnotherProcessCannotWithdrawAPart) {
  ASSERT_TRUE(SaveZero(2).ok());
  const SessionId impostor = Hello({.writer = 1, .world_size = 2});
  Apply(event::Abort{From(impostor), PartOf(impostor, 2)});
  EXPECT_FALSE(MayGo(2));
}

TEST_F(Incomplete, DaemonThatDiedKeepsWhatMayStillBecomeComplete) {
  ASSERT_TRUE(SaveZero(2).ok());
  Restart();
  EXPECT_FALSE(MayGo(2));
  Save(one, 2, {{"one", kShare}});
  EXPECT_EQ(LatestStep(zero), 2);
}

class IncompleteFrom : public Incomplete, public testing::WithParamInterface<StartFrom> {};
INSTANTIATE_TEST_SUITE_P(, IncompleteFrom, testing::ValuesIn(kFrom),
                         [](const auto& from) { return NameOf(from.param); });

TEST_P(IncompleteFrom, DaemonThatDiedStillSeesWhoHasGoneOn) {
  ASSERT_TRUE(SaveZero(2).ok());
  ASSERT_TRUE(Create(one, PartOf(one, 3), {{"one", 1 * kMiB}}).ok());
  Restart(GetParam());
  EXPECT_TRUE(MayGo(2));
}

}  // namespace
}  // namespace cairn::engine
