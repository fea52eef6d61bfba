// What an owner makes of a backup that refuses its parts, and of one that answers and reads nothing.
#include "tests/engine/among_three.h"

namespace cairn::engine {
namespace {

// Rank 0 is this node's first backup; where it is lost, rank 1 is.
class FirstBackup : public AmongThree {
 protected:
  void SetUp() override {
    AmongThree::SetUp();
    session = Hello({});
  }
  void SaveAndHear(Step step) {
    const event::Create create = CreateOf(session, PartOf(session, step), {{"model", kMiB}});
    Apply(create);
    Hear(CompleteUpTo(step - 1), {0, 1});
    Advance(kNanosPerMilli);
    ASSERT_TRUE(AnswerTo(create.caller.request).ok()) << AnswerTo(create.caller.request).status();
    ASSERT_TRUE(Commit(session, PartOf(session, step), {{"model", kMiB}}).ok());
    Hear(CompleteUpTo(step), {0, 1});
  }
  void Refuse(Rank rank, const std::vector<Step>& steps) {
    peer::HaveList list;
    list.version = 1;
    for (const Step step : steps) {
      const PartKey part = PartOf(session, step);
      const std::string digest = engine->Describe("job", {part.checkpoint}).parts.at(0).digest;
      list.haves.push_back({part, digest, peer::HaveState::kRefused, "no room"});
    }
    Apply(event::PeerSaid{Of(rank), list});
  }
  SessionId session = 0;
};

// --- that refuses

TEST_F(FirstBackup, ThatRefusesEndsAWaitForCopiesThatBeganBefore) {
  SaveAndHear(1);
  const RequestId wait = Wait(session, 1, Level::kReplicated);
  Refuse(0, {1});
  ASSERT_FALSE(Answered(wait)) << "the next one may take it";
  Refuse(1, {1});
  ASSERT_TRUE(Answered(wait));
  EXPECT_THAT(AnswerTo(wait).status(), Fails(absl::StatusCode::kFailedPrecondition, "no room"));
}

TEST_F(FirstBackup, ThatRefusedAndIsLostCountsNoMore) {
  SaveAndHear(1);
  Refuse(0, {1});
  Lose(0);
  Hear(CompleteUpTo(1), {1});
  const RequestId wait = Wait(session, 1, Level::kReplicated);
  EXPECT_FALSE(Answered(wait)) << AnswerTo(wait).status();
}

// --- that reads nothing

class Stalled : public FirstBackup {
 protected:
  void SetUp() override {
    FirstBackup::SetUp();
    SaveAndHear(1);
  }
  // It may read what it was told to keep.
  void Asks(Rank rank) { Apply(event::GrantAsked{From(0), Of(rank), {PartOf(session, 1), ""}}); }
  void Has(Rank rank, peer::HaveState state, uint64_t done_bytes, const std::string& why = "") {
    const PartKey part = PartOf(session, 1);
    const std::string digest = engine->Describe("job", {part.checkpoint}).parts.at(0).digest;
    has_[rank] = {{part, digest, state, why, done_bytes}};
    Says(rank);
  }
  // What it has, and which want-list it has taken last.
  void Says(Rank rank) {
    if (const auto* told = LastSaid<peer::WantList>(rank); told != nullptr && !passes_over_) {
      took_[rank] = told->version;
    }
    peer::HaveList list;
    list.version = ++haves_;
    list.wants_version = took_[rank];
    list.haves = has_[rank];
    Apply(event::PeerSaid{Of(rank), list});
  }
  void Pass(int seconds, bool silent = false) {
    for (int i = 0; i < seconds; ++i) {
      OthersAreHeard();
      Hear(CompleteUpTo(1), {0, 1});
      for (const Rank rank : {0, 1}) {
        if (!silent) Says(rank);
      }
      Advance(kNanosPerSecond);
    }
  }
  bool Told(Rank rank) const {
    const auto* list = LastSaid<peer::WantList>(rank);
    return list != nullptr && !list->wants.empty();
  }
  std::string StateOf(Rank rank) {
    for (const reply::MemberStatus& member : Status_().ring.members) {
      if (member.rank == rank) return member.state;
    }
    return "";
  }

  bool passes_over_ = false;  // the members take no want-list

 private:
  uint64_t haves_ = 0;
  std::map<Rank, std::vector<peer::Have>> has_;
  std::map<Rank, uint64_t> took_;
};

TEST_F(Stalled, IsPassedOverAndStillTold) {
  Asks(0);
  Pass(4);
  EXPECT_TRUE(Told(0));
  EXPECT_FALSE(Told(1));
  Pass(3);  // more than ring.lost_after in all
  EXPECT_TRUE(Told(0)) << "or it would never advance again";
  EXPECT_TRUE(Told(1));
  EXPECT_EQ(StateOf(0), "stalled");
}

TEST_F(Stalled, OneThatAdvancesIsNot) {
  Asks(0);
  for (uint64_t done = 1; done < 10; ++done) {
    Has(0, peer::HaveState::kUnderWay, done * 1000);
    Asks(0);
    Pass(2);
  }
  EXPECT_FALSE(Told(1));
}

// As where small blocks come through, and large ones never do.
TEST_F(Stalled, WhatItReadsAgainIsNoAdvance) {
  for (int i = 0; i < 10; ++i) {
    Asks(0);
    Has(0, peer::HaveState::kUnderWay, 1000);
    Pass(1);
    Has(0, peer::HaveState::kUnderWay, 0);
    Pass(1);
  }
  EXPECT_TRUE(Told(1));
  EXPECT_EQ(StateOf(0), "stalled");
}

TEST_F(Stalled, ItsNextLifeIsNot) {
  Asks(0);
  Pass(7);
  Lose(0);
  Up(0);
  Pass(1);
  EXPECT_EQ(StateOf(0), "up");
}

TEST_F(Stalled, OneWhoseTurnHasNotComeIsNot) {
  Pass(20);
  EXPECT_FALSE(Told(1)) << "it has asked for nothing yet";
}

// As one that cannot go over to the epoch of a ring that was resized.
TEST_F(Stalled, OneThatTakesNoListsIs) {
  Pass(2);
  passes_over_ = true;
  Pass(4);
  EXPECT_FALSE(Told(1));
  Pass(4);  // more than ring.lost_after in all
  EXPECT_TRUE(Told(0)) << "or it could never take one again";
  EXPECT_TRUE(Told(1));
  EXPECT_EQ(StateOf(0), "stalled");
}

// Bug: a node that had been stopped took all its backups for stalled.
TEST_F(Stalled, NoneIsWhenThisNodeStoodStill) {
  Asks(0);
  Pass(2);
  now += 60 * kNanosPerSecond;
  Apply(event::Tick{});
  Pass(3);
  EXPECT_FALSE(Told(1));
  EXPECT_EQ(StateOf(0), "up");
}

TEST_F(Stalled, OneThatHasItAllIsNot) {
  Asks(0);
  Has(0, peer::HaveState::kHeld, 0);
  Pass(20);
  EXPECT_FALSE(Told(1));
}

TEST_F(Stalled, OnceItReadsAgainTheOtherIsNoBackupAnyMore) {
  Asks(0);
  Pass(7);
  ASSERT_TRUE(Told(1));
  Has(0, peer::HaveState::kUnderWay, 1000);
  Pass(1);
  EXPECT_FALSE(Told(1));
  EXPECT_EQ(StateOf(0), "up");
}

TEST_F(Stalled, WhatTheOtherGotMeanwhileIsSurplusOnceAllBackupsHoldIt) {
  Asks(0);
  Pass(7);
  Has(1, peer::HaveState::kHeld, 0);
  tells.clear();
  Pass(1);
  EXPECT_EQ(LastSaid<peer::ReleaseList>(1), nullptr) << "it is a backup";
  Has(0, peer::HaveState::kUnderWay, 1000);
  Pass(1);
  tells.clear();
  Has(1, peer::HaveState::kHeld, 0);
  EXPECT_EQ(LastSaid<peer::ReleaseList>(1), nullptr) << "the backup does not hold it yet";
  Has(0, peer::HaveState::kHeld, 0);
  tells.clear();
  Has(1, peer::HaveState::kHeld, 0);
  const auto* released = LastSaid<peer::ReleaseList>(1);
  ASSERT_NE(released, nullptr);
  ASSERT_EQ(released->releases.size(), 1u);
  EXPECT_EQ(released->releases[0].fate, peer::Fate::kSurplus);
  tells.clear();
  Has(0, peer::HaveState::kHeld, 0);
  EXPECT_EQ(LastSaid<peer::ReleaseList>(0), nullptr);
  Pass(3, /*silent=*/true);
  tells.clear();
  Has(1, peer::HaveState::kHeld, 0);
  EXPECT_EQ(LastSaid<peer::ReleaseList>(1), nullptr) << "the backup has said nothing for 3 s";
}

TEST_F(Stalled, WhereNobodyTakesItsPlaceItStays) {
  Asks(0);
  Lose(1);
  Asks(0);
  Pass(1);
  EXPECT_TRUE(Told(0));
  const RequestId wait = Wait(session, 1, Level::kReplicated);
  EXPECT_FALSE(Answered(wait)) << "it may still come";
}

// --- that is passed over because it refuses

class Refusing : public Stalled {
 protected:
  void SetUp() override {
    Stalled::SetUp();
    Has(0, peer::HaveState::kRefused, 0);
    Pass(1);
  }
};

// Bug: a backup in safe mode left the job with one copy beside an idle third member.
TEST_F(Refusing, TheNextOneIsTheBackupInItsPlace) {
  EXPECT_TRUE(Told(1));
  EXPECT_TRUE(Told(0)) << "or it would never take anything again";
  Has(1, peer::HaveState::kHeld, 0);
  tells.clear();
  Pass(10);
  EXPECT_EQ(LastSaid<peer::ReleaseList>(1), nullptr);
}

TEST_F(Refusing, ItIsABackupAgainOnceItHasNotRefusedForAWhile) {
  Has(1, peer::HaveState::kHeld, 0);
  Has(0, peer::HaveState::kUnderWay, 1000);
  Pass(3);
  EXPECT_TRUE(Told(1));
  Has(0, peer::HaveState::kRefused, 0);
  Pass(1);
  Has(0, peer::HaveState::kUnderWay, 2000);
  Pass(4);
  EXPECT_TRUE(Told(1)) << "it has refused meanwhile";
  Has(0, peer::HaveState::kHeld, 0);
  Pass(2);  // more than ring.lost_after in all
  EXPECT_FALSE(Told(1));
  tells.clear();
  Has(1, peer::HaveState::kHeld, 0);
  const auto* released = LastSaid<peer::ReleaseList>(1);
  ASSERT_NE(released, nullptr);
  EXPECT_EQ(released->releases.at(0).fate, peer::Fate::kSurplus);
}

TEST_F(Refusing, OneThatStandsInAndLacksMemoryIsNotWaitedFor) {
  const RequestId wait = Wait(session, 1, Level::kReplicated);
  ASSERT_FALSE(Answered(wait));
  Has(1, peer::HaveState::kUnderWay, 0, "no memory");
  Pass(1);
  ASSERT_TRUE(Answered(wait));
  EXPECT_THAT(AnswerTo(wait).status(), Fails(absl::StatusCode::kFailedPrecondition, "no memory"));
}

TEST_F(Refusing, OneThatStandsInAndReadsAgainIsWaitedFor) {
  Asks(1);
  const RequestId wait = Wait(session, 1, Level::kReplicated);
  Has(1, peer::HaveState::kUnderWay, 0, "the link broke");
  Pass(1);
  EXPECT_FALSE(Answered(wait));
}

TEST_F(Refusing, ItsNextLifeIsABackupAtOnce) {
  Lose(0);
  Up(0);
  Has(0, peer::HaveState::kUnderWay, 1000);
  Pass(1);
  EXPECT_TRUE(Told(0));
  EXPECT_FALSE(Told(1));
}

// --- a copy that is surplus, at its holder

class Surplus : public AmongThree {
 protected:
  void SetUp() override {
    AmongThree::SetUp();
    Keep(0, manifest);
    Wants(0, {});
  }
  void Pass(int seconds, bool said) {
    for (int i = 0; i < seconds; ++i) {
      OthersAreHeard();
      if (said) {
        const peer::Release release{manifest.Part(), DigestOf(manifest), peer::Fate::kSurplus, {}};
        const auto* haves = LastSaid<peer::HaveList>(0);
        ASSERT_NE(haves, nullptr);
        Apply(event::PeerSaid{Of(0), peer::ReleaseList{haves->version, {release}}});
      }
      Advance(kNanosPerSecond);
    }
  }
  bool Holds() { return !engine->Describe("job", {manifest.Checkpoint()}).parts.empty(); }
  const Manifest manifest = ManifestOf({{"job", 1, 1, 0}, 0}, 1, 16 * kMiB);
};

TEST_F(Surplus, GoesOnceNoHomeCountsIt) {
  Pass(3, /*said=*/true);
  EXPECT_TRUE(Holds()) << "a home may have called the step safe for this copy";
  Pass(8, /*said=*/true);
  EXPECT_FALSE(Holds());
}

TEST_F(Surplus, StaysWhenItsOwnerSaysSoOnce) {
  Pass(1, /*said=*/true);
  Pass(12, /*said=*/false);
  EXPECT_TRUE(Holds());
}

// A backup that held it is gone, and the next one has not got it yet.
TEST_F(Surplus, StaysWhenItsOwnerSaysSoNoMoreWhileItMakesWay) {
  Pass(6, /*said=*/true);
  EXPECT_TRUE(engine->MakesWay(manifest.Part()));
  Pass(12, /*said=*/false);
  EXPECT_TRUE(Holds());
  EXPECT_FALSE(engine->MakesWay(manifest.Part())) << "homes may count it again";
}

TEST_F(Surplus, IsSaidToItsOwnerUntilItGoes) {
  Pass(6, /*said=*/true);
  EXPECT_TRUE(engine->MakesWay(manifest.Part()));
  const uint64_t before = LastSaid<peer::HaveList>(0)->version;
  Pass(1, /*said=*/true);
  const auto* haves = LastSaid<peer::HaveList>(0);
  EXPECT_GT(haves->version, before);
  EXPECT_EQ(haves->haves.size(), 1u);
}

// What was said before may arrive now.
TEST_F(Surplus, StaysWhenItsOwnerSaysSoOfAListOfLongAgo) {
  Pass(1, /*said=*/true);
  const uint64_t old = LastSaid<peer::HaveList>(0)->version;
  const peer::Release release{manifest.Part(), DigestOf(manifest), peer::Fate::kSurplus, {}};
  for (int i = 0; i < 12; ++i) {
    Apply(event::PeerSaid{Of(0), peer::ReleaseList{old, {release}}});
    Pass(1, /*said=*/false);
  }
  EXPECT_TRUE(Holds());
}

TEST_F(Surplus, StaysWhenItIsWantedAgain) {
  Pass(6, /*said=*/true);
  Wants(0, {WantOf(manifest)});
  Pass(12, /*said=*/false);
  EXPECT_TRUE(Holds());
}

TEST_F(Surplus, StaysWhenItsOwnerIsGone) {
  Pass(6, /*said=*/true);
  Lose(0);
  EXPECT_TRUE(Holds());
}

}  // namespace
}  // namespace cairn::engine
