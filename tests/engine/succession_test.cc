// Two copies of a job, and the next life of one: whom a newer attempt waits for, and who is told what.
// Promise 6: training never dies of Cairn, nor of a copy of itself.
#include "server/engine/model.h"
#include "tests/engine/succession_fixture.h"

namespace cairn::engine {
namespace {

class Succession : public SuccessionFixture {};

TEST_F(Succession, ANewerAttemptWaitsForTheEndOfTheOlderOnesProcesses) {
  const SessionId old = Hello({.attempt = 5, .process = "A", .pid = 41});
  Save(old, 1);
  const SessionId heir = Hello({.attempt = 6, .process = "B"});
  const event::Create create = AskedOf(heir, 2);
  EXPECT_FALSE(Answered(create.caller.request));
  EXPECT_TRUE(TrySave(old, 2).ok()) << "it was not fenced";
  EXPECT_FALSE(Answered(create.caller.request));
  Die(old);
  EXPECT_TRUE(AnswerOf(create).ok()) << AnswerOf(create);
}

TEST_F(Succession, ItIsRefusedAtItsDeadlineNamingWhomToEnd) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2, .attempt = 5, .pid = 41});
  const SessionId one = Hello({.writer = 1, .world_size = 2, .attempt = 5, .pid = 42});
  Save(zero, 1, {{"a"}});
  Save(one, 1, {{"b"}});
  const SessionId heir = Hello({.world_size = 2, .attempt = 6});
  const event::Create create = AskedOf(heir, 2);
  Advance(10 * kNanosPerSecond);
  EXPECT_THAT(AnswerOf(create), Fails(absl::StatusCode::kFailedPrecondition, "pid 41, 42"));
  EXPECT_THAT(AnswerOf(create), Fails(absl::StatusCode::kFailedPrecondition, "fence=True"));
  EXPECT_TRUE(TrySave(zero, 2, {{"a"}}).ok());
}

// Else a copy that was started by mistake would stand still at each of its steps.
TEST_F(Succession, WhoHasWaitedInVainIsToldAtOnceUntilTheyHaveEnded) {
  const SessionId old = Hello({.attempt = 5, .pid = 41});
  Save(old, 1);
  const SessionId heir = Hello({.attempt = 6});
  const event::Create first = AskedOf(heir, 2, 100 * kNanosPerSecond);
  Advance(44 * kNanosPerSecond);
  EXPECT_FALSE(Answered(first.caller.request));
  Advance(kNanosPerSecond);
  EXPECT_THAT(AnswerOf(first), Fails(absl::StatusCode::kFailedPrecondition, "pid 41"));
  EXPECT_THAT(AnswerOf(AskedOf(heir, 3)), Fails(absl::StatusCode::kFailedPrecondition, "pid 41"));
  Die(old);
  EXPECT_TRUE(AnswerOf(AskedOf(heir, 4)).ok());
}

TEST_F(Succession, WhoInsistsFencesThemAtOnce) {
  const SessionId old = Hello({.attempt = 5});
  Save(old, 1);
  const SessionId heir = Hello({.attempt = 6});
  fences = true;
  EXPECT_TRUE(TrySave(heir, 2).ok());
  EXPECT_THAT(TrySave(old, 2), Fails(absl::StatusCode::kFailedPrecondition, "superseded by 6"));
}

TEST_F(Succession, OfTheRanksThatWaitOneThatInsistsLetsAllGoOn) {
  const SessionId old = Hello({.attempt = 5});
  Save(old, 1);
  const SessionId zero = Hello({.writer = 0, .world_size = 2, .attempt = 6});
  const SessionId one = Hello({.writer = 1, .world_size = 2, .attempt = 6});
  const event::Create waits = AskedOf(zero, 2);
  EXPECT_FALSE(Answered(waits.caller.request));
  fences = true;
  event::Create insists = CreateOf(one, PartOf(one, 2), {{"other"}});
  Apply(insists);
  EXPECT_TRUE(AnswerOf(insists).ok());
  EXPECT_TRUE(AnswerOf(waits).ok()) << AnswerOf(waits);
}

TEST_F(Succession, TheNextStartOfOneLauncherWaitsForNobody) {
  const SessionId old = Hello({.attempt = 5, .run = "run", .restart = 0});
  Save(old, 1);
  const SessionId copy = Hello({.attempt = 6, .run = "run", .restart = 0});
  EXPECT_FALSE(Answered(AskedOf(copy, 2).caller.request)) << "not a later start";
  const SessionId other = Hello({.attempt = 7, .run = "other", .restart = 3});
  EXPECT_FALSE(Answered(AskedOf(other, 2).caller.request)) << "another launcher's";
  const SessionId heir = Hello({.attempt = 8, .run = "run", .restart = 1});
  EXPECT_TRUE(AnswerOf(AskedOf(heir, 2)).ok());
}

TEST_F(Succession, WhoMovesOnByItselfIsNotWaitedFor) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2, .attempt = 5, .process = "A"});
  const SessionId one = Hello({.writer = 1, .world_size = 2, .attempt = 5, .process = "B"});
  Save(zero, 1, {{"a"}});
  Save(one, 1, {{"b"}});
  const SessionId again = Hello({.writer = 0, .world_size = 2, .attempt = 6, .process = "A"});
  const event::Create create = AskedOf(again, 2);
  EXPECT_FALSE(Answered(create.caller.request)) << "the other rank may still save";
  Hello({.writer = 1, .world_size = 2, .attempt = 6, .process = "B"});
  EXPECT_TRUE(AnswerOf(create).ok()) << "it has said hello anew";
}

// As ranks that choose their attempt together do: their hellos name none.
TEST_F(Succession, RanksThatMoveOnTogetherDoNotWaitForEachOther) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2, .attempt = 5, .process = "A"});
  const SessionId one = Hello({.writer = 1, .world_size = 2, .attempt = 5, .process = "B"});
  Save(zero, 1, {{"a"}});
  Save(one, 1, {{"b"}});
  const auto ask = [&](Writer writer, const char* process) {
    const SessionId session =
        Hello({.writer = writer, .world_size = 2, .attempt = 0, .process = process});
    PartKey part = PartOf(session, 2);
    part.checkpoint.attempt = 6;
    const event::Create create = CreateOf(session, part, {{process}});
    Apply(create);
    return create;
  };
  const event::Create first = ask(0, "A");
  EXPECT_FALSE(Answered(first.caller.request)) << "the other may save in the old one still";
  const event::Create second = ask(1, "B");
  EXPECT_TRUE(AnswerOf(first).ok()) << AnswerOf(first);
  EXPECT_TRUE(AnswerOf(second).ok()) << AnswerOf(second);
}

// A commit without objects may begin an attempt, too.
TEST_F(Succession, AWriterWithNothingToSaveWaitsAsWell) {
  const SessionId old = Hello({.attempt = 5, .pid = 41});
  Save(old, 1);
  const SessionId heir = Hello({.attempt = 6});
  const event::Commit commit = CommitOf(heir, PartOf(heir, 2), {});
  Apply(commit);
  EXPECT_FALSE(Answered(commit.caller.request));
  Die(old);
  EXPECT_TRUE(AnswerTo(commit.caller.request).ok());
}

TEST_F(Succession, WhoWaitsHearsOfANewerOneAndOfADaemonThatStops) {
  const SessionId old = Hello({.attempt = 5});
  Save(old, 1);
  const SessionId heir = Hello({.attempt = 6});
  const event::Create create = AskedOf(heir, 2);
  const SessionId newer = Hello({.attempt = 7});
  fences = true;
  Save(newer, 2);
  EXPECT_THAT(AnswerOf(create), Fails(absl::StatusCode::kFailedPrecondition, "superseded by 7"));
  fences = false;
  const SessionId last = Hello({.attempt = 8});
  const event::Create stopped = AskedOf(last, 3);
  Apply(event::Drain{now + kNanosPerSecond});
  EXPECT_THAT(AnswerOf(stopped), Fails(absl::StatusCode::kUnavailable, "draining"));
}

TEST_F(Succession, ARestartedDaemonKnowsWhomToWaitFor) {
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    LoseMemory();
    const SessionId lone = Hello({.attempt = 5, .process = "A", .run = "run", .restart = 1});
    Save(lone, 1);
    Restart(from);
    const SessionId copy = Hello({.attempt = 6});
    EXPECT_FALSE(Answered(AskedOf(copy, 2).caller.request));
    const SessionId heir = Hello({.attempt = 7, .run = "run", .restart = 2});
    EXPECT_TRUE(AnswerOf(AskedOf(heir, 2)).ok());
  }
}

// Its head moves at once: the steps that the older one then completes would count for nothing.
TEST_F(Succession, ACopyThatResumesMovesNothingWhileTheOlderOneSaves) {
  const SessionId old = Hello({.attempt = 5, .pid = 41});
  for (Step step : {1, 2}) Save(old, step);
  const SessionId copy = Hello({.attempt = 6});
  event::ResumeFrom resume{From(copy), "job", 6, 1, now + 10 * kNanosPerSecond};
  Apply(resume);
  EXPECT_FALSE(Answered(resume.caller.request));
  Save(old, 3);
  Advance(10 * kNanosPerSecond);
  EXPECT_THAT(AnswerTo(resume.caller.request).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "pid 41"));
  EXPECT_EQ(LatestStep(old), 3);
  Die(old);
  resume.caller = From(copy);
  Apply(resume);
  EXPECT_TRUE(AnswerTo(resume.caller.request).ok());
  EXPECT_EQ(LatestStep(copy), 1);
}

TEST_F(Succession, AResumeThatInsistsMovesTheHeadAtOnce) {
  const SessionId old = Hello({.attempt = 5});
  for (Step step : {1, 2}) Save(old, step);
  const SessionId heir = Hello({.attempt = 6});
  event::ResumeFrom resume{From(heir), "job", 6, 1, Soon(), /*fence=*/true};
  Apply(resume);
  EXPECT_TRUE(AnswerTo(resume.caller.request).ok());
  EXPECT_EQ(LatestStep(heir), 1);
}

// A process that saves each step alone, and whose every save is refused, leaves no step that would tell
// a new daemon of it.
TEST_F(Succession, ARestartedDaemonKnowsALoneWriterThatHasNoStep) {
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    LoseMemory();
    const SessionId lone = Hello({.attempt = 5, .process = "A", .pid = 41});
    ASSERT_TRUE(Create(lone, PartOf(lone, 1), {{"model"}}).ok());
    Apply(event::Abort{From(lone), PartOf(lone, 1)});
    Restart(from);
    const SessionId copy = Hello({.attempt = 6});
    EXPECT_FALSE(Answered(AskedOf(copy, 2).caller.request));
    EXPECT_TRUE(TrySave(lone, 2).ok());
  }
}

TEST_F(Succession, NobodyWaitsForASessionThatOnlyReads) {
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    LoseMemory();
    const SessionId old = Hello({.attempt = 5, .process = "A"});
    Save(old, 1);
    Hello({.writer = -1, .attempt = 0, .process = "A"});
    Die(old);
    Restart(from);
    const SessionId heir = Hello({.attempt = 6});
    EXPECT_TRUE(AnswerOf(AskedOf(heir, 2)).ok());
  }
}

// Nothing of it has begun: else callers that hang up and come back fill the daemon's memory.
TEST_F(Succession, WhatWaitsIsForgottenWhenItsCallerHangsUp) {
  const SessionId old = Hello({.attempt = 5});
  Save(old, 1);
  const SessionId heir = Hello({.attempt = 6});
  const event::Create create = AskedOf(heir, 2);
  Apply(event::CallerLeft{create.caller.request});
  EXPECT_THAT(AnswerOf(create), Fails(absl::StatusCode::kCancelled, "gone"));
  const event::Create again = AskedOf(heir, 2);
  Die(old);
  EXPECT_TRUE(AnswerOf(again).ok());
}

TEST_F(Succession, AnAbortEndsACreateThatWaits) {
  const SessionId old = Hello({.attempt = 5});
  Save(old, 1);
  const SessionId heir = Hello({.attempt = 6});
  const event::Create create = AskedOf(heir, 2);
  Apply(event::Abort{From(heir), PartOf(heir, 2)});
  EXPECT_THAT(AnswerOf(create), Fails(absl::StatusCode::kCancelled, "aborted"));
  Die(old);
  EXPECT_EQ(LatestStep(heir), 1);
  EXPECT_TRUE(TrySave(heir, 2).ok());
}

// Whoever of another job comes or goes makes nobody look at them.
TEST_F(Succession, AmongManyThatWaitEachLauncherKnowsItsOwn) {
  const SessionId old = Hello({.attempt = 5, .run = "run", .restart = 4});
  Save(old, 1);
  std::vector<event::Create> waiting;
  for (int i = 0; i < 50; ++i) {
    const SessionId heir = Hello(
        {.attempt = 6 + i, .run = i % 2 == 0 ? "run" : "other", .restart = i % 2 == 0 ? 4 : 9});
    waiting.push_back(AskedOf(heir, 2));
    EXPECT_FALSE(Answered(waiting.back().caller.request)) << i;
  }
  Die(old);
  EXPECT_TRUE(AnswerOf(waiting.front()).ok()) << AnswerOf(waiting.front());
}

// --- steps of one writer

class Alone : public EngineTest {
 protected:
  // A step that this rank saves alone, as the only writer.
  event::Create Lone(SessionId session, Step step) {
    event::Create create = CreateOf(session, PartOf(session, step), {{"mine"}});
    create.part.writer = 0;
    create.world_size = 1;
    Apply(create);
    return create;
  }
  Status TryLone(SessionId session, Step step) {
    const event::Create create = Lone(session, step);
    CAIRN_RETURN_IF_ERROR(AnswerTo(create.caller.request).status());
    event::Commit commit = CommitOf(session, create.part, {{"mine"}});
    commit.world_size = 1;
    Apply(commit);
    return AnswerTo(commit.caller.request).status();
  }
  SessionId Rank(Writer writer, int32_t pid = 0) {
    return Hello({.writer = writer, .world_size = 2, .pid = pid});
  }
};

TEST_F(Alone, AnyRankSavesStepsThatNoOtherHasEntered) {
  const SessionId zero = Rank(0), one = Rank(1);
  EXPECT_TRUE(TryLone(zero, 1).ok());
  EXPECT_TRUE(TryLone(one, 2).ok());
  EXPECT_TRUE(TryLone(zero, 3).ok());
  Save(zero, 4, {{"a"}});
  Save(one, 4, {{"b"}});
  EXPECT_EQ(LatestStep(zero), 4) << "each is still the writer that it was";
}

TEST_F(Alone, AStepBelongsToTheProcessThatEnteredItFirst) {
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    LoseMemory();
    const SessionId zero = Rank(0), one = Rank(1, 77);
    ASSERT_TRUE(TryLone(one, 1).ok());
    ASSERT_TRUE(AnswerTo(Lone(one, 2).caller.request).ok());
    Restart(from);
    for (Step step : {1, 2}) {
      EXPECT_THAT(TryLone(zero, step),
                  Fails(absl::StatusCode::kAlreadyExists, "alone, of rank 1, pid 77"));
    }
    EXPECT_THAT(TrySave(zero, 1), Fails(absl::StatusCode::kInvalidArgument, "has world_size 1"));
  }
}

TEST_F(Alone, ARankThatSavesAloneLeavesNoStepOfAnotherBehind) {
  const SessionId zero = Rank(0), one = Rank(1);
  Save(zero, 1, {{"a"}});  // and the other's half is to come
  EXPECT_TRUE(TryLone(zero, 2).ok());
  Save(one, 1, {{"b"}});
  EXPECT_TRUE(Stat(one, 1)->facts.complete);
}

// --- what status says

class Refused : public EngineTest {
 protected:
  reply::JobStatus Shown() {
    const reply::Status status = Status_();
    for (const reply::JobStatus& job : status.jobs) {
      if (job.job == "job") return job;
    }
    ADD_FAILURE() << "no such job";
    return {};
  }
};

TEST_F(Refused, StepsThatWereRefusedStandInStatusOnceEach) {
  const SessionId session = Hello({.writer = 0, .world_size = 2});
  const SessionId other = Hello({.writer = 1, .world_size = 2});
  EXPECT_EQ(Shown().refused_saves, 0u);
  for (const SessionId each : {session, other}) {
    EXPECT_FALSE(Create(each, PartOf(each, 1), {{"model", uint64_t{1} << 40}}).ok());
  }
  EXPECT_EQ(Shown().refused_saves, 1u) << "one step, of two writers";
  EXPECT_THAT(Shown().last_refusal, ::testing::HasSubstr("memory: "));
  EXPECT_EQ(Shown().last_refusal_unix_ms, kUnix);
  EXPECT_FALSE(Create(session, PartOf(session, 2), {{"model", uint64_t{1} << 40}}).ok());
  EXPECT_EQ(Shown().refused_saves, 2u);
}

TEST_F(Refused, WhoGivesUpOrEndsIsNotRefused) {
  fences = false;
  const SessionId old = Hello({.attempt = 5});
  Save(old, 1);
  const SessionId heir = Hello({.attempt = 6});
  Apply(CreateOf(heir, PartOf(heir, 2), {{"model"}}));
  Die(heir);
  const SessionId next = Hello({.attempt = 7});
  const event::Create left = CreateOf(next, PartOf(next, 2), {{"model"}});
  Apply(left);
  Apply(event::CallerLeft{left.caller.request});
  EXPECT_EQ(Shown().refused_saves, 0u);
}

// Before it had an owner, another user may have asked for what was refused, in words of his own.
TEST_F(Refused, AJobsStatusHasNoOtherUsersWords) {
  const SessionId other = Hello({.uid = 2000});
  EXPECT_FALSE(Create(other, PartOf(other, 1), {{"his words", 8}, {"his words", 8}}).ok());
  const SessionId owner = Hello({.attempt = 6, .uid = 1000});
  Save(owner, 1);
  EXPECT_EQ(Shown().refused_saves, 0u);
  EXPECT_EQ(Shown().last_refusal, "");
  EXPECT_FALSE(Create(other, PartOf(other, 7), {{"his words", 8}, {"his words", 8}}).ok());
  EXPECT_EQ(Shown().refused_saves, 0u);
  EXPECT_FALSE(Create(owner, PartOf(owner, 2), {{"model", uint64_t{1} << 40}}).ok());
  EXPECT_EQ(Shown().refused_saves, 1u);
}

TEST_F(Refused, PersistsThatFailedStandInStatus) {
  options.storage = true;
  Restart();
  persist_status = absl::UnavailableError("the disk is on fire");
  const SessionId session = Hello();
  Save(session, 1);
  EXPECT_EQ(Shown().failed_persists, 1u);
  EXPECT_EQ(Shown().last_failed_persist_unix_ms, kUnix);
}

}  // namespace
}  // namespace cairn::engine
