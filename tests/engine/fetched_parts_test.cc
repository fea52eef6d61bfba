// Parts that come from other members: kept for their owners as replicas, read back by a node that lost its memory.
#include "tests/engine/ring_fixture.h"

namespace cairn::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Parts of the other member's writers.
class Replicas : public PartsElsewhere {
 protected:
  void SetUp() override {
    storage = false;
    options.ring.replica_bytes = 60 * kMiB;
    PartsElsewhere::SetUp();
    Hear();
    Replicate({{"job", 1, 1, 0}, 1}, 2, 20 * kMiB);
    ASSERT_TRUE(Holds(1));
    Complete(1);
    Complete(2);
    verdict.protect = CheckpointId{2, 1, 0};
  }
  // Another job wants more than is free.
  bool Goes() {
    const SessionId session = OfAnotherJob();
    const event::Create create = CreateOf(session, PartOf(session, 1), {{"model", 50 * kMiB}});
    Apply(create);
    return !Holds(1);
  }
};

TEST_F(Replicas, OneThatAProtectedOneSupersedesGoesForRoom) {
  Hear();
  EXPECT_TRUE(Goes());
}

TEST_F(Replicas, NothingGoesByAVerdictThatIsOld) {
  Hear();
  Advance(4 * kNanosPerSecond);
  EXPECT_FALSE(Goes());
}

TEST_F(Replicas, OneThatNothingProtectedSupersedesStays) {
  verdict.protect.reset();
  Hear();
  EXPECT_FALSE(Goes());
}

// Absence is never a reason to free: the owner may have lost its memory, or a list may say too little.
TEST_F(Replicas, OneThatIsNotWantedAnyMoreStaysUntilItIsLetGo) {
  verdict.protect.reset();
  Hear();
  peer::WantList nothing;
  nothing.version = ++wants;
  Apply(event::PeerSaid{other, nothing});
  Advance(20 * kNanosPerSecond);
  EXPECT_TRUE(Holds(1));
  const PartKey part{{"job", 1, 1, 0}, 1};
  const std::string digest = engine->Describe("job", {part.checkpoint}).parts.at(0).digest;
  Apply(event::PeerSaid{other, peer::ReleaseList{1, {{part, digest, peer::Fate::kRemoved, {}}}}});
  EXPECT_FALSE(Holds(1));
}

// Until both place parts by the same number of members: it may be no backup by the list's.
TEST_F(Replicas, WhatIsWantedByAnotherSizeOfTheRingWaits) {
  const Manifest manifest = ManifestOf({{"job", 3, 1, 0}, 1}, 2, 20 * kMiB);
  for (const int64_t epoch : {1, 0}) {
    fetches.clear();
    Apply(event::PeerSaid{other, peer::WantList{++wants, {WantOf(manifest)}, epoch}});
    EXPECT_EQ(fetches.empty(), epoch != 0) << epoch;
  }
}

// A backup that got a part of each step while others could not be reached.
class InTheWay : public Replicas {
 protected:
  void SetUp() override {
    Replicas::SetUp();  // it holds 20 MiB of step 1, of 60 MiB
    Replicate({{"job", 2, 1, 0}, 1}, 2, 20 * kMiB);
    verdict.checkpoints.erase({2, 1, 0});
    Complete(3);
    verdict.safe = {1, 1};
    verdict.protect.reset();
    verdict.target = CheckpointId{3, 1, 0};
    Hear();
    const PartKey part{{"job", 3, 1, 0}, 1};
    Want(ManifestOf(part, 2, 28 * kMiB), part, 28 * kMiB, /*target=*/true);
    EXPECT_TRUE(fetches.empty()) << "there is no room";
  }
  void Passes(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      Advance(kNanosPerSecond);
      Hear();
    }
  }
  // Whether the members were told last that step 2 is here.
  bool Reported(Step step) const {
    bool there = false;
    for (const action::Tell& tell : tells) {
      const auto* report = std::get_if<peer::Report>(&tell.message);
      if (report == nullptr) continue;
      const PartId id{{step, 1, 0}, 1};
      if (report->delta.after == 0) there = report->delta.parts.contains(id);
      if (report->delta.parts.contains(id)) there = true;
      if (report->delta.parts_gone.contains(id)) there = false;
    }
    return there;
  }
};

TEST_F(InTheWay, OfATargetWhatWasNeverProtectedGoesOnceNobodyCountsItAnyMore) {
  EXPECT_TRUE(Reported(2));
  Passes(6);
  EXPECT_FALSE(Reported(2));
  EXPECT_TRUE(Holds(2)) << "a home may count it still";
  Passes(6);
  EXPECT_FALSE(Holds(2));
  EXPECT_TRUE(Holds(1)) << "it was protected once";
  EXPECT_EQ(fetches.size(), 1u) << "the target comes";
}

TEST_F(InTheWay, ItStaysWhileNotAllMembersAreHeard) {
  for (int i = 0; i < 20; ++i) {
    Advance(kNanosPerSecond);
    verdict.final = false;
    Apply(event::PeerSaid{other, peer::VerdictSaid{verdict}});
  }
  EXPECT_TRUE(Holds(2));
  EXPECT_TRUE(Reported(2));
}

TEST_F(InTheWay, ItCountsAgainWhenTheMembersSayThatItIsProtected) {
  Passes(6);
  EXPECT_FALSE(Reported(2));
  verdict.safe = {1, 2};
  Passes(6);
  EXPECT_TRUE(Holds(2));
  EXPECT_TRUE(Reported(2));
}

TEST_F(Replicas, OfAFencedLifeItStaysForThisNodesLineIsNotItsOwners) {
  verdict.protect.reset();
  const SessionId newer = Hello({.writer = 0, .world_size = 2, .attempt = 2});
  Hear();
  Save(newer, 1, {{"small", kMiB}});
  EXPECT_FALSE(Goes());
}

TEST_F(Replicas, HowFarOneIsStandsInStatus) {
  const PartKey part{{"job", 2, 1, 0}, 1};
  Want(ManifestOf(part, 2, 8 * kMiB), part, 8 * kMiB);
  ASSERT_EQ(fetches.size(), 1u);
  Apply(event::FetchAdvanced{fetches[0].fetch, 3 * kMiB});
  const std::vector<reply::FetchStatus> shown = Status_().ring.fetching;
  ASSERT_EQ(shown.size(), 1u);
  EXPECT_EQ(shown[0].part, part);
  EXPECT_EQ(shown[0].what_for, "replica");
  EXPECT_EQ(shown[0].done_bytes, 3 * kMiB);
  EXPECT_EQ(shown[0].bytes, 8 * kMiB);
  EXPECT_THAT(shown[0].sources, ElementsAre(other.rank));
}

// Bytes that a bad link spoils, and a source that is away for a moment, are tried again a second later; who waits
// for REPLICATED goes on waiting.
TEST_F(Replicas, OneThatDoesNotComeIsNoRefusal) {
  const PartKey part{{"job", 2, 1, 0}, 1};
  Want(ManifestOf(part, 2, 8 * kMiB), part, 8 * kMiB);
  for (const Status& why : {absl::DataLossError("block 2 came otherwise than its checksum says"),
                            absl::UnavailableError("no source is left"),
                            absl::NotFoundError("the part is not in this node's memory")}) {
    ASSERT_EQ(fetches.size(), 1u);
    const uint64_t fetch = fetches[0].fetch;
    fetches.clear();
    tells.clear();
    Apply(event::Fetched{fetch, why, nullptr, ""});
    EXPECT_TRUE(fetches.empty()) << "not at once";
    const auto haves = SaidHaves();
    ASSERT_FALSE(haves.empty());
    const auto have = std::find_if(haves.begin(), haves.end(),
                                   [&](const peer::Have& it) { return it.part == part; });
    ASSERT_NE(have, haves.end());
    EXPECT_EQ(have->state, peer::HaveState::kUnderWay);
    EXPECT_EQ(have->why, why.message());
    Advance(1100 * kNanosPerMilli);
  }
  EXPECT_EQ(fetches.size(), 1u);
}

// Promise 3: a node that came to hold both parts would otherwise call the step complete.
// Its names were looked at when it came, and no other create has been granted since.
TEST_F(Replicas, ACreateThatWaitsForMemoryDoesNotGetANameThatHasComeMeanwhile) {
  verdict.checkpoints.erase({2, 1, 0});
  verdict.protect.reset();
  const SessionId session = OneOfTwo(1);
  ASSERT_TRUE(Asks(session, 2, 8 * kMiB, "other").ok());
  hold_makes = true;
  const event::Create create = CreateOf(session, PartOf(session, 2), {{"model-1", 24 * kMiB}});
  Apply(create);
  ASSERT_FALSE(Answered(create.caller.request));
  const action::MakeSlab make = makes.back();
  hold_makes = false;
  Replicate({{"job", 2, 1, 0}, 1}, 2, 8 * kMiB);
  ASSERT_TRUE(Holds(2));
  keeper[make.slab] = make.bytes;
  Apply(event::SlabMade{make.slab, absl::OkStatus()});
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kAlreadyExists, "model-1"));
}

TEST_F(Replicas, OneWithANameThatAnotherWriterHasHereIsRefused) {
  verdict.checkpoints.erase({2, 1, 0});
  verdict.protect.reset();
  const SessionId session = OneOfTwo(1);
  ASSERT_TRUE(Asks(session, 2, 8 * kMiB, "model-1").ok());  // the name that the other's part has
  ASSERT_TRUE(Commit(session, PartOf(session, 2), {{"model-1", 8 * kMiB}}).ok());
  const PartKey part{{"job", 2, 1, 0}, 1};
  Replicate(part, 2, 8 * kMiB);
  const auto refused = [&](const std::string& why) {
    for (const peer::Have& have : SaidHaves()) {
      if (have.part != part) continue;
      EXPECT_EQ(have.state, peer::HaveState::kRefused);
      EXPECT_THAT(have.why, HasSubstr(why));
      return;
    }
    ADD_FAILURE() << "nothing was said of " << part.DebugString();
  };
  refused("has the name \"model-1\"");
  EXPECT_NE(LatestStep(session), 2);

  // Once the home says so, it is not fetched in vain any more.
  CheckpointVerdict& said = verdict.checkpoints[{2, 1, 0}];
  said.world_size = 2;
  said.conflict = "writers 0 and 1 claim the same name";
  Hear();
  fetches.clear();
  Advance(1100 * kNanosPerMilli);
  EXPECT_TRUE(fetches.empty());
  refused("is in conflict");
}

TEST_F(Replicas, TheyCountAsNobodysShare) {
  EXPECT_LT(Status_().counters.at("user_memory_bytes"), 1 << 20) << "the record alone";
}

// Of which there is room for the two steps that are set aside, and no more.
class TwoSteps : public PartsElsewhere {
 protected:
  void SetUp() override {
    storage = false;
    options.ring.replica_bytes = 40 * kMiB;
    PartsElsewhere::SetUp();
    Hear();
  }
  static PartKey Of(Step step) { return {{"job", step, 1, 0}, 1}; }
  void LetGo(Step step) {
    peer::ReleaseList list;
    list.releases.push_back({Of(step),
                             ManifestDigest(EncodeManifest(ManifestOf(Of(step), 2, 20 * kMiB))),
                             peer::Fate::kSuperseded, Of(step + 1).checkpoint});
    Apply(event::PeerSaid{other, list});
    ASSERT_FALSE(Holds(step));
  }
};

// Memory that is made anew costs as much as the reading.
TEST_F(TwoSteps, ANewStepTakesTheMemoryOfTheOneThatWasLetGo) {
  Replicate(Of(1), 2, 20 * kMiB);
  const SlabId first = fetches[0].slab;
  EXPECT_FALSE(makes.back().populate) << "its pages come with the part";
  Replicate(Of(2), 2, 20 * kMiB);
  LetGo(1);
  Replicate(Of(3), 2, 20 * kMiB);
  EXPECT_EQ(fetches[0].slab, first);
  EXPECT_THAT(destroyed, Not(Contains(first)));
}

// Nobody else could have it: it is this job's, and lacks the pages that no part has needed yet.
TEST_F(TwoSteps, WhatIsKeptForTheNextPartIsNotTheNextDaemons) {
  for (const StartFrom from : kFrom) {
    const Step step = 1 + 2 * static_cast<Step>(from);
    Replicate(Of(step), 2, 20 * kMiB);
    const SlabId first = fetches[0].slab;
    Replicate(Of(step + 1), 2, 20 * kMiB);
    const SlabId second = fetches[0].slab;
    LetGo(step);
    RestartInTheRing(from);
    EXPECT_THAT(destroyed, Contains(first)) << NameOf(from);
    EXPECT_THAT(destroyed, Not(Contains(second))) << NameOf(from);
    EXPECT_TRUE(Holds(step + 1)) << NameOf(from);
    LetGo(step + 1);
  }
}

// A transfer that the daemon's death has cut goes on where it was.
TEST_F(TwoSteps, TheNextDaemonReadsIntoTheSlabThatAFetchHadBegunToFill) {
  for (const StartFrom from : kFrom) {
    const PartKey part = Of(1 + static_cast<Step>(from));
    const Manifest manifest = ManifestOf(part, 2, 20 * kMiB);
    const std::string digest = Want(manifest, part, 20 * kMiB);
    ASSERT_EQ(fetches.size(), 1u) << NameOf(from);
    EXPECT_FALSE(fetches[0].begun_before) << NameOf(from);
    const SlabId slab = fetches[0].slab;
    RestartInTheRing(from);
    EXPECT_THAT(destroyed, Not(Contains(slab))) << NameOf(from);
    Want(manifest, part, 20 * kMiB);
    ASSERT_EQ(fetches.size(), 1u) << NameOf(from);
    EXPECT_EQ(fetches[0].slab, slab) << NameOf(from);
    EXPECT_TRUE(fetches[0].begun_before) << NameOf(from);
    Apply(event::Fetched{fetches[0].fetch, absl::OkStatus(),
                         TableOf(manifest, {{slab, 0, 20 * kMiB}}), digest});
    ASSERT_TRUE(Holds(part.checkpoint.step)) << NameOf(from);
    RestartInTheRing(from);  // it is the part's now, and no fetch's
    EXPECT_TRUE(Holds(part.checkpoint.step)) << NameOf(from);
    LetGo(part.checkpoint.step);
  }
}

TEST_F(TwoSteps, WhatWasReadOfAPartIsOfNoUseForOtherContent) {
  Want(ManifestOf(Of(1), 2, 20 * kMiB), Of(1), 20 * kMiB);
  ASSERT_EQ(fetches.size(), 1u);
  const SlabId slab = fetches[0].slab;
  RestartInTheRing();
  Want(ManifestOf(Of(1), 2, 19 * kMiB), Of(1), 19 * kMiB);
  ASSERT_EQ(fetches.size(), 1u);
  EXPECT_NE(fetches[0].slab, slab);
  EXPECT_FALSE(fetches[0].begun_before);
}

TEST_F(TwoSteps, WhatNobodyWantsAnyMoreOfWhatWasReadGoesAfterAMinute) {
  Want(ManifestOf(Of(1), 2, 20 * kMiB), Of(1), 20 * kMiB);
  ASSERT_EQ(fetches.size(), 1u);
  const SlabId slab = fetches[0].slab;
  Restart();
  Apply(event::Exchanged{other.rank, other});
  Advance(50 * kNanosPerSecond);
  EXPECT_THAT(destroyed, Not(Contains(slab)));
  Advance(11 * kNanosPerSecond);
  EXPECT_THAT(destroyed, Contains(slab));
}

TEST_F(TwoSteps, OrAtOnceWhereItsMemoryIsWanted) {
  Want(ManifestOf(Of(1), 2, 20 * kMiB), Of(1), 20 * kMiB);
  const SlabId slab = fetches.at(0).slab;
  RestartInTheRing();
  Replicate(Of(2), 2, 20 * kMiB);
  EXPECT_THAT(destroyed, Not(Contains(slab)));
  const SessionId session = OfAnotherJob();
  Apply(CreateOf(session, PartOf(session, 1), {{"model", 30 * kMiB}}));
  EXPECT_THAT(destroyed, Contains(slab));
}

class Replacement : public PartsElsewhere {
 protected:
  void SetUp() override {
    storage = false;
    options.pool_slabs = {20 * kMiB};
    PartsElsewhere::SetUp();
  }
};

TEST_F(Replacement, WhatItLostComesBackIntoMemoryThatIsReady) {
  SlabId ready = 0;
  for (const action::MakeSlab& make : makes) {
    if (make.bytes == 20 * kMiB) ready = make.slab;
  }
  ASSERT_NE(ready, 0u);
  Complete(1);
  verdict.latest = verdict.protect = CheckpointId{1, 1, 0};
  OneOfTwo(2);  // the first that it hears of the job
  peer::PlacesSaid said{{"job", 1, 1, 0}, "", {}};
  for (const Writer writer : {0, 1}) {
    const Rank owner = writer == 0 ? options.ring.rank : other.rank;
    said.places.push_back({writer, "digest", 2, 20 * kMiB, owner, {other.rank}});
  }
  Apply(event::PeerSaid{other, said});
  ASSERT_EQ(fetches.size(), 1u);
  EXPECT_EQ(fetches[0].slab, ready);

  // The daemon dies meanwhile.
  fetches.clear();
  Restart();
  EXPECT_THAT(destroyed, Not(Contains(ready)));
  Apply(event::Exchanged{other.rank, other});
  Hear();
  Apply(event::PeerSaid{other, said});
  ASSERT_EQ(fetches.size(), 1u);
  EXPECT_EQ(fetches[0].slab, ready);
  EXPECT_TRUE(fetches[0].begun_before);
}

}  // namespace
}  // namespace cairn::engine
