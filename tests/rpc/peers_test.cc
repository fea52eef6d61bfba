// Members that mean well: they meet, know of each other's life, and hear what they are told.
#include "server/rpc/peers.h"

#include "tests/rpc/peer_messages.h"
#include "tests/rpc/peers_fixture.h"

namespace cairn::testing {
namespace {

using ::testing::HasSubstr;
namespace peer = engine::peer;

class Peers : public PeersFixture {
 protected:
  void StartPair() {
    first_ = Start(a_);
    second_ = Start(b_);
    ASSERT_TRUE(first_->host.AwaitMember(1, b_));
    ASSERT_TRUE(second_->host.AwaitMember(0, a_));
  }
  FakePeerHost& first() { return first_->host; }
  FakePeerHost& second() { return second_->host; }

  std::unique_ptr<Member> first_, second_;
};

TEST_F(Peers, MembersMeetAndOneThatIsNotThereIsKnownToBeAway) {
  StartPair();
  EXPECT_TRUE(first().AwaitNobody(2));
  const engine::MemberId c = Life(2, 300, 'c');
  const auto third = Start(c);
  EXPECT_TRUE(first().AwaitMember(2, c));
  EXPECT_TRUE(second().AwaitMember(2, c));
  EXPECT_TRUE(third->host.AwaitMember(0, a_));
  EXPECT_TRUE(third->host.AwaitMember(1, b_));
}

TEST_F(Peers, ExchangesGoOnWithNothingToSay) {
  StartPair();
  EXPECT_TRUE(first().AwaitExchanges(1, /*answered=*/true, 5));
  EXPECT_TRUE(second().AwaitExchanges(0, /*answered=*/true, 5));
  EXPECT_EQ(second().said().size(), 0u);
}

TEST_F(Peers, WhatIsToldIsHeardAtOnce) {
  options_.exchange_interval = 3600 * kNanosPerSecond;
  StartPair();
  const auto all = SomeOfEachKind();
  for (const peer::Message& message : all) first_->peers->Tell(1, message);
  ASSERT_TRUE(second().AwaitSaid(all.size()));
  const auto said = second().said();
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(said[i].first, a_);
    EXPECT_EQ(said[i].second.index(), all[i].index());
  }
}

TEST_F(Peers, WhatTheHostSaysWhenAMemberIsBackIsHeard) {
  first_ = Start(a_);
  rpc::Peers* const peers = first_->peers.get();
  first().WhenMet([peers] { peers->Tell(1, peer::ReportWanted{"anew"}); });
  second_ = Start(b_);
  EXPECT_TRUE(second().AwaitSaid(1));
}

TEST_F(Peers, WhatIsToldOfAMemberThatIsAwayIsDropped) {
  StartPair();
  second_->peers.reset();
  ASSERT_TRUE(first().AwaitNobody(1));
  // Twice: the exchange that fails next takes what is told before it ends.
  first_->peers->Tell(1, peer::ReportWanted{"lost"});
  ASSERT_TRUE(first().AwaitExchanges(1, /*answered=*/false, 2));
  StartAgain(second_.get(), Options(1));
  ASSERT_TRUE(first().AwaitMember(1, b_));
  first_->peers->Tell(1, peer::ReportWanted{"said"});
  ASSERT_TRUE(second().AwaitSaid(1));
  EXPECT_EQ(std::get<peer::ReportWanted>(second().said()[0].second).job, "said");
}

TEST_F(Peers, ALongReportIsSaidInSeveralCalls) {
  StartPair();
  peer::Report report = SomeReport();
  report.delta.parts.begin()->second.names =
      std::make_shared<const std::vector<uint64_t>>((6 << 20) / sizeof(uint64_t), 7);
  for (const char* job : {"x", "y", "z"}) {
    report.delta.job = job;
    first_->peers->Tell(1, report);
  }
  EXPECT_TRUE(second().AwaitSaid(3));
}

// What a report of them takes in memory was taken to be four times what it is, and refused.
peer::Report ReportOfSteps(const std::string& job, Step steps) {
  peer::Report report;
  report.delta.job = job;
  report.delta.number = 5;
  for (Step step = 0; step < steps; ++step) report.delta.published.insert({step, 1, 0});
  return report;
}

TEST_F(Peers, AReportOfAJobOfManyPublishedStepsIsHeard) {
  StartPair();
  for (const Step steps : {140'000, 600'000}) {
    first_->peers->Tell(1, ReportOfSteps(absl::StrCat("job", steps), steps));
  }
  first_->peers->Tell(1, peer::ReportWanted{"another"});
  EXPECT_TRUE(second().AwaitSaid(3)) << second().said().size();
}

// As the engine does it: all is said anew each time that the member is back.
TEST_F(Peers, ReportsOfManyStepsThatAreSaidTogetherKeepTheLink) {
  first_ = Start(a_);
  rpc::Peers* const peers = first_->peers.get();
  first().WhenMet([peers] {
    for (const char* job : {"x", "y", "z"}) peers->Tell(1, ReportOfSteps(job, 50'000));
  });
  second_ = Start(b_);
  EXPECT_TRUE(second().AwaitSaid(3)) << second().said().size();
  EXPECT_TRUE(first().AwaitExchanges(1, /*answered=*/true, 2));
  EXPECT_EQ(second().said().size(), 3u);  // they met once
}

// What it had taken of the room for long messages was never given back.
TEST_F(Peers, AMessageForWhichTheHostHadNoMemoryLeavesRoomForTheNext) {
  options_.max_messages_bytes = 1 << 20;
  first_ = Start(a_);
  rpc::Peers* const peers = first_->peers.get();
  first().WhenMet([peers] { peers->Tell(1, peer::Record{"job", std::string(600 << 10, 'x')}); });
  second_ = std::make_unique<Member>(b_);
  second().LackMemory(3);
  StartAgain(second_.get(), Options(1));
  EXPECT_TRUE(second().AwaitSaid(1));
}

TEST_F(Peers, AMessageThatIsTooLongIsDroppedAndTheOthersAreSaid) {
  options_.max_message_bytes = 1 << 20;
  StartPair();
  first_->peers->Tell(1, peer::Record{"long", std::string(2 << 20, 'x')});
  first_->peers->Tell(1, peer::ReportWanted{"short"});
  ASSERT_TRUE(second().AwaitSaid(1));
  EXPECT_EQ(second().said()[0].second.index(), peer::Message(peer::ReportWanted{}).index());
}

TEST_F(Peers, AMemberThatIsAnotherLifeIsMetAnew) {
  StartPair();
  second_.reset();
  const engine::MemberId next = Life(1, 201, 'B');
  second_ = Start(next);
  EXPECT_TRUE(first().AwaitMember(1, next));
  EXPECT_TRUE(second().AwaitMember(0, a_));
}

TEST_F(Peers, AMemberThatTakesAGreaterIncarnationIsBelieved) {
  StartPair();
  second().BecomeLife(500);
  EXPECT_TRUE(first().AwaitMember(1, Life(1, 500, 'b')));
  // Its own words may have come too early once: with two answers at least one was to the new life.
  ASSERT_TRUE(second().AwaitExchanges(0, /*answered=*/true, 2));
  first_->peers->Tell(1, peer::ReportWanted{"x"});
  second_->peers->Tell(0, peer::ReportWanted{"y"});
  EXPECT_TRUE(second().AwaitSaid(1));
  ASSERT_TRUE(first().AwaitSaid(1));
  EXPECT_EQ(first().said()[0].first, Life(1, 500, 'b'));
}

// --- grants

TEST_F(Peers, AGrantIsGivenAndEnded) {
  StartPair();
  const peer::GrantAnswer grant = {7, std::string(16, 't'), "manifest", {{"region"}}, 10'000};
  second().set_grant(grant);
  const auto got = first_->peers->AskGrant(1, {SomePart(1), ""}, RawPeer::In(10));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->answer.token, grant.token);
  EXPECT_EQ(got->answer.manifest, grant.manifest);
  EXPECT_EQ(got->address, "data of 1");
  first_->peers->EndGrant(1, {7});
  EXPECT_TRUE(second().AwaitEnded(7));
}

TEST_F(Peers, WhyThereIsNoGrantIsTold) {
  StartPair();
  const auto got = first_->peers->AskGrant(1, {SomePart(1), ""}, RawPeer::In(10));
  EXPECT_EQ(got.status(), absl::NotFoundError("no grant"));
  EXPECT_EQ(first_->peers->AskGrant(9, {SomePart(1), ""}, RawPeer::In(10)).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(first_->peers->AskGrant(2, {SomePart(1), ""}, RawPeer::In(10)).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(Peers, AQuestionThatWaitsHoldsUpNothingElse) {
  StartPair();
  second().set_grant(peer::GrantAnswer{7, std::string(16, 't'), "", {}, 1});
  second().HoldGrants(true);
  std::thread asks([&] {
    EXPECT_TRUE(first_->peers->AskGrant(1, {SomePart(1), ""}, RawPeer::In(60)).ok());
  });
  ASSERT_TRUE(second().AwaitAsked(1));
  EXPECT_TRUE(first().AwaitExchanges(1, /*answered=*/true, 3));
  first_->peers->Tell(1, peer::ReportWanted{"x"});
  EXPECT_TRUE(second().AwaitSaid(1));
  EXPECT_EQ(first_->peers->AskGrant(1, {SomePart(2), ""}, RealClock()->Now()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  second().HoldGrants(false);
  asks.join();
}

TEST_F(Peers, AManifestOfMegabytesFitsAnAnswer) {
  StartPair();
  second().set_grant(peer::GrantAnswer{7, std::string(16, 't'), std::string(40 << 20, 'm'), {}, 1});
  const auto got = first_->peers->AskGrant(1, {SomePart(1), ""}, RawPeer::In(30));
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_EQ(got->answer.manifest.size(), size_t{40 << 20});
  second().set_grant(peer::GrantAnswer{8, std::string(16, 't'), std::string(65 << 20, 'm'), {}, 1});
  EXPECT_EQ(first_->peers->AskGrant(1, {SomePart(1), ""}, RawPeer::In(30)).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(second().AwaitEnded(8));
}

TEST_F(Peers, AskedAgainAfterTheMembersRestartItAnswers) {
  StartPair();
  second().set_grant(peer::GrantAnswer{7, std::string(16, 't'), "", {}, 1});
  ASSERT_TRUE(first_->peers->AskGrant(1, {SomePart(1), ""}, RawPeer::In(10)).ok());
  second_->peers.reset();
  StartAgain(second_.get(), Options(1));
  ASSERT_TRUE(second().AwaitExchanges(0, /*answered=*/true, 1));
  EXPECT_TRUE(first_->peers->AskGrant(1, {SomePart(1), ""}, RawPeer::In(10)).ok());
}

// --- options

TEST_F(Peers, TheyDoNotListenWhereOtherHostsReachThemWithoutTls) {
  ring_[0] = "192.0.2.1:7000";
  EXPECT_THAT(std::string(Options(0).Validate().message()),
              ::testing::AllOf(HasSubstr("peers.cert"), HasSubstr("peers.insecure")));
  EXPECT_TRUE(Options(1).Validate().ok());
  options_.insecure = true;
  EXPECT_TRUE(Options(0).Validate().ok());
}

TEST_F(Peers, OptionsThatContradictEachOtherAreRefused) {
  const auto refusal = [&] { return std::string(Options(0).Validate().message()); };
  options_.tls.ca = "ca.pem";
  EXPECT_THAT(refusal(), HasSubstr("all of them or none"));
  options_.tls = {};
  ring_[2] = ring_[0];
  EXPECT_THAT(refusal(), HasSubstr("is another rank's"));
  ring_[2] = "somewhere:7000";
  EXPECT_THAT(refusal(), HasSubstr("ring.nodes: rank 2"));
  ring_[2] = "127.0.0.1:0";
  EXPECT_THAT(refusal(), HasSubstr("has no port"));
}

// A daemon ended whose port another user had taken while it restarted.
TEST_F(Peers, AMemberWhosePortIsTakenJoinsOnceItIsFree) {
  auto squatter = ListenTcp(*TcpAddress::Parse(ring_[0]));
  ASSERT_TRUE(squatter.ok()) << squatter.status();
  first_ = Start(a_);
  EXPECT_THAT(first_->peers->Problem(), HasSubstr(ring_[0] + ": Address already in use"));
  second_ = Start(b_);
  EXPECT_TRUE(first().AwaitNobody(1));
  EXPECT_TRUE(second().AwaitNobody(0));
  squatter->Reset();
  EXPECT_TRUE(first().AwaitMember(1, b_));
  EXPECT_TRUE(second().AwaitMember(0, a_));
  EXPECT_EQ(first_->peers->Problem(), "");
}

TEST_F(Peers, AMemberWhosePortIsTakenStops) {
  const auto squatter = ListenTcp(*TcpAddress::Parse(ring_[0]));
  ASSERT_TRUE(squatter.ok()) << squatter.status();
  first_ = Start(a_);
  first_->peers->Stop();
}

// They disagree about who is lost, and nobody notices before copies are gone.
TEST_F(Peers, AMemberWithAnotherListIsSaid) {
  const auto first = Start(a_);
  ring_[3] = "127.0.0.1:9";
  const auto second = Start(b_);
  ASSERT_TRUE(first->host.AwaitMember(1, b_));
  ASSERT_TRUE(second->host.AwaitMember(0, a_));
  EXPECT_EQ(first->peers->Problem(), "another ring.nodes than this node's: rank 1");
  EXPECT_EQ(second->peers->Problem(), "another ring.nodes than this node's: rank 0");
}

TEST_F(Peers, MembersWithOneListHaveNothingToSay) {
  StartPair();
  EXPECT_EQ(first_->peers->Problem(), "");
}

TEST_F(Peers, AnAddressThatIsNotThisHostsIsSaidByName) {
  ring_[0] = "192.0.2.1:7000";
  options_.insecure = true;
  FakePeerHost host(a_);
  EXPECT_THAT(rpc::Peers::Open(Options(0), &host).status().ToString(),
              ::testing::AllOf(HasSubstr("ring.nodes"), HasSubstr(ring_[0])));
}

}  // namespace
}  // namespace cairn::testing
