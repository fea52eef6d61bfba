// A job that nobody owns on a node of a ring: another member may know whose it is, and what there
// is of it.
#include "tests/engine/ring_fixture.h"

namespace cairn::engine {
namespace {

class Unowned : public PartsElsewhere {
 protected:
  void SetUp() override {
    storage = false;
    options.own_uid = 0;  // so that uid 1000 is a user like any other
    PartsElsewhere::SetUp();
  }
  // Whether the members know of the job.
  void OthersSay(bool final) {
    JobVerdict nothing;
    nothing.job = "job";
    nothing.final = final;
    Apply(event::PeerSaid{other, peer::VerdictSaid{nothing}});
  }
  RequestId Creates(SessionId session, MonotonicNanos timeout) {
    event::Create create = CreateOf(session, PartOf(session, 1), {{"model", kMiB}});
    create.deadline = now + timeout;
    Apply(create);
    return create.caller.request;
  }
  // Of a part of no objects, for which no create has asked.
  RequestId Commits(SessionId session, MonotonicNanos timeout) {
    event::Commit commit = CommitOf(session, PartOf(session, 1), {});
    commit.deadline = now + timeout;
    Apply(commit);
    return commit.caller.request;
  }
  using Asks = RequestId (Unowned::*)(SessionId, MonotonicNanos);
  static constexpr Asks kAsks[] = {&Unowned::Creates, &Unowned::Commits};
  // What the call answers when its time is up. The others say again and again that they do not know
  // all yet.
  Status AnswerWithin(RequestId request, int seconds) {
    for (int i = 0; i < seconds && !Answered(request); ++i) {
      Advance(kNanosPerSecond);
      OthersSay(/*final=*/false);
    }
    return AnswerTo(request).status();
  }
};

TEST_F(Unowned, AUserWaitsForAllMembersBeforeItIsHis) {
  const SessionId session = Hello();
  for (const Asks asks : kAsks) {
    for (const int seconds : {0, 10}) {
      const RequestId request = (this->*asks)(session, seconds * kNanosPerSecond);
      Advance(kNanosPerMilli);
      EXPECT_THAT(AnswerWithin(request, seconds), Fails(absl::StatusCode::kUnavailable, "job"))
          << seconds;
    }
  }
  const RequestId request = Creates(session, 10 * kNanosPerSecond);
  OthersSay(/*final=*/true);
  Advance(kNanosPerMilli);
  EXPECT_TRUE(AnswerTo(request).ok()) << AnswerTo(request).status();
}

TEST_F(Unowned, ACommitThatNoCreateHasAskedForWaitsLikewise) {
  const SessionId session = Hello();
  const RequestId request = Commits(session, 10 * kNanosPerSecond);
  Advance(5 * kNanosPerSecond);
  EXPECT_FALSE(Answered(request));
  OthersSay(/*final=*/true);
  EXPECT_TRUE(AnswerTo(request).ok()) << AnswerTo(request).status();
}

TEST_F(Unowned, RootGoesOnAfterAMoment) {
  const SessionId session = Hello({.uid = 0});
  const RequestId request = Creates(session, 10 * kNanosPerSecond);
  Advance(kNanosPerSecond);
  EXPECT_FALSE(Answered(request));
  Advance(kNanosPerSecond);
  EXPECT_TRUE(AnswerTo(request).ok()) << AnswerTo(request).status();
}

TEST_F(Unowned, AnotherUsersIsRefused) {
  const SessionId session = Hello();
  const RequestId request = Creates(session, 10 * kNanosPerSecond);
  verdict.owned = true;
  verdict.owner_uid = verdict.owner_gid = 2000;
  Hear();
  EXPECT_EQ(AnswerTo(request).status().code(), absl::StatusCode::kPermissionDenied)
      << AnswerTo(request).status();
}

// No member answers this node, from its beginning on; each counts as lost in the end.
class MetNobody : public RingTest {
 protected:
  void SetUp() override {
    options.ring.cluster = "test";
    options.ring.rank = 0;
    options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}};
    options.ring.lost_after_seconds = 5;
    options.storage = false;
    options.own_uid = 0;
    RingTest::SetUp();
    LoseTheOther();
  }
  void LoseTheOther() {
    for (int i = 0; i < 15; ++i) {
      Apply(event::Exchanged{1, std::nullopt});
      Advance(kNanosPerSecond);
    }
  }
  const MemberId other{1, 1, std::string(kInstanceBytes, 'o')};
};

TEST_F(MetNobody, LatestOfAJobThatItKnowsNothingOfIsUnavailableUntilItHasMetAMember) {
  const SessionId reader = Hello({.writer = -1, .world_size = 0});
  event::Latest latest{From(reader), "job", Soon()};
  Apply(latest);
  Advance(kNanosPerSecond);
  EXPECT_THAT(AnswerTo(latest.caller.request).status(),
              Fails(absl::StatusCode::kUnavailable, "has met no other member of its ring yet"));
  Apply(event::Exchanged{1, other});
  LoseTheOther();
  latest = {From(reader), "job", Soon()};
  Apply(latest);
  Advance(kNanosPerSecond);
  EXPECT_EQ(AnswerTo(latest.caller.request).status().code(), absl::StatusCode::kNotFound)
      << AnswerTo(latest.caller.request).status();
}

TEST_F(MetNobody, NoUserBeginsAJobHereUntilItHasMetAMember) {
  const SessionId session = Hello();
  event::Create create = CreateOf(session, PartOf(session, 1), {{"model", kMiB}});
  Apply(create);
  Advance(kNanosPerSecond);
  EXPECT_THAT(AnswerTo(create.caller.request).status(),
              Fails(absl::StatusCode::kUnavailable, "has met no other member of its ring yet"));
  Apply(event::Exchanged{1, other});
  LoseTheOther();
  create = CreateOf(session, PartOf(session, 1), {{"model", kMiB}});
  Apply(create);
  Advance(kNanosPerSecond);
  EXPECT_TRUE(AnswerTo(create.caller.request).ok()) << AnswerTo(create.caller.request).status();
}

}  // namespace
}  // namespace cairn::engine
