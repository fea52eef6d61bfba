// create, seal, commit: what is refused, what a repeat gets, what an attempt may do.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

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

TEST_F(Saving, HalvesOfTwoAttemptsNeverAddUp) {  // R28
  const SessionId zero = Hello({.writer = 0, .world_size = 2, .attempt = 1});
  Save(zero, 1, {{"rank0"}});
  const SessionId one = Hello({.writer = 1, .world_size = 2, .attempt = 2});
  Save(one, 1, {{"rank1"}});
  EXPECT_EQ(LatestStep(one), kNoStep);
}

TEST_F(Saving, EmptyCommitIsLegal) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2});
  const SessionId one = Hello({.writer = 1, .world_size = 2});
  Save(zero, 1);
  const auto committed = Commit(one, PartOf(one, 1), {});
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_TRUE(committed->complete);
}

// A client that sealed by calls of their own commits with no seals, and repeats just that when the
// answer is lost. Seed 9069 of the simulator: its objects were dropped meanwhile, and the repeat
// committed an empty manifest.
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
  EXPECT_TRUE(TrySave(session, 1, {{"model"}}).ok()) << "in its revision";
  ASSERT_TRUE(Create(session, PartOf(session, 2), {{"model"}}).ok());
  Apply(event::Abort{From(session), PartOf(session, 2)});
  EXPECT_TRUE(Commit(session, PartOf(session, 2, 1), {}).ok()) << "under a new one, with nothing";
  EXPECT_TRUE(Commit(session, PartOf(session, 3), {}).ok()) << "and so can the next step";
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
  EXPECT_EQ(remembered(), 0) << "what is fenced commits nothing";
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
  EXPECT_TRUE(seal(SealOf(spec)).ok()) << "twice with the same content";
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
  EXPECT_TRUE(Commit(session, part, {{"a"}, {"b"}}).ok()) << "nothing had changed";
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

TEST_F(Saving, WorldSizeIsFixedWithinAStepOfAnAttempt) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2});
  const SessionId one = Hello({.writer = 1, .world_size = 3});
  Save(zero, 1);
  EXPECT_THAT(TrySave(one, 1, {{"x"}}),
              Fails(absl::StatusCode::kInvalidArgument,
                    "world_size: 3, but step 1 of attempt 1 has world_size 2"));
  EXPECT_TRUE(TrySave(one, 2, {{"x"}}).ok()) << "another step may differ";
}

TEST_F(Saving, SecondProcessAsTheSameWriterIsRefusedNamingThePid) {
  const SessionId first = Hello({.writer = 0, .world_size = 2, .process = "A", .pid = 77});
  Save(first, 1);
  const SessionId second = Hello({.writer = 0, .world_size = 2, .process = "B"});
  EXPECT_THAT(TrySave(second, 2),
              Fails(absl::StatusCode::kAlreadyExists,
                    "writer: 0 of attempt 1 of job job is another process, pid 77"));
  const SessionId child = Hello({.writer = 0, .world_size = 2, .process = "A"});
  EXPECT_TRUE(TrySave(child, 2).ok()) << "the same process on another session";
}

TEST_F(Saving, ReadingBeginsNoAttempt) {
  const SessionId old = Hello({.attempt = 5});
  Save(old, 1);
  const SessionId reader = Hello({.attempt = 9});
  EXPECT_EQ(LatestStep(reader), 1);
  EXPECT_TRUE(Open(reader, 1).ok());
  EXPECT_TRUE(TrySave(old, 2).ok()) << "attempt 9 has not begun";
}

// `cairn status` is such a session itself, and showed a job without a name.
TEST_F(Saving, SessionWithoutAJobMakesNone) {
  options.storage = true;
  Restart();
  const SessionId session = Hello({.job = "", .writer = -1, .attempt = 0});
  EXPECT_THAT(Status_().jobs, IsEmpty());
  EXPECT_THAT(Status_().sessions, SizeIs(1));
  event::List jobs{From(session), "", "", 10, Soon()};
  Apply(jobs);
  EXPECT_THAT(Take<reply::List>(jobs.caller.request)->jobs, IsEmpty());
  Restart();
  EXPECT_THAT(Status_().jobs, IsEmpty());
  EXPECT_THAT(Status_().sessions, SizeIs(1));
  EXPECT_THAT(scans, IsEmpty()) << "the root of storage is no job";
  Save(Hello(), 1);
  EXPECT_EQ(Latest(session, "job")->key.step, 1);
  Die(session);
  EXPECT_THAT(Status_().jobs, SizeIs(1));
}

TEST_F(Saving, NewerAttemptFencesOlderOnes) {
  const SessionId old = Hello({.world_size = 2, .attempt = 5});
  const PartKey half = PartOf(old, 1);
  ASSERT_TRUE(Create(old, half, {{"a"}}).ok());
  const SessionId young = Hello({.world_size = 2, .attempt = 6});
  Save(young, 1, {{"a"}});
  event::Create create = CreateOf(old, PartOf(old, 2), {{"b"}});
  Apply(create);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kFailedPrecondition, "superseded by 6"));
  EXPECT_EQ(replies.at(create.caller.request).superseded_by, 6);
  EXPECT_THAT(StatusOf(Commit(old, half, {{"a"}})),
              Fails(absl::StatusCode::kFailedPrecondition, "superseded by 6"));
}

TEST_F(Saving, LoneWriterFencesNoOneAlive) {
  const SessionId old = Hello({.attempt = 5, .process = "A", .pid = 41});
  Save(old, 1);
  const SessionId young = Hello({.attempt = 6, .process = "B"});
  EXPECT_THAT(TrySave(young, 2), Fails(absl::StatusCode::kFailedPrecondition, "pid 41"));
  EXPECT_TRUE(TrySave(old, 2).ok()) << "it was not fenced";
  Die(old);
  EXPECT_TRUE(TrySave(young, 3).ok());
}

TEST_F(Saving, ProcessMayMoveOnToANewerAttemptByItself) {
  const SessionId old = Hello({.attempt = 5, .process = "A"});
  Save(old, 1);
  const SessionId young = Hello({.attempt = 6, .process = "A"});
  EXPECT_TRUE(TrySave(young, 2).ok());
}

TEST_F(Saving, RevisionReplacesTheOldOneOnlyOnceItIsComplete) {
  const SessionId zero = Hello({.writer = 0, .world_size = 2});
  const SessionId one = Hello({.writer = 1, .world_size = 2});
  Save(zero, 1, {{"a"}});
  Save(one, 1, {{"b"}});
  Save(zero, 1, {{"a"}}, /*revision=*/1);
  EXPECT_EQ(Latest(zero)->key.revision, 0);
  Save(one, 1, {{"b"}}, /*revision=*/1);
  EXPECT_EQ(Latest(zero)->key.revision, 1);
}

TEST_F(Saving, CommittedRevisionIsNotSavedAgain) {
  const SessionId session = Hello();
  Save(session, 1, {{"a"}}, /*revision=*/1);
  EXPECT_THAT(TrySave(session, 1, {{"x"}}, /*revision=*/1),
              Fails(absl::StatusCode::kAlreadyExists, "revision: 1"));
  EXPECT_THAT(TrySave(session, 1, {{"x"}}, /*revision=*/0),
              Fails(absl::StatusCode::kAlreadyExists, "comes after revision 1"));
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

TEST_F(Saving, ForeignUidIsDenied) {  // R12
  const SessionId owner = Hello({.uid = 1000});
  Save(owner, 1);
  EXPECT_THAT(StatusOf(TryHello({.uid = 1001})),
              Fails(absl::StatusCode::kPermissionDenied, "owned by uid 1000"));
  const SessionId elsewhere = Hello({.job = "other", .uid = 1001});
  EXPECT_THAT(StatusOf(Latest(elsewhere, "job")),
              Fails(absl::StatusCode::kPermissionDenied, "the caller is uid 1001"));
  EXPECT_TRUE(TryHello({.attempt = 0, .uid = 0}).ok()) << "uid 0 is trusted";
}

TEST_F(Saving, BadValuesAreRefusedNamingTheField) {
  const SessionId session = Hello();
  event::Create create = CreateOf(session, PartOf(session, -1), {{"a"}});
  Apply(create);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kInvalidArgument, "step"));
  create = CreateOf(session, PartOf(session, 1), {{"a"}});
  create.part.checkpoint.attempt = 0;
  Apply(create);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kInvalidArgument, "attempt"));
  create = CreateOf(session, PartOf(session, 1, -1), {{"a"}});
  Apply(create);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kInvalidArgument, "revision: -1"));
  create = CreateOf(session, PartOf(session, 1), {{"a"}});
  create.part.writer = 7;
  Apply(create);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kInvalidArgument, "writer"));
  create = CreateOf(session, PartOf(session, 1), {{"a", uint64_t{1} << 63}});
  Apply(create);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kInvalidArgument, "length: 9223372036854775808"));
  create = CreateOf(session, PartOf(session, 1), {{"a", 65 * kMiB}});
  Apply(create);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kResourceExhausted, "budget of 67108864"));
  JobPolicy policy;
  policy.readers = Readers::kAll;
  EXPECT_THAT(StatusOf(TryHello({.policy = policy})),
              Fails(absl::StatusCode::kUnimplemented, "readers"));
  policy = {};
  policy.every = 0;
  EXPECT_THAT(StatusOf(TryHello({.policy = policy})),
              Fails(absl::StatusCode::kInvalidArgument, "every"));
  EXPECT_THAT(StatusOf(Latest(session, "nowhere")), Fails(absl::StatusCode::kNotFound, "nowhere"));
}

TEST_F(Saving, TooManyObjectsOfOneWriterAreRefused) {
  options.max_objects_per_step = 2;
  Restart();
  const SessionId session = Hello();
  EXPECT_THAT(TrySave(session, 1, {{"a", 1}, {"b", 1}, {"c", 1}}),
              Fails(absl::StatusCode::kResourceExhausted, "limit of 2"));
}

TEST_F(Saving, ChosenAttemptExceedsClockAndAllThatIsKnown) {
  const SessionId session = Hello({.attempt = kUnix + 50});
  Save(session, 1);
  const auto choose = [&](SessionId from) {
    event::ChooseAttempt event{From(from), "job", Soon(), kUnix};
    Apply(event);
    return Take<reply::Attempt>(event.caller.request)->attempt;
  };
  EXPECT_EQ(choose(session), kUnix + 51);
  EXPECT_EQ(choose(session), kUnix + 52) << "never the same twice";
  const SessionId other = Hello({.job = "other", .attempt = 0});
  event::ChooseAttempt event{From(other), "other", Soon(), kUnix};
  Apply(event);
  EXPECT_EQ(Take<reply::Attempt>(event.caller.request)->attempt, kUnix);
}

TEST_F(Saving, LatestFollowsTheLineAcrossARollback) {
  const SessionId first = Hello({.attempt = 1});
  for (Step step : {1, 2, 3, 4}) Save(first, step, {{"m", 100}});
  Die(first);
  const SessionId second = Hello({.attempt = 2});
  event::ResumeFrom resume{From(second), "job", 2, 2, Soon()};
  Apply(resume);
  ASSERT_TRUE(AnswerTo(resume.caller.request).ok());
  EXPECT_EQ(LatestStep(second), 4) << "until the attempt creates something it is what it was";
  const PartKey part = PartOf(second, 3);
  ASSERT_TRUE(Create(second, part, {{"m", 100}}).ok());
  EXPECT_EQ(LatestStep(second), 2);
  ASSERT_TRUE(Commit(second, part, {{"m", 100}}).ok());
  EXPECT_EQ(LatestStep(second), 3);
  EXPECT_TRUE(Stat(second, 4, 1)->facts.abandoned);
  EXPECT_THAT(StatusOf(Open(second, 4, "m")), Fails(absl::StatusCode::kNotFound, "abandoned"));
}

TEST_F(Saving, ResumeIsBeforeTheFirstCreateAndFromTheLine) {
  const SessionId session = Hello({.attempt = 1});
  Save(session, 1, {{"m", 100}});
  const SessionId next = Hello({.attempt = 2, .process = "B"});
  const auto resume = [&](SessionId from, Attempt attempt, Step step) {
    event::ResumeFrom event{From(from), "job", attempt, step, Soon()};
    Apply(event);
    return StatusOf(AnswerTo(event.caller.request));
  };
  EXPECT_THAT(resume(next, 2, 7), Fails(absl::StatusCode::kNotFound, "step 7"));
  EXPECT_TRUE(resume(next, 2, 1).ok());
  EXPECT_TRUE(resume(next, 2, kNoStep).ok());
  EXPECT_THAT(resume(session, 1, 1), Fails(absl::StatusCode::kFailedPrecondition, "has begun"));
  EXPECT_TRUE(resume(session, 1, kNoStep).ok()) << "what it came from already";
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

TEST_F(Saving, ClientWithoutDescriptorsWritesAndReadsInChunks) {
  const SessionId session = Hello({.takes_fds = false});
  const PartKey part = PartOf(session, 1);
  const auto created = Create(session, part, {{"a", 100}, {"b", 200}});
  ASSERT_TRUE(created.ok());
  EXPECT_THAT(created->lend, IsEmpty());
  EXPECT_NE(created->extents[0].lease, created->extents[1].lease);
  const auto locate = [&](LeaseId lease, uint64_t offset, uint64_t length, bool write) {
    event::LocateChunk event{From(session), lease, offset, length, write};
    Apply(event);
    return Take<reply::Chunk>(event.caller.request);
  };
  const LeaseId lease = created->extents[1].lease;
  const auto chunk = locate(lease, 50, 150, true);
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_EQ(chunk->offset, created->extents[1].offset + 50);
  EXPECT_THAT(StatusOf(locate(lease, 50, 151, true)),
              Fails(absl::StatusCode::kOutOfRange, "200 bytes"));
  EXPECT_THAT(StatusOf(locate(lease, 0, 1, false)),
              Fails(absl::StatusCode::kPermissionDenied, "writing"));
  EXPECT_THAT(StatusOf(locate(lease + 100, 0, 1, true)),
              Fails(absl::StatusCode::kNotFound, "lease"));
  ASSERT_TRUE(Commit(session, part, {{"a", 100}, {"b", 200}}).ok());
  EXPECT_THAT(StatusOf(locate(lease, 0, 1, true)), Fails(absl::StatusCode::kNotFound, "ended"));

  const auto open = Open(session, 1, "b");
  ASSERT_TRUE(open.ok());
  EXPECT_TRUE(locate(open->lend.lease, 0, 200, false).ok());
  Advance(29 * kNanosPerSecond);
  Apply(event::Renew{From(session), {open->lend.lease}});
  Advance(29 * kNanosPerSecond);
  EXPECT_TRUE(locate(open->lend.lease, 0, 200, false).ok());
  Advance(31 * kNanosPerSecond);
  EXPECT_THAT(StatusOf(locate(open->lend.lease, 0, 200, false)),
              Fails(absl::StatusCode::kNotFound, "ended"));
}

TEST_F(Saving, NothingIsAdmittedInSafeModeOrWhenTheJournalIsFull) {
  const SessionId session = Hello();
  Save(session, 1);
  Apply(event::JournalFull{true});
  EXPECT_THAT(TrySave(session, 2), Fails(absl::StatusCode::kResourceExhausted, "journal"));
  Apply(event::JournalFull{false});
  EXPECT_TRUE(TrySave(session, 2).ok());
  safe_mode = "died three times";
  Restart();
  EXPECT_THAT(TrySave(session, 3), Fails(absl::StatusCode::kUnavailable, "died three times"));
  EXPECT_TRUE(Open(session, 2).ok()) << "what was recovered is served";
}

TEST_F(Saving, WaitingCallersHaveABound) {  // promise 8
  options.max_waiting = 2;
  Restart();
  const SessionId session = Hello();
  Wait(session, 1, Level::kCached);
  Wait(session, 1, Level::kCached);
  EXPECT_THAT(StatusOf(AnswerTo(Wait(session, 1, Level::kCached))),
              Fails(absl::StatusCode::kResourceExhausted, "waiting callers"));
}

TEST_F(Saving, SessionsHaveABound) {
  options.max_sessions = 1;
  Restart();
  Hello();
  EXPECT_THAT(StatusOf(TryHello({})), Fails(absl::StatusCode::kResourceExhausted, "sessions"));
}

// Who only looks is told what Apply would say; where Apply would refuse, wait or look elsewhere, it
// is left to Apply.
TEST_F(Saving, PeekSaysWhatApplyWouldOrLeavesItToApply) {
  const SessionId session = Hello();
  Save(session, 1, {{"model"}, {"optimizer"}});
  const auto stat = [&](SessionId from, const std::string& job, Step step, const char* name) {
    return event::StatObject{From(from), {job, step}, name, Soon()};
  };
  const event::StatObject question = stat(session, "job", 1, "optimizer");
  const std::optional<ObjectInfo> seen = engine->Peek(question);
  Apply(question);
  const StatusOr<ObjectInfo> told = Take<ObjectInfo>(question.caller.request);
  ASSERT_TRUE(seen.has_value());
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(seen->name, told->name);
  EXPECT_EQ(seen->length, told->length);
  EXPECT_EQ(seen->block_crcs, told->block_crcs);
  EXPECT_EQ(seen->level, told->level);

  EXPECT_FALSE(engine->Peek(stat(session, "job", 1, "unknown")).has_value());
  EXPECT_FALSE(engine->Peek(stat(session, "job", 2, "model")).has_value());
  EXPECT_FALSE(engine->Peek(stat(session, "unknown", 1, "model")).has_value());
  EXPECT_FALSE(engine->Peek(stat(session + 1000, "job", 1, "model")).has_value());
  event::StatObject another = stat(session, "job", 1, "model");  // promise 6
  another.caller.uid = another.caller.gid = 4711;
  EXPECT_FALSE(engine->Peek(another).has_value());
}

TEST_F(Saving, CallersOfAnEndedSessionAreAnswered) {  // promise 4
  const SessionId session = Hello();
  const RequestId wait = Wait(session, 9, Level::kCached);
  Die(session);
  EXPECT_THAT(StatusOf(AnswerTo(wait)), Fails(absl::StatusCode::kUnavailable, "has ended"));
}

}  // namespace
}  // namespace cairn::engine
