// One file: the cases share one small vocabulary of parts that are here and parts that are not.
//
// A node of a ring that has some parts of a checkpoint, while others have the rest: what it keeps, what it
// writes to storage, what its own writers are expected to need.
#include "server/engine/ring.h"
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kPart = 40 * kMiB;  // of one writer: the budget holds one of them

class PartsElsewhere : public EngineTest {
 protected:
  bool storage = true;
  void SetUp() override {
    // The job's home is the other member, whose word the tests bring.
    const std::vector<Rank> order = HomeOrder("job", {0, 1});
    other = {order.front(), 1, std::string(kInstanceBytes, 'o')};
    options.ring.cluster = "test";
    options.ring.rank = order.back();
    options.ring.members = {{0, "10.0.0.1:1"}, {1, "10.0.0.2:1"}};
    while (HomeOrder(another_job, {0, 1}).front() != other.rank) another_job += "x";
    options.storage = storage;
    EngineTest::SetUp();
    Apply(event::Exchanged{other.rank, other});
  }
  // A session of another job, of which the members have nothing.
  SessionId OfAnotherJob() {
    const SessionId session = Hello({.job = another_job});
    JobVerdict nothing;
    nothing.job = another_job;
    nothing.final = true;
    Apply(event::PeerSaid{other, peer::VerdictSaid{nothing}});
    return session;
  }
  // The home says this of the job; of each step of attempt 1 that was told before, the same as before.
  void Hear() {
    verdict.job = "job";
    verdict.final = true;
    verdict.asked = 1;
    Apply(event::PeerSaid{other, peer::VerdictSaid{verdict}});
  }
  void Complete(Step step, int replicas = 0) {
    CheckpointVerdict& said = verdict.checkpoints[{step, 1, 0}];
    said.world_size = 2;
    said.complete = said.in_memory = true;
    said.digest = absl::StrCat("digest of ", step);
    said.replicas = replicas;
  }
  // One of a job's two writers; the other one runs on the other member.
  SessionId OneOfTwo(Attempt attempt) {
    const SessionId session =
        Hello({.writer = 0, .world_size = 2, .attempt = attempt, .local_writers = 1});
    Hear();
    return session;
  }
  // To its deadline, if need be.
  Status Asks(SessionId session, Step step, uint64_t bytes, const std::string& name = "model") {
    const event::Create create = CreateOf(session, PartOf(session, step), {{name, bytes}});
    Apply(create);
    for (int i = 0; i < 11 && !Answered(create.caller.request); ++i) {
      Advance(kNanosPerSecond);
      Hear();
    }
    return AnswerTo(create.caller.request).status();
  }
  bool Holds(Step step, Attempt attempt = 1) {
    for (const auto& part : engine->Describe("job", {{"job", step, attempt, 0}}).parts) {
      if (part.resident) return true;
    }
    return false;
  }
  // The part that each writer of an earlier life has in storage.
  void StoreWhole(Step step, Attempt attempt, int32_t world_size, uint64_t bytes_each) {
    for (Writer writer = 0; writer < world_size; ++writer) {
      WritePart(ManifestOf({{"job", step, attempt, 0}, writer}, world_size, bytes_each));
    }
    line_records[{attempt, LineRecordKind::kOrigin}] = {
        "job", attempt, LineRecordKind::kOrigin, {}};
  }
  static Manifest ManifestOf(const PartKey& part, int32_t world_size, uint64_t bytes) {
    Manifest manifest;
    manifest.job = part.checkpoint.job;
    manifest.step = manifest.first = part.checkpoint.step;
    manifest.attempt = part.checkpoint.attempt;
    manifest.writer = part.writer;
    manifest.world_size = world_size;
    manifest.owner_uid = 1000;
    ObjectEntry entry;
    entry.name = absl::StrCat("model-", part.writer);
    entry.length = bytes;
    entry.block_crcs.assign(BlockCount(bytes, kBlockBytes), 7);
    manifest.objects.push_back(entry);
    return manifest;
  }
  // The other member wants a part of its writer kept here: its digest.
  std::string Want(const Manifest& manifest, const PartKey& part, uint64_t bytes,
                   bool target = false) {
    peer::WantList list;
    list.version = ++wants;
    peer::Want want;
    want.part = part;
    want.digest = ManifestDigest(EncodeManifest(manifest));
    want.manifest_bytes = EncodeManifest(manifest).size();
    want.bytes = bytes;
    want.world_size = manifest.world_size;
    want.owner_uid = want.owner_gid = 1000;
    want.target = target;
    list.wants.push_back(want);
    fetches.clear();
    Apply(event::PeerSaid{other, list});
    return want.digest;
  }
  // The newest list that this node said to it.
  std::vector<peer::Have> SaidHaves() const {
    std::vector<peer::Have> haves;
    for (const action::Tell& tell : tells) {
      if (const auto* list = std::get_if<peer::HaveList>(&tell.message)) haves = list->haves;
    }
    return haves;
  }
  // And it comes.
  void Replicate(const PartKey& part, int32_t world_size, uint64_t bytes) {
    const Manifest manifest = ManifestOf(part, world_size, bytes);
    const std::string digest = Want(manifest, part, bytes);
    ASSERT_EQ(fetches.size(), 1u) << part.DebugString();
    Apply(event::Fetched{fetches[0].fetch, absl::OkStatus(),
                         TableOf(manifest, {{fetches[0].slab, 0, bytes}}), digest});
  }

  MemberId other;
  std::string another_job = "another";
  JobVerdict verdict;
  uint64_t wants = 0;
};

// --- memory

TEST_F(PartsElsewhere, AFencedStepStaysWhileItMayBeCompleteWithTheOthers) {
  const SessionId old = OneOfTwo(1);
  Save(old, 1, {{"model", kPart}});
  Die(old);
  const SessionId next = OneOfTwo(2);
  EXPECT_THAT(Asks(next, 1, kPart), Fails(absl::StatusCode::kResourceExhausted, "memory"));
  EXPECT_TRUE(Holds(1)) << "this node's part of it may be the last copy";
}

TEST_F(PartsElsewhere, AFencedStepAllOfWhoseWritersAreHereGoes) {
  const Who of_two{.writer = 0, .world_size = 2, .local_writers = 2};
  const SessionId old = Hello(of_two);
  Hear();
  Save(old, 1, {{"model", 30 * kMiB}});
  Die(old);
  Who newer = of_two;
  newer.attempt = 2;
  const SessionId next = Hello(newer);
  Hear();
  // Of a new name, so that as much is expected of the other writer.
  EXPECT_TRUE(Asks(next, 1, 30 * kMiB, "another").ok());
  EXPECT_FALSE(Holds(1));
}

TEST_F(PartsElsewhere, AStepThatNobodyWillCompleteGoesOnceTheMembersSaySo) {
  const SessionId old = OneOfTwo(1);
  Save(old, 1, {{"model", kPart}});
  Die(old);
  const SessionId next = OneOfTwo(2);
  CheckpointVerdict& said = verdict.checkpoints[{1, 1, 0}];
  said.world_size = 2;
  said.hopeless = true;
  Hear();
  EXPECT_TRUE(Asks(next, 1, kPart).ok());
  EXPECT_FALSE(Holds(1));
}

TEST_F(PartsElsewhere, AStepLeftBehindByThisNodesWriterStays) {
  const SessionId writer = OneOfTwo(1);
  Save(writer, 1, {{"model", kPart}});
  sessions[writer].world_size = 1;  // a step of this writer alone, which is complete
  Save(writer, 2, {{"small", kMiB}});
  sessions[writer].world_size = 2;
  EXPECT_THAT(Asks(writer, 3, kPart), Fails(absl::StatusCode::kResourceExhausted, "memory"));
  EXPECT_TRUE(Holds(1));
}

TEST_F(PartsElsewhere, AloneWhatIsLeftBehindGoesAsBefore) {
  options.ring = {};
  Restart();
  const SessionId writer = Hello({.writer = 0, .world_size = 2, .local_writers = 1});
  Save(writer, 1, {{"model", kPart}});
  sessions[writer].world_size = 1;
  Save(writer, 2, {{"small", kMiB}});
  sessions[writer].world_size = 2;
  EXPECT_TRUE(Asks(writer, 3, kPart).ok());
}

// Steps of 15 MiB here, of which the budget holds four.
class SeveralSteps : public PartsElsewhere {
 protected:
  void SetUp() override {
    storage = false;
    PartsElsewhere::SetUp();
    writer = OneOfTwo(1);
    for (const Step step : {1, 2, 3, 4}) {
      Save(writer, step, {{"model", 15 * kMiB}});
      Complete(step);
    }
  }
  // Which are left, in memory, when another one is wanted.
  std::vector<Step> LeftAfterAnother() {
    EXPECT_TRUE(Asks(writer, 5, 15 * kMiB).ok());
    std::vector<Step> left;
    for (const Step step : {1, 2, 3, 4}) {
      if (Holds(step)) left.push_back(step);
    }
    return left;
  }

  SessionId writer = 0;
};

TEST_F(SeveralSteps, TheProtectedOneAndTheTargetStayWhateverIsNewer) {
  Complete(1, /*replicas=*/1);
  verdict.protect = CheckpointId{1, 1, 0};
  verdict.target = CheckpointId{2, 1, 0};
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(1, 2, 4));
}

TEST_F(SeveralSteps, WhatAProtectedOneSupersedesGoesFirst) {
  Complete(3, /*replicas=*/1);
  verdict.protect = verdict.target = CheckpointId{3, 1, 0};
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(2, 3, 4));
}

TEST_F(SeveralSteps, WithoutAnythingProtectedTheOldestOfThoseThatOweACopyGoes) {
  verdict.target = CheckpointId{1, 1, 0};
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(1, 3, 4));
}

// Promise 1: the ring fell apart, and each side has half of what was protected.
TEST_F(SeveralSteps, OneThatWasProtectedStaysWhileThoseWhoHaveTheRestAreCutOff) {
  Complete(2, /*replicas=*/1);
  verdict.protect = CheckpointId{2, 1, 0};
  Hear();
  CheckpointVerdict& half = verdict.checkpoints.at({2, 1, 0});
  half.complete = half.in_memory = false;
  half.hopeless = true;
  verdict.protect.reset();
  verdict.target = CheckpointId{1, 1, 0};
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(1, 2, 4));
}

TEST_F(SeveralSteps, AlsoWhereOnlyTheRecordTellsThatItWas) {
  verdict.safe = {1, 2};
  verdict.target = CheckpointId{1, 1, 0};
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(1, 2, 4));
}

TEST_F(SeveralSteps, AlsoForANewDaemonThatHasHeardNobodyYet) {
  Complete(2, /*replicas=*/1);
  verdict.protect = CheckpointId{2, 1, 0};
  Hear();
  for (const StartFrom from : kFrom) {
    Restart(from);
    const auto facts = engine->Snapshot();
    EXPECT_THAT(facts, Contains(Fact(fact::StepSafe{"job", 1, 2}))) << NameOf(from);
  }
  // As on a side of the ring that lacks the others' parts.
  Apply(event::Exchanged{other.rank, other});
  CheckpointVerdict& half = verdict.checkpoints.at({2, 1, 0});
  half.complete = half.in_memory = false;
  half.hopeless = true;
  verdict.protect.reset();
  verdict.target = CheckpointId{1, 1, 0};
  Hear();
  EXPECT_THAT(LeftAfterAnother(), ElementsAre(1, 2, 4));
}

// Another home may have said so, to somebody else.
TEST_F(SeveralSteps, OneThatTheBackupsHaveMayBeProtectedAndStays) {
  const PartKey part = PartOf(writer, 2);
  peer::HaveList list;
  list.version = 1;
  list.haves.push_back({part, engine->Describe("job", {part.checkpoint}).parts.at(0).digest,
                        peer::HaveState::kHeld});
  Apply(event::PeerSaid{other, list});
  verdict.target = CheckpointId{1, 1, 0};
  verdict.final = false;
  Apply(event::PeerSaid{other, peer::VerdictSaid{verdict}});
  const event::Create create = CreateOf(writer, PartOf(writer, 5), {{"model", 15 * kMiB}});
  Apply(create);
  EXPECT_TRUE(AnswerTo(create.caller.request).ok());
  EXPECT_TRUE(Holds(2));
  EXPECT_FALSE(Holds(3));
}

// A new life goes on from step 1. Of what it left behind the newest that is protected stays, until it has something
// protected of its own.
TEST_F(SeveralSteps, AnAbandonedOneThatIsProtectedStaysUntilTheNewLifeHasOne) {
  verdict.safe = {1, 4};
  Complete(1, /*replicas=*/1);
  Complete(3, /*replicas=*/1);
  verdict.protect = CheckpointId{1, 1, 0};
  verdict.attempts[2] = {2, Lineage{{{1, 1}}, false}, kUnix};
  CheckpointVerdict& of_new_life = verdict.checkpoints[{2, 2, 0}];
  of_new_life = verdict.checkpoints.at({2, 1, 0});
  Hear();
  const SessionId session = OfAnotherJob();
  const auto presses = [&] {
    const event::Create create = CreateOf(session, PartOf(session, 1), {{"model", 30 * kMiB}});
    Apply(create);
  };
  presses();
  EXPECT_TRUE(Holds(3));
  EXPECT_TRUE(Holds(1)) << "it is protected now, though a later one was once";
  of_new_life.replicas = 1;
  verdict.protect = CheckpointId{2, 2, 0};
  Hear();
  presses();
  EXPECT_FALSE(Holds(3));
}

TEST_F(SeveralSteps, OfAJobThatAsksForNoReplicasTheNewestIsEnough) {
  Hear();
  verdict.asked = 0;
  Apply(event::PeerSaid{other, peer::VerdictSaid{verdict}});
  const SessionId same = writer;
  const event::Create create = CreateOf(same, PartOf(same, 5), {{"model", 15 * kMiB}});
  Apply(create);
  EXPECT_TRUE(AnswerTo(create.caller.request).ok());
  EXPECT_FALSE(Holds(1));
}

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
  // The open of what the other member has: the home says where it is.
  RequestId Opens(Step step, uint64_t bytes) {
    Complete(step);
    verdict.checkpoints.at({step, 1, 0}).world_size = 1;
    Hear();
    const event::Open open = OpenOf(reader, step, "model-0");
    fetches.clear();
    Apply(open);
    peer::PlacesSaid places{{"job", step, 1, 0}, "model-0", {}};
    const Manifest manifest = ManifestOf({{"job", step, 1, 0}, 0}, 1, bytes);
    places.places.push_back(
        {0, ManifestDigest(EncodeManifest(manifest)), 1, bytes, other.rank, {other.rank}});
    Apply(event::PeerSaid{other, places});
    return open.caller.request;
  }
  SessionId reader = 0;
};

TEST_F(Loaded, OneForWhichThereIsNoMemoryIsRefusedWithTheArithmetic) {
  EXPECT_THAT(AnswerTo(Opens(1, 100 * kMiB)).status(),
              Fails(absl::StatusCode::kResourceExhausted, "needs 104857600 bytes of memory"));
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
                            absl::UnavailableError("no source is left")}) {
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
  Replicate(Of(2), 2, 20 * kMiB);
  LetGo(1);
  Replicate(Of(3), 2, 20 * kMiB);
  EXPECT_EQ(fetches[0].slab, first);
  EXPECT_THAT(destroyed, Not(Contains(first)));
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
}

// --- admission

// Eight writers on eight nodes: what all of them saved would not fit here, and need not.
// Neither storage nor the members answer, and its time is up: each of the two waits gives up, and they must not
// begin anew in turn.
TEST_F(PartsElsewhere, AFirstStepThatHearsOfNobodyGoesOnAtItsDeadline) {
  hold_scans = true;
  const SessionId session = Hello({.writer = 0, .world_size = 2, .attempt = 1});
  event::Create create = CreateOf(session, PartOf(session, 1), {{"model", kMiB}});
  create.deadline = now + kNanosPerSecond;
  Apply(create);
  Advance(2 * kNanosPerSecond);
  EXPECT_TRUE(Answered(create.caller.request));
}

TEST_F(PartsElsewhere, TheWholeRingsLastStepIsNotTakenForThisNodes) {
  StoreWhole(1, 1, 8, 30 * kMiB);
  const SessionId writer = Hello({.writer = 3, .world_size = 8, .attempt = 2, .local_writers = 1});
  Hear();
  EXPECT_EQ(LatestStep(writer), 1);
  EXPECT_TRUE(TrySave(writer, 2, {{"model-3", 30 * kMiB}}).ok());
}

TEST_F(PartsElsewhere, OfTheLastStepTheWritersThatAreHereCount) {
  StoreWhole(1, 1, 4, 30 * kMiB);
  const Who here{.writer = 0, .world_size = 4, .attempt = 2, .local_writers = 2};
  const SessionId zero = Hello(here);
  Who second = here;
  second.writer = 1;
  const SessionId one = Hello(second);
  Hear();
  ASSERT_EQ(LatestStep(zero), 1);
  const event::Create create = CreateOf(zero, PartOf(zero, 2), {{"model-0", 20 * kMiB}});
  Apply(create);
  ASSERT_TRUE(AnswerTo(create.caller.request).ok());
  EXPECT_TRUE(TrySave(one, 2, {{"model-1", 30 * kMiB}}).ok()) << "it was set aside";
}

// Of three writers two are here. What the other member's writer saved is no word of theirs.
TEST_F(PartsElsewhere, WhatIsSetAsideForThisNodesWritersIsNotEndedByAnothersPart) {
  const Who here{.writer = 0, .world_size = 3, .local_writers = 2};
  Who second = here;
  second.writer = 1;
  const SessionId zero = Hello(here), one = Hello(second);
  Hear();
  const PartKey part = PartOf(zero, 1);
  ASSERT_TRUE(Create(zero, part, {{"zero", 20 * kMiB}}).ok());
  Replicate({part.checkpoint, 2}, 3, 2 * kMiB);
  ASSERT_TRUE(Commit(zero, part, {{"zero", 20 * kMiB}}).ok());
  const SessionId greedy = OfAnotherJob();
  Apply(CreateOf(greedy, PartOf(greedy, 1), {{"model", 30 * kMiB}}));
  EXPECT_TRUE(TrySave(one, 1, {{"one", 20 * kMiB}}).ok());
}

// --- storage

class AwaitingOthers : public PartsElsewhere {
 protected:
  void SetUp() override {
    PartsElsewhere::SetUp();
    hold_persists = true;
    writer = Hello();
    Hear();
    Save(writer, 1);
    ASSERT_EQ(persists.size(), 1u);
  }
  void Wrote(Step step, bool all) {
    Apply(event::Persisted{{"job", step, 1, 0}, absl::OkStatus(), Location("/root/job"), !all});
  }

  SessionId writer = 0;
};

TEST_F(AwaitingOthers, ANodeThatHasWrittenLooksAgainUntilItIsPublished) {
  const RequestId wait = Wait(writer, 1, Level::kPersisted);
  Wrote(1, /*all=*/false);
  EXPECT_FALSE(Stat(writer, 1)->facts.persisted);
  EXPECT_FALSE(Answered(wait)) << "it is not refused, and will be";
  EXPECT_THAT(Stat(writer, 1)->why, Not(HasSubstr("not persisted"))) << "nothing has failed";
  Advance(4 * kNanosPerSecond);
  EXPECT_EQ(persists.size(), 1u);
  Advance(kNanosPerSecond);
  ASSERT_EQ(persists.size(), 2u) << "after 5 s";
  EXPECT_EQ(persists.back().parts.size(), 1u) << "a sweep may have taken what was there";
  Wrote(1, /*all=*/false);
  Advance(9 * kNanosPerSecond);
  EXPECT_EQ(persists.size(), 2u);
  Advance(kNanosPerSecond);
  ASSERT_EQ(persists.size(), 3u) << "after 10 s more";
  Wrote(1, /*all=*/true);
  EXPECT_TRUE(Stat(writer, 1)->facts.persisted);
  Advance(600 * kNanosPerSecond);
  EXPECT_EQ(persists.size(), 3u);
}

TEST_F(AwaitingOthers, TheLooksGetNoFurtherApartThanAMinute) {
  for (int i = 0; i < 8; ++i) {
    Wrote(1, /*all=*/false);
    const size_t before = persists.size();
    Advance(60 * kNanosPerSecond);
    ASSERT_EQ(persists.size(), before + 1);
  }
}

TEST_F(AwaitingOthers, ANewerStepTakesItsTurnAtOnce) {
  Wrote(1, /*all=*/false);
  Save(writer, 2);
  ASSERT_EQ(persists.size(), 2u);
  EXPECT_EQ(persists.back().checkpoint.step, 2);
}

TEST_F(AwaitingOthers, ADaemonThatStopsLeavesTheRestToTheOthers) {
  Apply(event::Drain{Soon()});
  EXPECT_FALSE(drained);
  Wrote(1, /*all=*/false);
  EXPECT_TRUE(drained);
}

TEST_F(AwaitingOthers, WhatWasWrittenIsWrittenAgainOnAnotherStorage) {
  Wrote(1, /*all=*/false);
  SeeRoot(absl::UnavailableError("away"));
  Advance(60 * kNanosPerSecond);
  EXPECT_EQ(persists.size(), 1u) << "storage is away";
  SeeRoot(RootIdentity{"root-1", "instance-2"});
  EXPECT_EQ(persists.size(), 2u);
}

TEST_F(AwaitingOthers, AfterARestartItIsWrittenOnceMore) {
  Wrote(1, /*all=*/false);
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    persists.clear();
    Restart(from);
    EXPECT_EQ(persists.size(), 1u);
  }
}

// A step of which each of two members has a part.
class SharedStep : public PartsElsewhere {
 protected:
  void SetUp() override {
    PartsElsewhere::SetUp();
    hold_persists = true;
    writer = OneOfTwo(1);
  }
  // The other member's part, as it writes it.
  void OtherWrites(Step step) { WritePart(ManifestOf({{"job", step, 1, 0}, 1}, 2, kMiB)); }

  SessionId writer = 0;
};

TEST_F(SharedStep, ANodeWritesItsOwnPartsOnceAllAreKnownToBeThere) {
  Save(writer, 1);
  EXPECT_TRUE(persists.empty());
  Complete(1);
  Hear();
  ASSERT_EQ(persists.size(), 1u);
  ASSERT_EQ(persists[0].parts.size(), 1u);
  EXPECT_EQ(persists[0].parts[0]->head.writer, 0);
}

TEST_F(SharedStep, WhoHearsThatItIsPublishedLooksAtOnce) {
  Save(writer, 1);
  Complete(1);
  Hear();
  FinishPersist();
  CarryPending();
  Advance(kNanosPerSecond);
  ASSERT_EQ(persists.size(), 1u) << "the other has not written its part";
  OtherWrites(1);
  verdict.checkpoints.at({1, 1, 0}).stored = true;
  Hear();
  ASSERT_EQ(persists.size(), 2u);
  FinishPersist();
  CarryPending();
  const StatusOr<CheckpointInfo> info = Stat(writer, 1);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_TRUE(info->facts.persisted);
  EXPECT_EQ(engine->Describe("job", {{"job", 1, 1, 0}}).parts.size(), 2u)
      << "the other's part is known from there";
}

TEST_F(SharedStep, TheTargetIsWrittenBeforeWhatIsNewer) {
  Save(writer, 1);
  Save(writer, 2);
  Complete(1);
  Complete(2);
  verdict.target = CheckpointId{1, 1, 0};
  Hear();
  ASSERT_EQ(persists.size(), 1u);
  EXPECT_EQ(persists[0].checkpoint.step, 1);
  FinishPersist();
  CarryPending();
  Advance(kNanosPerSecond);
  EXPECT_EQ(persists.size(), 1u) << "the newer one waits until the target is whole";
  OtherWrites(1);
  Advance(4 * kNanosPerSecond);
  ASSERT_EQ(persists.size(), 2u);
  FinishPersist();
  CarryPending();
  ASSERT_EQ(persists.size(), 3u);
  EXPECT_EQ(persists[2].checkpoint.step, 2);
}

TEST_F(SharedStep, APartKeptForAnotherIsNotThisNodesToWrite) {
  Replicate({{"job", 1, 1, 0}, 1}, 2, kMiB);
  EXPECT_TRUE(persists.empty());
  Save(writer, 1);
  ASSERT_EQ(persists.size(), 1u) << "complete here, with the other's replica";
  EXPECT_EQ(persists[0].parts.size(), 1u);
}

// --- the catalog

TEST_F(PartsElsewhere, ADroppedCopyIsNotGoneForTheOthers) {
  const SessionId writer = OneOfTwo(1);
  Save(writer, 1, {{"model", kMiB}});
  const CheckpointKey step{"job", 1, 1, 0};
  const Engine::Description there = engine->Describe("job", {step});
  ASSERT_EQ(there.parts.size(), 1u);
  EXPECT_TRUE(there.parts[0].own);
  EXPECT_FALSE(there.writes_checkpoints) << "the job's home does";
  const Engine::Description gone = engine->Describe("job", {{"job", 9, 1, 0}});
  EXPECT_THAT(gone.gone, testing::IsEmpty()) << "others may have it";
  Apply(event::Remove{From(writer), {"job", 1}, /*memory_only=*/false, /*force=*/true, Soon()});
  EXPECT_THAT(engine->Describe("job", {step}).gone, ElementsAre(step)) << "it was removed";
}

}  // namespace
}  // namespace cairn::engine
