// The daemon dies; a new one starts from its facts (promise 7, R1, R15).
#include "absl/strings/str_format.h"
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::Contains;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

// Every test runs with a new daemon that starts from the journal, from a snapshot, or from one in pieces.
class Recovery : public EngineTest, public testing::WithParamInterface<StartFrom> {
 protected:
  void DaemonDies() { Restart(GetParam()); }
};

TEST_P(Recovery, CommittedObjectsAreThereAndVerifiedBeforeTheyAreHandedOut) {
  const SessionId session = Hello();
  Save(session, 1, {{"model"}, {"note", 10}});
  const auto before = Latest(session);
  DaemonDies();
  const auto after = Latest(session);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(after->digest, before->digest);
  EXPECT_THAT(verifies, IsEmpty());
  const auto open = Open(session, 1);
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_THAT(verifies, SizeIs(1));
  EXPECT_EQ(open->object.verified_unix_ms, kUnix);
  ASSERT_TRUE(Open(session, 1).ok());
  EXPECT_THAT(verifies, SizeIs(1)) << "verified once, not at every open";
}

// R35: a life that goes on through many deaths of the daemon would else gather them.
TEST_P(Recovery, WorldSizesOfStepsThatAreGoneAreForgotten) {
  const SessionId session = Hello();
  for (Step step = 1; step <= 5; ++step) {
    Save(session, step);
    if (step < 5) Apply(event::Remove{From(session), {"job", step}, /*memory_only=*/true, true});
  }
  DaemonDies();
  std::vector<Step> known;
  for (const Fact& any : engine->Snapshot()) {
    if (const auto* world = std::get_if<fact::StepWorld>(&any)) known.push_back(world->step);
  }
  EXPECT_THAT(known, testing::ElementsAre(5));
}

TEST_P(Recovery, ConcurrentOpensShareOneVerification) {
  const SessionId session = Hello();
  Save(session, 1);
  DaemonDies();
  hold_verifies = true;
  const auto one = OpenOf(session, 1), two = OpenOf(session, 1);
  Apply(one);
  Apply(two);
  EXPECT_THAT(verifies, SizeIs(1));
  EXPECT_FALSE(Answered(one.caller.request));
  Apply(event::Verified{verifies[0].verification, absl::OkStatus(), kUnix});
  EXPECT_TRUE(AnswerTo(one.caller.request).ok());
  EXPECT_TRUE(AnswerTo(two.caller.request).ok());
}

TEST_P(Recovery, ObjectThatFailsToVerifyIsNeverHandedOut) {  // promise 2
  const SessionId session = Hello();
  Save(session, 1, {{"first"}});
  Save(session, 2, {{"model"}});
  DaemonDies();
  rotten.insert("model");
  EXPECT_THAT(StatusOf(Open(session, 2)), Fails(absl::StatusCode::kDataLoss, "does not match"));
  EXPECT_EQ(LatestStep(session), 1) << "latest moves back";
  EXPECT_EQ(Stat(session, 2, 1)->level, Level::kBroken) << "the broken step is still shown";
}

TEST_P(Recovery, ObjectThatFailsToVerifyComesFromStorageIfItIsThere) {
  options.storage = true;
  Restart();
  const SessionId session = Hello();
  Save(session, 1);
  DaemonDies();
  rotten.insert("model");
  EXPECT_TRUE(OpenStored(session, 1).ok());
  EXPECT_EQ(LatestStep(session), 1);
}

TEST_P(Recovery, SaveInFlightGoesOn) {
  const SessionId session = Hello();
  event::Create create = CreateOf(session, PartOf(session, 1), {{"model"}, {"small", 10}});
  Apply(create);
  const auto first = Take<reply::Create>(create.caller.request);
  ASSERT_TRUE(first.ok());
  DaemonDies();
  create.caller = From(session);
  Apply(create);
  const auto again = Take<reply::Create>(create.caller.request);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->extents[0].slab, first->extents[0].slab);
  EXPECT_EQ(again->extents[0].lease, first->extents[0].lease);
  ASSERT_TRUE(Commit(session, PartOf(session, 1), {{"model"}, {"small", 10}}).ok());
  EXPECT_EQ(LatestStep(session), 1);
}

TEST_P(Recovery, CommitWhoseManifestWasNotWrittenCanBeRepeated) {
  hold_manifests = true;
  const SessionId session = Hello();
  ASSERT_TRUE(Create(session, PartOf(session, 1), {{"model"}}).ok());
  const auto commit = CommitOf(session, PartOf(session, 1), {{"model"}});
  Apply(commit);
  EXPECT_FALSE(Answered(commit.caller.request));
  held_manifests.clear();
  DaemonDies();
  EXPECT_EQ(LatestStep(session), kNoStep);
  hold_manifests = false;
  EXPECT_TRUE(Commit(session, PartOf(session, 1), {{"model"}}).ok());
}

TEST_P(Recovery, RepeatedCommitGetsTheFirstAnswerAcrossADeath) {
  const SessionId session = Hello();
  ASSERT_TRUE(Create(session, PartOf(session, 1), {{"model"}}).ok());
  const auto first = Commit(session, PartOf(session, 1), {{"model"}});
  DaemonDies();
  const auto again = Commit(session, PartOf(session, 1), {{"model"}});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->digest, first->digest);
}

TEST_P(Recovery, SessionsWhoseProcessDiedMeanwhileEnd) {
  const SessionId dead = Hello({.writer = 0, .world_size = 2, .process = "A"});
  const SessionId alive = Hello({.writer = 1, .world_size = 2, .process = "B"});
  ASSERT_TRUE(Create(dead, PartOf(dead, 1), {{"a"}}).ok());
  ASSERT_TRUE(Create(alive, PartOf(alive, 1), {{"b"}}).ok());
  sessions.erase(dead);
  for (auto& [slab, who] : mapped) who.erase(dead);
  DaemonDies();
  EXPECT_THAT(Status_().sessions, SizeIs(1));
  EXPECT_EQ(Status_().writing_bytes, 4 * kMiB);
  EXPECT_TRUE(Commit(alive, PartOf(alive, 1), {{"b"}}).ok());
}

TEST_P(Recovery, DroppedPartIsNotTakenForOneWithNothingToSave) {  // promises 2 and 3
  const SessionId session = Hello({.process = "A"});
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  ASSERT_TRUE(Seal(session, part, {{"model"}}).ok());
  sessions.erase(session);  // its process ends while the daemon is dead
  for (auto& [slab, who] : mapped) who.erase(session);
  DaemonDies();
  const SessionId next = Hello({.process = "A"});
  const auto refused = Fails(absl::StatusCode::kFailedPrecondition, "was dropped");
  EXPECT_THAT(StatusOf(Commit(next, part, {})), refused);
  DaemonDies();
  EXPECT_THAT(StatusOf(Commit(next, part, {})), refused);
  Save(next, 1);
  DaemonDies();
  EXPECT_EQ(LatestStep(next), 1);
}

TEST_P(Recovery, PartDroppedByARefusalIsRemembered) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2, .local_writers = 2});
  const SessionId one = Hello({.writer = 1, .world_size = 2, .local_writers = 2});
  ASSERT_TRUE(Create(zero, PartOf(zero, 1), {{"a"}}).ok());
  ASSERT_TRUE(Seal(zero, PartOf(zero, 1), {{"a"}}).ok());
  const auto create = CreateOf(one, PartOf(one, 1), {{"b", 100 * kMiB}});
  Apply(create);
  Advance(11 * kNanosPerSecond);
  EXPECT_THAT(StatusOf(Commit(zero, PartOf(zero, 1), {})),
              Fails(absl::StatusCode::kResourceExhausted, "memory"));
  DaemonDies();
  EXPECT_THAT(StatusOf(Commit(zero, PartOf(zero, 1), {})),
              Fails(absl::StatusCode::kFailedPrecondition, "was dropped"));
  EXPECT_TRUE(Commit(one, PartOf(one, 1), {}).ok()) << "this part never had objects";
}

TEST_P(Recovery, PartGoesWithAnyOfItsSessions) {
  const SessionId session = Hello({.process = "A"});
  const SessionId other = Hello({.process = "A"});
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"a"}}).ok());
  ASSERT_TRUE(Create(other, part, {{"b"}}).ok());
  ASSERT_TRUE(Seal(other, part, {{"a"}, {"b"}}).ok());
  sessions.erase(session);
  for (auto& [slab, who] : mapped) who.erase(session);
  DaemonDies();
  EXPECT_THAT(StatusOf(Stat(other, 1)), Fails(absl::StatusCode::kNotFound, "unknown"));
  EXPECT_THAT(StatusOf(Commit(other, part, {})),
              Fails(absl::StatusCode::kFailedPrecondition, "was dropped"));
}

TEST_P(Recovery, PartThatLostMemoryStaysLost) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  const auto created = Create(session, part, {{"a"}, {"b"}});
  ASSERT_TRUE(created.ok());
  ASSERT_TRUE(Seal(session, part, {{"a"}, {"b"}}).ok());
  keeper.erase(created->extents[0].slab);
  mapped.erase(created->extents[0].slab);
  for (int death = 0; death < 3; ++death) {
    DaemonDies();
    EXPECT_THAT(StatusOf(Commit(session, part, {})),
                Fails(absl::StatusCode::kDataLoss, "save it again"));
    EXPECT_THAT(StatusOf(Create(session, part, {{"c"}})),
                Fails(absl::StatusCode::kDataLoss, "save it again"));
  }
  Save(session, 1, {{"a"}, {"b"}}, /*revision=*/1);
}

TEST_P(Recovery, LeasesGoOn) {  // R29 across a restart
  const SessionId writer = Hello();
  Save(writer, 1, {{"model", 30 * kMiB}});
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const auto open = Open(reader, 1);
  ASSERT_TRUE(open.ok());
  const auto second = Open(reader, 1);
  Release(reader, second->lend.lease, /*closes=*/false);
  DaemonDies();
  Save(writer, 2, {{"model", 30 * kMiB}});
  const auto create = CreateOf(writer, PartOf(writer, 3), {{"model", 30 * kMiB}});
  Apply(create);
  EXPECT_FALSE(Answered(create.caller.request));
  EXPECT_TRUE(keeper.contains(open->lend.slab));
  Release(reader, open->lend.lease);
  Advance(2 * kNanosPerSecond);
  EXPECT_FALSE(Answered(create.caller.request)) << "the other one's lock is still there";
  locks.clear();
  Advance(5 * kNanosPerSecond);
  EXPECT_TRUE(AnswerTo(create.caller.request).ok()) << StatusOf(AnswerTo(create.caller.request));
}

TEST_P(Recovery, SlabTheKeeperDoesNotHoldTakesItsObjectsWithIt) {
  const SessionId session = Hello();
  Save(session, 1, {{"old", 2 * kMiB}});
  Save(session, 2, {{"model", 4 * kMiB}});
  const auto open = Open(session, 2);
  ASSERT_TRUE(open.ok());
  keeper.erase(open->lend.slab);
  mapped.erase(open->lend.slab);
  locks.clear();
  DaemonDies();
  EXPECT_EQ(LatestStep(session), 1);
  EXPECT_EQ(Stat(session, 2, 1)->level, Level::kBroken);
  DaemonDies();
  EXPECT_EQ(LatestStep(session), 1) << "a second death in recovery changes nothing";
}

TEST_P(Recovery, UnknownSlabIsDestroyedOnceNobodySeesIt) {
  keeper[1'000'000] = 2 * kMiB;
  foreign.insert(1'000'000);
  DaemonDies();
  EXPECT_THAT(destroyed, Not(Contains(1'000'000)));
  foreign.clear();
  Advance(kNanosPerSecond);
  EXPECT_THAT(destroyed, Contains(1'000'000));
}

TEST_P(Recovery, ManifestThatDoesNotVerifyMakesItsPartUnknown) {
  const SessionId session = Hello();
  Save(session, 1, {{"a", 10}});
  Save(session, 2, {{"a", 10}});
  for (auto& [at, bytes] : manifests) {
    if (ManifestIn(bytes).step == 2) bytes[40] ^= 1;
  }
  DaemonDies();
  EXPECT_EQ(LatestStep(session), 1);
  EXPECT_FALSE(Open(session, 2, "a").ok());
}

TEST_P(Recovery, AttemptsAndTheirProcessesAreRemembered) {
  const SessionId session = Hello({.world_size = 2, .attempt = 7, .process = "A", .pid = 55});
  Save(session, 1);
  DaemonDies();
  const SessionId other = Hello({.world_size = 2, .attempt = 7, .process = "B"});
  EXPECT_THAT(TrySave(other, 2), Fails(absl::StatusCode::kAlreadyExists, "pid 55"));
  const SessionId older = Hello({.attempt = 6, .process = "C"});
  EXPECT_THAT(TrySave(older, 2), Fails(absl::StatusCode::kFailedPrecondition, "superseded by 7"));
}

TEST_P(Recovery, PolicyPinsRemovalsAndPersistedAreRemembered) {
  options.storage = true;
  Restart();
  JobPolicy policy;
  policy.mode = PersistMode::kEvery;
  policy.every = 2;
  const SessionId session = Hello({.policy = policy});
  for (Step step : {1, 2, 3}) Save(session, step);
  Apply(event::Pin{From(session), {"job", 1}, true});
  Apply(event::Remove{From(session), {"job", 3}, false, true, Soon()});
  DaemonDies();
  EXPECT_TRUE(Stat(session, 1)->facts.pinned);
  EXPECT_TRUE(Stat(session, 2)->facts.persisted);
  EXPECT_THAT(StatusOf(Stat(session, 3)), Fails(absl::StatusCode::kNotFound, "removed"));
  EXPECT_EQ(Status_().jobs[0].policy, policy);
}

TEST_P(Recovery, PinOfWhatOnlyStorageHoldsIsRemembered) {  // seed 9054 of the simulator
  options.storage = true;
  Restart();
  JobPolicy policy;
  policy.mode = PersistMode::kEvery;
  const SessionId session = Hello({.policy = policy});
  for (Step step = 1; step <= 5; ++step) Save(session, step, {{"model", 20 * kMiB}});
  ASSERT_EQ(Stat(session, 1)->level, Level::kEvicted);
  Apply(event::Pin{From(session), {"job", 1}, true});
  DaemonDies();
  policy.keep_last = 1;
  Apply(event::SetPolicy{From(session), "job", policy});
  Save(session, 6, {{"model", 20 * kMiB}});
  const auto pinned = Stat(session, 1);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_TRUE(pinned->facts.pinned);
  EXPECT_TRUE(stored.contains({"job", 1, 1, 0}));
  EXPECT_FALSE(stored.contains({"job", 2, 1, 0}));
}

// R41, line rules 9, 16, 17, 21: memory is lost, and storage is away when the next life begins.
TEST_P(Recovery, OriginThatIsUnknownIsNotGuessedAndIsSettledWhenStorageIsBack) {
  options.storage = true;
  options.keep_abandoned_seconds = 0;
  Restart();
  JobPolicy policy;
  policy.mode = PersistMode::kEvery;
  const SessionId first = Hello({.attempt = 1, .policy = policy});
  for (const Step step : {100, 200, 300}) Save(first, step);
  scan_status = absl::UnavailableError("stale file handle");
  LoseMemory();
  policy.keep_last = 3;
  const SessionId second = Hello({.attempt = 2, .policy = policy});
  Save(second, 301);
  EXPECT_EQ(LatestStep(second), 301) << "its own steps are the highest";
  EXPECT_EQ(ManifestIn(manifests.begin()->second).lineage.step(), kUnknownStep);
  DaemonDies();
  EXPECT_EQ(LatestStep(second), 301);
  Save(second, 302);
  EXPECT_TRUE(stored.contains({"job", 100, 1, 0})) << "nothing is deleted while it is unknown";
  EXPECT_TRUE(stored.contains({"job", 301, 2, 0}));
  scan_status = absl::OkStatus();
  Advance(options.persist_retry_max);
  EXPECT_EQ(LatestStep(second), 302);
  EXPECT_FALSE(Stat(second, 300, 1)->facts.abandoned);
  EXPECT_FALSE(stored.contains({"job", 200, 1, 0})) << "keep_last counts along the line";
  bool settled = false;
  for (const Fact& f : journal) {
    const auto* begun = std::get_if<fact::AttemptBegun>(&f);
    settled |= begun != nullptr && begun->attempt == 2 && begun->lineage.step() == 300;
  }
  EXPECT_TRUE(settled);
  Save(second, 303);
  EXPECT_FALSE(stored.contains({"job", 300, 1, 0}));
}

TEST_P(Recovery, IdsAreNeverGivenTwice) {
  const SessionId session = Hello();
  Save(session, 1);
  const auto open = Open(session, 1);
  DaemonDies();
  EXPECT_GT(Open(session, 1)->lend.lease, open->lend.lease);
  EXPECT_GT(Hello({.job = "other"}), session);
}

TEST_P(Recovery, UnpersistedStepIsStillPersistedAfterADeath) {
  options.storage = true;
  Restart();
  persist_status = absl::UnavailableError("away");
  const SessionId session = Hello();
  Save(session, 1);
  persist_status = absl::OkStatus();
  DaemonDies();
  Apply(event::Tick{});
  EXPECT_EQ(Stat(session, 1)->level, Level::kPersisted);
}

TEST_P(Recovery, StepThatIsPartlyEvictedComesFromStorage) {  // seed 4594 of the simulator
  options.storage = true;
  Restart();
  const SessionId zero = Hello({.writer = 0, .world_size = 2, .process = "A"});
  const SessionId one = Hello({.writer = 1, .world_size = 2, .process = "B"});
  Save(zero, 1, {{"x", 10 * kMiB}});
  Save(one, 1, {{"y", 10 * kMiB}});
  const auto open = Open(zero, 1, "x");
  ASSERT_TRUE(open.ok());
  Apply(event::Remove{From(zero), {"job", 1}, /*memory_only=*/true, false, Soon()});
  EXPECT_TRUE(Open(zero, 1, "x").ok()) << "it is leased";
  EXPECT_TRUE(OpenStored(zero, 1, "y").ok());
  DaemonDies();
  EXPECT_EQ(LatestStep(zero), 1);
  EXPECT_TRUE(OpenStored(zero, 1, "y").ok());
}

TEST_P(Recovery, StepAskedToBePersistedStillIs) {
  options.storage = true;
  Restart();
  JobPolicy policy;
  policy.mode = PersistMode::kOnDemand;
  const SessionId session = Hello({.policy = policy});
  Save(session, 1);
  hold_persists = true;
  Apply(event::PersistNow{From(session), {"job", 1}});
  EXPECT_THAT(persists, SizeIs(1));
  hold_persists = false;
  DaemonDies();
  EXPECT_THAT(persists, SizeIs(2));
  EXPECT_EQ(Stat(session, 1)->level, Level::kPersisted);
}

TEST_P(Recovery, RecoveringTwiceIsRecoveringOnce) {  // R1: a second crash in recovery
  const SessionId session = Hello();
  Save(session, 1, {{"a", 10}, {"model"}});
  ASSERT_TRUE(Create(session, PartOf(session, 2), {{"model"}}).ok());
  DaemonDies();
  DaemonDies();
  DaemonDies();
  EXPECT_EQ(LatestStep(session), 1);
  EXPECT_TRUE(Commit(session, PartOf(session, 2), {{"model"}}).ok());
}

// No event waits for a part of many objects, and what happens to it between two pieces is not lost.
TEST_F(EngineTest, APartThatIsBeingWrittenIsToldInPieces) {  // promise 7
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  std::vector<Spec> specs;
  for (int i = 0; i < 600; ++i) specs.push_back({absl::StrFormat("o%03d", i), 10});
  ASSERT_TRUE(Create(session, part, specs).ok());
  snapshot_cursor = {};
  pieces.clear();
  const auto take = [&](int wanted) {
    for (int taken = 0; taken < wanted && !snapshot_cursor.done(); ++taken) {
      const std::vector<Fact> piece = engine->SnapshotPiece(&snapshot_cursor, 50);
      EXPECT_LE(piece.size(), 100u);
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
  };
  take(6);
  ASSERT_FALSE(snapshot_cursor.done());
  std::vector<Spec> every_other;
  for (size_t i = 0; i < specs.size(); i += 2) every_other.push_back(specs[i]);
  ASSERT_TRUE(Seal(session, part, every_other).ok());
  ASSERT_TRUE(Create(session, part, {{"a", 10}, {"z", 10}}).ok());
  take(1000);
  Restart(StartFrom::kPieces);
  specs.push_back({"a", 10});
  specs.push_back({"z", 10});
  const auto committed = Commit(session, part, specs);
  ASSERT_TRUE(committed.ok()) << committed.status();
  for (const Spec& spec : specs) EXPECT_TRUE(Open(session, 1, spec.name).ok()) << spec.name;
}

INSTANTIATE_TEST_SUITE_P(From, Recovery, testing::ValuesIn(kFrom),
                         [](const auto& p) { return NameOf(p.param); });

}  // namespace
}  // namespace cairn::engine
