// create, seal and commit: what is refused, and what a repeated call gets.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::ElementsAre;

class Saving : public EngineTest {};

TEST_F(Saving, CommittedStepOfALoneWriterIsTheLatest) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 5);
  const auto created = Create(session, part, {{"model", 8 * kMiB}, {"note", 100}});
  ASSERT_TRUE(created.ok()) << created.status();
  ASSERT_EQ(created->extents.size(), 2u);
  EXPECT_EQ(created->extents[0].offset, 0u);
  EXPECT_EQ(created->extents[0].length, 8 * kMiB);
  EXPECT_NE(created->extents[0].slab, created->extents[1].slab);
  EXPECT_EQ(created->lend.size(), 2u);
  EXPECT_THAT(StatusOf(Latest(session)), Fails(absl::StatusCode::kNotFound, "no complete"));
  const auto committed = Commit(session, part, {{"model", 8 * kMiB}, {"note", 100}});
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_TRUE(committed->complete);
  const auto latest = Latest(session);
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ(latest->key.step, 5);
  EXPECT_TRUE(latest->in_memory);
  EXPECT_FALSE(latest->in_storage);
  EXPECT_EQ(latest->digest, CheckpointDigest({committed->digest}));
}

TEST_F(Saving, CheckpointIsCompleteWhenItsLastWriterCommits) {  // promise 3
  const SessionId zero = Hello({.writer = 0, .world_size = 2, .local_writers = 2});
  const SessionId one = Hello({.writer = 1, .world_size = 2, .local_writers = 2});
  Save(zero, 1, {{"rank0"}});
  EXPECT_EQ(LatestStep(zero), kNoStep);
  const auto info = Stat(zero, 1);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_THAT(info->missing_writers, ElementsAre(1));
  EXPECT_EQ(info->level, Level::kWriting);
  EXPECT_THAT(StatusOf(Open(zero, 1, "rank0")),
              Fails(absl::StatusCode::kNotFound, "lacks writers 1"));
  Save(one, 1, {{"rank1"}});
  EXPECT_EQ(LatestStep(zero), 1);
  EXPECT_EQ(Stat(zero, 1)->level, Level::kCached);
}

TEST_F(Saving, EmptyCommitIsLegal) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2});
  const SessionId one = Hello({.writer = 1, .world_size = 2});
  Save(zero, 1);
  const auto committed = Commit(one, PartOf(one, 1), {});
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_TRUE(committed->complete);
}

// A client that has sealed its objects in separate calls commits without seals, and repeats that
// commit when the answer is lost. Seed 9069 of the simulator: the objects were dropped meanwhile,
// and the repeat committed an empty manifest.
TEST_F(Saving, CommitWithoutSealsOfADroppedPartIsRefused) {  // promises 2 and 3
  const SessionId session = Hello({.process = "A"});
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  ASSERT_TRUE(Seal(session, part, {{"model"}}).ok());
  Die(session);
  const SessionId next = Hello({.process = "A"});
  const auto refused = Fails(absl::StatusCode::kFailedPrecondition,
                             part.DebugString() + " was dropped with its objects, \"model\"");
  EXPECT_THAT(StatusOf(Commit(next, part, {})), refused);
  EXPECT_THAT(StatusOf(Commit(next, part, {{"model"}})), refused);
  EXPECT_THAT(Seal(next, part, {{"model"}}), refused);
  EXPECT_EQ(LatestStep(next), kNoStep);
}

TEST_F(Saving, CommitWithoutSealsAfterAnAbortIsRefused) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  Apply(event::Abort{From(session), part});
  EXPECT_THAT(StatusOf(Commit(session, part, {})),
              Fails(absl::StatusCode::kFailedPrecondition, "was dropped"));
}

TEST_F(Saving, CommitRepeatedAfterItsStepLeftMemoryIsRefused) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2});
  Save(zero, 1);
  Apply(event::Remove{From(zero), {"job", 1}, /*memory_only=*/true, false, Soon()});
  EXPECT_THAT(StatusOf(Commit(zero, PartOf(zero, 1), {})),
              Fails(absl::StatusCode::kFailedPrecondition, "was dropped"));
}

TEST_F(Saving, StepThatWasRemovedSaysSoToItsWriter) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  Apply(event::Remove{From(session), {"job", 1}, false, true, Soon()});
  EXPECT_THAT(StatusOf(Commit(session, part, {})),
              Fails(absl::StatusCode::kFailedPrecondition, "was removed"));
}

TEST_F(Saving, DroppedPartCanBeBegunAnew) {
  const SessionId session = Hello();
  ASSERT_TRUE(Create(session, PartOf(session, 1), {{"model"}}).ok());
  Apply(event::Abort{From(session), PartOf(session, 1)});
  EXPECT_TRUE(TrySave(session, 1, {{"model"}}).ok()) << "under the same revision";
  ASSERT_TRUE(Create(session, PartOf(session, 2), {{"model"}}).ok());
  Apply(event::Abort{From(session), PartOf(session, 2)});
  EXPECT_TRUE(Commit(session, PartOf(session, 2, 1), {}).ok())
      << "under a new revision, without objects";
  EXPECT_TRUE(Commit(session, PartOf(session, 3), {}).ok()) << "the next step is not affected";
}

TEST_F(Saving, DroppedPartsAreRememberedToABound) {  // promise 8
  const SessionId session = Hello({.process = "A"});
  for (Step step = 0; step < 1030; ++step) {
    ASSERT_TRUE(Create(session, PartOf(session, step), {{"model", 10}}).ok());
    Apply(event::Abort{From(session), PartOf(session, step)});
  }
  const auto remembered = [&] {
    int count = 0;
    for (const Fact& f : engine->Snapshot())
      count += std::holds_alternative<fact::ObjectDropped>(f);
    return count;
  };
  EXPECT_EQ(remembered(), 1024);
  EXPECT_THAT(StatusOf(Commit(session, PartOf(session, 1029), {})),
              Fails(absl::StatusCode::kFailedPrecondition, "was dropped"));
  Save(Hello({.attempt = 2, .process = "A"}), 1);
  EXPECT_EQ(remembered(), 0) << "an attempt that is fenced cannot commit";
}

TEST_F(Saving, EmptyObjectIsLegal) {
  const SessionId session = Hello();
  Save(session, 1, {{"empty", 0}, {"model"}});
  const auto open = Open(session, 1, "empty");
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(open->object.length, 0u);
}

TEST_F(Saving, NameBesideADirectoryOfItIsRefused) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"a"}}).ok());
  EXPECT_THAT(StatusOf(Create(session, part, {{"a/b"}})),
              Fails(absl::StatusCode::kAlreadyExists, "collides with \"a\""));
  EXPECT_THAT(StatusOf(Create(session, part, {{"x/y"}, {"x"}})),
              Fails(absl::StatusCode::kAlreadyExists, "collides with \"x/y\""));
  EXPECT_THAT(StatusOf(Create(session, part, {{"a"}})),
              Fails(absl::StatusCode::kAlreadyExists, "exists already"));
  EXPECT_TRUE(Create(session, part, {{"ab"}, {"b/a"}}).ok());
}

TEST_F(Saving, NameOfAnotherWriterIsRefusedNamingIt) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2});
  const SessionId one = Hello({.writer = 1, .world_size = 2});
  ASSERT_TRUE(Create(zero, PartOf(zero, 1), {{"model"}}).ok());
  EXPECT_THAT(StatusOf(Create(one, PartOf(one, 1), {{"model"}})),
              Fails(absl::StatusCode::kAlreadyExists, "of writer 0"));
}

TEST_F(Saving, SealsAreCheckedAgainstWhatWasCreated) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  const Spec spec{"model", 5 * kMiB};
  const auto seal = [&](const event::Seal& s) {
    event::SealObjects seals{From(session), ++last_call, part, {s}};
    Apply(seals);
    return StatusOf(AnswerTo(seals.caller.request));
  };
  EXPECT_THAT(seal(SealOf(spec)), Fails(absl::StatusCode::kNotFound, "was never created"));
  ASSERT_TRUE(Create(session, part, {spec}).ok());
  event::Seal bad = SealOf({"other", 5 * kMiB});
  EXPECT_THAT(seal(bad), Fails(absl::StatusCode::kNotFound, "was never created"));
  bad = SealOf({"model", 5 * kMiB - 1});
  EXPECT_THAT(seal(bad), Fails(absl::StatusCode::kInvalidArgument, "is short: 5242879 bytes"));
  bad = SealOf({"model", 5 * kMiB + 1});
  EXPECT_THAT(seal(bad), Fails(absl::StatusCode::kInvalidArgument, "is overlong: 5242881 bytes"));
  bad = SealOf(spec);
  bad.covered = {{0, kMiB}, {kMiB + 1, 5 * kMiB}};
  EXPECT_THAT(seal(bad), Fails(absl::StatusCode::kInvalidArgument, "uncovered from byte 1048576"));
  bad.covered = {};
  EXPECT_THAT(seal(bad), Fails(absl::StatusCode::kInvalidArgument, "uncovered from byte 0"));
  bad.covered = {{0, 6 * kMiB}};
  EXPECT_THAT(seal(bad), Fails(absl::StatusCode::kInvalidArgument, "was written at"));
  bad = SealOf(spec);
  bad.block_crcs.push_back(1);
  EXPECT_THAT(seal(bad), Fails(absl::StatusCode::kInvalidArgument, "has 3 checksums"));
  EXPECT_TRUE(seal(SealOf(spec)).ok());
  EXPECT_TRUE(seal(SealOf(spec)).ok()) << "the same content may be sealed twice";
  bad = SealOf(spec);
  bad.block_crcs[0] = 8;
  EXPECT_THAT(seal(bad), Fails(absl::StatusCode::kAlreadyExists, "sealed with other content"));
}

TEST_F(Saving, CommitOfAnUnsealedObjectIsRefused) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"a"}, {"b"}}).ok());
  EXPECT_THAT(StatusOf(Commit(session, part, {{"a"}})),
              Fails(absl::StatusCode::kInvalidArgument, "\"b\" of job/1"));
  EXPECT_TRUE(Commit(session, part, {{"a"}, {"b"}}).ok()) << "the refused commit changed nothing";
}

TEST_F(Saving, RepeatedCreateGetsTheFirstAnswerAndTheDescriptorsAgain) {
  const SessionId session = Hello();
  event::Create create = CreateOf(session, PartOf(session, 1), {{"model"}});
  Apply(create);
  const auto first = Take<reply::Create>(create.caller.request);
  ASSERT_TRUE(first.ok());
  create.caller = From(session);
  Apply(create);
  const auto again = Take<reply::Create>(create.caller.request);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->extents[0].slab, first->extents[0].slab);
  EXPECT_EQ(again->extents[0].lease, first->extents[0].lease);
  EXPECT_EQ(again->lend.size(), 1u);
  create.caller = From(session);
  create.objects[0].length += 1;
  Apply(create);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kAlreadyExists, "was a create of other objects"));
}

TEST_F(Saving, RepeatedCommitGetsTheFirstAnswer) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  const auto first = Commit(session, part, {{"model"}});
  const auto again = Commit(session, part, {{"model"}});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->digest, first->digest);
  event::Commit other = CommitOf(session, part, {{"model"}});
  other.seals[0].block_crcs[0] = 9;
  Apply(other);
  EXPECT_THAT(StatusOf(AnswerTo(other.caller.request)),
              Fails(absl::StatusCode::kAlreadyExists, "other content"));
}

TEST_F(Saving, RepeatWhileTheManifestIsWrittenWaitsForIt) {
  hold_manifests = true;
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  const event::Commit first = CommitOf(session, part, {{"model"}});
  Apply(first);
  EXPECT_FALSE(Answered(first.caller.request)) << "the reply comes after the manifest";
  event::Commit again = first;
  again.caller = From(session);
  Apply(again);
  FinishManifest();
  Apply(event::Tick{});
  EXPECT_TRUE(AnswerTo(first.caller.request).ok());
  EXPECT_TRUE(AnswerTo(again.caller.request).ok());
}

TEST_F(Saving, FailedManifestLeavesTheObjectsAndTheCallCanBeRepeated) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  manifest_status = absl::DataLossError("SIGBUS");
  EXPECT_THAT(StatusOf(Commit(session, part, {{"model"}})),
              Fails(absl::StatusCode::kDataLoss, "SIGBUS"));
  manifest_status = absl::OkStatus();
  EXPECT_TRUE(Commit(session, part, {{"model"}}).ok());
  EXPECT_EQ(LatestStep(session), 1);
}

// Creates that wait at the same time are checked before any of them is granted: what one of them got, the
// others cannot have. A repeat under the same number gets the same answer.
TEST_F(Saving, CreatesThatWaitedForOneNameAreNotBothGranted) {
  const Who second{.writer = 1, .world_size = 2, .local_writers = 2};
  const SessionId session = Hello({.world_size = 2, .local_writers = 2});
  const SessionId other = Hello(second);
  hold_makes = true;
  const std::vector<Spec> specs = {{"model", 2 * kMiB}};
  const event::Create first = CreateOf(session, PartOf(session, 1), specs);
  event::Create repeat = first;
  repeat.caller.request = From(session).request;
  const event::Create again = CreateOf(session, PartOf(session, 1), specs);
  const event::Create of_other = CreateOf(other, PartOf(other, 1), specs);
  const size_t before = makes.size();
  for (const event::Create& create : {first, repeat, again, of_other}) {
    Apply(create);
    ASSERT_FALSE(Answered(create.caller.request));
  }
  hold_makes = false;
  const std::vector<action::MakeSlab> held(makes.begin() + static_cast<ptrdiff_t>(before),
                                           makes.end());
  for (const action::MakeSlab& make : held) {
    keeper[make.slab] = make.bytes;
    Apply(event::SlabMade{make.slab, absl::OkStatus()});
  }
  const auto granted = Take<reply::Create>(first.caller.request);
  const auto repeated = Take<reply::Create>(repeat.caller.request);
  ASSERT_TRUE(granted.ok() && repeated.ok()) << granted.status() << repeated.status();
  EXPECT_EQ(granted->extents[0].slab, repeated->extents[0].slab);
  for (const event::Create& create : {again, of_other}) {
    EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
                Fails(absl::StatusCode::kAlreadyExists, "exists already in"));
  }
  EXPECT_TRUE(Commit(session, PartOf(session, 1), specs).ok());
}

// R37: a keeper without descriptors refuses every slab at once.
TEST_F(Saving, SlabForManifestsThatCannotBeMadeIsTriedAgainABitLater) {
  make_status = absl::ResourceExhaustedError("keeper: no descriptor left");
  keeper.clear();
  journal.clear();
  Restart();  // so that there is no space for manifests
  const SessionId session = Hello();
  make_status = absl::OkStatus();
  const PartKey part = PartOf(session, 1);
  const std::vector<Spec> specs = {{"model"}};
  const event::Create create = CreateOf(session, part, specs);
  Apply(create);
  ASSERT_TRUE(AnswerTo(create.caller.request).ok());
  make_status = absl::ResourceExhaustedError("keeper: no descriptor left");
  makes.clear();
  const event::Commit commit = CommitOf(session, part, specs);
  Apply(commit);
  for (int i = 0; i < 100; ++i) Apply(event::Tick{});
  Advance(3 * kNanosPerSecond);
  EXPECT_GE(makes.size(), 1u);
  EXPECT_LE(makes.size(), 10u);
  EXPECT_FALSE(Answered(commit.caller.request));
  make_status = absl::OkStatus();
  Advance(kNanosPerSecond);
  EXPECT_TRUE(AnswerTo(commit.caller.request).ok());
}

TEST_F(Saving, AbortDropsWhatWasNotCommitted) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  Apply(event::Abort{From(session), part});
  EXPECT_EQ(Status_().writing_bytes, 0u);
  EXPECT_THAT(StatusOf(Stat(session, 1)), Fails(absl::StatusCode::kNotFound, "unknown"));
  Apply(event::Abort{From(session), part});
  EXPECT_TRUE(TrySave(session, 1, {{"model"}}, 1).ok());
}

TEST_F(Saving, DeadClientsUnsealedObjectsVanish) {  // R13
  const SessionId session = Hello();
  Save(session, 1);
  const PartKey part = PartOf(session, 2);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  Die(session);
  EXPECT_EQ(Status_().writing_bytes, 0u);
  const SessionId next = Hello({.attempt = 2});
  EXPECT_EQ(LatestStep(next), 1);
}

TEST_F(Saving, CommitUnderWaySurvivesItsWritersDeath) {
  hold_manifests = true;
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"model"}}).ok());
  Apply(CommitOf(session, part, {{"model"}}));
  Die(session);
  FinishManifest();
  Apply(event::Tick{});
  EXPECT_EQ(LatestStep(Hello({.attempt = 2})), 1);
}

TEST_F(Saving, ObjectAboveTheBudgetIsRefusedNamingIt) {
  const SessionId session = Hello();
  EXPECT_THAT(TrySave(session, 1, {{"a", 65 * kMiB}}),
              Fails(absl::StatusCode::kResourceExhausted, "budget of 64.0 MiB"));
}

TEST_F(Saving, LatestOfAnUnknownJobIsNotFound) {
  EXPECT_THAT(StatusOf(Latest(Hello(), "nowhere")), Fails(absl::StatusCode::kNotFound, "nowhere"));
}

TEST_F(Saving, TooManyObjectsOfOneWriterAreRefused) {
  options.max_objects_per_step = 2;
  Restart();
  const SessionId session = Hello();
  EXPECT_THAT(TrySave(session, 1, {{"a", 1}, {"b", 1}, {"c", 1}}),
              Fails(absl::StatusCode::kResourceExhausted, "limit of 2"));
}

TEST_F(Saving, StepThatLacksWritersIsLoggedOnce) {
  const SessionId zero = Hello({.writer = 0, .world_size = 3});
  const SessionId one = Hello({.writer = 1, .world_size = 3});
  const SessionId two = Hello({.writer = 2, .world_size = 3});
  Save(zero, 1, {{"a", 10}});
  for (Step step : {2, 3}) {
    Save(zero, step, {{"a", 10}});
    Save(one, step, {{"b", 10}});
    Save(two, step, {{"c", 10}});
  }
  int said = 0;
  for (const std::string& log : logs) said += log.find("lacks writers 1, 2") != std::string::npos;
  EXPECT_EQ(said, 1);
}

TEST_F(Saving, CreateThatWaitsIsRefusedWhenItsPartCommits) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  ASSERT_TRUE(Create(session, part, {{"note"}}).ok());
  hold_makes = true;
  const event::Create create = CreateOf(session, part, {{"model", 20 * kMiB}});
  Apply(create);
  ASSERT_FALSE(Answered(create.caller.request));
  const event::Commit commit = CommitOf(session, part, {{"note"}});
  Apply(commit);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kFailedPrecondition, "commit: of job/1"));
  EXPECT_TRUE(AnswerTo(commit.caller.request).ok());
  EXPECT_EQ(Stat(session, 1)->objects, 1u);
}

// Two writes of manifests of one part are under way: that of a part that was removed, and that of the
// one that took its place. Whichever ends first, each is taken for itself.
TEST_F(Saving, WriteOfARemovedPartsManifestIsNotTakenForTheNextOnes) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2, .local_writers = 2});
  const PartKey part = PartOf(zero, 1);
  hold_manifests = true;
  ASSERT_TRUE(Create(zero, part, {{"first"}}).ok());
  const auto first = CommitOf(zero, part, {{"first"}});
  Apply(first);
  Apply(event::Remove{From(zero), {"job", 1}, /*memory_only=*/true, false, Soon()});
  EXPECT_FALSE(AnswerTo(first.caller.request).ok()) << "its part was dropped";
  ASSERT_TRUE(Create(zero, part, {{"second"}}).ok());
  const auto second = CommitOf(zero, part, {{"second"}});
  Apply(second);
  ASSERT_EQ(held_manifests.size(), 2u);
  const event::ManifestWritten of_first = held_manifests[0], of_second = held_manifests[1];
  ASSERT_NE(of_first.extent, of_second.extent);
  Apply(of_second);
  const auto committed = Take<reply::Commit>(second.caller.request);
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(committed->digest, of_second.digest);
  Apply(of_first);
  auto again = second;
  again.caller = From(zero);
  EXPECT_EQ(Take<reply::Commit>(Ask(again, again.caller))->digest, of_second.digest);
}

}  // namespace
}  // namespace cairn::engine
