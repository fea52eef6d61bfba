// Two copies of a job, or its next life, on several nodes: whom a newer attempt waits for there.
#include <algorithm>

#include "server/engine/model.h"
#include "server/engine/ring.h"
#include "tests/engine/succession_fixture.h"

namespace cairn::engine {
namespace {

class SuccessionInARing : public SuccessionFixture {
 protected:
  void SetUp() override {
    other = {HomeOrder("job", {0, 1}).front(), 1, std::string(kInstanceBytes, 'o')};
    options.ring.cluster = "test";
    options.ring.rank = 1 - other.rank;
    options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}};
    SuccessionFixture::SetUp();
    Apply(event::Exchanged{other.rank, other});
    verdict.job = "job";
    verdict.final = true;
  }
  // On the other member, which is the job's home, these processes save.
  void SavesThere(std::vector<SavingReport> saving) {
    verdict.attempts[5] = {1, {}, kUnix};
    verdict.saving.clear();
    if (!saving.empty()) verdict.saving[other.rank] = std::move(saving);
    Apply(event::PeerSaid{other, peer::VerdictSaid{verdict}});
  }
  std::vector<SavingReport> SaidOfThisNode() const {
    std::vector<SavingReport> saving;
    for (const action::Tell& tell : tells) {
      if (const auto* said = std::get_if<peer::Report>(&tell.message)) saving = said->delta.saving;
    }
    return saving;
  }
  bool AsksTheOther() const {
    return std::any_of(tells.begin(), tells.end(), [](const action::Tell& tell) {
      return std::holds_alternative<peer::VerdictWanted>(tell.message);
    });
  }
  // The home goes on saying what it said.
  void Passes(MonotonicNanos time) {
    for (; time > 0; time -= kNanosPerSecond) {
      Advance(kNanosPerSecond);
      Apply(event::PeerSaid{other, peer::VerdictSaid{verdict}});
    }
  }
  MemberId other;
  JobVerdict verdict;
};

TEST_F(SuccessionInARing, ANewerAttemptWaitsForProcessesOnOtherMembersAndNamesThem) {
  const SessionId copy = Hello({.attempt = 6});
  SavesThere({{5, "", -1, {41, 42}}});
  const event::Create create = AskedOf(copy, 2, 5 * kNanosPerSecond);
  Passes(6 * kNanosPerSecond);
  EXPECT_THAT(AnswerOf(create), Fails(absl::StatusCode::kFailedPrecondition,
                                      absl::StrCat("pid 41, 42 on rank ", other.rank)));
}

// A node that has nothing of the job hears of it only while somebody there waits to hear.
TEST_F(SuccessionInARing, TheMembersAreAskedForAsLongAsItWaits) {
  const SessionId heir = Hello({.attempt = 6});
  SavesThere({{5, "", -1, {41}}});
  const event::Create create = AskedOf(heir, 2, 100 * kNanosPerSecond);
  Passes(30 * kNanosPerSecond);
  tells.clear();
  Advance(kNanosPerSecond);
  Advance(kNanosPerSecond);
  EXPECT_TRUE(AsksTheOther());
  EXPECT_FALSE(Answered(create.caller.request));
}

TEST_F(SuccessionInARing, AResumeAsksWhoSavesThoughItsStepIsKnown) {
  const SessionId copy = Hello({.attempt = 6});
  CheckpointVerdict& said = verdict.checkpoints[{1, 5, 0}];
  said.world_size = 1;
  said.complete = said.in_memory = true;
  verdict.latest = CheckpointId{1, 5, 0};
  verdict.owned = true;
  verdict.owner_uid = verdict.owner_gid = 1000;
  SavesThere({{5, "", -1, {41}}});
  Advance(40 * kNanosPerSecond);
  tells.clear();
  const event::ResumeFrom resume{From(copy), "job", 6, 1, Soon()};
  Apply(resume);
  EXPECT_TRUE(AsksTheOther());
  EXPECT_FALSE(Answered(resume.caller.request));
  Passes(12 * kNanosPerSecond);
  EXPECT_THAT(AnswerTo(resume.caller.request).status(),
              Fails(absl::StatusCode::kFailedPrecondition, "pid 41"));
}

TEST_F(SuccessionInARing, ItGoesOnWhenTheyHaveEnded) {
  const SessionId heir = Hello({.attempt = 6});
  SavesThere({{5, "", -1, {41}}});
  const event::Create create = AskedOf(heir, 2);
  Passes(2 * kNanosPerSecond);
  EXPECT_FALSE(Answered(create.caller.request));
  SavesThere({});
  EXPECT_TRUE(AnswerOf(create).ok()) << AnswerOf(create);
}

// A member that does not answer holds nobody up: neither may its processes save for the members then.
TEST_F(SuccessionInARing, ItGoesOnWhenTheMembersAreNotHeardAnyMore) {
  const SessionId heir = Hello({.attempt = 6});
  SavesThere({{5, "", -1, {41}}});
  const event::Create create = AskedOf(heir, 2);
  Advance(7 * kNanosPerSecond);  // once more it asks what they know, for 2 s
  EXPECT_TRUE(AnswerOf(create).ok()) << AnswerOf(create);
}

TEST_F(SuccessionInARing, TheNextStartOfOneLauncherWaitsForNobodyThere) {
  const SessionId heir = Hello({.attempt = 6, .run = "run", .restart = 1});
  SavesThere({{5, "run", 0, {41}}});
  const event::Create create = AskedOf(heir, 2);
  EXPECT_TRUE(AnswerOf(create).ok()) << AnswerOf(create);
}

TEST_F(SuccessionInARing, AnAttemptThatIsFencedHoldsNobodyUp) {
  const SessionId heir = Hello({.attempt = 6});
  SavesThere({{4, "", -1, {41}}});
  const event::Create create = AskedOf(heir, 2);
  EXPECT_TRUE(AnswerOf(create).ok()) << AnswerOf(create);
}

TEST_F(SuccessionInARing, TheMembersHearWhoSavesHereUntilItMovesOnOrEnds) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2, .attempt = 5, .pid = 41, .run = "r"});
  const SessionId one = Hello({.writer = 1, .world_size = 2, .attempt = 5, .pid = 42, .run = "r"});
  SavesThere({});
  ASSERT_TRUE(AnswerOf(AskedOf(zero, 1)).ok());
  Save(one, 1, {{"b"}});
  EXPECT_THAT(SaidOfThisNode(), testing::ElementsAre(SavingReport{5, "r", -1, {41, 42}}));
  Die(zero);
  EXPECT_THAT(SaidOfThisNode(), testing::ElementsAre(SavingReport{5, "r", -1, {42}}));
  Hello({.attempt = 6, .process = sessions.at(one).process, .pid = 42, .run = "r"});
  EXPECT_THAT(SaidOfThisNode(), testing::IsEmpty()) << "it saves in a newer one from now on";
}

}  // namespace
}  // namespace cairn::engine
