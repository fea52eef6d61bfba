// What is decided about a job counts with every member, and is acknowledged when two journals have it.
#include "server/engine/job_record.h"
#include "server/engine/ring.h"
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::IsEmpty;

class Decided : public EngineTest {
 protected:
  void SetUp() override {
    // The job's home is the other member, whose word the tests bring.
    const std::vector<Rank> order = HomeOrder("job", {0, 1, 2});
    other = MemberId{order[0], 1, std::string(kInstanceBytes, 'o')};
    third = MemberId{order[1], 1, std::string(kInstanceBytes, 't')};
    options.ring.cluster = "test";
    options.ring.rank = order[2];
    options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}, {2, "10.0.0.3:1"}};
    options.ring.replicas = 0;
    options.storage = storage;
    EngineTest::SetUp();
    Up(other);
    session = Hello();
    KnowsNothingOf("job");
    Save(session, 1);
    Save(session, 2);
    tells.clear();
  }
  void Up(const MemberId& member) { Apply(event::Exchanged{member.rank, member}); }
  void Down(const MemberId& member) { Apply(event::Exchanged{member.rank, std::nullopt}); }
  // The home of this one is the other member, too, and nobody here has heard of it.
  std::string AJobOfTheOthers() const {
    for (int i = 0;; ++i) {
      const std::string job = absl::StrCat("unheard", i);
      if (HomeOrder(job, {other.rank, options.ring.rank})[0] == other.rank) return job;
    }
  }
  // The home says so.
  void KnowsNothingOf(const std::string& job) {
    JobVerdict nothing;
    nothing.job = job;
    nothing.final = true;
    Apply(event::PeerSaid{other, peer::VerdictSaid{nothing}});
  }
  // What members were told of the job; the newest of each.
  std::map<Rank, peer::Record> Told() const {
    std::map<Rank, peer::Record> told;
    for (const action::Tell& tell : tells) {
      if (const auto* record = std::get_if<peer::Record>(&tell.message)) told[tell.rank] = *record;
    }
    return told;
  }
  JobRecord ToldTo(const MemberId& member) const {
    return *DecodeJobRecord(Told().at(member.rank).encoded);
  }
  // The member has journaled what it was told last.
  void Holds(const MemberId& member) {
    Apply(event::PeerSaid{member, peer::RecordHeld{"job", Told().at(member.rank).number}});
  }
  void Hear(const MemberId& from, const JobRecord& record, uint64_t number = 1) {
    Apply(event::PeerSaid{from, peer::Record{"job", EncodeJobRecord(record), number}});
  }
  static JobRecord Empty() {
    JobRecord record;
    record.job = "job";
    record.owner = JobRecord::Owner{1000, 1000};
    return record;
  }
  // The numbers that the member was told to be held here.
  std::vector<uint64_t> HeldFor(const MemberId& member) const {
    std::vector<uint64_t> numbers;
    for (const action::Tell& tell : tells) {
      const auto* held = std::get_if<peer::RecordHeld>(&tell.message);
      if (held != nullptr && tell.rank == member.rank) numbers.push_back(held->number);
    }
    return numbers;
  }
  RequestId Use(Step step, MonotonicNanos for_ns = 10 * kNanosPerSecond) {
    event::Use use{From(session), {"job", step, /*attempt=*/1}, /*fence=*/true, now + for_ns};
    Apply(use);
    return use.caller.request;
  }
  RequestId Resume(Attempt attempt, Step step) {
    event::ResumeFrom resume{From(session), "job", attempt, step, Soon(), /*fence=*/true};
    Apply(resume);
    return resume.caller.request;
  }
  RequestId Remove(Step step) {
    event::Remove remove;
    remove.caller = From(session);
    remove.ref = {"job", step};
    remove.force = true;
    remove.deadline = Soon();
    Apply(remove);
    return remove.caller.request;
  }
  Status Pin(Step step, bool pinned) {
    event::Pin pin{From(session), {"job", step}, pinned};
    Apply(pin);
    Holds(other);
    return AnswerTo(pin.caller.request).status();
  }

  bool storage = false;
  MemberId other, third;
  SessionId session = 0;
};

class DecidedWithStorage : public Decided {
 protected:
  DecidedWithStorage() {
    storage = true;
    options.default_policy.mode = PersistMode::kOnDemand;
  }
};

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

TEST_F(Decided, NobodyElseJournalsThePolicyOfAJobThatNobodyOwns) {
  const std::string job = AJobOfTheOthers();
  const event::SetPolicy policy{From(Hello({.job = job})), job, {.keep_last = 3}};
  Apply(policy);
  KnowsNothingOf(job);
  EXPECT_TRUE(AnswerTo(policy.caller.request).ok());
}

// It is the ring's job, on whatever node its owner decides.
TEST_F(Decided, OfAJobThatIsUnknownHereTheOthersAreAsked) {
  const std::string job = AJobOfTheOthers();
  const event::SetPolicy policy{From(session), job, {.keep_last = 3}};
  Apply(policy);
  const event::Pin pin{From(session), {job, 1}, true};
  Apply(pin);
  event::Remove remove;
  remove.caller = From(session);
  remove.ref = {job, 1};
  remove.deadline = Soon();
  Apply(remove);
  for (const auto& caller : {policy.caller, pin.caller, remove.caller}) {
    EXPECT_FALSE(Answered(caller.request));
  }
  EXPECT_TRUE(std::any_of(tells.begin(), tells.end(), [&](const action::Tell& tell) {
    const auto* wanted = std::get_if<peer::VerdictWanted>(&tell.message);
    return wanted != nullptr && wanted->job == job && tell.rank == other.rank;
  }));
  KnowsNothingOf(job);
  for (const auto& caller : {policy.caller, pin.caller, remove.caller}) {
    EXPECT_EQ(AnswerTo(caller.request).status().code(), absl::StatusCode::kNotFound);
  }
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

TEST_F(DecidedWithStorage, WhatIsWrittenIsNotWrittenAgainAfterARestart) {
  const event::PersistNow persist{From(session), {"job", 1}};
  Apply(persist);
  ASSERT_EQ(persists.size(), 1u);
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_EQ(persists.size(), 1u) << NameOf(from);
  }
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
