// Attempts, their writers and the line: what a newer attempt ends, and where `latest` goes.
#include "server/engine/model.h"
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

class Attempts : public EngineTest {};

TEST_F(Attempts, HalvesOfTwoAttemptsNeverAddUp) {  // R28
  const SessionId zero = Hello({.writer = 0, .world_size = 2, .attempt = 1});
  Save(zero, 1, {{"rank0"}});
  const SessionId one = Hello({.writer = 1, .world_size = 2, .attempt = 2});
  Save(one, 1, {{"rank1"}});
  EXPECT_EQ(LatestStep(one), kNoStep);
}

TEST_F(Attempts, WorldSizeIsFixedWithinAStepOfAnAttempt) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2});
  const SessionId one = Hello({.writer = 1, .world_size = 3});
  Save(zero, 1);
  EXPECT_THAT(TrySave(one, 1, {{"x"}}),
              Fails(absl::StatusCode::kInvalidArgument,
                    "world_size: 3, but step 1 of attempt 1 has world_size 2"));
  EXPECT_TRUE(TrySave(one, 2, {{"x"}}).ok()) << "another step may differ";
}

TEST_F(Attempts, SecondProcessAsTheSameWriterIsRefusedNamingThePid) {
  const SessionId first = Hello({.writer = 0, .world_size = 2, .process = "A", .pid = 77});
  Save(first, 1);
  const SessionId second = Hello({.writer = 0, .world_size = 2, .process = "B"});
  EXPECT_THAT(TrySave(second, 2),
              Fails(absl::StatusCode::kAlreadyExists,
                    "writer: 0 of attempt 1 of job job is another process, pid 77"));
  const SessionId child = Hello({.writer = 0, .world_size = 2, .process = "A"});
  EXPECT_TRUE(TrySave(child, 2).ok()) << "the same process on another session";
}

TEST_F(Attempts, ReadingBeginsNoAttempt) {
  const SessionId old = Hello({.attempt = 5});
  Save(old, 1);
  const SessionId reader = Hello({.attempt = 9});
  EXPECT_EQ(LatestStep(reader), 1);
  EXPECT_TRUE(Open(reader, 1).ok());
  EXPECT_TRUE(TrySave(old, 2).ok()) << "attempt 9 has not begun";
}

TEST_F(Attempts, NewerAttemptFencesOlderOnes) {
  const SessionId old = Hello({.world_size = 2, .attempt = 5});
  const PartKey half = PartOf(old, 1);
  ASSERT_TRUE(Create(old, half, {{"a"}}).ok());
  const SessionId young = Hello({.world_size = 2, .attempt = 6});
  Save(young, 1, {{"a"}});
  event::Create create = CreateOf(old, PartOf(old, 2), {{"b"}});
  Apply(create);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kFailedPrecondition, "superseded by 6"));
  EXPECT_EQ(replies.at(create.caller.request).superseded_by, 6);
  EXPECT_THAT(StatusOf(Commit(old, half, {{"a"}})),
              Fails(absl::StatusCode::kFailedPrecondition, "superseded by 6"));
}

TEST_F(Attempts, ProcessMayMoveOnToANewerAttemptByItself) {
  const SessionId old = Hello({.attempt = 5, .process = "A"});
  Save(old, 1);
  const SessionId young = Hello({.attempt = 6, .process = "A"});
  EXPECT_TRUE(TrySave(young, 2).ok());
}

TEST_F(Attempts, RevisionReplacesTheOldOneOnlyOnceItIsComplete) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2});
  const SessionId one = Hello({.writer = 1, .world_size = 2});
  Save(zero, 1, {{"a"}});
  Save(one, 1, {{"b"}});
  Save(zero, 1, {{"a"}}, /*revision=*/1);
  EXPECT_EQ(Latest(zero)->key.revision, 0);
  Save(one, 1, {{"b"}}, /*revision=*/1);
  EXPECT_EQ(Latest(zero)->key.revision, 1);
}

TEST_F(Attempts, CommittedRevisionIsNotSavedAgain) {
  const SessionId session = Hello();
  Save(session, 1, {{"a"}}, /*revision=*/1);
  EXPECT_THAT(TrySave(session, 1, {{"x"}}, /*revision=*/1),
              Fails(absl::StatusCode::kAlreadyExists, "revision: 1"));
  EXPECT_THAT(TrySave(session, 1, {{"x"}}, /*revision=*/0),
              Fails(absl::StatusCode::kAlreadyExists, "comes after revision 1"));
}

TEST_F(Attempts, ChosenAttemptExceedsClockAndAllThatIsKnown) {
  const SessionId session = Hello({.attempt = kUnix + 50});
  Save(session, 1);
  const auto choose = [&](SessionId from) {
    event::ChooseAttempt event{From(from), "job", Soon(), kUnix};
    Apply(event);
    return Take<reply::Attempt>(event.caller.request)->attempt;
  };
  EXPECT_EQ(choose(session), kUnix + 51);
  EXPECT_EQ(choose(session), kUnix + 52) << "never the same twice";
  const SessionId other = Hello({.job = "other", .attempt = 0});
  event::ChooseAttempt event{From(other), "other", Soon(), kUnix};
  Apply(event);
  EXPECT_EQ(Take<reply::Attempt>(event.caller.request)->attempt, kUnix);
}

// Line rule 1: nobody uses the job's numbers up, on purpose or by a clock that is far ahead.
TEST_F(Attempts, NumberFarAheadIsRefusedAndUsesNoneUp) {
  const Attempt limit = kUnix + 3'600'000;
  const SessionId far = Hello({.attempt = std::numeric_limits<Attempt>::max() - 1});
  EXPECT_THAT(TrySave(far, 1), Fails(absl::StatusCode::kInvalidArgument, "attempt"));
  event::ResumeFrom resume{From(far), "job", limit + 1'000'000, kNoStep, Soon()};
  Apply(resume);
  EXPECT_THAT(StatusOf(AnswerTo(resume.caller.request)),
              Fails(absl::StatusCode::kInvalidArgument, "attempt"));
  Die(far);
  const SessionId session = Hello({.attempt = 0});
  event::ChooseAttempt choose{From(session), "job", Soon(), kUnix};
  Apply(choose);
  EXPECT_EQ(Take<reply::Attempt>(choose.caller.request)->attempt, kUnix);
  EXPECT_TRUE(TrySave(Hello({.attempt = limit - 1000}), 1).ok());
}

TEST_F(Attempts, LatestFollowsTheLineAcrossARollback) {
  const SessionId first = Hello({.attempt = 1});
  for (Step step : {1, 2, 3, 4}) Save(first, step, {{"m", 100}});
  Die(first);
  const SessionId second = Hello({.attempt = 2});
  event::ResumeFrom resume{From(second), "job", 2, 2, Soon()};
  Apply(resume);
  ASSERT_TRUE(AnswerTo(resume.caller.request).ok());
  EXPECT_EQ(LatestStep(second), 2) << "its owner said so";
  EXPECT_TRUE(Stat(second, 4, 1)->facts.abandoned) << "line rule 20";
  EXPECT_TRUE(Stat(second, 4, 1)->facts.resident) << "nothing has taken its place yet";
  const PartKey part = PartOf(second, 3);
  ASSERT_TRUE(Create(second, part, {{"m", 100}}).ok());
  EXPECT_EQ(LatestStep(second), 2);
  ASSERT_TRUE(Commit(second, part, {{"m", 100}}).ok());
  EXPECT_EQ(LatestStep(second), 3);
  EXPECT_TRUE(Stat(second, 4, 1)->facts.abandoned);
  EXPECT_THAT(StatusOf(Open(second, 4, "m")), Fails(absl::StatusCode::kNotFound, "abandoned"));
}

// Steps 1 to 4 are there; lives come that enter a step and are killed, or give it up.
TEST_F(Attempts, LifeThatCompletesNothingMovesNothing) {  // line rules 8, 12
  const SessionId first = Hello({.attempt = 1});
  for (Step step : {1, 2, 3, 4}) Save(first, step, {{"m", 100}});
  Die(first);
  for (const Attempt attempt : {2, 3, 4}) {
    const SessionId life = Hello({.attempt = attempt});
    const PartKey part = PartOf(life, attempt - 2);
    ASSERT_TRUE(Create(life, part, {{"m", 100}}).ok());
    EXPECT_EQ(LatestStep(life), 4);
    EXPECT_TRUE(Open(life, 4, "m").ok());
    if (attempt == 3) {
      Apply(event::Abort{From(life), part});
    }
    Die(life);
  }
  const SessionId last = Hello({.attempt = 5});
  EXPECT_EQ(LatestStep(last), 4);
  Save(last, 5, {{"m", 100}});
  EXPECT_EQ(LatestStep(last), 5);
  EXPECT_FALSE(Stat(last, 4, 1)->facts.abandoned) << "it went on from there";
}

TEST_F(Attempts, ResumeMovesTheLineThoughItsLifeCompletesNothing) {  // line rules 7, 13
  const SessionId first = Hello({.attempt = 1});
  for (Step step : {1, 2, 3, 4}) Save(first, step, {{"m", 100}});
  Die(first);
  const auto resume = [&](SessionId from, Attempt attempt, Step step) {
    event::ResumeFrom event{From(from), "job", attempt, step, Soon()};
    Apply(event);
    return StatusOf(AnswerTo(event.caller.request));
  };
  const SessionId second = Hello({.attempt = 2});
  ASSERT_TRUE(resume(second, 2, 2).ok());
  EXPECT_EQ(LatestStep(second), 2);
  ASSERT_TRUE(resume(second, 2, 3).ok()) << "it has not begun: its own word does not bind it";
  ASSERT_TRUE(resume(second, 2, 2).ok());
  ASSERT_TRUE(Create(second, PartOf(second, 3), {{"m", 100}}).ok());
  Die(second);
  const SessionId third = Hello({.attempt = 3});
  EXPECT_EQ(LatestStep(third), 2) << "the word outlives the life";
  Save(third, 7, {{"m", 100}});
  EXPECT_EQ(Stat(third, 2)->key.attempt, 1);
  EXPECT_TRUE(Stat(third, 3, 1)->facts.abandoned) << "attempt 3 went on from 2, as was said";
}

TEST_F(Attempts, ResumesThatAreKeptAreBounded) {
  const SessionId session = Hello({.attempt = 1});
  Save(session, 1, {{"m", 100}});
  for (Attempt attempt = 2; attempt < 1000; ++attempt) {
    event::ResumeFrom event{From(session), "job", attempt, 1, Soon()};
    Apply(event);
    ASSERT_TRUE(AnswerTo(event.caller.request).ok());
  }
  size_t kept = 0;
  for (const Fact& fact : engine->Snapshot())
    kept += std::holds_alternative<fact::LineDecided>(fact);
  EXPECT_EQ(kept, kKeptDecisions);
  event::ResumeFrom late{From(session), "job", 2, 1, Soon()};
  Apply(late);
  EXPECT_THAT(StatusOf(AnswerTo(late.caller.request)),
              Fails(absl::StatusCode::kFailedPrecondition, "decided last"));
}

TEST_F(Attempts, ResumeIsBeforeTheFirstCreateAndFromTheLine) {
  const SessionId session = Hello({.attempt = 1});
  Save(session, 1, {{"m", 100}});
  const SessionId next = Hello({.attempt = 2, .process = "B"});
  const auto resume = [&](SessionId from, Attempt attempt, Step step) {
    event::ResumeFrom event{From(from), "job", attempt, step, Soon(), fences};
    Apply(event);
    return StatusOf(AnswerTo(event.caller.request));
  };
  EXPECT_THAT(resume(next, 2, 7), Fails(absl::StatusCode::kNotFound, "step 7"));
  EXPECT_TRUE(resume(next, 2, 1).ok());
  EXPECT_TRUE(resume(next, 2, kNoStep).ok());
  EXPECT_THAT(resume(session, 1, 1), Fails(absl::StatusCode::kFailedPrecondition, "has begun"));
  EXPECT_TRUE(resume(session, 1, kNoStep).ok()) << "that is where it came from";
}

}  // namespace
}  // namespace cairn::engine
