// Parts of other members that are asked for here: they come into memory where there is room, and else are read where
// they lie.
#include "tests/engine/ring_fixture.h"

namespace cairn::engine {
namespace {

using testing::ElementsAre;

// What the other member has, and nobody here.
class Loaded : public PartsElsewhere {
 protected:
  void SetUp() override {
    storage = false;
    PartsElsewhere::SetUp();
    verdict.owned = true;
    verdict.owner_uid = verdict.owner_gid = 1000;
    reader = Hello({.writer = -1, .world_size = 0});
  }
  // The part that is asked for comes; the lease of the open.
  LeaseId Comes(RequestId open, Step step, uint64_t bytes) {
    const Manifest manifest = ManifestOf({{"job", step, 1, 0}, 0}, 1, bytes);
    EXPECT_EQ(fetches.size(), 1u) << step;
    if (fetches.empty()) return 0;
    Apply(event::Fetched{fetches[0].fetch, absl::OkStatus(),
                         TableOf(manifest, {{fetches[0].slab, 0, bytes}}),
                         ManifestDigest(EncodeManifest(manifest))});
    const auto answer = AnswerTo(open);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? std::get<reply::Open>(*answer).lend.lease : 0;
  }
  // The open of what the other member has: the home says where it is.
  RequestId Opens(Step step, uint64_t bytes) {
    Complete(step);
    verdict.checkpoints.at({step, 1, 0}).world_size = 1;
    Hear();
    const event::Open open = OpenOf(reader, step, "model-0");
    fetches.clear();
    Apply(open);
    SayWhere(step, "model-0", bytes);
    return open.caller.request;
  }
  static std::string DigestOf(Step step, uint64_t bytes) {
    return ManifestDigest(EncodeManifest(ManifestOf({{"job", step, 1, 0}, 0}, 1, bytes)));
  }
  void SayWhere(Step step, const std::string& name, uint64_t bytes) {
    peer::PlacesSaid places{{"job", step, 1, 0}, name, {}};
    places.places.push_back({0, DigestOf(step, bytes), 1, bytes, other.rank, {other.rank}});
    Apply(event::PeerSaid{other, places});
  }
  // The answer sends the node to the other member for it.
  void ExpectElsewhere(RequestId request, Step step, uint64_t bytes) {
    ASSERT_TRUE(Answered(request));
    const auto answer = AnswerTo(request);
    ASSERT_TRUE(answer.ok()) << answer.status();
    const auto* elsewhere = std::get_if<reply::Elsewhere>(&*answer);
    ASSERT_NE(elsewhere, nullptr);
    ASSERT_EQ(elsewhere->parts.size(), 1u);
    const reply::PartElsewhere& part = elsewhere->parts[0];
    EXPECT_EQ(part.part, (PartKey{{"job", step, 1, 0}, 0}));
    EXPECT_EQ(part.digest, DigestOf(step, bytes));
    EXPECT_EQ(part.uid, 1000u);
    EXPECT_THAT(part.sources, ElementsAre(other.rank));
    EXPECT_TRUE(elsewhere->like.facts.complete);
    EXPECT_FALSE(elsewhere->like.facts.resident);
    EXPECT_TRUE(elsewhere->here.objects.empty());
  }
  SessionId reader = 0;
};

TEST_F(Loaded, OneForWhichThereIsNoMemoryIsReadWhereItLies) {
  ExpectElsewhere(Opens(1, 100 * kMiB), 1, 100 * kMiB);
  EXPECT_TRUE(fetches.empty());
}

TEST_F(Loaded, WhatItConsistsOfIsAskedForThere) {
  ExpectElsewhere(Opens(1, 100 * kMiB), 1, 100 * kMiB);
  const event::StatObject stat{From(reader), {"job", 1}, "model-0", Soon()};
  Apply(stat);
  SayWhere(1, "model-0", 100 * kMiB);
  ExpectElsewhere(stat.caller.request, 1, 100 * kMiB);
  const event::List list{From(reader), "job/1", "", 1000, Soon()};
  Apply(list);
  SayWhere(1, "", 100 * kMiB);
  ExpectElsewhere(list.caller.request, 1, 100 * kMiB);
}

TEST_F(Loaded, AListThatIsNotWholeSaysWhy) {
  const RequestId open = Opens(1, kMiB);
  ASSERT_NE(Comes(open, 1, kMiB), 0u);
  Complete(2);
  verdict.checkpoints.at({2, 1, 0}).world_size = 1;
  Hear();
  const event::List list{From(reader), "job/2", "", 1000, Soon()};
  Apply(list);
  peer::PlacesSaid places{{"job", 2, 1, 0}, "", {}};
  places.places.push_back({0, DigestOf(2, kMiB), 1, kMiB, other.rank, {}});
  Apply(event::PeerSaid{other, places});
  EXPECT_THAT(AnswerTo(list.caller.request).status(),
              Fails(absl::StatusCode::kUnavailable, "no member that has it answers now"));
}

// Steps of which the budget holds one.
TEST_F(Loaded, WhatWasLoadedBeforeGivesWay) {
  for (const Step step : {1, 2, 3}) {
    const LeaseId lease = Comes(Opens(step, 40 * kMiB), step, 40 * kMiB);
    ASSERT_NE(lease, 0u) << step;
    Release(reader, lease);
  }
}

TEST_F(Loaded, OneWaitsForMemoryWhoseReadersAreBeingSeenToGo) {
  const LeaseId lease = Comes(Opens(1, 40 * kMiB), 1, 40 * kMiB);
  hold_probes = true;
  Release(reader, lease);
  const RequestId open = Opens(2, 40 * kMiB);
  EXPECT_FALSE(Answered(open));
  ASSERT_FALSE(probes.empty());
  Apply(Probe(probes.back()));
  ASSERT_NE(Comes(open, 2, 40 * kMiB), 0u);
}

// The home does not say where a step is that has gone meanwhile: a part that it has not heard of may have the name.
TEST_F(Loaded, OneThatGoesBeforeTheHomeSaysWhereItIsIsAwaitedNoLonger) {
  Complete(1);
  verdict.checkpoints.at({1, 1, 0}).world_size = 1;
  verdict.latest = CheckpointId{1, 1, 0};
  Hear();
  const event::Open one = OpenOf(reader, 1, "model-0"), latest = OpenOf(reader, kNoStep, "model-0");
  Apply(one);
  Apply(latest);
  ASSERT_FALSE(Answered(one.caller.request));
  ASSERT_FALSE(Answered(latest.caller.request));
  verdict.checkpoints.clear();
  Complete(2);
  verdict.checkpoints.at({2, 1, 0}).world_size = 1;
  verdict.latest = CheckpointId{2, 1, 0};
  Hear();
  EXPECT_THAT(AnswerTo(one.caller.request).status(), Fails(absl::StatusCode::kNotFound, "step: 1"));
  ASSERT_FALSE(Answered(latest.caller.request));
  SayWhere(2, "model-0", kMiB);
  EXPECT_NE(Comes(latest.caller.request, 2, kMiB), 0u) << "the newest by now";
}

// A new home has not heard who has it.
TEST_F(Loaded, OneThatAHomeDoesNotKnowYetIsStillAwaited) {
  Complete(1);
  CheckpointVerdict& said = verdict.checkpoints.at({1, 1, 0});
  said.world_size = 1;
  Hear();
  const event::Open open = OpenOf(reader, 1, "model-0");
  fetches.clear();
  Apply(open);
  said.in_memory = false;
  said.stored = true;
  verdict.final = false;
  Apply(event::PeerSaid{other, peer::VerdictSaid{verdict}});
  Advance(kNanosPerSecond);
  EXPECT_FALSE(Answered(open.caller.request));
  SayWhere(1, "model-0", kMiB);
  EXPECT_NE(Comes(open.caller.request, 1, kMiB), 0u);
}

// A node that has nothing of the job hears of it only while somebody there waits to hear.
TEST_F(Loaded, OneThatWentLongAfterThisNodeHeardOfItIsAwaitedNoLonger) {
  Complete(1);
  verdict.checkpoints.at({1, 1, 0}).world_size = 1;
  Hear();
  Advance(31 * kNanosPerSecond);
  tells.clear();
  const event::Open open = OpenOf(reader, 1, "model-0");
  Apply(open);
  Advance(kNanosPerSecond);
  ASSERT_NE(LastSaid<peer::VerdictWanted>(other.rank), nullptr);
  verdict.checkpoints.clear();
  Hear();
  EXPECT_THAT(AnswerTo(open.caller.request).status(),
              Fails(absl::StatusCode::kNotFound, "step: 1"));
}

TEST_F(Loaded, NothingComesForOneWhoHasLeftMeanwhile) {
  const LeaseId lease = Comes(Opens(1, 40 * kMiB), 1, 40 * kMiB);
  hold_probes = true;
  Release(reader, lease);
  const SessionId stays = reader;
  reader = Hello({.writer = -1, .world_size = 0});
  const RequestId open = Opens(2, 40 * kMiB);
  EXPECT_FALSE(Answered(open));
  Die(reader);
  ASSERT_FALSE(probes.empty());
  Apply(Probe(probes.back()));
  Advance(2 * kNanosPerSecond);
  EXPECT_TRUE(fetches.empty());
  EXPECT_TRUE(Holds(1)) << "what is here stays for who comes next";
  reader = stays;
}

// The probe hangs, and the caller would have waited for ten seconds.
TEST_F(Loaded, ItWaitsForMemoryNoLongerThanFiveSeconds) {
  const LeaseId lease = Comes(Opens(1, 40 * kMiB), 1, 40 * kMiB);
  hold_probes = true;
  Release(reader, lease);
  const RequestId open = Opens(2, 40 * kMiB);
  for (int i = 0; i < 4; ++i) Advance(kNanosPerSecond);
  EXPECT_FALSE(Answered(open));
  for (int i = 0; i < 2; ++i) Advance(kNanosPerSecond);
  ExpectElsewhere(open, 2, 40 * kMiB);
}

TEST_F(Loaded, ItDoesNotWaitForOnesThatStay) {
  const LeaseId lease = Comes(Opens(1, 40 * kMiB), 1, 40 * kMiB);
  Release(reader, lease, /*closes=*/false);
  const RequestId open = Opens(2, 40 * kMiB);
  for (int i = 0; i < 6 && !Answered(open); ++i) Advance(kNanosPerSecond);
  ExpectElsewhere(open, 2, 40 * kMiB);
}

// NOT_FOUND would make a script begin from nothing.
TEST_F(Loaded, OneThatItsSourceHasNoMoreIsUnavailable) {
  const RequestId open = Opens(1, kMiB);
  ASSERT_EQ(fetches.size(), 1u);
  Apply(event::Fetched{fetches[0].fetch, absl::NotFoundError("not in this node's memory"), nullptr,
                       ""});
  EXPECT_THAT(AnswerTo(open).status(),
              Fails(absl::StatusCode::kUnavailable, "not in this node's memory"));
}

// Somebody loads it, too, so that it comes all the same; the owner is told of it and lets it go.
TEST_F(Loaded, AReplicaThatIsNotWantedAnyMoreWhenItComesIsSaidToBeHere) {
  const PartKey part{{"job", 1, 1, 0}, 0};
  const RequestId open = Opens(1, kMiB);
  ASSERT_EQ(fetches.size(), 1u);
  const action::Fetch fetch = fetches[0];
  const Manifest manifest = ManifestOf(part, 1, kMiB);
  Want(manifest, part, kMiB);
  Wants({});
  hold_manifests = true;
  Bring(fetch, manifest);
  EXPECT_FALSE(Answered(open));
  hold_manifests = false;
  FinishManifest();
  Advance(kNanosPerSecond);
  EXPECT_TRUE(AnswerTo(open).ok());
  const peer::Have* said = SaidOf(part);
  ASSERT_NE(said, nullptr);
  EXPECT_EQ(said->state, peer::HaveState::kHeld);
}

// It is a replica, too, and newer ones are safe before the journal has the record of it.
TEST_F(Loaded, OneThatItsOwnerReleasesAsItComesIsUnavailable) {
  const PartKey part{{"job", 1, 1, 0}, 0};
  const RequestId open = Opens(1, kMiB);
  ASSERT_EQ(fetches.size(), 1u);
  const action::Fetch fetch = fetches[0];
  const Manifest manifest = ManifestOf(part, 1, kMiB);
  const std::string digest = Want(manifest, part, kMiB);
  hold_manifests = true;
  Bring(fetch, manifest);
  EXPECT_FALSE(Answered(open));
  Apply(event::PeerSaid{other, peer::ReleaseList{1, {{part, digest}}}});
  Advance(kNanosPerSecond);
  EXPECT_THAT(AnswerTo(open).status(), Fails(absl::StatusCode::kUnavailable, "went again"));
}

// --- what rots here, and is good elsewhere

// A step of this node's own, of two objects in a slab each, of which the other member keeps a replica.
class Rotten : public Loaded {
 protected:
  static constexpr uint64_t kBytes = 3 * kMiB;
  void SetUp() override {
    Loaded::SetUp();
    const SessionId trainer = Hello({});
    Hear();
    Save(trainer, 1, {{"a", kBytes}, {"b", kBytes}});
    const std::string& record = manifests.rbegin()->second;
    const auto table = DecodePartRecord(record, ManifestBytesIn(record));
    ASSERT_TRUE(table.ok()) << table.status();
    saved = (*table)->Whole();
    Complete(1, /*replicas=*/1);
    verdict.checkpoints.at({1, 1, 0}).world_size = 1;
    verdict.latest = CheckpointId{1, 1, 0};
    Hear();
    SayWhereIs("");  // nothing of it has to come back
    rotten.insert("a");
  }
  RequestId OpensAndChecks(const std::string& name) {
    event::Open open = OpenOf(reader, 1, name);
    open.verify = true;
    fetches.clear();
    Apply(open);
    return open.caller.request;
  }
  // The home says where the object is; "": all of the step.
  void SayWhereIs(const std::string& name) {
    peer::PlacesSaid places = PlacesOf(saved);
    places.name = name;
    places.places[0].owner = options.ring.rank;
    Apply(event::PeerSaid{other, places});
  }
  Status OpensWhereTheHomeKnowsThisCopyAlone() {
    const RequestId open = OpensAndChecks("a");
    peer::PlacesSaid places = PlacesOf(saved);
    places.name = "a";
    places.places[0].owner = options.ring.rank;
    places.places[0].holders = {options.ring.rank};
    Apply(event::PeerSaid{other, places});
    return AnswerTo(open).status();
  }
  void ComesBack() {
    ASSERT_EQ(fetches.size(), 1u);
    EXPECT_EQ(fetches[0].what_for, action::FetchFor::kRestore);
    EXPECT_THAT(fetches[0].sources, ElementsAre(other.rank));
    rotten.clear();
    const SlabId slab = fetches[0].slab;
    Apply(event::Fetched{fetches[0].fetch, absl::OkStatus(),
                         TableOf(saved, {{slab, 0, kBytes}, {slab, kBytes, kBytes}}),
                         engine::DigestOf(saved)});
    EXPECT_TRUE(engine->Describe("job", {saved.Checkpoint()}).parts.at(0).own);
  }
  Manifest saved;
};

TEST_F(Rotten, AnOwnCopyComesBackWithItsFirstLoad) {
  const RequestId open = OpensAndChecks("a");
  ASSERT_FALSE(Answered(open));
  SayWhereIs("a");
  ComesBack();
  EXPECT_TRUE(AnswerTo(open).ok()) << AnswerTo(open).status();
  EXPECT_TRUE(Open(reader, 1, "b").ok());
}

// Whoever asked for it has left.
TEST_F(Rotten, AnOwnCopyThatCountsComesBackForTheNodeItself) {
  const SessionId stays = std::exchange(reader, Hello({.writer = -1, .world_size = 0}));
  OpensAndChecks("a");
  Die(reader);
  reader = stays;
  SayWhereIs("");
  ComesBack();
  EXPECT_TRUE(Open(reader, 1, "a").ok());
}

TEST_F(Rotten, BesideWhatIsReadOfItHereItIsReadWhereItLies) {
  const auto read = Open(reader, 1, "b");
  ASSERT_TRUE(read.ok());
  const RequestId open = OpensAndChecks("a");
  SayWhereIs("a");
  ASSERT_TRUE(Answered(open));
  const auto answer = AnswerTo(open);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(std::holds_alternative<reply::Elsewhere>(*answer));
  Release(reader, read->lend.lease);
  Advance(5 * kNanosPerSecond);
  SayWhereIs("");
  ComesBack();
}

TEST_F(Rotten, OneWhoseReplicaIsRottenTooIsNotReadAgainAndAgain) {
  const RequestId open = OpensAndChecks("a");
  SayWhereIs("a");
  ASSERT_EQ(fetches.size(), 1u);
  Apply(event::Fetched{fetches[0].fetch, absl::DataLossError("from every source"), nullptr, ""});
  EXPECT_THAT(AnswerTo(open).status(), Fails(absl::StatusCode::kDataLoss, "from every source"));
  for (int i = 0; i < 5; ++i) {
    Advance(kNanosPerSecond);
    SayWhereIs("");
  }
  EXPECT_EQ(fetches.size(), 1u);
}

// For the home the copy here still counts.
TEST_F(Rotten, OneThatWasNeverCopiedIsLost) {
  Complete(1, /*replicas=*/0);
  verdict.checkpoints.at({1, 1, 0}).world_size = 1;
  Hear();
  EXPECT_THAT(OpensWhereTheHomeKnowsThisCopyAlone(),
              Fails(absl::StatusCode::kDataLoss, "no good copy"));
}

// The home is new, and not all have reported to it.
TEST_F(Rotten, OneThatWasCopiedIsNotCalledLost) {
  EXPECT_THAT(OpensWhereTheHomeKnowsThisCopyAlone(),
              Fails(absl::StatusCode::kUnavailable, "answers now"));
}

// A source that does not answer now may later.
TEST_F(Rotten, OneWhoseSourceIsAwayIsAskedForAgain) {
  OpensAndChecks("a");
  SayWhereIs("");
  ASSERT_EQ(fetches.size(), 1u);
  Apply(event::Fetched{fetches[0].fetch, absl::UnavailableError("no answer"), nullptr, ""});
  Advance(kNanosPerSecond);
  SayWhereIs("");
  EXPECT_EQ(fetches.size(), 2u);
}

TEST_F(Rotten, WithoutAnotherCopyTheErrorSaysWhatIsWrong) {
  verdict.checkpoints.at({1, 1, 0}).in_memory = false;
  Hear();
  EXPECT_THAT(AnswerTo(OpensAndChecks("a")).status(),
              Fails(absl::StatusCode::kDataLoss, "block 0 does not match"));
}

}  // namespace
}  // namespace cairn::engine
