// Callers that are no members, or not the ones they say they are; and members that do not answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/rpc/peer_messages.h"
#include "tests/rpc/peers_fixture.h"

namespace cairn::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace peer = engine::peer;

class PeersBadInput : public PeersFixture {
 protected:
  void StartFirst() { first_ = Start(a_); }
  // And it has met the second.
  void StartPair() {
    StartFirst();
    second_ = Start(b_);
    ASSERT_TRUE(first_->host.AwaitMember(1, b_));
    ASSERT_TRUE(second_->host.AwaitMember(0, a_));
  }
  // It still serves, and no stranger's word has reached its host.
  void ExpectUnharmed() {
    EXPECT_TRUE(first_->host.AwaitExchanges(1, /*answered=*/true, 2));
    EXPECT_TRUE(first_->host.AwaitMember(1, b_));
    for (const auto& [from, message] : first_->host.said()) EXPECT_EQ(from, b_);
  }

  std::unique_ptr<Member> first_, second_;
};

// The arguments of a `say`: a want-list of entries that have eight bytes each, and a message behind it.
struct SayOfShortEntries {
  peerwire::Sender sender;

  void write(apache::thrift::protocol::TProtocol* out) const {
    using namespace apache::thrift::protocol;  // the types of fields
    constexpr uint32_t kEntries = 40'000;
    out->writeStructBegin("args");
    out->writeFieldBegin("sender", T_STRUCT, 1);
    sender.write(out);
    out->writeFieldBegin("messages", T_LIST, 2);
    out->writeListBegin(T_STRUCT, 2);
    out->writeFieldBegin("want_list", T_STRUCT, 1);
    out->writeFieldBegin("wants", T_LIST, 2);
    out->writeListBegin(T_STRUCT, kEntries);
    for (uint32_t i = 0; i < kEntries; ++i) {
      out->writeFieldBegin("unknown", T_I32, 99);
      out->writeI32(0);
      out->writeFieldStop();
    }
    for (int i = 0; i < 2; ++i) out->writeFieldStop();
    rpc::ToPeerWire(peer::Message(peer::ReportWanted{"x"})).write(out);
    out->writeFieldStop();
  }
};

// --- who greets

TEST_F(PeersBadInput, AnotherClustersMemberIsRefused) {
  StartPair();
  RawPeer raw(ring_[0]);
  const auto result = raw.Greet(SenderOf(b_, "theirs"));
  EXPECT_EQ(result.error.code, static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(result.error.message, AllOf(HasSubstr("theirs"), HasSubstr("ours")));
  ExpectUnharmed();
}

TEST_F(PeersBadInput, MembersOfTwoClustersDoNotMeet) {
  StartFirst();
  rpc::PeersOptions theirs = Options(1);
  theirs.ring.cluster = "theirs";
  const auto other = Start(b_, theirs);
  EXPECT_TRUE(first_->host.AwaitExchanges(1, /*answered=*/false, 3));
  EXPECT_TRUE(other->host.AwaitExchanges(0, /*answered=*/false, 3));
  EXPECT_EQ(first_->host.answered(1), 0);
  EXPECT_EQ(other->host.answered(0), 0);
}

TEST_F(PeersBadInput, ANewerProtocolIsRefusedNamingBoth) {
  StartPair();
  RawPeer raw(ring_[0]);
  const auto result = raw.Greet(SenderOf(b_), /*protocol=*/2);
  EXPECT_EQ(result.error.code, static_cast<int>(absl::StatusCode::kUnimplemented));
  EXPECT_THAT(result.error.message, HasSubstr("protocol: 2, this member speaks 1"));
}

TEST_F(PeersBadInput, ARankThatIsNotInTheListIsRefused) {
  StartPair();
  RawPeer raw(ring_[0]);
  EXPECT_THAT(raw.Greet(SenderOf(Life(9, 1, 'x'))).error.message, HasSubstr("rank: 9"));
  EXPECT_THAT(raw.Greet(SenderOf(Life(-1, 1, 'x'))).error.message, HasSubstr("rank: -1"));
  EXPECT_THAT(raw.Greet(SenderOf(Life(0, 1'000, 'x'))).error.message, HasSubstr("own"));
}

TEST_F(PeersBadInput, WhoWasNotMetAtItsAddressIsNotBelieved) {
  StartFirst();
  RawPeer raw(ring_[0]);
  const auto result = raw.Greet(SenderOf(b_));
  ASSERT_TRUE(result.success.__isset.refused);
  EXPECT_EQ(result.success.refused.code, static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_THAT(result.success.refused.message, HasSubstr("not met yet"));
  // It is told who answers, and nothing that it says is heard.
  EXPECT_EQ(result.success.greeting.sender, SenderOf(a_));
  raw.Say(SenderOf(b_), {rpc::ToPeerWire(peer::Message(peer::ReportWanted{"x"}))});
  EXPECT_TRUE(raw.was_exception());
  EXPECT_TRUE(raw.Closed());
  EXPECT_EQ(first_->host.said().size(), 0u);
}

TEST_F(PeersBadInput, AnInstanceThatTheAddressDoesNotShowIsRefused) {
  StartPair();
  RawPeer raw(ring_[0]);
  const peerwire::Sender claim = SenderOf(Life(1, 900, 'x'));
  // First the address is dialled anew.
  EXPECT_EQ(raw.Greet(claim).success.refused.code,
            static_cast<int>(absl::StatusCode::kUnavailable));
  ASSERT_TRUE(first_->host.AwaitExchanges(1, /*answered=*/true, 2));
  const auto refused = raw.Greet(claim).success.refused;
  EXPECT_EQ(refused.code, static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(refused.message, AllOf(HasSubstr("incarnation 900"), HasSubstr("its address shows"),
                                     HasSubstr("incarnation 200")));
  ExpectUnharmed();
}

TEST_F(PeersBadInput, ADaemonThatClaimsAnothersRankElsewhereHarmsNobody) {
  StartPair();
  // It was started on another host, with a rank that was mistyped there and a clock that is ahead.
  rpc::PeersOptions mistyped = Options(1);
  const HeldPort other;
  mistyped.ring.members[1] = other.address();
  const auto impostor = Start(Life(1, 9'000, 'x'), mistyped);
  ASSERT_TRUE(impostor->host.AwaitExchanges(0, /*answered=*/false, 3));
  impostor->peers->Tell(0, peer::ReportWanted{"x"});
  ASSERT_TRUE(impostor->host.AwaitExchanges(0, /*answered=*/false, 2));
  EXPECT_EQ(impostor->host.answered(0), 0);
  ExpectUnharmed();
  EXPECT_EQ(second_->host.seen_of_ours(), -1);
}

TEST_F(PeersBadInput, AnOlderIncarnationIsRefusedNamingBoth) {
  StartPair();
  RawPeer raw(ring_[0]);
  const auto refused = raw.Greet(SenderOf(Life(1, 199, 'x'))).success.refused;
  EXPECT_EQ(refused.code, static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(refused.message, AllOf(HasSubstr("incarnation 199"), HasSubstr("incarnation 200")));
  ExpectUnharmed();
}

TEST_F(PeersBadInput, TheSameIncarnationOfAnotherInstanceIsRefusedNamingBoth) {
  StartPair();
  RawPeer raw(ring_[0]);
  const auto refused = raw.Greet(SenderOf(Life(1, 200, 'x'))).success.refused;
  EXPECT_EQ(refused.code, static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(refused.message,
              AllOf(HasSubstr("same incarnation"), HasSubstr("7878"), HasSubstr("6262")));
  ExpectUnharmed();
}

TEST_F(PeersBadInput, ALifeAtTheAddressThatIsOlderThanOneMetThereIsToldAndNotBelieved) {
  StartPair();
  second_.reset();
  ASSERT_TRUE(first_->host.AwaitNobody(1));
  second_ = Start(Life(1, 150, 'x'));  // its clock is behind
  EXPECT_TRUE(second_->host.AwaitSeenOfOurs(200));
  EXPECT_TRUE(first_->host.AwaitExchanges(1, /*answered=*/false, 3));
  EXPECT_TRUE(first_->host.AwaitNobody(1));
  second_->host.BecomeLife(201);
  EXPECT_TRUE(first_->host.AwaitMember(1, Life(1, 201, 'x')));
  EXPECT_TRUE(second_->host.AwaitMember(0, a_));
}

TEST_F(PeersBadInput, OfOneWhoIsNotBelievedNothingIsLearnt) {
  StartPair();
  RawPeer raw(ring_[0]);
  peerwire::Peer_greet_args args;
  args.greeting.__set_sender(SenderOf(Life(1, 900, 'x')));
  args.greeting.__set_protocol(1);
  args.greeting.__set_seen(rpc::ToPeerWire(Life(0, 5'000, 'y')));
  raw.Call<peerwire::Peer_greet_result>("greet", args);
  EXPECT_EQ(first_->host.seen_of_ours(), -1);
  args.greeting.__set_sender(SenderOf(b_));
  raw.Call<peerwire::Peer_greet_result>("greet", args);
  EXPECT_EQ(first_->host.seen_of_ours(), 5'000);
}

// --- what is said

TEST_F(PeersBadInput, AMessageThatIsRefusedIsNamedAndTheOthersCount) {
  StartPair();
  RawPeer raw(ring_[0]);
  ASSERT_FALSE(raw.Greet(SenderOf(b_)).success.__isset.refused);
  peerwire::Message bad = rpc::ToPeerWire(peer::Message(SomeWants()));
  bad.want_list->wants[1].job = "../etc";
  const auto result =
      raw.Say(SenderOf(b_), {bad, rpc::ToPeerWire(peer::Message(peer::ReportWanted{"x"}))});
  EXPECT_EQ(result.error.code, 0);
  ASSERT_EQ(result.success.refused.size(), 1u);
  EXPECT_THAT(result.success.refused[0], HasSubstr("want_list: wants[1]"));
  ASSERT_TRUE(first_->host.AwaitSaid(1));
  EXPECT_TRUE(std::holds_alternative<peer::ReportWanted>(first_->host.said()[0].second));
}

// Its lists take more than their share of memory: what a later build says in entries that this one does not know.
TEST_F(PeersBadInput, AMessageThatCannotBeReadIsNamedAndTheOthersCount) {
  StartPair();
  RawPeer raw(ring_[0]);
  ASSERT_FALSE(raw.Greet(SenderOf(b_)).success.__isset.refused);
  const auto result = raw.Call<peerwire::Peer_say_result>("say", SayOfShortEntries{SenderOf(b_)});
  EXPECT_EQ(result.error.code, 0);
  ASSERT_EQ(result.success.refused.size(), 1u);
  EXPECT_THAT(result.success.refused[0],
              AllOf(HasSubstr("messages[0] cannot be read"), HasSubstr("bytes of memory")));
  ASSERT_TRUE(first_->host.AwaitSaid(1));
  EXPECT_TRUE(std::holds_alternative<peer::ReportWanted>(first_->host.said()[0].second));
  EXPECT_EQ(raw.Say(SenderOf(b_), {}).error.code, 0);  // the connection is of use
}

TEST_F(PeersBadInput, WhatAnOlderConnectionStillHasIsRefused) {
  StartPair();
  RawPeer older(ring_[0]), newer(ring_[0]);
  ASSERT_FALSE(older.Greet(SenderOf(b_)).success.__isset.refused);
  ASSERT_FALSE(newer.Greet(SenderOf(b_)).success.__isset.refused);
  EXPECT_EQ(newer.Say(SenderOf(b_), {}).error.code, 0);
  EXPECT_EQ(older.Say(SenderOf(b_), {}).error.code,
            static_cast<int>(absl::StatusCode::kUnavailable));
}

TEST_F(PeersBadInput, ASenderThatChangesInMidConnectionIsJudgedAnew) {
  StartPair();
  RawPeer raw(ring_[0]);
  ASSERT_FALSE(raw.Greet(SenderOf(b_)).success.__isset.refused);
  EXPECT_THAT(raw.Say(SenderOf(Life(1, 1, 'x')), {}).error.message, HasSubstr("older life"));
  raw.Say(SenderOf(b_), {});
  EXPECT_TRUE(raw.was_exception());  // it would have to greet again
}

TEST_F(PeersBadInput, AQuestionForWhatCannotBeAPartIsRefused) {
  StartPair();
  RawPeer raw(ring_[0]);
  ASSERT_FALSE(raw.Greet(SenderOf(b_)).success.__isset.refused);
  peerwire::Peer_grant_args args;
  args.sender = SenderOf(b_);
  args.question = rpc::ToPeerWire(peer::GrantQuestion{SomePart(1), ""});
  args.question.part.writer = -1;
  EXPECT_THAT(raw.Call<peerwire::Peer_grant_result>("grant", args).error.message,
              HasSubstr("writer"));
}

TEST_F(PeersBadInput, ACallThatDoesNotExistIsSaidSo) {
  StartPair();
  RawPeer raw(ring_[0]);
  ASSERT_FALSE(raw.Greet(SenderOf(b_)).success.__isset.refused);
  raw.Call<peerwire::Peer_say_result>("shutdown", peerwire::Peer_say_args());
  EXPECT_TRUE(raw.was_exception());
}

// --- frames

TEST_F(PeersBadInput, AStrangersLongMessageEndsItsConnection) {
  StartPair();
  RawPeer raw(ring_[0]);
  ASSERT_TRUE(raw.SendLength((64 << 10) + 1).ok());
  EXPECT_TRUE(raw.Closed());
  ExpectUnharmed();
}

TEST_F(PeersBadInput, AMembersMessageBeyondTheLimitEndsItsConnection) {
  StartPair();
  RawPeer raw(ring_[0]);
  ASSERT_FALSE(raw.Greet(SenderOf(b_)).success.__isset.refused);
  ASSERT_TRUE(raw.SendLength((64 << 20) + 1).ok());
  EXPECT_TRUE(raw.Closed());
  ExpectUnharmed();
}

TEST_F(PeersBadInput, CutAndSenselessMessagesEndTheirConnection) {
  StartPair();
  {
    RawPeer cut(ring_[0]);
    ASSERT_TRUE(cut.SendLength(1000).ok());
    ASSERT_TRUE(cut.Send("half").ok());
  }
  RawPeer senseless(ring_[0]);
  ASSERT_TRUE(senseless.SendLength(20).ok());
  ASSERT_TRUE(senseless.Send(std::string(20, '\xFF')).ok());
  EXPECT_TRUE(senseless.Closed());
  ExpectUnharmed();
}

TEST_F(PeersBadInput, WhoStopsInTheMiddleOfAMessageIsCutOff) {
  options_.call_timeout = Patient(kNanosPerSecond);
  StartPair();
  RawPeer silent(ring_[0]), half(ring_[0]);
  ASSERT_TRUE(half.SendLength(1000).ok());
  EXPECT_TRUE(silent.Closed());
  EXPECT_TRUE(half.Closed());
}

TEST_F(PeersBadInput, AMemberThatSaysNothingForLongIsCutOff) {
  options_.idle_timeout = Patient(kNanosPerSecond);
  StartPair();
  RawPeer raw(ring_[0]);
  ASSERT_FALSE(raw.Greet(SenderOf(b_)).success.__isset.refused);
  EXPECT_TRUE(raw.Closed());
  ExpectUnharmed();
}

// --- bounds

TEST_F(PeersBadInput, ConnectionsAreBounded) {
  EXPECT_EQ(rpc::PeersOptions().max_connections, 256);
  options_.max_connections = 6;
  options_.max_strangers = 5;
  StartPair();
  std::vector<std::unique_ptr<RawPeer>> known;
  while (first_->peers->connections() < 6) {
    known.push_back(std::make_unique<RawPeer>(ring_[0]));
    ASSERT_FALSE(known.back()->Greet(SenderOf(b_)).success.__isset.refused);
  }
  RawPeer one_too_many(ring_[0]);
  EXPECT_TRUE(one_too_many.Closed());
  ExpectUnharmed();
}

TEST_F(PeersBadInput, StrangersDoNotKeepMembersOut) {
  options_.max_connections = 6;
  options_.max_strangers = 3;
  StartFirst();
  std::vector<std::unique_ptr<RawPeer>> strangers;
  for (int i = 0; i < 4; ++i) strangers.push_back(std::make_unique<RawPeer>(ring_[0]));
  EXPECT_TRUE(strangers.front()->Closed());  // the oldest gives way
  second_ = Start(b_);
  EXPECT_TRUE(first_->host.AwaitMember(1, b_));
  EXPECT_TRUE(second_->host.AwaitMember(0, a_));
}

// --- members that do not answer

TEST_F(PeersBadInput, AMemberThatTakesConnectionsAndNeverAnswersIsNoticed) {
  EXPECT_EQ(rpc::PeersOptions().call_timeout, 3 * kNanosPerSecond);
  options_.call_timeout = kNanosPerSecond;
  const auto listener = ListenTcp(*TcpAddress::Parse(ring_[1]));
  ASSERT_TRUE(listener.ok());
  const MonotonicNanos begun = RealClock()->Now();
  StartFirst();
  EXPECT_TRUE(first_->host.AwaitNobody(1));
  const MonotonicNanos took = RealClock()->Now() - begun;
  EXPECT_GE(took, options_.call_timeout);
  EXPECT_LT(took, Patient(10 * options_.call_timeout));
}

TEST_F(PeersBadInput, TenExchangesInVainFitIntoTheTimeAfterWhichAMemberIsLost) {
  rpc::PeersOptions options;
  for (const int64_t seconds : {10, 20, 30}) {
    options.ring.lost_after_seconds = seconds;
    EXPECT_EQ(options.ExchangeTimeout() * engine::kFailedExchanges, seconds * kNanosPerSecond);
  }
  options.ring.lost_after_seconds = 1;
  EXPECT_EQ(options.ExchangeTimeout(), kNanosPerSecond) << "a busy member needs as long";
  options.ring.lost_after_seconds = 3600;
  EXPECT_EQ(options.ExchangeTimeout(), options.call_timeout);
}

// It was dialled for as long as the options say, whatever the caller's deadline, and all others waited.
TEST_F(PeersBadInput, AQuestionToAMemberThatNeverAnswersEndsByItsDeadline) {
  const auto listener = ListenTcp(*TcpAddress::Parse(ring_[1]));
  ASSERT_TRUE(listener.ok());
  options_.call_timeout = Patient(60 * kNanosPerSecond);
  StartFirst();
  const MonotonicNanos begun = RealClock()->Now();
  const auto got = first_->peers->AskGrant(1, {SomePart(1), ""}, begun + 300 * kNanosPerMilli);
  EXPECT_TRUE(absl::IsDeadlineExceeded(got.status())) << got.status();
  EXPECT_LT(RealClock()->Now() - begun, Patient(30 * kNanosPerSecond));
}

TEST_F(PeersBadInput, SomethingElseThatListensThereIsNotBelieved) {
  const auto listener = ListenTcp(*TcpAddress::Parse(ring_[1]));
  ASSERT_TRUE(listener.ok());
  StartFirst();
  ASSERT_TRUE(WaitReadable(listener->get(), 10'000).value_or(false));
  UniqueFd socket(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(socket.valid());
  const std::string answer = "HTTP/1.1 400 Bad Request\r\n\r\n";
  ASSERT_EQ(send(socket.get(), answer.data(), answer.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(answer.size()));
  EXPECT_TRUE(first_->host.AwaitNobody(1));
}

TEST_F(PeersBadInput, AnotherRankThatAnswersAtAnAddressIsNotBelieved) {
  std::swap(ring_[1], ring_[2]);
  const auto third = Start(Life(2, 300, 'c'), Options(2));
  std::swap(ring_[1], ring_[2]);  // the first one's list has it at rank 1's address
  StartFirst();
  EXPECT_TRUE(first_->host.AwaitExchanges(1, /*answered=*/false, 3));
  EXPECT_EQ(first_->host.answered(1), 0);
}

}  // namespace
}  // namespace cairn::testing
