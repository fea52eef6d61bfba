// Decisions about jobs of which this node has nothing, or knows less than others: whom it asks, what it keeps, and
// whose word counts.
#include "tests/engine/decided_fixture.h"

namespace cairn::engine {
namespace {

// --- who is asked

// It is the ring's job, on whatever node its owner decides.
TEST_F(Decided, OfAJobThatIsUnknownHereTheOthersAreAsked) {
  const std::string job = AJobOfTheOthers();
  const event::SetPolicy policy{From(session), job, {.keep_last = 3}};
  Apply(policy);
  const event::Pin pin{From(session), {job, 1}, true};
  Apply(pin);
  const RequestId remove = Remove(1, job);
  for (const RequestId call : {policy.caller.request, pin.caller.request, remove}) {
    EXPECT_FALSE(Answered(call));
  }
  EXPECT_TRUE(AskedTheHome(job));
  KnowsNothingOf(job);
  for (const RequestId call : {policy.caller.request, pin.caller.request, remove}) {
    EXPECT_EQ(AnswerTo(call).status().code(), absl::StatusCode::kNotFound);
  }
}

TEST_F(Decided, NobodyElseJournalsThePolicyOfAJobThatNobodyOwns) {
  const std::string job = AJobOfTheOthers();
  const event::SetPolicy policy{From(Hello({.job = job})), job, {.keep_last = 3}};
  Apply(policy);
  KnowsNothingOf(job);
  EXPECT_TRUE(AnswerTo(policy.caller.request).ok());
}

TEST_F(Decided, OfAJobOfWhichOnlyAPolicyIsKeptHereTheOthersAreAsked) {
  const std::string job = AJobOfTheOthers();
  JobRecord record = Empty(job);
  record.SetPolicy({.keep_last = 5}, other.rank);
  Hear(other, record);
  tells.clear();
  const RequestId remove = Remove(1, job);
  EXPECT_TRUE(AskedTheHome(job));
  EXPECT_FALSE(Answered(remove));
  const event::Pin pin{From(session), {job, 1}, true};
  Apply(pin);
  EXPECT_FALSE(Answered(pin.caller.request));
}

TEST_F(Decided, WhatIsLatestIsAskedOfTheOthersWhenTheyWereNotHeardLately) {
  const std::string job = AJobOfTheOthers();
  JobVerdict verdict;
  verdict.job = job;
  verdict.final = verdict.owned = true;
  verdict.owner_uid = verdict.owner_gid = 1000;
  CheckpointVerdict& one = verdict.checkpoints[{1, 1, 0}];
  one.complete = one.in_memory = true;
  one.world_size = 1;
  one.digest = std::string(kDigestLength, 'd');
  verdict.attempts[1] = {1, Lineage{}, 0};
  const event::Pin first{From(session), {job, 1}, true};
  Apply(first);
  Apply(event::PeerSaid{other, peer::VerdictSaid{verdict}});
  Holds(other, job);
  EXPECT_TRUE(AnswerTo(first.caller.request).ok()) << AnswerTo(first.caller.request).status();
  Advance(45 * kNanosPerSecond);
  const event::Pin latest{From(session), {job}, true};
  Apply(latest);
  EXPECT_FALSE(Answered(latest.caller.request)) << "there may be a newer one by now";
}

// As with a first create.
TEST_F(Decided, AJobMayBeginAnewWhileAMemberIsSilent) {
  const RequestId resume = BeginAnew(AJobOfTheOthers());
  EXPECT_FALSE(Answered(resume));
  Advance(3 * kNanosPerSecond);
  EXPECT_TRUE(StatusOf(Take<reply::Latest>(resume)).ok());
}

// Storage is asked each time, and must not make it wait for the members anew.
TEST_F(DecidedWithStorage, AJobMayBeginAnewWhileAMemberIsSilent) {
  const RequestId resume = BeginAnew(AJobOfTheOthers());
  for (int i = 0; i < 3; ++i) Advance(kNanosPerSecond);
  EXPECT_TRUE(StatusOf(Take<reply::Latest>(resume)).ok());
}

// Until then storage was waited for.
TEST_F(DecidedWithStorage, WhatIsDecidedAtTheDeadlineHasTimeForASecondJournal) {
  hold_scans = true;
  Restart();
  Up(other);
  session = Hello();
  const event::SetPolicy policy{From(session), "job", {.keep_last = 3}};
  Apply(policy);
  for (int i = 0; i < 10; ++i) Advance(kNanosPerSecond);
  EXPECT_FALSE(Answered(policy.caller.request));
  Holds(other);
  EXPECT_TRUE(AnswerTo(policy.caller.request).ok()) << AnswerTo(policy.caller.request).status();
}

TEST_F(Decided, ANodeThatBeganEmptyAndHasMetNobodySaysNothing) {
  journal.clear();
  keeper.clear();
  sessions.clear();
  mapped.clear();
  manifests.clear();
  self = MemberId{options.ring.rank, 1, std::string(kInstanceBytes, 's')};
  Restart();
  for (int i = 0; i < 60; ++i) {
    Down(other);
    Down(third);
    Advance(kNanosPerSecond);
  }
  const SessionId mine = Hello({.job = "run"});
  const event::ResumeFrom resume{From(mine), "run", 5, kNoStep, Soon(), /*fence=*/true};
  Apply(resume);
  const event::Pin pin{From(mine), {"run", 1}, true};
  Apply(pin);
  Advance(12 * kNanosPerSecond);
  EXPECT_EQ(StatusOf(Take<reply::Latest>(resume.caller.request)).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(AnswerTo(pin.caller.request).status().code(), absl::StatusCode::kUnavailable);
}

// It waited for storage, and then for the ring, which went away just then.
TEST_F(DecidedWithStorage, NobodyIsWokenForAnAnswerThatIsNotThere) {
  const std::string job = AJobOfTheOthers();
  hold_scans = true;
  const event::SetPolicy policy{From(session), job, {.keep_last = 3}};
  Apply(policy);
  KnowsNothingOf(job);
  ASSERT_FALSE(Answered(policy.caller.request));
  Advance(9 * kNanosPerSecond);
  Down(other);  // its word counts no more
  const MonotonicNanos until = now + 12 * kNanosPerSecond;
  int wakes = 0;
  while (now < until && wakes < 100'000 && !Answered(policy.caller.request)) {
    now = std::max(now + 1, wake_at);
    wake_at = 0;
    Apply(event::Tick{});
    ++wakes;
  }
  EXPECT_LT(wakes, 1000);
  EXPECT_TRUE(Answered(policy.caller.request)) << "10 s were over";
}

// --- whose policy counts

TEST_F(Decided, APolicyThatWasSaidWithoutKnowledgeOfALaterOneIsSaidAnew) {
  const event::SetPolicy policy{From(session), "job", {.keep_last = 3}};
  Apply(policy);
  JobRecord later = Empty();
  for (int64_t keeps = 10; keeps < 15; ++keeps) later.SetPolicy({.keep_last = keeps}, other.rank);
  Hear(other, later);
  const JobRecord told = ToldTo(other);
  EXPECT_EQ(told.policy.keep_last, 3);
  EXPECT_TRUE(IsLater(told.policy, told.policy_stamp, later.policy, later.policy_stamp));
  EXPECT_FALSE(Answered(policy.caller.request));
  // Once: two that do so in turn would never end.
  later.SetPolicy({.keep_last = 20}, other.rank);
  later.SetPolicy({.keep_last = 21}, other.rank);
  Hear(other, later);
  EXPECT_EQ(Status_().jobs.at(0).policy.keep_last, 21);
  Holds(other);
  EXPECT_TRUE(AnswerTo(policy.caller.request).ok());
}

TEST_F(Decided, APolicyThatDoesNotCountIsNotHeldAndIsAnsweredWithTheOneThatDoes) {
  JobRecord counts = Empty();
  counts.SetPolicy({.keep_last = 4}, third.rank);
  counts.SetPolicy({.keep_last = 5}, third.rank);
  Hear(other, counts);
  tells.clear();
  JobRecord earlier = Empty();
  earlier.SetPolicy({.keep_last = 3}, other.rank);
  Hear(other, earlier, 2);
  EXPECT_THAT(HeldFor(other), testing::IsEmpty());
  EXPECT_EQ(ToldTo(other).policy.keep_last, 5);
  EXPECT_EQ(Told().at(other.rank).number, 0u) << "an answer to that would be answered in turn";
}

// Its record came only when the session's first step asked whose the job is.
TEST_F(Decided, ThePolicyThatASessionBringsCountsOverAnOldOne) {
  const std::string job = AJobOfTheOthers();
  Who who{.job = job};
  who.policy = JobPolicy{.keep_last = 10};
  const SessionId brings = Hello(who);
  JobRecord old = Empty(job);
  old.SetPolicy({.keep_last = 2}, other.rank);
  const event::Create create = CreateOf(brings, PartOf(brings, 1), {{"model", kMiB}});
  Apply(create);
  Hear(other, old);
  KnowsNothingOf(job);
  EXPECT_TRUE(AnswerTo(create.caller.request).ok()) << AnswerTo(create.caller.request).status();
  EXPECT_EQ(ToldTo(other, job).policy.keep_last, 10);
  // Once: what is said later counts.
  Apply(event::SetPolicy{From(session), job, {.keep_last = 3}});
  const event::Create next = CreateOf(brings, PartOf(brings, 2), {{"model", kMiB}});
  Apply(next);
  EXPECT_EQ(ToldTo(other, job).policy.keep_last, 3);
}

// A verdict tells no versions.
TEST_F(Decided, WhoAsksAboutAJobIsToldItsRecordFirst) {
  const event::SetPolicy policy{From(session), "job", {.keep_last = 3}};
  Apply(policy);
  Holds(other);
  Up(third);
  Advance(kNanosPerSecond);
  tells.clear();
  Apply(event::PeerSaid{third, peer::VerdictWanted{"job"}});
  EXPECT_EQ(ToldTo(third).policy.keep_last, 3);
  tells.clear();
  Apply(event::PeerSaid{other, peer::VerdictWanted{"job"}});
  EXPECT_FALSE(Told().contains(other.rank)) << "it has it";
}

// --- what is kept

TEST_F(Decided, WhatIsKeptForOthersFillsNoQuota) {
  options.max_jobs = 4;
  options.own_uid = 1;
  Restart();
  Up(other);
  for (int i = 0; i < 4; ++i) {
    JobRecord record = Empty(absl::StrCat("old", i));
    record.SetPolicy({.keep_last = 5}, other.rank);
    Hear(other, record);
  }
  const SessionId mine = Hello({.job = "new", .uid = 2000});
  KnowsNothingOf("new");
  const Status saved = TrySave(mine, 1);
  EXPECT_NE(saved.code(), absl::StatusCode::kResourceExhausted) << saved;
}

TEST_F(DecidedWithStorage, WhatStorageLostIsOwedByTheNextDaemonToo) {
  const event::PersistNow persist{From(session), {"job", 1}};
  Apply(persist);
  ASSERT_EQ(stored.size(), 1u);
  hold_persists = true;
  stored.clear();
  written_parts.clear();
  const size_t before = persists.size();
  root = RootIdentity{"root-1", "an older copy"};
  Apply(event::StorageSeen{root});
  EXPECT_EQ(persists.size(), before + 1);
  Restart(StartFrom::kJournal);
  Advance(kNanosPerSecond);
  EXPECT_EQ(persists.size(), before + 2);
}

// A policy is journaled by three members that live, also where nothing of the job is.
class OfFive : public EngineTest {
 protected:
  static constexpr int kMembers = 5;
  void SetUp() override {
    std::set<Rank> ranks;
    for (Rank rank = 0; rank < kMembers; ++rank) ranks.insert(rank);
    order = HomeOrder("job", ranks);
    options.ring.cluster = "test";
    options.ring.rank = order[3];
    for (const Rank rank : ranks) options.ring.members[rank] = absl::StrCat("10.0.0.", rank, ":1");
    EngineTest::SetUp();
    record.job = "job";
    record.owner = JobRecord::Owner{1000, 1000};
    record.SetPolicy({.keep_last = 5}, order[0]);
  }
  MemberId Member(Rank rank) { return {rank, 1, std::string(kInstanceBytes, 'a' + rank)}; }
  void Up(size_t place) { Apply(event::Exchanged{order[place], Member(order[place])}); }
  bool Keeps() {
    tells.clear();
    Apply(event::PeerSaid{Member(order[0]), peer::Record{"job", EncodeJobRecord(record), 1}});
    return std::any_of(tells.begin(), tells.end(), [](const action::Tell& tell) {
      return std::holds_alternative<peer::RecordHeld>(tell.message);
    });
  }
  std::vector<Rank> order;  // of the job's homes; this node is the fourth
  JobRecord record;
};

// Nobody has anything of it any more: told in turn for ever it would never be forgotten.
TEST_F(OfFive, WhoOnlyKeepsAPolicyTellsItToThoseThatCome) {
  for (const size_t place : {0, 1}) Up(place);
  ASSERT_TRUE(Keeps());
  Advance(kNanosPerSecond);
  tells.clear();
  const auto told = [this](size_t place) {
    return std::any_of(tells.begin(), tells.end(), [&](const action::Tell& tell) {
      return tell.rank == order[place] && std::holds_alternative<peer::Record>(tell.message);
    });
  };
  for (int i = 0; i < 60; ++i) Advance(kNanosPerSecond);
  EXPECT_FALSE(told(0));
  Up(2);
  Advance(kNanosPerSecond);
  EXPECT_TRUE(told(2));
  EXPECT_FALSE(told(0));
}

TEST_F(OfFive, TheFourthKeepsAPolicyOnceOneBeforeItIsGone) {
  for (const size_t place : {0, 1, 2, 4}) Up(place);
  EXPECT_FALSE(Keeps());
  EXPECT_TRUE(engine->JobNames().empty());
  Apply(event::Exchanged{order[1], std::nullopt});
  EXPECT_TRUE(Keeps());
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_EQ(Status_().jobs.at(0).policy.keep_last, 5) << NameOf(from);
  }
}

}  // namespace
}  // namespace cairn::engine
