// Room on a node of a ring: what counts for which limit, what becomes of the memory of what was
// fetched, and what is let go in the end.
#include "tests/engine/ring_fixture.h"

namespace cairn::engine {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

PartKey PartOfOther(Step step) { return {{"job", step, 1, 0}, 1}; }

class Room : public PartsElsewhere {
 protected:
  Room() { storage = false; }
  // A reader has the part loaded; it is done with it.
  void LoadAndRelease(SessionId reader, const Manifest& manifest) {
    const RequestId open = OpensWhatTheOtherHas(reader, manifest);
    ASSERT_EQ(fetches.size(), 1u);
    Bring(fetches[0], manifest);
    const auto opened = AnswerTo(open);
    ASSERT_TRUE(opened.ok()) << opened.status();
    Release(reader, std::get<reply::Open>(*opened).lend.lease);
  }
  SessionId Reader() { return Hello({.writer = -1, .world_size = 0}); }
  // This node has lost all: the home says that step 1 is to come back, its own part of it first.
  void GetsItsOwnPartBack(uint64_t bytes) {
    Complete(1);
    verdict.owned = true;
    verdict.owner_uid = verdict.owner_gid = 1000;
    verdict.latest = verdict.target = CheckpointId{1, 1, 0};
    verdict.safe = {1, 1};
    OneOfTwo(2);
    peer::PlacesSaid said{{"job", 1, 1, 0}, "", {}};
    for (const Writer writer : {0, 1}) {
      const Rank owner = writer == 0 ? options.ring.rank : other.rank;
      const Manifest manifest = ManifestOf({{"job", 1, 1, 0}, writer}, 2, bytes);
      said.places.push_back({writer, DigestOf(manifest), 2, bytes, owner, {other.rank}});
    }
    Apply(event::PeerSaid{other, said});
    ASSERT_EQ(fetches.size(), 1u);
    EXPECT_EQ(fetches[0].uid, 1000u);
    Bring(fetches[0], ManifestOf({{"job", 1, 1, 0}, 0}, 2, bytes));
  }
  // Why the other member's part is not here yet.
  std::string WhyNot(const PartKey& part) const {
    const peer::Have* have = SaidOf(part);
    return have == nullptr ? "" : have->why;
  }
};

// --- the quota of replicas

// A budget of five steps, of which the replicas may have half.
class FiveSteps : public Room {
 protected:
  void SetUp() override {
    options.budget_bytes = 100 * kMiB;
    Room::SetUp();
  }
  static constexpr uint64_t kStep = 20 * kMiB;
};

TEST_F(FiveSteps, WhatCameBackOfItsOwnCountsAsItsUsersAndNotAsAReplica) {
  const int64_t before = Status_().counters.at("user_memory_bytes");
  GetsItsOwnPartBack(kStep);
  ASSERT_TRUE(Holds(1));
  EXPECT_EQ(Status_().ring.replica_bytes, 0u);
  EXPECT_GE(Status_().counters.at("user_memory_bytes"), before + static_cast<int64_t>(kStep));
}

// The node lost all, and got back its own part and its neighbour's replica of the protected step.
// The job goes on.
TEST_F(FiveSteps, ANodeThatWasReplacedKeepsTheNextStepOfItsNeighbour) {
  GetsItsOwnPartBack(kStep);
  Replicate(PartOfOther(1), 2, kStep);
  Complete(1, /*replicas=*/1);
  verdict.protect = verdict.latest = CheckpointId{1, 1, 0};
  verdict.target.reset();
  Hear();
  const PartKey next{{"job", 2, 2, 0}, 1};
  verdict.target = CheckpointId{2, 2, 0};
  CheckpointVerdict& said = verdict.checkpoints[{2, 2, 0}];
  said.world_size = 2;
  said.complete = said.in_memory = true;
  said.digest = "digest of 2";
  Hear();
  Want(ManifestOf(next, 2, kStep), next, kStep, /*target=*/true);
  EXPECT_EQ(fetches.size(), 1u) << WhyNot(next);
}

TEST_F(FiveSteps, WhatWasOnceLoadedIsNotInTheWayOfReplicas) {
  const SessionId reader = Reader();
  OneWriterCompletes(1);
  Hear();
  LoadAndRelease(reader, ManifestOf({{"job", 1, 1, 0}, 0}, 1, 2 * kStep));
  EXPECT_EQ(Status_().ring.replica_bytes, 0u);
  Die(reader);
  const PartKey part{{another_job, 1, 1, 0}, 0};
  Want(ManifestOf(part, 1, kStep), part, kStep, /*target=*/true);
  EXPECT_EQ(fetches.size(), 1u) << WhyNot(part);
  EXPECT_EQ(Status_().ring.replica_bytes, kStep);
}

// Of which the quota has room for two.
class StepsOf16 : public Room {
 protected:
  void SetUp() override {
    options.ring.replica_bytes = 2 * kStep;
    Room::SetUp();
    Hear();
  }
  static constexpr uint64_t kStep = 16 * kMiB;
};

TEST_F(StepsOf16, MemoryThatCouldNotBeMadeTakesNoneOfTheQuota) {
  const PartKey part{{"job", 1, 1, 0}, 1}, next{{"job", 2, 1, 0}, 1};
  make_status = absl::ResourceExhaustedError("no descriptor is left");
  for (int i = 0; i < 3; ++i) {
    Want(ManifestOf(part, 2, kStep), part, kStep);
    EXPECT_TRUE(fetches.empty());
    Advance(kNanosPerSecond);
  }
  make_status = absl::OkStatus();
  Replicate(part, 2, kStep);
  Replicate(next, 2, kStep);
  EXPECT_TRUE(Holds(1));
  EXPECT_TRUE(Holds(2));
}

// A load that did not come has left memory of the same user and job.
TEST_F(StepsOf16, ASpareIsNotTakenBeyondTheQuota) {
  Replicate(PartOfOther(1), 2, kStep);
  Replicate(PartOfOther(2), 2, kStep);
  const SessionId reader = Reader();
  OneWriterCompletes(7);
  Hear();
  OpensWhatTheOtherHas(reader, ManifestOf({{"job", 7, 1, 0}, 0}, 1, kStep));
  ASSERT_EQ(fetches.size(), 1u);
  const SlabId spare = fetches[0].slab;
  Apply(event::Fetched{fetches[0].fetch, absl::UnavailableError("away"), nullptr, ""});
  ASSERT_THAT(destroyed, Not(Contains(spare)));
  Want(ManifestOf(PartOfOther(3), 2, kStep), PartOfOther(3), kStep);
  EXPECT_THAT(fetches, IsEmpty());
  EXPECT_THAT(WhyNot(PartOfOther(3)), HasSubstr("memory.replicas"));
}

// The writer saves faster than steps are replicated, and then nothing for a long time: what it maps it gives back at
// its next save at the earliest. Seven steps and a half fit, of which two are set aside for replicas.
class IdleWriter : public StepsOf16 {
 protected:
  void SetUp() override {
    options.budget_bytes = 120 * kMiB;
    StepsOf16::SetUp();
  }
};

TEST_F(IdleWriter, LeavesRoomForTheReplicaOfTheNextStep) {
  const std::vector<Spec> part = {{"large", kStep}, {"small", 1000}};
  const SessionId writer = OneOfTwo(1);
  Save(writer, 1, part);
  Replicate(PartOfOther(1), 2, kStep);
  Complete(1, /*replicas=*/1);
  verdict.protect = verdict.latest = CheckpointId{1, 1, 0};
  verdict.target = CheckpointId{2, 1, 0};
  Hear();
  size_t lent = 0;  // slabs that the writer ever had
  for (Step step = 2; step <= 8; ++step) {
    if (step == 6) lent = mapped.size();
    Save(writer, step, part);
    Complete(step);
    verdict.latest = CheckpointId{step, 1, 0};
    Hear();
  }
  EXPECT_EQ(mapped.size(), lent) << "five steps' slabs serve it: no page is new";
  EXPECT_TRUE(Holds(1) && Holds(2) && Holds(8)) << "protected, target and newest";
  Want(ManifestOf(PartOfOther(2), 2, kStep), PartOfOther(2), kStep, /*target=*/true);
  ASSERT_EQ(fetches.size(), 1u) << WhyNot(PartOfOther(2));
}

// Nothing could be given up while it grew, for the home had not said yet what is complete.
TEST_F(IdleWriter, GivesBackAtItsNextSaveWhatTheReplicaLacks) {
  const SessionId writer = OneOfTwo(1);
  Save(writer, 1, {{"model", kStep}});
  Replicate(PartOfOther(1), 2, kStep);
  Complete(1, /*replicas=*/1);
  verdict.protect = verdict.latest = CheckpointId{1, 1, 0};
  verdict.target = CheckpointId{2, 1, 0};
  Hear();
  for (Step step = 2; step <= 6; ++step) Save(writer, step, {{"model", kStep}});
  for (Step step = 2; step <= 6; ++step) Complete(step);
  verdict.latest = CheckpointId{6, 1, 0};
  Hear();
  const Manifest wanted = ManifestOf(PartOfOther(2), 2, kStep);
  Want(wanted, PartOfOther(2), kStep, /*target=*/true);
  EXPECT_TRUE(fetches.empty()) << "it has six steps";
  for (Step step = 7; step <= 8; ++step) {
    Save(writer, step, {{"model", kStep}});
    Complete(step);
    verdict.latest = CheckpointId{step, 1, 0};
    Hear();
    Advance(kNanosPerSecond);
    Hear();
  }
  EXPECT_EQ(fetches.size(), 1u) << WhyNot(PartOfOther(2));
  EXPECT_TRUE(Holds(1) && Holds(2) && Holds(8)) << "protected, target and newest";
}

// --- memory of fetches that have ended

TEST_F(StepsOf16, OneThatItsSourceCouldNotFinishLeavesItsMemoryToTheJobsNext) {
  Want(ManifestOf(PartOfOther(1), 2, kStep), PartOfOther(1), kStep);
  ASSERT_EQ(fetches.size(), 1u);
  const SlabId slab = fetches[0].slab;
  Apply(event::Fetched{fetches[0].fetch, absl::UnavailableError("no source is left"), nullptr, ""});
  EXPECT_THAT(destroyed, Not(Contains(slab)));
  Want(ManifestOf(PartOfOther(2), 2, kStep), PartOfOther(2), kStep);
  ASSERT_EQ(fetches.size(), 1u);
  EXPECT_EQ(fetches[0].slab, slab);
}

// Nobody knows whose bytes such a source has sent, and spares are lent to the job's user.
TEST_F(StepsOf16, OneWhoseSourceLiedLeavesNothing) {
  Want(ManifestOf(PartOfOther(1), 2, kStep), PartOfOther(1), kStep);
  ASSERT_EQ(fetches.size(), 1u);
  const SlabId slab = fetches[0].slab;
  Apply(event::Fetched{fetches[0].fetch, absl::DataLossError("block 2 is bad"), nullptr, ""});
  EXPECT_THAT(destroyed, Contains(slab));
  Want(ManifestOf(PartOfOther(2), 2, kStep), PartOfOther(2), kStep);
  ASSERT_EQ(fetches.size(), 1u);
  EXPECT_NE(fetches[0].slab, slab);
}

// --- whose bytes may come

TEST_F(Room, AFetchNamesTheUserWhoseTheJobIs) {
  constexpr uint32_t kUser = 1234;
  Manifest manifest = ManifestOf({{another_job, 1, 1, 0}, 0}, 1, kMiB);
  manifest.owner_uid = kUser;
  Want(manifest, manifest.Part(), kMiB);
  ASSERT_EQ(fetches.size(), 1u) << "a replica";
  EXPECT_EQ(fetches[0].uid, kUser);

  const SessionId reader = Hello({.writer = -1, .world_size = 0, .uid = kUser});
  OneWriterCompletes(1);
  verdict.owner_uid = verdict.owner_gid = kUser;
  Hear();
  Manifest loaded = ManifestOf({{"job", 1, 1, 0}, 0}, 1, kMiB);
  loaded.owner_uid = kUser;
  OpensWhatTheOtherHas(reader, loaded);
  ASSERT_EQ(fetches.size(), 1u) << "a load";
  EXPECT_EQ(fetches[0].uid, kUser);
}

// --- what is refused

TEST_F(Room, APartForWhichTheJournalLacksRoomIsRefusedUntilItHasSome) {
  engine->SetJournalRoom(990'000, 1'000'000);
  Want(ManifestOf(PartOfOther(1), 2, kMiB), PartOfOther(1), kMiB);
  EXPECT_THAT(fetches, IsEmpty());
  const peer::Have* said = SaidOf(PartOfOther(1));
  ASSERT_NE(said, nullptr);
  EXPECT_EQ(said->state, peer::HaveState::kRefused);
  EXPECT_THAT(said->why, HasSubstr("journal"));
  engine->SetJournalRoom(0, 1'000'000);
  Advance(1100 * kNanosPerMilli);
  EXPECT_EQ(fetches.size(), 1u);
}

TEST_F(Room, InSafeModeNothingIsTakenIn) {
  safe_mode = "the journal cannot be read";
  Restart();
  Apply(event::Exchanged{other.rank, other});
  Want(ManifestOf(PartOfOther(1), 2, kMiB), PartOfOther(1), kMiB);
  EXPECT_THAT(fetches, IsEmpty());
  const peer::Have* said = SaidOf(PartOfOther(1));
  ASSERT_NE(said, nullptr);
  EXPECT_EQ(said->state, peer::HaveState::kRefused);
  EXPECT_THAT(said->why, HasSubstr("the journal cannot be read"));
  safe_mode.clear();
  Restart();
  Apply(event::Exchanged{other.rank, other});
  Want(ManifestOf(PartOfOther(1), 2, kMiB), PartOfOther(1), kMiB);
  EXPECT_EQ(fetches.size(), 1u);
}

// One user may have one job here.
class OneJobEach : public Room {
 protected:
  void SetUp() override {
    options.own_uid = 0;
    options.max_jobs = 2;
    options.user_percent = 50;
    Room::SetUp();
  }
};

TEST_F(OneJobEach, APartOfOneMoreIsRefusedUntilTheUserHasRoom) {
  const SessionId session = OfAnotherJob();
  Save(session, 1, {{"model", kMiB}});
  const PartKey part = PartOfOther(1);
  Want(ManifestOf(part, 2, kMiB), part, kMiB);
  EXPECT_THAT(fetches, IsEmpty());
  const peer::Have* said = SaidOf(part);
  ASSERT_NE(said, nullptr);
  EXPECT_EQ(said->state, peer::HaveState::kRefused);
  EXPECT_THAT(said->why, HasSubstr("limits.jobs"));

  Manifest of_another_user = ManifestOf(part, 2, kMiB);
  of_another_user.owner_uid = 2000;
  Want(of_another_user, part, kMiB);
  ASSERT_EQ(fetches.size(), 1u) << "he has none: " << WhyNot(part);
  const uint64_t fetch = fetches[0].fetch;
  Wants({});
  Apply(event::Fetched{fetch, absl::CancelledError("not wanted any more"), nullptr, ""});

  event::Remove remove;
  remove.caller = From(session);
  remove.ref = {another_job, 1};
  remove.force = true;
  remove.deadline = Soon();
  Apply(remove);
  Die(session);
  for (int i = 0; i < 20; ++i) Advance(60 * kNanosPerSecond);  // until it is forgotten
  Want(ManifestOf(part, 2, kMiB), part, kMiB);
  EXPECT_EQ(fetches.size(), 1u) << WhyNot(part);
}

// --- what gives way

class InPieces : public Room, public ::testing::WithParamInterface<int> {
 protected:
  InPieces() { options.given_up_whole = GetParam(); }
};

TEST_P(InPieces, LatestStaysWhatItIsWhenALoadedCopyGivesWay) {
  const SessionId reader = Reader();
  verdict.attempts[1] = {1, {}, kUnix};
  OneWriterCompletes(1);
  verdict.latest = CheckpointId{1, 1, 0};
  Hear();
  ASSERT_EQ(LatestStep(reader), 1);
  LoadAndRelease(reader, ManifestOf({{"job", 1, 1, 0}, 0}, 1, 40 * kMiB));
  ASSERT_TRUE(Holds(1));
  // Another job saves, and needs the memory.
  const SessionId session = OfAnotherJob();
  ASSERT_TRUE(Create(session, PartOf(session, 1), {{"model", 50 * kMiB}}).ok());
  ASSERT_FALSE(Holds(1));
  EXPECT_EQ(LatestStep(reader), 1);
  const event::Open again = OpenOf(reader, 1, "model-0");
  Apply(again);
  EXPECT_FALSE(Answered(again.caller.request)) << "the home is asked where it is";
  Hear();
  EXPECT_EQ(LatestStep(reader), 1);
}
// A step of so many parts at most goes at once, one of more in pieces.
INSTANTIATE_TEST_SUITE_P(GivenUpWhole, InPieces, ::testing::Values(64, 0));

// --- what is let go

class WithStorage : public PartsElsewhere {
 protected:
  void SetUp() override {
    options.default_policy.mode = PersistMode::kNewest;
    PartsElsewhere::SetUp();
  }
};

// The job is over, its last step is in storage, and another job has driven the node's own part
// out of memory.
TEST_F(WithStorage, TheLastReplicaOfAFinishedJobIsReleasedOnceItsStepIsStored) {
  const SessionId session = Hello({});
  Hear();
  Save(session, 1, {{"model", 20 * kMiB}});
  const PartKey part = PartOf(session, 1);
  const std::string digest = engine->Describe("job", {part.checkpoint}).parts.at(0).digest;
  Die(session);
  Complete(1, /*replicas=*/1);
  CheckpointVerdict& said = verdict.checkpoints.at({1, 1, 0});
  said.world_size = 1;
  said.stored = true;
  said.digest = digest;
  verdict.latest = verdict.protect = CheckpointId{1, 1, 0};
  for (int i = 0; i < 5; ++i) {
    Hear();
    Advance(kNanosPerSecond);
  }
  ASSERT_TRUE(stored.contains(part.checkpoint));
  // While something is being restored nothing is released: where all is, the home says.
  peer::PlacesSaid places{part.checkpoint, "", {}};
  places.places.push_back({0, digest, 1, 20 * kMiB, options.ring.rank, {options.ring.rank}});
  Apply(event::PeerSaid{other, places});
  const SessionId another = OfAnotherJob();
  peer::HaveList haves;
  const auto says_that_it_holds_it = [&] {
    tells.clear();
    ++haves.version;
    haves.haves = {{part, digest, peer::HaveState::kHeld}};
    Apply(event::PeerSaid{other, haves});
    Hear();
    Advance(kNanosPerSecond);
    return LastSaid<peer::ReleaseList>(other.rank);
  };
  EXPECT_EQ(says_that_it_holds_it(), nullptr) << "this node has its own part still";
  ASSERT_TRUE(Create(another, PartOf(another, 1), {{"model", 60 * kMiB}}).ok());
  ASSERT_FALSE(Holds(1));
  says_that_it_holds_it();  // and this node does not want it kept any more
  const auto* released = says_that_it_holds_it();
  ASSERT_NE(released, nullptr);
  ASSERT_EQ(released->releases.size(), 1u);
  EXPECT_EQ(released->releases[0].part, part);
}

// This node is the job's home. Another one writes the job, and the third is its backup: nothing of
// it is here.
class HomeOfOthers : public RingTest {
 protected:
  void SetUp() override {
    const std::vector<Rank> order = HomeOrder("job", {0, 1, 2});
    options.ring.cluster = "test";
    options.ring.rank = order[0];
    options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}, {2, "10.0.0.3:1"}};
    options.storage = true;
    options.default_policy.keep_last = 1;
    RingTest::SetUp();
    writer = {order[1], 1, std::string(kInstanceBytes, 'o')};
    backup = {order[2], 1, std::string(kInstanceBytes, 't')};
    AreHeard();
  }
  void AreHeard() {
    for (const MemberId& member : {writer, backup}) Apply(event::Exchanged{member.rank, member});
  }
  // It says so.
  void Writes(Step step) {
    Manifest manifest = ManifestOf({{"job", step, 1, 0}, 0}, 1, 100);
    manifest.first = 1;
    WritePart(manifest);
    line_records[{1, LineRecordKind::kOrigin}] = {"job", 1, LineRecordKind::kOrigin, {}};
    ReportDelta delta;
    delta.job = "job";
    delta.number = ++number;
    delta.owned = true;
    delta.owner_uid = delta.owner_gid = 1000;
    delta.policy = options.default_policy;
    delta.attempts[1] = {1, {}, kUnix};
    delta.writers[{1, {1, 0}}].reached = {step, 0};
    PartReport& part = delta.parts[{{step, 1, 0}, 0}];
    part.world_size = 1;
    part.digest = DigestOf(manifest);
    part.owner = writer.rank;
    part.bytes = 4096;
    part.stored = true;
    delta.published.insert({step, 1, 0});
    Apply(event::PeerSaid{writer, peer::Report{delta}});
    ReportDelta nothing;
    nothing.job = "job";
    nothing.number = number;
    Apply(event::PeerSaid{backup, peer::Report{nothing}});
  }
  MemberId writer, backup;
  uint64_t number = 0;
};

TEST_F(HomeOfOthers, TheHomeDeletesByPolicyWhatOthersWrote) {
  for (Step step = 1; step <= 20; ++step) {
    Writes(step);
    for (int i = 0; i < 11; ++i) {  // it looks at the files every 10 s at most
      AreHeard();
      Advance(kNanosPerSecond);
    }
  }
  EXPECT_THAT(scans, Not(IsEmpty()));
  EXPECT_GE(deletes.size(), 15u) << "of 19";
  EXPECT_TRUE(stored.contains({"job", 20, 1, 0}));
}

}  // namespace
}  // namespace cairn::engine
