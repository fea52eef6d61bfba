// A node where the reports of a job meet: whose report counts, and when.
#include <map>
#include <set>
#include <string>
#include <variant>

#include "server/engine/ring.h"
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

class HomeTest : public EngineTest {
 protected:
  void SetUp() override {
    const std::vector<Rank> order = HomeOrder("job", {0, 1});
    options.ring.cluster = "test";
    options.ring.rank = order.front();
    options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}};
    options.storage = false;
    EngineTest::SetUp();
    other = {order.back(), 1, std::string(kInstanceBytes, 'o')};
    IsHeard();
    ReportDelta nothing;
    nothing.job = "job";
    nothing.number = 1;
    Apply(event::PeerSaid{other, peer::Report{nothing}});
    session = Hello({});
    const event::Create create = CreateOf(session, PartOf(session, 1), {{"model"}});
    Apply(create);
    Advance(kNanosPerMilli);  // what the members know is there
    ASSERT_TRUE(AnswerTo(create.caller.request).ok());
    ASSERT_TRUE(Commit(session, PartOf(session, 1), {{"model"}}).ok());
  }
  void IsHeard() { Apply(event::Exchanged{other.rank, other}); }
  // The other member says that it has a copy of step 1, as the answer to that question.
  void SaysThatItHasACopy(uint64_t number, uint64_t answers = 0) {
    ReportDelta delta;
    delta.job = "job";
    delta.number = number;
    delta.answers = answers;
    PartReport& part = delta.parts[{{1, 1, 0}, 0}];
    part.world_size = 1;
    part.digest = Wanted().digest;
    part.role = PartRole::kReplica;
    part.owner = options.ring.rank;
    Apply(event::PeerSaid{other, peer::Report{delta}});
  }
  peer::Want Wanted() const {
    for (const action::Tell& tell : tells) {
      const auto* list = std::get_if<peer::WantList>(&tell.message);
      if (list != nullptr && !list->wants.empty()) return list->wants.front();
    }
    ADD_FAILURE() << "nothing is wanted of the other member";
    return {};
  }
  // The last that it was asked of the job.
  uint64_t Question() const {
    uint64_t question = 0;
    for (const action::Tell& tell : tells) {
      const auto* wanted = std::get_if<peer::ReportWanted>(&tell.message);
      if (wanted != nullptr) question = wanted->question;
    }
    return question;
  }
  int Replicas() { return Stat(session, 1)->facts.replicas; }

  MemberId other;
  SessionId session = 0;
};

TEST_F(HomeTest, ACopyCountsWhileItsHolderIsHeard) {
  SaysThatItHasACopy(2);
  EXPECT_EQ(Replicas(), 1);
  Advance(2 * kNanosPerSecond);
  EXPECT_EQ(Replicas(), 1);
  Advance(2 * kNanosPerSecond);
  EXPECT_EQ(Replicas(), 0) << "by this node's clock it was not heard for 4 s";
}

// Promise 1: what was said before may have changed since, and what says so may be on its way.
TEST_F(HomeTest, OnceItWasNotHeardItCountsWhenItAnswersAnew) {
  SaysThatItHasACopy(2);
  Advance(4 * kNanosPerSecond);
  const uint64_t question = Question();
  ASSERT_GT(question, 0u);
  IsHeard();
  EXPECT_EQ(Replicas(), 0) << "it lives: that is all that is known";
  SaysThatItHasACopy(3);
  EXPECT_EQ(Replicas(), 0) << "that may have been on its way for long";
  SaysThatItHasACopy(4, question);
  EXPECT_EQ(Replicas(), 1);
}

// What the member said meanwhile arrives now.
TEST_F(HomeTest, AfterThisNodeWasStoppedWhatIsHeardFirstDoesNotCount) {
  SaysThatItHasACopy(2);
  now += 3 * kNanosPerSecond;  // nothing ran
  SaysThatItHasACopy(3);
  EXPECT_EQ(Replicas(), 0);
  ASSERT_GT(Question(), 0u);
  SaysThatItHasACopy(4, Question());
  EXPECT_EQ(Replicas(), 1);
}

TEST_F(HomeTest, AMemberThatComesBackIsAskedAnew) {
  SaysThatItHasACopy(2);
  Apply(event::Exchanged{other.rank, std::nullopt});
  EXPECT_EQ(Replicas(), 0);
  tells.clear();
  IsHeard();
  EXPECT_EQ(Replicas(), 0);
  ASSERT_GT(Question(), 0u);
  SaysThatItHasACopy(3, Question());
  EXPECT_EQ(Replicas(), 1);
}

TEST_F(HomeTest, AMemberIsToldTheQuestionThatItsReportAnswers) {
  Apply(event::PeerSaid{other, peer::ReportWanted{"job", 77}});
  const ReportDelta* said = nullptr;
  for (const action::Tell& tell : tells) {
    if (const auto* report = std::get_if<peer::Report>(&tell.message)) said = &report->delta;
  }
  ASSERT_NE(said, nullptr);
  EXPECT_EQ(said->answers, 77u);
  EXPECT_EQ(said->after, 0u) << "it is whole";
  EXPECT_EQ(said->parts.size(), 1u);
}

// Each of many members reports, and each is to hear the verdict, which names all of them.
class ManyMembers : public EngineTest {
 protected:
  static constexpr Rank kMembers = 100;
  void SetUp() override {
    std::set<Rank> all;
    for (Rank rank = 0; rank < kMembers; ++rank) all.insert(rank);
    options.ring.cluster = "test";
    options.ring.rank = HomeOrder("job", all).front();
    options.ring.from_catalog = true;
    for (const Rank rank : all) {
      options.ring.members[rank] = absl::StrCat("10.0.0.", rank + 1, ":1");
    }
    options.storage = false;
    EngineTest::SetUp();
    for (const Rank rank : all) {
      if (rank != options.ring.rank) Apply(event::Exchanged{rank, Of(rank)});
    }
    Advance(kNanosPerSecond);
    tells.clear();
  }
  static MemberId Of(Rank rank) { return {rank, 1, std::string(kInstanceBytes, 'o')}; }
  // Each member but the home says that it has its own part of step 1.
  void AllReport() {
    for (Rank rank = 0; rank < kMembers; ++rank) {
      if (rank == options.ring.rank) continue;
      ReportDelta delta;
      delta.job = "job";
      delta.number = 1;
      PartReport& part = delta.parts[{{1, 1, 0}, Writer{rank}}];
      part.world_size = kMembers;
      part.digest = "digest";
      part.owner = rank;
      Apply(event::PeerSaid{Of(rank), peer::Report{delta}});
    }
  }
  int VerdictsSaid() const {
    int said = 0;
    for (const action::Tell& tell : tells) {
      said += std::holds_alternative<peer::VerdictSaid>(tell.message) ? 1 : 0;
    }
    return said;
  }
};

TEST_F(ManyMembers, AreNotToldTheVerdictWithEachReport) {
  AllReport();
  EXPECT_LE(VerdictsSaid(), kMembers) << "as if all had come at once";
}

TEST_F(ManyMembers, AreToldOfTheLastReportSoon) {
  AllReport();
  Advance(kNanosPerSecond / 50);
  const Rank some = options.ring.rank == 0 ? 1 : 0;
  Apply(event::Exchanged{some, Of(some)});
  std::map<Rank, size_t> heard_of;  // reports, by the last verdict
  for (const action::Tell& tell : tells) {
    const auto* said = std::get_if<peer::VerdictSaid>(&tell.message);
    if (said != nullptr) heard_of[tell.rank] = said->verdict->reports.size();
  }
  EXPECT_EQ(heard_of.size(), size_t{kMembers} - 1);
  for (const auto& [rank, reports] : heard_of) EXPECT_EQ(reports, size_t{kMembers}) << rank;
}

}  // namespace
}  // namespace cairn::engine
