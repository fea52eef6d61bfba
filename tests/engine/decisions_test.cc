// What is decided about a job counts with every member, and is acknowledged when two journals have it.
#include "tests/engine/decided_fixture.h"

namespace cairn::engine {
namespace {

using testing::IsEmpty;

// --- two journals

TEST_F(Decided, UseIsAcknowledgedWhenAnotherMemberHasJournaledIt) {
  const RequestId use = Use(1);
  EXPECT_FALSE(Answered(use));
  EXPECT_EQ(ToldTo(other).decisions.size(), 1u);
  Holds(other);
  const auto used = Take<reply::Latest>(use);
  ASSERT_TRUE(used.ok()) << used.status();
  EXPECT_EQ(used->key.step, 1);
}

TEST_F(Decided, ResumeAndRemovalAreAcknowledgedLikewise) {
  const RequestId resume = Resume(7, 1);
  EXPECT_FALSE(Answered(resume));
  Holds(other);
  EXPECT_TRUE(StatusOf(Take<reply::Latest>(resume)).ok());
  const RequestId remove = Remove(2);
  EXPECT_FALSE(Answered(remove));
  EXPECT_FALSE(ToldTo(other).removed.steps.empty());
  Holds(other);
  EXPECT_TRUE(AnswerTo(remove).ok()) << AnswerTo(remove).status();
}

// An answer to what was told before says nothing of what was decided since.
TEST_F(Decided, SoIsAPin) {
  const event::Pin pin{From(session), {"job", 1}, true};
  Apply(pin);
  EXPECT_FALSE(Answered(pin.caller.request));
  Holds(other);
  EXPECT_TRUE(AnswerTo(pin.caller.request).ok());
  const event::Pin again{From(session), {"job", 1}, true};
  Apply(again);
  EXPECT_TRUE(Answered(again.caller.request)) << "it was held by both before";
}

TEST_F(DecidedWithStorage, SoAreAPolicyAndPersist) {
  const event::SetPolicy policy{From(session), "job", {.keep_last = 3}};
  Apply(policy);
  EXPECT_FALSE(Answered(policy.caller.request));
  Holds(other);
  EXPECT_TRUE(AnswerTo(policy.caller.request).ok());
  const event::PersistNow persist{From(session), {"job", 1}};
  Apply(persist);
  EXPECT_FALSE(Answered(persist.caller.request));
  Holds(other);
  EXPECT_TRUE(AnswerTo(persist.caller.request).ok());
}

TEST_F(Decided, AnAnswerToAnEarlierRecordAcknowledgesNothing) {
  const RequestId first = Use(1);
  const uint64_t before = Told().at(other.rank).number;
  const RequestId second = Use(2);
  Apply(event::PeerSaid{other, peer::RecordHeld{"job", before}});
  EXPECT_TRUE(Answered(first));
  EXPECT_FALSE(Answered(second));
  // Nor does one to what was never told.
  Apply(event::PeerSaid{other, peer::RecordHeld{"job", before + 1000}});
  EXPECT_FALSE(Answered(second));
  Holds(other);
  EXPECT_TRUE(Answered(second));
}

TEST_F(Decided, WithoutAnotherLiveMemberOneJournalSuffices) {
  Down(other);
  EXPECT_TRUE(StatusOf(Take<reply::Latest>(Use(1))).ok());
}

// The connection on which it said that it has it broke.
TEST_F(Decided, WhatACallWaitsForIsToldAgainEverySecond) {
  const RequestId use = Use(1);
  for (int i = 0; i < 3; ++i) {
    tells.clear();
    Advance(kNanosPerSecond + kNanosPerSecond / 10);
    EXPECT_TRUE(Told().contains(other.rank));
  }
  Holds(other);
  EXPECT_TRUE(Answered(use));
  tells.clear();
  Advance(kNanosPerSecond + kNanosPerSecond / 10);
  EXPECT_FALSE(Told().contains(other.rank));
}

TEST_F(Decided, AMemberThatGoesIsNotWaitedFor) {
  Up(third);
  const RequestId use = Use(1);
  Down(other);
  EXPECT_FALSE(Answered(use));
  Down(third);
  EXPECT_TRUE(StatusOf(Take<reply::Latest>(use)).ok());
}

TEST_F(Decided, AtTheDeadlineTheAnswerSaysWhatIsKnown) {
  const RequestId use = Use(1, 3 * kNanosPerSecond);
  Advance(2 * kNanosPerSecond);
  EXPECT_FALSE(Answered(use));
  Advance(kNanosPerSecond);
  EXPECT_THAT(AnswerTo(use).status(),
              Fails(absl::StatusCode::kDeadlineExceeded, "decided and journaled on this node"));
  // Said again it is the same decision, and is told again.
  tells.clear();
  const RequestId again = Use(1);
  EXPECT_FALSE(Answered(again));
  EXPECT_EQ(ToldTo(other).decisions.size(), 1u);
  Holds(other);
  EXPECT_TRUE(StatusOf(Take<reply::Latest>(again)).ok());
  // And then at once.
  EXPECT_TRUE(StatusOf(Take<reply::Latest>(Use(1))).ok());
}

TEST_F(Decided, WhatIsRefusedIsAnsweredAtOnce) {
  EXPECT_THAT(AnswerTo(Use(77)).status(), Fails(absl::StatusCode::kNotFound, ""));
}

TEST_F(Decided, TheAnswerLeavesWithItsSession) {
  const RequestId use = Use(1);
  Die(session);
  EXPECT_TRUE(Answered(use));
}

// What a daemon before this one was told counts for it alone.
TEST_F(Decided, NumbersDoNotFallWithTheDaemon) {
  Use(1);
  const uint64_t before = Told().at(other.rank).number;
  Restart();
  tells.clear();
  Up(other);
  Use(2);
  EXPECT_GT(Told().at(other.rank).number, before);
}

// --- what another member decided

TEST_F(Decided, ADecisionIsHeldOnceItIsJournaled) {
  JobRecord record = Empty();
  record.Decide({"job", 50, LineRecordKind::kUse, {{{1, 1}}, false}}, kUnix, other.rank);
  const size_t facts = journal.size();
  Hear(other, record, 9);
  EXPECT_GT(journal.size(), facts);
  EXPECT_THAT(HeldFor(other), testing::ElementsAre(9u));
  EXPECT_THAT(HeldFor(third), IsEmpty());
  EXPECT_EQ(ToldTo(other).decisions.begin()->first.first, 50);
}

// Another decision has its number here.
TEST_F(Decided, WhatDoesNotCountHereIsNotHeld) {
  Use(1);
  const Attempt number = ToldTo(other).decisions.begin()->first.first;
  JobRecord record = Empty();
  record.Decide({"job", number, LineRecordKind::kUse, {{{1, 2}}, false}}, kUnix, other.rank);
  Hear(other, record, 9);
  EXPECT_THAT(HeldFor(other), IsEmpty());
}

TEST_F(Decided, AResumeThatIsSaidAnewReachesTheOthers) {
  Resume(7, 1);
  JobRecord record = ToldTo(other);
  record.Decide({"job", 7, LineRecordKind::kResume, {{{1, 2}}, false}}, kUnix, other.rank);
  Hear(other, record, 9);
  EXPECT_EQ(ToldTo(other).decisions.begin()->second.lineage.step(), 2);
  EXPECT_THAT(HeldFor(other), testing::ElementsAre(9u));
}

// --- pins, policy, persist

TEST_F(Decided, PinsTravel) {
  ASSERT_TRUE(Pin(1, true).ok());
  EXPECT_TRUE(ToldTo(other).Pinned({1, 1, 0}));
  ASSERT_TRUE(Pin(1, false).ok());
  const JobRecord record = ToldTo(other);
  EXPECT_FALSE(record.Pinned({1, 1, 0}));
  EXPECT_EQ(record.pins.size(), 1u);  // that it was taken back is told, too
}

TEST_F(Decided, AnotherMembersPinCounts) {
  JobRecord record = Empty();
  ASSERT_TRUE(record.SetPinned({1, 1, 0}, true, other.rank).ok());
  ASSERT_TRUE(record.SetPinned({9, 1, 0}, true, other.rank).ok());  // of one that is not known here
  Hear(other, record);
  EXPECT_TRUE(Stat(session, 1)->facts.pinned);
  EXPECT_FALSE(Stat(session, 2)->facts.pinned);
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_TRUE(Stat(Hello(), 1)->facts.pinned) << NameOf(from);
  }
  // Taken back there; an older word changes nothing.
  JobRecord back = record;
  ASSERT_TRUE(back.SetPinned({1, 1, 0}, false, other.rank).ok());
  Up(other);
  Hear(other, back);
  Hear(other, record);
  EXPECT_FALSE(Stat(Hello(), 1)->facts.pinned);
  for (const StartFrom from : kFrom) {
    Restart(from);
    Up(other);
    Hear(other, record);
    EXPECT_FALSE(Stat(Hello(), 1)->facts.pinned) << NameOf(from);
  }
}

TEST_F(Decided, PoliciesTravel) {
  Apply(event::SetPolicy{From(session), "job", {.keep_last = 3}});
  EXPECT_EQ(ToldTo(other).policy.keep_last, 3);
  Holds(other);
  JobRecord record = ToldTo(other);
  record.SetPolicy({.keep_last = 5}, other.rank);
  Hear(other, record);
  EXPECT_EQ(Status_().jobs.at(0).policy.keep_last, 5);
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_EQ(Status_().jobs.at(0).policy.keep_last, 5) << NameOf(from);
  }
  // One that was said before counts no more, also after a restart.
  JobRecord old = Empty();
  old.SetPolicy({.keep_last = 1}, other.rank);
  Up(other);
  Hear(other, old);
  EXPECT_EQ(Status_().jobs.at(0).policy.keep_last, 5);
}

TEST_F(Decided, ADefaultPolicyIsNotHeard) {
  const JobPolicy before = Status_().jobs.at(0).policy;
  JobRecord record = Empty();
  record.policy = {.mode = PersistMode::kOnDemand, .keep_last = 9};
  ASSERT_TRUE(record.SetPinned({1, 1, 0}, true, other.rank).ok());
  Hear(other, record);
  EXPECT_EQ(Status_().jobs.at(0).policy, before);
}

TEST_F(Decided, ADefaultPolicyIsNotSaid) {
  ASSERT_TRUE(Pin(1, true).ok());
  EXPECT_EQ(ToldTo(other).policy_stamp.version, 0);
}

TEST_F(DecidedWithStorage, PersistTravels) {
  Apply(event::PersistNow{From(session), {"job", 1}});
  EXPECT_TRUE(ToldTo(other).asked.contains({1, 1, 0}));
}

TEST_F(DecidedWithStorage, AnotherMembersPersistIsDoneHere) {
  JobRecord record = Empty();
  record.Ask({1, 1, 0});
  record.Ask({9, 1, 0});
  ASSERT_TRUE(persists.empty());
  Hear(other, record);
  ASSERT_EQ(persists.size(), 1u);
  EXPECT_EQ(persists[0].checkpoint.step, 1);
  Hear(other, record);
  EXPECT_EQ(persists.size(), 1u);
}

// Also of what is not here, and on a node without storage: it is the second journal.
TEST_F(Decided, WhatPersistAskedForIsJournaled) {
  JobRecord record = Empty();
  record.Ask({9, 1, 0});
  Hear(other, record, 7);
  EXPECT_THAT(HeldFor(other), testing::ElementsAre(7u));
  for (const StartFrom from : kFrom) {
    Restart(from);
    Up(third);
    tells.clear();
    Advance(10 * kNanosPerSecond);
    EXPECT_TRUE(ToldTo(third).asked.contains({9, 1, 0})) << NameOf(from);
  }
}

// The others' records still say that it was asked for.
TEST_F(DecidedWithStorage, WhatWasAskedForAndThenDeletedIsNotWrittenAgain) {
  JobRecord record = Empty();
  record.Ask({1, 1, 0});
  Hear(other, record);
  ASSERT_EQ(persists.size(), 1u);
  stored.clear();
  for (const StartFrom from : kFrom) {
    persists.clear();
    persists_done = 0;
    Restart(from);
    Up(other);
    Advance(10 * kNanosPerSecond);
    Hear(other, record);
    Advance(10 * kNanosPerSecond);
    for (const action::Persist& persist : persists) {
      EXPECT_NE(persist.checkpoint.step, 1) << NameOf(from);
    }
  }
}

TEST_F(DecidedWithStorage, WhatIsWrittenIsNotWrittenAgainAfterARestart) {
  const event::PersistNow persist{From(session), {"job", 1}};
  Apply(persist);
  ASSERT_EQ(persists.size(), 1u);
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_EQ(persists.size(), 1u) << NameOf(from);
  }
}

}  // namespace
}  // namespace cairn::engine
