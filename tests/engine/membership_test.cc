// Who has which rank of a ring whose members stand in the catalog: the rules one by one.
#include "server/engine/membership.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "tests/engine/membership_database.h"

namespace cairn::engine {
namespace {

// One node, whose steps are done at once. `answers`: what a probe finds.
class MembershipTest : public testing::Test {
 protected:
  struct Node {
    Node(int of, const MembershipOptions& options)
        : number(of), membership(options, NewSeat(of)), address(options.address) {
      membership.SetMayClaim(true);
    }
    const int number;
    Membership membership;
    const std::string address;
    bool reaches = true;  // the database
  };
  Node& Add(int size = 0, Rank wanted = kNoRank) {
    const int number = static_cast<int>(nodes_.size());
    nodes_.push_back(std::make_unique<Node>(number, OptionsOf(number, size, wanted)));
    return *nodes_.back();
  }
  // What `node` does in so many seconds.
  void Run(double seconds, std::set<const Node*> silent = {}) {
    const MonotonicNanos end = now_ + static_cast<MonotonicNanos>(seconds * kSecond);
    while (now_ < end) {
      for (const auto& node : nodes_) {
        if (silent.contains(node.get())) continue;
        for (int i = 0; i < 4; ++i) {
          if (!DoOne(node.get(), silent)) break;
        }
      }
      now_ += kSecond / 4;
    }
  }
  bool DoOne(Node* node, const std::set<const Node*>& silent) {
    Membership& membership = node->membership;
    const RingStep step = membership.Next(now_);
    if (std::holds_alternative<ring_step::Wait>(step)) return false;
    const Status away = absl::UnavailableError("the database is away");
    if (const auto* probe = std::get_if<ring_step::Probe>(&step)) {
      ++probes_;
      bool answers = false;
      for (const auto& other : nodes_) {
        answers = answers || (other->address == probe->address && !silent.contains(other.get()) &&
                              other->membership.seat().rank == probe->rank);
      }
      membership.HasProbed(now_, probe->rank, answers);
      return true;
    }
    if (std::holds_alternative<ring_step::Read>(step)) {
      membership.HasRead(now_, node->reaches ? StatusOr<RingTable>(database_.Read()) : away);
      return true;
    }
    Written how = Written::kRefused;
    if (node->reaches) {
      how = database_.Do(step, membership.seat().instance, node->address) ? Written::kDone
                                                                          : Written::kNot;
    }
    if (std::holds_alternative<ring_step::Beat>(step)) {
      membership.HasBeaten(now_, how, database_.version, away);
    } else {
      membership.HasWritten(now_, how, away);
    }
    return true;
  }

  Database database_;
  MonotonicNanos now_ = 1000 * kSecond;
  int probes_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(MembershipTest, TheFirstMakesTheRingAndEachGetsAnEmptyRank) {
  for (int i = 0; i < 4; ++i) Add(/*size=*/3);
  Run(10);
  std::set<Rank> taken;
  for (const auto& node : nodes_) {
    if (node->membership.ranked()) taken.insert(node->membership.seat().rank);
  }
  EXPECT_EQ(taken, (std::set<Rank>{0, 1, 2}));
  EXPECT_NE(nodes_[3]->membership.Problem().find("it is a spare"), std::string::npos);
  EXPECT_EQ(nodes_[0]->membership.seat().incarnation, 1);
}

TEST_F(MembershipTest, ASpareTakesALostRankAfterItsBeatHasStoodStill) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Node& spare = Add();
  Run(30);
  ASSERT_FALSE(spare.membership.ranked());
  EXPECT_EQ(probes_, 0);
  Run(14, {&owner});
  EXPECT_FALSE(spare.membership.ranked());
  Run(6, {&owner});
  EXPECT_EQ(spare.membership.seat().rank, 0);
  EXPECT_EQ(spare.membership.seat().incarnation, 2);
  EXPECT_GT(probes_, 0);
  // It wakes up, and finds another one in its place.
  Run(10);
  ASSERT_TRUE(owner.membership.fenced_by().has_value());
  EXPECT_EQ(owner.membership.fenced_by()->instance, Instance(1));
  EXPECT_FALSE(spare.membership.fenced_by().has_value());
}

TEST_F(MembershipTest, WhoAnswersAtItsAddressKeepsItsRank) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Node& spare = Add();
  owner.reaches = false;  // the database, but others reach it
  Run(120);
  EXPECT_FALSE(spare.membership.ranked());
  EXPECT_GT(probes_, 1);
}

TEST_F(MembershipTest, ADatabaseThatWasAwayFencesNobody) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Node& spare = Add();
  Run(5);
  owner.reaches = spare.reaches = false;
  Run(120);
  // It is back for the spare first, and the owner is silent in that very moment.
  spare.reaches = true;
  Run(10, {&owner});
  owner.reaches = true;
  Run(60);
  EXPECT_FALSE(owner.membership.fenced_by().has_value());
  EXPECT_FALSE(spare.membership.ranked());
}

TEST_F(MembershipTest, OneThatStoodStillItselfHasWatchedNobody) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Node& spare = Add();
  Run(5, {&owner});
  Run(60, {&owner, &spare});
  Run(10, {&owner});
  EXPECT_FALSE(spare.membership.ranked());
  Run(10, {&owner});
  EXPECT_TRUE(spare.membership.ranked());
}

TEST_F(MembershipTest, AReadingThatLagsBehindGetsNothing) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Membership spare(OptionsOf(7), NewSeat(7));
  spare.SetMayClaim(true);
  const RingTable old = database_.Read();
  MonotonicNanos read_at = 0;
  for (int i = 0; i < 8; ++i) {
    (void)spare.Next(now_);
    read_at = now_;
    spare.HasRead(now_, old);
    now_ += 3 * kSecond;
  }
  Run(4);  // the owner beats meanwhile
  RingStep step = spare.Next(read_at + 1);
  ASSERT_TRUE(std::holds_alternative<ring_step::Probe>(step));
  spare.HasProbed(read_at + 1, 0, /*answers=*/false);
  step = spare.Next(read_at + 1);
  ASSERT_TRUE(std::holds_alternative<ring_step::Claim>(step));
  EXPECT_FALSE(database_.Do(step, Instance(7), Address(7)));
  Run(10);
  EXPECT_FALSE(owner.membership.fenced_by().has_value());
}

TEST_F(MembershipTest, AClaimWithoutAnAnswerIsHisWhoFindsHimselfThere) {
  Add(/*size=*/2);
  Run(5);
  Membership late(OptionsOf(1), NewSeat(1));
  late.SetMayClaim(true);
  (void)late.Next(now_);
  late.HasRead(now_, database_.Read());
  const RingStep claim = late.Next(now_);
  ASSERT_TRUE(std::holds_alternative<ring_step::Claim>(claim));
  late.HasWritten(now_, Written::kUnknown, absl::UnavailableError("no answer"));
  // The row has not moved: nothing else is wanted.
  for (int i = 0; i < 5; ++i) {
    now_ += 3 * kSecond;
    EXPECT_TRUE(std::holds_alternative<ring_step::Read>(late.Next(now_)));
    late.HasRead(now_, database_.Read());
    EXPECT_TRUE(std::holds_alternative<ring_step::Wait>(late.Next(now_)));
  }
  ASSERT_TRUE(database_.Do(claim, Instance(1), Address(1)));
  now_ += 3 * kSecond;
  (void)late.Next(now_);
  late.HasRead(now_, database_.Read());
  EXPECT_EQ(late.seat().rank, 1);
  EXPECT_EQ(late.seat().incarnation, 1);
}

TEST_F(MembershipTest, AClaimThatNobodyCanCarryOutAnyMoreIsForgotten) {
  Add(/*size=*/2);
  Run(5);
  Membership late(OptionsOf(1), NewSeat(1));
  late.SetMayClaim(true);
  (void)late.Next(now_);
  late.HasRead(now_, database_.Read());
  (void)late.Next(now_);
  late.HasWritten(now_, Written::kUnknown, absl::UnavailableError("no answer"));
  for (int i = 0; i < 7; ++i) {
    now_ += 3 * kSecond;
    (void)late.Next(now_);
    late.HasRead(now_, database_.Read());
  }
  EXPECT_TRUE(std::holds_alternative<ring_step::Claim>(late.Next(now_)));
}

TEST_F(MembershipTest, OfADatabaseThatWasRestoredTheLivingKeepTheirRanks) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  const Database old = database_;
  Node& second = Add();
  Run(30, {&owner});
  ASSERT_EQ(second.membership.seat().incarnation, 2);
  Run(10);
  ASSERT_TRUE(owner.membership.fenced_by().has_value());
  database_ = old;  // it says that the first one has the rank
  Run(10);
  EXPECT_FALSE(second.membership.fenced_by().has_value());
  EXPECT_EQ(database_.rows[0].instance, Instance(1));
  EXPECT_EQ(database_.rows[0].incarnation, 2);
}

TEST_F(MembershipTest, AnOlderEpochIsRaisedNeverFollowed) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  const Database old = database_;
  database_.epoch = 5;
  database_.size = 3;
  ++database_.version;
  Run(5);
  EXPECT_EQ(owner.membership.view().epoch, 5);
  EXPECT_EQ(owner.membership.view().seats.size(), 3u);
  database_ = old;
  Run(70);
  EXPECT_EQ(owner.membership.view().epoch, 5);
  EXPECT_EQ(database_.epoch, 5);
  EXPECT_EQ(database_.size, 3);
}

// A restored database gave a number twice, and the members look for the rank where the other life was.
TEST_F(MembershipTest, ALifeWhoseNumberAnotherHadTakesAGreaterOne) {
  Node& owner = Add(/*size=*/2);
  Run(5);
  owner.membership.Heard({1, {{1, "10.0.0.9:7400"}, {0, ""}}});
  Run(14);
  EXPECT_EQ(owner.membership.seat().incarnation, 1) << "that one may live, and take its row";
  Run(3);
  EXPECT_EQ(owner.membership.seat().incarnation, 2);
  EXPECT_EQ(database_.rows[0].incarnation, 2);
  owner.membership.Met({0, 7, Instance(9)});
  Run(17);
  EXPECT_EQ(owner.membership.seat().incarnation, 8);
  EXPECT_EQ(owner.membership.view().seats[0], (RingView::Seat{8, owner.address}));
  EXPECT_EQ(database_.rows[0].incarnation, 8);
}

// The one that was met is who has the rank now.
TEST_F(MembershipTest, ALifeThatHasLostItsRankTakesNoGreaterNumber) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Node& second = Add();
  Run(30, {&owner});
  ASSERT_EQ(second.membership.seat().incarnation, 2);
  // Its reading is older than the claim.
  owner.membership.Met({0, 2, second.membership.seat().instance});
  ASSERT_TRUE(std::holds_alternative<ring_step::Read>(owner.membership.Next(now_)));
  const MonotonicNanos read = now_ - 20 * kSecond;
  owner.membership.HasRead(
      read, RingTable{1, 1, {{1, owner.membership.seat().instance, owner.address, 9}}});
  Run(10);
  EXPECT_TRUE(owner.membership.fenced_by().has_value());
  EXPECT_EQ(second.membership.seat().incarnation, 2);
  EXPECT_EQ(database_.rows[0].instance, second.membership.seat().instance);
}

TEST_F(MembershipTest, OfTwoSizesOfOneEpochTheGreaterBecomesTheNextEpochs) {
  Add(/*size=*/3);
  Node& last = Add();
  Run(5);
  Node& third = Add();
  Run(5);
  ASSERT_EQ(third.membership.seat().rank, 2);
  database_.size = 2;  // restored, and made smaller at once
  ++database_.version;
  Run(70);
  EXPECT_EQ(database_.size, 3);
  EXPECT_EQ(database_.epoch, 2);
  EXPECT_EQ(third.membership.seat().rank, 2);
  EXPECT_EQ(last.membership.view().epoch, 2);
}

TEST_F(MembershipTest, WhatAMemberTellsIsMerged) {
  Node& owner = Add(/*size=*/2);
  Run(5);
  owner.membership.Heard({owner.membership.view().epoch, {{0, ""}, {9, "10.0.0.9:7400"}}});
  EXPECT_EQ(owner.membership.view().seats[1].address, "10.0.0.9:7400");
  EXPECT_EQ(owner.membership.view().seats[0].address, owner.address);
  // An older word about a rank changes nothing.
  owner.membership.Heard({owner.membership.view().epoch, {{0, ""}, {8, "10.0.0.8:7400"}}});
  EXPECT_EQ(owner.membership.view().seats[1].incarnation, 9);
  // Who wants that rank takes a number above all that was ever heard of.
  Membership spare(OptionsOf(5), NewSeat(5));
  spare.SetMayClaim(true);
  spare.Heard(owner.membership.view());
  MonotonicNanos read_at = 0;
  for (int i = 0; i < 8; ++i) {
    (void)spare.Next(now_);
    spare.HasRead(now_, database_.Read());
    read_at = now_;
    now_ += 3 * kSecond;
  }
  const RingStep probe = spare.Next(read_at + 1);
  ASSERT_TRUE(std::holds_alternative<ring_step::Probe>(probe))
      << "somebody has it, though the row is empty";
  EXPECT_EQ(std::get<ring_step::Probe>(probe).address, "10.0.0.9:7400");
  spare.HasProbed(read_at + 1, 1, /*answers=*/false);
  const RingStep step = spare.Next(read_at + 1);
  ASSERT_TRUE(std::holds_alternative<ring_step::Claim>(step));
  EXPECT_EQ(std::get<ring_step::Claim>(step).incarnation, 10);
}

TEST_F(MembershipTest, AGreaterIncarnationIsWrittenToTheDatabase) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  owner.membership.Became(41);
  Run(5);
  EXPECT_EQ(database_.rows[0].incarnation, 41);
  EXPECT_FALSE(owner.membership.fenced_by().has_value());
}

TEST_F(MembershipTest, ARankThatIsGivenBackIsTakenAtOnce) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Node& spare = Add();
  owner.membership.Leave();
  Run(5);
  EXPECT_FALSE(owner.membership.ranked());
  EXPECT_TRUE(owner.membership.seat().drained);
  EXPECT_EQ(spare.membership.seat().rank, 0);
  EXPECT_EQ(spare.membership.seat().incarnation, 3);
  // It wants none until it is told to.
  database_.size = 2, ++database_.version;
  Run(10);
  EXPECT_FALSE(owner.membership.ranked());
  owner.membership.ComeBack();
  Run(10);
  EXPECT_EQ(owner.membership.seat().rank, 1);
}

TEST_F(MembershipTest, WhoWantsOneRankTakesNoOther) {
  Add(/*size=*/3);
  Run(5);
  Node& wants = Add(0, /*wanted=*/2);
  Run(5);
  EXPECT_EQ(wants.membership.seat().rank, 2);
  Node& beyond = Add(0, /*wanted=*/3);
  Run(10);
  EXPECT_FALSE(beyond.membership.ranked());
  EXPECT_NE(beyond.membership.Problem().find("ring.rank: 3"), std::string::npos);
}

// The operator puts an empty database, or an older dump, in the old one's place: nobody loses his rank by it.
TEST_F(MembershipTest, AnEmptyDatabaseInTheOldOnesPlaceCostsNobodyHisRank) {
  Node& owner = Add(/*size=*/2);
  Node& second = Add();
  Run(10);
  Node& spare = Add(/*size=*/1);
  Run(10);
  database_ = {};
  Run(4, {&owner, &second});  // the spare is the first to see it
  EXPECT_EQ(database_.epoch, 1);
  EXPECT_EQ(database_.size, 2) << "as it was, not as the spare was told at its start";
  Run(70);
  EXPECT_FALSE(owner.membership.fenced_by().has_value());
  EXPECT_FALSE(second.membership.fenced_by().has_value());
  EXPECT_FALSE(spare.membership.ranked());
  EXPECT_EQ(database_.rows[0].instance, Instance(0));
  EXPECT_EQ(database_.rows[1].instance, Instance(1));
}

TEST_F(MembershipTest, TheLivingMakeTheRingAnewInAnEmptyDatabase) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  database_ = {};
  Run(70);
  EXPECT_EQ(database_.epoch, 1);
  EXPECT_EQ(database_.rows[0].instance, Instance(0));
  EXPECT_FALSE(owner.membership.fenced_by().has_value());
}

// R21 in the midst of a drain.
TEST_F(MembershipTest, AReleaseWhoseAnswerIsLostLeavesTheNodeDrained) {
  Node& owner = Add(/*size=*/1);
  Run(5);
  Node& spare = Add();
  Run(5);
  owner.membership.Leave();
  const RingStep release = owner.membership.Next(now_);
  ASSERT_TRUE(std::holds_alternative<ring_step::Release>(release));
  ASSERT_TRUE(database_.Do(release, Instance(0), owner.address));
  owner.membership.HasWritten(now_, Written::kUnknown, absl::UnavailableError("no answer"));
  Run(5, {&owner});  // a spare takes the empty rank first
  ASSERT_TRUE(spare.membership.ranked());
  Run(10);
  EXPECT_FALSE(owner.membership.fenced_by().has_value());
  EXPECT_FALSE(owner.membership.ranked());
  EXPECT_TRUE(owner.membership.seat().drained);
}

// Two rows may have one address, as after a reboot at once: what is known of the others stays known.
TEST_F(MembershipTest, AnAddressThatStandsThereTwiceCostsNoOther) {
  fact::RingSeat seat = NewSeat(3);
  seat.rank = 0;
  seat.incarnation = 2;
  seat.epoch = 1;
  seat.incarnations = {2, 1, 5};
  seat.nodes = "0=10.0.0.4:7400,1=10.0.0.4:7400,2=10.0.0.9:7400,3=0.0.0.0:7400,nonsense";
  const Membership next(OptionsOf(3), seat);
  EXPECT_EQ(next.view().seats[0].address, "10.0.0.4:7400");
  EXPECT_EQ(next.view().seats[2].address, "10.0.0.9:7400");
  // One that was forgotten is learnt again without a new life.
  RingView view{1, {{2, ""}, {1, ""}, {5, ""}}};
  EXPECT_TRUE(view.Merge(next.view()));
  EXPECT_EQ(view.seats[2].address, "10.0.0.9:7400");
}

// A daemon in safe mode that only reads its journal would forget what it has got.
TEST_F(MembershipTest, WhoCannotJournalItWantsNoRank) {
  Node& node = Add(/*size=*/1);
  node.membership.SetMayClaim(false);
  Run(10);
  EXPECT_FALSE(node.membership.ranked());
  EXPECT_NE(node.membership.Problem().find("journal"), std::string::npos);
  node.membership.SetMayClaim(true);
  Run(5);
  EXPECT_TRUE(node.membership.ranked());
}

TEST_F(MembershipTest, ASeatOutlivesTheDaemonWithoutTheDatabase) {
  Node& owner = Add(/*size=*/2);
  Node& other = Add();
  Run(10);
  Membership next(OptionsOf(0), owner.membership.seat());
  EXPECT_EQ(next.seat().rank, owner.membership.seat().rank);
  EXPECT_EQ(next.view(), owner.membership.view());
  EXPECT_EQ(next.view().seats[1].address, other.address);
}

}  // namespace
}  // namespace cairn::engine
