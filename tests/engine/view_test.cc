// What follows from the reports of a ring's members (view.h, whose rules are cited as "view rule N").
#include "server/engine/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/manifest.h"
#include "tests/engine/reports.h"

namespace cairn::engine {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Eq;
using testing::HasSubstr;
using testing::Key;
using testing::Optional;

constexpr CheckpointId kOne{1, 1, 0}, kTwo{2, 1, 0}, kThree{3, 1, 0};

TEST(ViewComplete, ACheckpointIsCompleteWhenThePartsOfAllItsWritersAreReported) {  // view rule 3
  Reports reports;
  reports.Part(0, kOne, 0, 3);
  reports.Part(1, kOne, 1, 3);
  EXPECT_FALSE(reports.VerdictOf(kOne).complete);
  EXPECT_EQ(reports.Verdict().latest, std::nullopt);  // promise 3
  reports.Part(0, kOne, 2, 3);
  const CheckpointVerdict verdict = reports.VerdictOf(kOne);
  EXPECT_TRUE(verdict.complete);
  EXPECT_TRUE(verdict.in_memory);
  EXPECT_EQ(verdict.bytes, 300);
  EXPECT_EQ(verdict.digest,
            CheckpointDigest({DigestOf(kOne, 0), DigestOf(kOne, 1), DigestOf(kOne, 2)}));
  EXPECT_THAT(reports.Verdict().latest, Optional(kOne));
}

TEST(ViewComplete, HalfOfOneLifeAndHalfOfTheNextNeverAddUp) {  // R28
  Reports reports;
  reports.Part(0, {5, 1, 0}, 0, 2);
  reports.Part(1, {5, 2, 0}, 1, 2);
  reports.Part(1, {5, 1, 1}, 1, 2);
  EXPECT_EQ(reports.Verdict().latest, std::nullopt);
  for (const auto& [id, checkpoint] : reports.Verdict().checkpoints) {
    EXPECT_FALSE(checkpoint.complete);
  }
}

TEST(ViewComplete, APartThatIsOnlyAReplicaCountsAsWell) {
  Reports reports;
  reports.Part(0, kOne, 0, 2);
  reports.Replica(2, kOne, 1, 2);
  EXPECT_TRUE(reports.VerdictOf(kOne).complete);
}

TEST(ViewComplete, WhatAMemberSawWholeInStorageIsCompleteThoughPartsOfItAreNotReported) {
  Reports reports;
  reports.Part(0, kOne, 0, 2).in_memory = false;
  reports.Of(0).published.insert(kOne);
  const CheckpointVerdict verdict = reports.VerdictOf(kOne);
  EXPECT_TRUE(verdict.complete);
  EXPECT_TRUE(verdict.stored);
  EXPECT_FALSE(verdict.in_memory);
  EXPECT_THAT(reports.Verdict().latest, Optional(kOne));  // promise 1
}

TEST(ViewComplete, APartOfAWriterThatCannotBeIsPassedOver) {  // R24
  Reports reports;
  reports.Complete(kOne, 2);
  reports.Part(0, kOne, 7, 2);
  reports.Part(0, kTwo, -1, 2);
  reports.Part(0, kThree, 0, 0);
  EXPECT_TRUE(reports.VerdictOf(kOne).complete);
  EXPECT_THAT(reports.Verdict().checkpoints, ElementsAre(Key(kOne)));
}

TEST(ViewConflict, OneNameOfTwoWritersIsAConflictThatNamesThem) {  // view rule 3, R28
  Reports reports;
  reports.Part(0, kOne, 0, 3).names = Names({1, 5, 9});
  reports.Part(1, kOne, 1, 3).names = Names({2, 6});
  reports.Part(2, kOne, 2, 3).names = Names({3, 5});
  const CheckpointVerdict verdict = reports.VerdictOf(kOne);
  EXPECT_FALSE(verdict.complete);
  EXPECT_EQ(verdict.conflict, "writers 0 and 2 claim the same name");
  EXPECT_EQ(reports.Verdict().latest, std::nullopt);
}

TEST(ViewConflict, OneNameReportedTwiceOfTheSameWriterIsNone) {
  Reports reports;
  reports.Part(0, kOne, 0, 1).names = Names({1, 5});
  reports.Replica(1, kOne, 0, 1).names = Names({1, 5});
  EXPECT_TRUE(reports.VerdictOf(kOne).complete);
}

TEST(ViewConflict, TwoManifestsOfOneWriterAreOne) {
  Reports reports;
  reports.Complete(kOne, 2);
  reports.Replica(2, kOne, 1, 2).digest = DigestNamed("another");
  EXPECT_EQ(reports.VerdictOf(kOne).conflict, "writer 1 is reported with different manifests");
  EXPECT_FALSE(reports.VerdictOf(kOne).complete);
  reports.Of(0).published.insert(kOne);
  EXPECT_FALSE(reports.VerdictOf(kOne).complete);  // nor when something of it is in storage
}

TEST(ViewConflict, TwoNumbersOfWritersAreOne) {
  Reports reports;
  reports.Part(0, kOne, 0, 1);
  reports.Part(1, kOne, 1, 2);
  EXPECT_EQ(reports.VerdictOf(kOne).conflict, "world_size is 1 for some writers and 2 for others");
}

TEST(ViewCopies, ReplicasAreTheCopiesOfTheLeastReplicatedPartLessOne) {
  Reports reports;
  reports.Complete(kOne, 2);
  reports.Replica(2, kOne, 0, 2);
  reports.Replica(3, kOne, 0, 2);
  EXPECT_EQ(reports.VerdictOf(kOne).replicas, 0);
  reports.Replica(2, kOne, 1, 2);
  EXPECT_EQ(reports.VerdictOf(kOne).replicas, 1);
  reports.Part(1, kOne, 1, 2).in_memory = false;  // its owner has evicted it
  EXPECT_EQ(reports.VerdictOf(kOne).replicas, 0);
  EXPECT_TRUE(reports.VerdictOf(kOne).in_memory);
}

TEST(ViewCopies, WhatASilentMemberHoldsIsNoCopy) {  // view rule 1, promise 1
  Reports reports;
  reports.Replicated(kOne, 2);
  EXPECT_EQ(reports.VerdictOf(kOne).replicas, 1);
  reports.Silent(1);
  EXPECT_EQ(reports.VerdictOf(kOne).replicas, 0);
  EXPECT_TRUE(reports.VerdictOf(kOne).complete);
  EXPECT_THAT(reports.Verdict().latest, Optional(kOne));
  EXPECT_THAT(reports.Verdict().reports, ElementsAre(Key(0), Key(2)));
  EXPECT_THAT(reports.Verdict().silent, ElementsAre(1));
  reports.Silent(2);
  EXPECT_EQ(reports.Verdict().latest, std::nullopt);
}

TEST(ViewLine, LatestIsTheHighestOnTheLineThatCanBeHad) {  // line rule 8, view rules 4 and 5
  Reports reports;
  reports.Complete(kOne, 2).Complete(kTwo, 2).Complete(kThree, 2);
  EXPECT_THAT(reports.Verdict().latest, Optional(kThree));
  reports.Part(0, kThree, 0, 2).in_memory = false;  // gone from memory, and not in storage
  EXPECT_THAT(reports.Verdict().latest, Optional(kTwo));
  reports.Of(1).published.insert(kThree);
  EXPECT_THAT(reports.Verdict().latest, Optional(kThree));
}

TEST(ViewLine, ANewAttemptChangesNothingBeforeItsFirstCheckpointIsComplete) {  // line rules 7, 12
  Reports reports;
  reports.Complete(kTwo, 2);
  reports.Part(0, {1, 9, 0}, 0, 2);
  EXPECT_THAT(reports.Verdict().latest, Optional(kTwo));
  EXPECT_EQ(reports.Verdict().head, (LineHead{1, false}));
  reports.Part(1, {1, 9, 0}, 1, 2);
  EXPECT_THAT(reports.Verdict().latest, Optional(CheckpointId{1, 9, 0}));
  EXPECT_EQ(reports.Verdict().head, (LineHead{9, false}));
}

TEST(ViewLine, ALineageThatIsKnownBeatsOneThatIsNot) {  // line rule 18
  Reports reports;
  reports.Complete(kTwo, 2).Complete({9, 5, 0}, 2);
  reports.Of(0).attempts[5] = {9, Lineage::OfUnknown(), 1};
  reports.Of(1).attempts[5] = {9, {{{1, 2}}, false}, 1};
  reports.WriterAt(0, 5, {2, 0}, 9);  // its word would count, if it knew
  reports.Part(0, {9, 5, 0}, 0, 2).in_memory = false;
  reports.Of(1).published.insert({9, 5, 0});
  EXPECT_THAT(reports.Verdict().latest, Optional(CheckpointId{9, 5, 0}));
  reports.Of(1).published.clear();
  EXPECT_THAT(reports.Verdict().latest, Optional(kTwo));
}

TEST(ViewLine, WriterZerosMemberSaysWhereAnAttemptComesFrom) {  // line rule 19
  Reports reports;
  reports.Complete(kTwo, 2).Complete({9, 5, 0}, 2);
  reports.record.decisions[{7, LineRecordKind::kResume}] = {};  // something between
  reports.Of(0).attempts[5] = {9, {}, 1};
  reports.Of(1).attempts[5] = {9, {{{1, 2}}, false}, 1};
  reports.WriterAt(1, 5, {2, 0}, 9);
  reports.record.decisions.clear();
  // With step 9 gone, what is at the head's end tells which of the two lineages was taken.
  reports.Complete({4, 5, 0}, 2);
  const Line::Origin origin = MergeOrigins(
      nullptr, {{false, &reports.Of(0).attempts[5]}, {true, &reports.Of(1).attempts[5]}});
  EXPECT_EQ(origin.lineage, (Lineage{{{1, 2}}, false}));
}

TEST(ViewLine, TheRecordsWordCountsMost) {  // line rule 18
  const AttemptReport said{9, {{{1, 2}}, false}, 1};
  const JobRecord::Origin recorded{9, {{{1, 1}}, false}, 1}, open{9, Lineage::OfUnknown(), 1};
  EXPECT_EQ(MergeOrigins(&recorded, {{true, &said}}).lineage, recorded.lineage);
  EXPECT_EQ(MergeOrigins(&open, {{true, &said}}).lineage, said.lineage);
}

TEST(ViewLine, ADecisionOfTheRecordMovesTheHead) {  // line rule 7
  Reports reports;
  reports.Complete(kOne, 2).Complete(kTwo, 2);
  reports.record.decisions[{8, LineRecordKind::kUse}] = {{{{1, 1}}, false}, 0, {1, 0}};
  EXPECT_EQ(reports.Verdict().head, (LineHead{8, true}));
  EXPECT_THAT(reports.Verdict().latest, Optional(kOne));
}

TEST(ViewLine, WhatWasRemovedDoesNotCountAtAll) {  // view rule 2
  Reports reports;
  reports.Complete(kOne, 2).Complete(kTwo, 2);
  reports.record.removed.steps[2].Add(1, 1);
  EXPECT_THAT(reports.Verdict().checkpoints, ElementsAre(Key(kOne)));
  EXPECT_THAT(reports.Verdict().latest, Optional(kOne));
  reports.record.removed_up_to = 1;
  EXPECT_TRUE(reports.Verdict().checkpoints.empty());
  EXPECT_EQ(reports.Verdict().latest, std::nullopt);
}

TEST(ViewProtected, IsTheNewestWithTheReplicasAskedForOrInStorage) {
  Reports reports;
  reports.Replicated(kOne, 2).Complete(kTwo, 2).Complete(kThree, 2);
  EXPECT_THAT(reports.Verdict().protect, Optional(kOne));
  reports.Of(0).published.insert(kTwo);
  EXPECT_THAT(reports.Verdict().protect, Optional(kTwo));
  reports.Replicated(kThree, 2);
  EXPECT_THAT(reports.Verdict().protect, Optional(kThree));
}

TEST(ViewProtected, WhereNothingIsReplicatedItIsTheNewestInStorageElseTheNewest) {
  Reports reports(4, 0);
  reports.Complete(kOne, 2).Complete(kTwo, 2);
  EXPECT_THAT(reports.Verdict().protect, Optional(kTwo));
  reports.Of(0).published.insert(kOne);
  EXPECT_THAT(reports.Verdict().protect, Optional(kOne));
}

TEST(ViewAsked, ThePolicyOfTheRecordCountsThenTheLowestOwnersThenTheRings) {
  Reports reports(4, 1);
  reports.Member(0);
  EXPECT_EQ(reports.Verdict().asked, 1);
  reports.Of(2).owned = reports.Of(1).owned = true;
  reports.Of(2).policy.replicas = 3;
  reports.Of(1).policy.replicas = 2;
  EXPECT_EQ(reports.Verdict().asked, 2);
  reports.record.policy.replicas = 63;
  EXPECT_EQ(reports.Verdict().asked, 2);
  reports.record.policy_stamp = {1, 0};
  EXPECT_EQ(reports.Verdict().asked, 3);  // as many as there are others
  reports.record.policy.replicas = kRingsReplicas;
  EXPECT_EQ(reports.Verdict().asked, 1);
}

TEST(ViewTarget, AllSecureTheLowestThatIsBeingWorkedOn) {
  Reports reports;
  reports.Complete(kOne, 2).Complete(kTwo, 2).Complete(kThree, 2);
  EXPECT_THAT(reports.Verdict().target, Optional(kThree));
  reports.Of(0).target = kTwo;
  EXPECT_THAT(reports.Verdict().target, Optional(kTwo));
  reports.Of(1).target = kOne;
  EXPECT_THAT(reports.Verdict().target, Optional(kOne));
  reports.Replicated(kOne, 2);  // done
  EXPECT_THAT(reports.Verdict().target, Optional(kTwo));
}

TEST(ViewTarget, WhatIsNotOnTheLineOrCannotBeHadIsNone) {
  Reports reports;
  reports.Complete(kThree, 2).Part(0, kOne, 0, 2);
  reports.Of(0).target = kOne;  // incomplete
  reports.Of(1).target = CheckpointId{2, 7, 0};
  EXPECT_THAT(reports.Verdict().target, Optional(kThree));
}

TEST(ViewTarget, WhatIsBehindTheProtectedOneIsNone) {
  Reports reports;
  reports.Complete(kOne, 2).Replicated(kTwo, 2).Complete(kThree, 2);
  reports.Of(1).target = kOne;  // one of its copies was lost
  EXPECT_THAT(reports.Verdict().protect, Optional(kTwo));
  EXPECT_THAT(reports.Verdict().target, Optional(kThree));
}

TEST(ViewTarget, IsNothingOnceTheNewestIsProtected) {
  Reports reports;
  reports.Complete(kOne, 2).Replicated(kTwo, 2);
  EXPECT_EQ(reports.Verdict().target, std::nullopt);
  EXPECT_EQ(Reports().Verdict().target, std::nullopt);
}

class ViewHopeless : public testing::Test {
 protected:
  // Writer 1, on member 1, has not committed what writer 0 has.
  ViewHopeless() {
    reports.Part(0, kTwo, 0, 2);
    reports.WriterAt(0, 1, {2, 0}, 2);
    reports.WriterAt(1, 1, {2, 1}, 2);
    reports.Final();
  }
  bool Hopeless() const { return reports.VerdictOf(kTwo).hopeless; }
  WriterReport& Writer1() { return reports.Of(1).writers[{1, {2, 1}}]; }
  Reports reports;
};

TEST_F(ViewHopeless, AnIncompleteCheckpointIsNotWhileTheWriterIsInIt) {  // view rule 6
  EXPECT_FALSE(Hopeless());
}
TEST_F(ViewHopeless, ItIsOnceTheWriterHasEnteredALaterStepOrRevision) {
  Writer1().reached = {2, 1};
  EXPECT_TRUE(Hopeless());
  Writer1().reached = {3, 0};
  EXPECT_TRUE(Hopeless());
}
TEST_F(ViewHopeless, ItIsOnceTheWriterGaveThePartUp) {
  Writer1().given_up.insert({2, 0});
  EXPECT_TRUE(Hopeless());
}
TEST_F(ViewHopeless, ItIsOnceTheWriterHasEnded) {
  Writer1().alive = false;
  EXPECT_TRUE(Hopeless());
}
TEST_F(ViewHopeless, ItIsNotWhileReportsArePartial) {  // partial reports never destroy
  Writer1().alive = false;
  reports.gathering.final = false;
  EXPECT_FALSE(Hopeless());
}
TEST_F(ViewHopeless, AWriterThatNobodyMentionsIsStillToCome) {
  reports.Of(1).writers.clear();
  EXPECT_FALSE(Hopeless());
}
// The two sides of a ring that fell apart may each have half of what was complete.
TEST_F(ViewHopeless, APartThatNobodyMentionsMayComeBackWithAMemberThatIsSilent) {
  reports.Of(1).writers.clear();
  reports.Of(1).attempts[5] = {0, {}, 1};
  reports.Silent(2);
  EXPECT_FALSE(Hopeless());
}
TEST_F(ViewHopeless, AWriterThatNobodyMentionsWillNotComeOnceANewerAttemptHasBegun) {
  reports.Of(1).writers.clear();
  reports.Of(2).attempts[5] = {0, {}, 1};
  EXPECT_TRUE(Hopeless());
}
TEST_F(ViewHopeless, AnOlderAttemptsIsOnceANewerOneHasSomethingToShow) {
  reports.Complete({1, 5, 0}, 2);
  EXPECT_TRUE(Hopeless());
}
TEST_F(ViewHopeless, WhatIsCompleteOrInConflictIsNot) {
  Writer1().alive = false;
  reports.Part(1, kTwo, 1, 2).digest = DigestNamed("one");
  EXPECT_FALSE(Hopeless());
  reports.Replica(2, kTwo, 1, 2).digest = DigestNamed("other");
  EXPECT_FALSE(Hopeless());
}

TEST(ViewWhy, SaysThatWhatWasProtectedCannotBeHadAndWhoIsSilent) {  // promise 3
  Reports reports;
  reports.Replicated(kOne, 2).Replicated(kTwo, 2);
  reports.record.highest_protected = {1, 2};
  EXPECT_EQ(reports.Verdict().why, "");
  reports.Of(0).parts.erase({kTwo, 0});
  reports.Silent(1);
  EXPECT_THAT(reports.Verdict().latest, Optional(kOne));
  EXPECT_THAT(reports.Verdict().why,
              AllOf(HasSubstr("step 2 of attempt 1 was protected"), HasSubstr("silent: 1")));
  reports.Complete({0, 4, 0}, 1);  // a newer life began anew: that is no loss
  EXPECT_THAT(reports.Verdict().why, Not(HasSubstr("was protected")));
}

TEST(ViewWhy, SaysThatTooFewMembersAnswerForTheTarget) {
  Reports reports(3, 2);
  reports.Complete(kOne, 2).Silent(2);
  EXPECT_THAT(reports.Verdict().why,
              HasSubstr("2 replicas are asked for, and 1 other members answer"));
}

TEST(View, NamesTheReportsThatItRestsOn) {
  Reports reports;
  reports.Complete(kOne, 2).Final();
  reports.gathering.reports[1].number = 17;
  const JobVerdict verdict = reports.Verdict();
  EXPECT_EQ(verdict.job, "job");
  EXPECT_TRUE(verdict.final);
  EXPECT_THAT(verdict.reports.at(1), Eq(std::pair(Life(1), uint64_t{17})));
}

}  // namespace
}  // namespace cairn::engine
