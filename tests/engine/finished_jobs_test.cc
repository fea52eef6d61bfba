// What becomes of the last step of a job that is over, in a ring: at its owner and at the backup.
#include "tests/engine/ring_fixture.h"

namespace cairn::engine {
namespace {

using testing::IsEmpty;

// A job of this node's is over, and its backup holds a replica of the last step.
class OverHere : public PartsElsewhere {
 protected:
  void SetUp() override {
    options.default_policy.mode = PersistMode::kNewest;
    PartsElsewhere::SetUp();
    another = OfAnotherJob();
    Save(another, 1, {{"model", kMiB}});
    const SessionId session = Hello({});
    Hear();
    Save(session, 1, {{"model", 20 * kMiB}});
    part = PartOf(session, 1);
    digest = DigestOf(part);
    of_another = PartOf(another, 1);
    digest_of_another = DigestOf(of_another);
    Die(session);
    Complete(1, /*replicas=*/1);
    CheckpointVerdict& said = verdict.checkpoints.at({1, 1, 0});
    said.world_size = 1;
    said.stored = options.storage;
    said.digest = digest;
    verdict.latest = verdict.protect = CheckpointId{1, 1, 0};
    Hear();
    // Nothing of it is to be restored.
    peer::PlacesSaid places{part.checkpoint, "", {}};
    places.places.push_back({0, digest, 1, 20 * kMiB, options.ring.rank, {options.ring.rank}});
    Apply(event::PeerSaid{other, places});
  }
  std::string DigestOf(const PartKey& of) {
    return engine->Describe(of.checkpoint.job, {of.checkpoint}).parts.at(0).digest;
  }
  void Pass(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      Hear();
      Advance(kNanosPerSecond);
    }
  }
  // The backup holds the step's part, and has this to say of another job's. The answer: which it may let go.
  std::vector<peer::Release> Released(peer::HaveState others, uint64_t lacking = 20 * kMiB) {
    tells.clear();
    peer::HaveList haves;
    haves.version = ++haves_;
    haves.haves = {{part, digest, peer::HaveState::kHeld},
                   {of_another, digest_of_another, others, "why", lacking}};
    Apply(event::PeerSaid{other, haves});
    Pass(1);
    const auto* said = LastSaid<peer::ReleaseList>(other.rank);
    return said == nullptr ? std::vector<peer::Release>() : said->releases;
  }
  std::vector<peer::Release> Released() { return Released(peer::HaveState::kHeld, 0); }
  bool TryAnother() { return Create(another, PartOf(another, 2), {{"model", 60 * kMiB}}).ok(); }

  SessionId another = 0;
  PartKey part, of_another;
  std::string digest, digest_of_another;

 private:
  uint64_t haves_ = 0;
};

TEST_F(OverHere, ABackupWithoutRoomGetsSomeFromAFinishedJobThatIsStored) {
  Pass(5);
  ASSERT_TRUE(stored.contains(part.checkpoint));
  Released(peer::HaveState::kRefused);
  EXPECT_TRUE(Holds(1)) << "room would not help it";
  Released(peer::HaveState::kNoRoom, 100 * kMiB);
  EXPECT_TRUE(Holds(1)) << "it would be too little";
  Released(peer::HaveState::kNoRoom);
  EXPECT_FALSE(Holds(1));
}

// Two owners back each other up: none waits for the other to let go first.
TEST_F(OverHere, WhatIsStoredMakesRoomWhereThisNodeHasAReplicaOfItToo) {
  const SessionId one = OneOfTwo(2);
  const PartKey mine = PartOf(one, 1), theirs = {mine.checkpoint, 1};
  ASSERT_TRUE(Create(one, mine, {{"model", 10 * kMiB}}).ok());
  ASSERT_TRUE(Commit(one, mine, {{"model", 10 * kMiB}}).ok());
  Replicate(theirs, 2, 10 * kMiB);
  Die(one);
  CheckpointVerdict& said = verdict.checkpoints[{1, 2, 0}];
  said.world_size = 2;
  said.complete = said.in_memory = said.stored = true;
  said.replicas = 1;
  verdict.latest = verdict.protect = CheckpointId{1, 2, 0};
  StoreWhole(1, 2, 2, 10 * kMiB);
  Pass(5);
  ASSERT_TRUE(Holds(1, 2));
  EXPECT_TRUE(TryAnother());
  EXPECT_FALSE(Holds(1, 2));
}

// Without storage the last step stays for a while, and then until its room is needed.
class WithoutStorage : public OverHere {
 protected:
  WithoutStorage() { storage = false; }
  void SetUp() override {
    options.finished_keep_seconds = 10;
    OverHere::SetUp();
  }
};

// Bug: the backup kept it for good, and had no room for the jobs that came.
TEST_F(WithoutStorage, TheLastReplicaOfAFinishedJobIsReleasedOnceItsOwnerHasGivenUpItsPart) {
  Pass(20);
  EXPECT_THAT(Released(), IsEmpty()) << "its room is not needed";
  ASSERT_TRUE(Holds(1));
  ASSERT_TRUE(TryAnother());
  ASSERT_FALSE(Holds(1));
  Released();  // and this node does not want it kept any more
  const std::vector<peer::Release> released = Released();
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(released[0].part, part);
  EXPECT_EQ(released[0].fate, peer::Fate::kGivenUp);
}

TEST_F(WithoutStorage, ABackupWithoutRoomGetsSomeFromAFinishedJob) {
  Pass(5);
  Released(peer::HaveState::kNoRoom);
  EXPECT_TRUE(Holds(1)) << "it has not been kept long enough";
  Pass(10);
  Released(peer::HaveState::kNoRoom);
  EXPECT_FALSE(Holds(1));
  Released();  // and this node does not want it kept any more
  EXPECT_EQ(Released().size(), 1u);
}

TEST_F(WithoutStorage, WhatHasWritersElsewhereIsNotGivenUp) {
  verdict.saving[other.rank] = {SavingReport()};
  Pass(20);
  Released(peer::HaveState::kNoRoom);
  EXPECT_FALSE(TryAnother());
  EXPECT_TRUE(Holds(1));
  verdict.saving.clear();
  Pass(5);
  EXPECT_FALSE(TryAnother()) << "they ended just now";
  EXPECT_TRUE(Holds(1));
}

// Bug: two faults. It was given up here, and the job goes on elsewhere, from the replica.
TEST_F(WithoutStorage, WhatGetsWritersElsewhereIsNotGivenUpAnyMore) {
  Pass(20);
  Released(peer::HaveState::kNoRoom, 100 * kMiB);  // it may go, and need not
  ASSERT_TRUE(Holds(1));
  verdict.saving[other.rank] = {SavingReport()};
  Pass(1);
  EXPECT_FALSE(TryAnother());
  EXPECT_TRUE(Holds(1));
}

TEST_F(WithoutStorage, TheReplicaStaysWhereTheJobWentOnBeforeItWasReleased) {
  Pass(20);
  ASSERT_TRUE(TryAnother());
  ASSERT_FALSE(Holds(1));
  verdict.saving[other.rank] = {SavingReport()};
  Released();
  EXPECT_THAT(Released(), IsEmpty());
  verdict.saving.clear();
  Pass(1);
  EXPECT_THAT(Released(), IsEmpty()) << "they ended just now";
}

TEST_F(WithoutStorage, TheReplicaStaysWhileTheHomeHasSaidNothingLately) {
  Pass(20);
  ASSERT_TRUE(TryAnother());
  Pass(2);
  Advance(10 * kNanosPerSecond);
  tells.clear();
  Apply(event::PeerSaid{other, peer::HaveList{0, 99, {{part, digest, peer::HaveState::kHeld}}}});
  EXPECT_EQ(LastSaid<peer::ReleaseList>(other.rank), nullptr);
  Pass(1);
  EXPECT_EQ(Released().size(), 1u);
}

}  // namespace
}  // namespace cairn::engine
