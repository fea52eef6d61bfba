// Which life of its rank a node is: a member has met another one at the rank's address.
#include "server/engine/ring.h"
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kOurs = 1'000;

MemberId Life(Rank rank, int64_t incarnation, char instance) {
  return {rank, incarnation, std::string(kInstanceBytes, instance)};
}

class Superseded : public EngineTest {
 protected:
  void SetUp() override {
    // The job's home is the other member.
    const std::vector<Rank> order = HomeOrder("job", {0, 1});
    other = Life(order.front(), 7, 'o');
    ours = order.back();
    options.ring.cluster = "test";
    options.ring.rank = ours;
    options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}};
    options.ring.replicas = 0;
    self = Life(ours, kOurs, 's');
    EngineTest::SetUp();
  }
  // The member has met this node at its address.
  void Believed() { Apply(event::Exchanged{other.rank, other}); }
  void Tell(int64_t incarnation, char instance = 'x') {
    Apply(event::LifeMet{other.rank, Life(ours, incarnation, instance)});
  }
  // A first step waits a moment for what the job's home knows.
  Status Saves(SessionId session, Step step) {
    const PartKey part = PartOf(session, step);
    const event::Create create = CreateOf(session, part, {{"model"}});
    Apply(create);
    if (!Answered(create.caller.request)) Advance(3 * kNanosPerSecond);
    CAIRN_RETURN_IF_ERROR(AnswerTo(create.caller.request).status());
    return Commit(session, part, {{"model"}}).status();
  }
  MemberId Self() { return Status_().ring.self; }
  std::string Why() { return Status_().ring.superseded; }

  MemberId other;
  Rank ours = kNoRank;
};

TEST_F(Superseded, ALifeTakesNoSavesAndIsLoadedFrom) {
  Believed();
  const SessionId session = Hello();
  ASSERT_TRUE(Saves(session, 1).ok());
  Tell(kOurs + 1);
  EXPECT_THAT(Saves(session, 2),
              Fails(absl::StatusCode::kUnavailable,
                    absl::StrCat("superseded: incarnation 1001 of rank ", ours)));
  EXPECT_THAT(StatusOf(Commit(session, PartOf(session, 2), {})),
              Fails(absl::StatusCode::kUnavailable, "superseded"));
  EXPECT_TRUE(Open(session, 1).ok());
  EXPECT_THAT(Why(), HasSubstr(absl::StrCat(options.ring.members.at(ours),
                                            ", this node is incarnation 1000")));
  // A member reads it as before.
  event::GrantAsked question{From(0), other, {PartOf(session, 1), ""}};
  Apply(question);
  EXPECT_TRUE(StatusOf(Take<reply::Granted>(question.caller.request)).ok());
  Apply(event::GrantEnded{Take<reply::Granted>(question.caller.request)->grant});
}

TEST_F(Superseded, ALifeDecidesNothing) {
  Believed();
  const SessionId session = Hello();
  ASSERT_TRUE(Saves(session, 1).ok());
  Tell(kOurs + 1);
  const event::Use use{From(session), {"job", 1}, false, Soon()};
  Apply(use);
  EXPECT_THAT(AnswerTo(use.caller.request).status(),
              Fails(absl::StatusCode::kUnavailable, "superseded"));
  event::Remove remove{From(session), {"job", 1}};
  remove.force = true;
  remove.deadline = Soon();
  Apply(remove);
  EXPECT_THAT(AnswerTo(remove.caller.request).status(),
              Fails(absl::StatusCode::kUnavailable, "superseded"));
  EXPECT_TRUE(Open(session, 1).ok());
}

TEST_F(Superseded, ASaveThatIsUnderWayEnds) {
  Believed();
  const SessionId session = Hello();
  ASSERT_TRUE(Saves(session, 1).ok());
  const PartKey part = PartOf(session, 2);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  Tell(kOurs + 1);
  EXPECT_TRUE(Commit(session, part, {{"model"}}).ok());
}

TEST_F(Superseded, ACreateThatWaitsIsAnsweredAtOnce) {
  Believed();
  const SessionId session = Hello();
  ASSERT_TRUE(Saves(session, 1).ok());
  hold_makes = true;
  const event::Create create = CreateOf(session, PartOf(session, 2), {{"model", 40 * kMiB}});
  Apply(create);
  ASSERT_FALSE(Answered(create.caller.request));
  Tell(kOurs + 1);
  EXPECT_THAT(AnswerTo(create.caller.request).status(),
              Fails(absl::StatusCode::kUnavailable, "superseded"));
}

// R1: it would else save again until a member is met.
TEST_F(Superseded, ALifeIsSoAfterTheDaemonsDeath) {
  Believed();
  Tell(kOurs + 1);
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_THAT(Saves(Hello(), 1), Fails(absl::StatusCode::kUnavailable, "superseded"))
        << NameOf(from);
    EXPECT_THAT(Why(), HasSubstr("incarnation 1001"));
  }
}

// Whoever had the rank before had a greater number, and the daemon dies before any member has met this life.
TEST_F(Superseded, NotWhileNobodyHasMetItThoughItsDaemonDied) {
  for (const StartFrom from : kFrom) {
    Restart(from);
    const int64_t before = Self().incarnation;
    Tell(before + 5);
    EXPECT_EQ(Self().incarnation, before + 6) << NameOf(from);
    EXPECT_THAT(Why(), IsEmpty()) << NameOf(from);
  }
  Believed();
  for (const StartFrom from : kFrom) {
    Restart(from);
    Tell(Self().incarnation + 1);
    EXPECT_THAT(Why(), HasSubstr("superseded")) << NameOf(from);
  }
}

TEST_F(Superseded, ByAGreaterIncarnationAlone) {
  Believed();
  Tell(kOurs);           // nothing orders the two
  Tell(kOurs - 1);       // it is the older one
  Tell(kOurs + 1, 's');  // this node itself
  Apply(event::LifeMet{other.rank, Life(other.rank, kOurs + 1, 'x')});
  EXPECT_THAT(Why(), IsEmpty());
  EXPECT_TRUE(Saves(Hello(), 1).ok());
}

// What a member says in the name of a life, or that it is one, is a claim: only LifeMet tells what was met.
TEST_F(Superseded, NotByAClaim) {
  Believed();
  Apply(event::PeerSaid{Life(ours, kOurs + 1, 'x'), peer::ReportWanted{"job"}});
  Apply(event::Exchanged{ours, Life(ours, kOurs + 1, 'x')});
  EXPECT_THAT(Why(), IsEmpty());
  EXPECT_TRUE(Saves(Hello(), 1).ok());
}

// Its clock is behind that of the life before.
TEST_F(Superseded, NotALifeThatNobodyHasMetYet) {
  Tell(kOurs + 50);
  EXPECT_THAT(Why(), IsEmpty());
  EXPECT_EQ(Self(), Life(ours, kOurs + 51, 's'));
  EXPECT_THAT(lives, testing::ElementsAre(Self()));
  EXPECT_TRUE(Saves(Hello(), 1).ok());
  for (const StartFrom from : kFrom) {
    Restart(from);
    EXPECT_EQ(Self(), Life(ours, kOurs + 51, 's')) << NameOf(from);
  }
  Believed();
  Tell(kOurs + 52);
  EXPECT_THAT(Why(), HasSubstr("superseded"));
}

TEST_F(Superseded, NoLifeTakesAnIncarnationBeyondAll) {
  Tell(kMostIncarnation);
  EXPECT_EQ(Self().incarnation, kOurs);
  EXPECT_THAT(Why(), HasSubstr("superseded"));
}

}  // namespace
}  // namespace cairn::engine
