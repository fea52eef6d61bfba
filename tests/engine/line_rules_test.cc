// One file: the rules of one page, by their numbers, in the vocabulary of one fixture.
// What the engine does about the line, by the numbers of docs/line.md, in memory, with storage, and after
// memory is lost. What the rule alone says is in tests/common/line_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::Not;

class LineRules : public EngineTest {
 protected:
  LineRules() { options.storage = true; }

  SessionId Life(Attempt attempt, PersistMode mode = PersistMode::kEvery, int64_t keep_last = 0) {
    JobPolicy policy;
    policy.mode = mode;
    policy.keep_last = keep_last;
    return Hello({.attempt = attempt, .policy = policy});
  }
  // A life that saves these steps and ends.
  void Lived(Attempt attempt, const std::vector<Step>& steps,
             PersistMode mode = PersistMode::kEvery) {
    const SessionId life = Life(attempt, mode);
    for (const Step step : steps) Save(life, step);
    Die(life);
  }
  // Another node saves `step` in `attempt`, which comes from step `from` of attempt 1.
  void SavedElsewhere(Step step, Attempt attempt, Step from = 2) {
    StoredCheckpoint elsewhere = stored.at({"job", from, 1, 0});
    elsewhere.key = {"job", step, attempt, 0};
    Manifest& manifest = elsewhere.parts[0].manifest;
    manifest.step = step;
    manifest.attempt = attempt;
    manifest.lineage = LineageFrom(from, 1, {});
    elsewhere.parts[0].digest = ManifestDigest(EncodeManifest(manifest));
    stored[elsewhere.key] = elsewhere;
    line_records[{attempt, LineRecordKind::kOrigin}] = {"job", attempt, LineRecordKind::kOrigin,
                                                        manifest.lineage};
  }
  // Another node deletes `gone` while the record of the resume that chose it is written.
  LineRecord ResumeAndLose(const event::ResumeFrom& resume, const CheckpointKey& gone) {
    hold_records = true;
    Apply(resume);
    EXPECT_FALSE(record_writes.empty());
    const LineRecord record = record_writes.back().record;
    line_records[{record.number, record.kind}] = record;
    stored.erase(gone);
    return record;
  }
  StatusOr<reply::Latest> Resume(SessionId session, Attempt attempt, Step step) {
    event::ResumeFrom event{From(session), "job", attempt, step, Soon()};
    Apply(event);
    return Take<reply::Latest>(event.caller.request);
  }
  StatusOr<reply::Latest> Use(SessionId session, Step step, Attempt attempt, bool fence = false) {
    event::Use event{From(session), {"job", step, attempt}, fence, Soon()};
    Apply(event);
    return Take<reply::Latest>(event.caller.request);
  }
  CheckpointKey LatestKey(SessionId session) { return Latest(session)->key; }
};

TEST_F(LineRules, Rule6AnOriginIsRecordedBeforeAnythingIsPublished) {
  Lived(1, {1, 2});
  hold_persists = true;
  const SessionId second = Life(2);
  Save(second, 3);
  ASSERT_FALSE(persists.empty());
  const auto& origin = persists.back().origin;
  ASSERT_TRUE(origin.has_value());
  EXPECT_EQ(*origin, (LineRecord{"job", 2, LineRecordKind::kOrigin, LineageFrom(2, 1, {})}));
}

TEST_F(LineRules, Rule10AStepAtOrBelowTheOriginIsRefused) {
  Lived(1, {1, 2, 3, 4});
  const SessionId second = Life(2);
  ASSERT_TRUE(Resume(second, 2, 3).ok());
  EXPECT_THAT(TrySave(second, 3), Fails(absl::StatusCode::kFailedPrecondition, "resume"));
  Save(second, 5);
  EXPECT_THAT(TrySave(second, 2),
              Fails(absl::StatusCode::kFailedPrecondition, "step 3 of attempt 1"));
  Save(second, 4);
  EXPECT_EQ(Stat(second, 3)->key.attempt, 1) << "nothing took its place";
}

TEST_F(LineRules, Rule11UseFencesLowerAttempts) {
  Lived(1, {1, 2});
  const SessionId second = Life(2);
  Save(second, 3);
  EXPECT_THAT(StatusOf(Use(second, 1, 1)), Fails(absl::StatusCode::kFailedPrecondition, "pid"));
  ASSERT_TRUE(Use(second, 1, 1, /*fence=*/true).ok());
  EXPECT_THAT(TrySave(second, 4),
              Fails(absl::StatusCode::kFailedPrecondition, "superseded by `use`"));
  EXPECT_EQ(LatestStep(second), 1);
}

// Its process lives on, but can save nothing: it is in nobody's way.
TEST_F(LineRules, Rule11ANewerAttemptWaitsForNobodyWhomAUseHasFenced) {
  fences = false;
  const SessionId first = Hello({.attempt = 1, .process = "A"});
  Save(first, 1);
  Save(first, 2);
  const SessionId second = Hello({.attempt = 2, .process = "B"});
  const event::Create waits = CreateOf(second, PartOf(second, 3), {{"model"}});
  Apply(waits);
  EXPECT_FALSE(Answered(waits.caller.request));
  const auto used = Use(first, 1, 1, /*fence=*/true);
  ASSERT_TRUE(used.ok()) << used.status();
  const SessionId third = Hello({.attempt = used->head + 1, .process = "C"});
  Save(third, 2);
  EXPECT_EQ(LatestKey(third), (CheckpointKey{"job", 2, used->head + 1, 0}));
}

TEST_F(LineRules, Rule13AnotherWritersWordDoesNotReplaceTheFirst) {
  Lived(1, {1, 2, 3});
  const SessionId second = Hello({.writer = 0, .world_size = 2, .attempt = 2, .process = "A"});
  const SessionId other = Hello({.writer = 1, .world_size = 2, .attempt = 2, .process = "B"});
  ASSERT_TRUE(Resume(second, 2, 2).ok());
  EXPECT_TRUE(Resume(other, 2, 2).ok()) << "the same again";
  EXPECT_THAT(StatusOf(Resume(other, 2, 3)),
              Fails(absl::StatusCode::kFailedPrecondition, "another writer"));
  EXPECT_EQ(LatestStep(second), 2);
}

TEST_F(LineRules, Rule14UseBringsBackWhatWasAbandoned) {
  Lived(1, {1, 2, 3});
  const SessionId second = Life(2);
  ASSERT_TRUE(Resume(second, 2, 1).ok());
  Save(second, 5);
  Die(second);
  const SessionId reader = Hello({.writer = -1});
  EXPECT_TRUE(Stat(reader, 3, 1)->facts.abandoned);
  const auto used = Use(reader, 3, 1);
  ASSERT_TRUE(used.ok()) << used.status();
  EXPECT_EQ(used->key, (CheckpointKey{"job", 3, 1, 0}));
  EXPECT_GT(used->head, 2);
  EXPECT_EQ(LatestKey(reader), used->key);
  EXPECT_TRUE(Stat(reader, 5, 2)->facts.abandoned);
  Restart();
  EXPECT_EQ(LatestKey(reader), used->key) << "a fact in the journal";
  LoseMemory();
  const SessionId again = Hello({.attempt = used->head + 1});
  EXPECT_EQ(LatestKey(again), used->key) << "a file in storage";
  Save(again, 4);
  EXPECT_EQ(Stat(again, 3)->key.attempt, 1);
  EXPECT_THAT(StatusOf(Use(again, 17, 1, true)), Fails(absl::StatusCode::kNotFound, "17"));
}

TEST_F(LineRules, Rule15AnswersSayWhetherTheFileIsWritten) {
  Lived(1, {1, 2});
  const SessionId second = Life(2);
  record_status = absl::UnavailableError("stale file handle");
  event::ResumeFrom resume{From(second), "job", 2, 1, Soon()};
  Apply(resume);
  EXPECT_EQ(LatestStep(second), 1) << "decided at once";
  // Not after a time that a caller may not have: it would not know that it is decided.
  const auto answer = Take<reply::Latest>(resume.caller.request);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_FALSE(answer->recorded);
  record_status = absl::OkStatus();
  Advance(options.persist_retry_max);
  EXPECT_TRUE((line_records.contains({2, LineRecordKind::kResume}))) << "it follows";
  EXPECT_TRUE(Resume(second, 2, 1)->recorded);
}

// Without storage a decision lives as long as memory, and says so.
TEST_F(LineRules, Rule15WithoutStorageADecisionIsNotRecorded) {
  options.storage = false;
  Restart();
  const SessionId first = Hello({.attempt = 1});
  Save(first, 1);
  Save(first, 2);
  Die(first);
  const SessionId second = Hello({.attempt = 2});
  EXPECT_FALSE(Resume(second, 2, 1)->recorded);
  EXPECT_EQ(LatestStep(second), 1);
}

// A `resume` outlives memory as a file, too: the life that said so was killed before it saved.
TEST_F(LineRules, Rule6ResumeOutlivesMemory) {
  Lived(1, {1, 2, 3});
  const SessionId second = Life(2);
  ASSERT_TRUE(Resume(second, 2, 2)->recorded);
  Die(second);
  LoseMemory();
  const SessionId third = Life(3);
  EXPECT_EQ(LatestStep(third), 2);
  Save(third, 9);
  EXPECT_TRUE(Stat(third, 3, 1)->facts.abandoned);
}

TEST_F(LineRules, Rule6AnOriginIsRecordedOnceForEachStorage) {
  const SessionId life = Life(1);
  for (const Step step : {1, 2}) Save(life, step);
  ASSERT_EQ(persists.size(), 2u);
  EXPECT_TRUE(persists[0].origin.has_value());
  EXPECT_FALSE(persists[1].origin.has_value()) << "it costs a sync";
  Apply(event::StorageSeen{absl::UnavailableError("unmounted")});
  Apply(event::StorageSeen{root});
  Save(life, 3);
  EXPECT_TRUE(persists.back().origin.has_value());
}

TEST_F(LineRules, Rule15ARecordThatCannotBeWrittenHoldsNoOtherUp) {
  Lived(1, {1, 2, 3});
  const SessionId second = Life(2);
  record_status_of[2] = absl::FailedPreconditionError("a directory stands there");
  EXPECT_FALSE(Resume(second, 2, 2)->recorded);
  Die(second);
  EXPECT_TRUE(Resume(Life(3), 3, 1)->recorded);
  record_status_of.clear();
  Advance(options.persist_retry_max);
  EXPECT_TRUE(line_records.contains({2, LineRecordKind::kResume}));
}

// Memory is lost, and of the newest step's manifest the disk says EIO just then.
TEST_F(LineRules, Rule17AnOriginIsSettledOnlyOnceEverythingWasRead) {
  Lived(1, {100, 200, 300});
  auto newest = stored.extract({"job", 300, 1, 0});
  unread = {{300, "300/.cairn/0.manifest: Input/output error"}};
  LoseMemory();
  const SessionId reader = Hello({.writer = -1});
  EXPECT_THAT(StatusOf(Latest(reader)), Fails(absl::StatusCode::kUnavailable, "Input/output"));
  EXPECT_TRUE(Stat(reader, 200).ok());
  const SessionId second = Life(2, PersistMode::kEvery, /*keep_last=*/2);
  Save(second, 301);
  EXPECT_EQ(LatestStep(reader), 301);
  EXPECT_EQ(ManifestIn(manifests.begin()->second).lineage.step(), kUnknownStep);
  EXPECT_TRUE(stored.contains({"job", 200, 1, 0})) << "nothing is deleted";
  unread.clear();
  stored.insert(std::move(newest));
  Advance(options.persist_retry_max);
  EXPECT_FALSE(Stat(second, 300, 1)->facts.abandoned);
  EXPECT_EQ(line_records.at({2, LineRecordKind::kOrigin}).lineage.step(), 300);
}

// It was read once; then another node may have written, and the directory cannot even be listed.
TEST_F(LineRules, Rule8LatestIsNotToldFromALookThatFailed) {
  Lived(1, {1, 2});
  LoseMemory();
  const SessionId reader = Hello({.writer = -1});
  EXPECT_EQ(LatestStep(reader), 2);
  scan_status = absl::UnavailableError("stale file handle");
  Advance(3 * kNanosPerSecond);
  EXPECT_THAT(StatusOf(Latest(reader)), Fails(absl::StatusCode::kUnavailable, "stale"));
  scan_status = absl::OkStatus();
  Advance(3 * kNanosPerSecond);
  EXPECT_EQ(LatestStep(reader), 2);
}

// What is decided for is gone when the decision stands, and memory does not have it either.
TEST_F(LineRules, Rule13WhatIsGoneIsNotSaidToBeThere) {
  Lived(1, {1, 2});
  LoseMemory();
  event::ResumeFrom resume{From(Life(2)), "job", 2, 1, Soon()};
  const LineRecord record = ResumeAndLose(resume, {"job", 1, 1, 0});
  Apply(event::LineRecordWritten{record, record});
  EXPECT_THAT(StatusOf(AnswerTo(resume.caller.request)),
              Fails(absl::StatusCode::kFailedPrecondition, "deleted by another node"));
}

// What memory has and storage cannot show for a moment is still persisted.
TEST_F(LineRules, Rule8WhatWasNotReadIsNotGone) {
  Lived(1, {1, 2});
  auto newest = stored.extract({"job", 2, 1, 0});
  unread = {{2, "2: Permission denied"}};
  const SessionId reader = Hello({.writer = -1});
  Advance(3 * kNanosPerSecond);
  EXPECT_EQ(LatestStep(reader), 2);
  EXPECT_EQ(Stat(reader, 2)->level, Level::kPersisted);
}

// Another node settled where the attempt came from, and wrote it down first: its word counts.
TEST_F(LineRules, Rule18ARecordThatStandsReplacesWhatWasAssumed) {
  Lived(1, {1, 2, 3});
  line_records[{2, LineRecordKind::kOrigin}] = {"job", 2, LineRecordKind::kOrigin,
                                                LineageFrom(1, 1, {})};
  LoseMemory();
  const SessionId second = Life(2);
  Save(second, 7);
  LoseMemory();
  const SessionId reader = Life(3);
  EXPECT_EQ(LatestStep(reader), 7);
  EXPECT_TRUE(Stat(reader, 3, 1)->facts.abandoned) << "attempt 2 came from step 1";
  EXPECT_FALSE(Stat(reader, 1, 1)->facts.abandoned);
}

TEST_F(LineRules, Rule22AWaitForMoreWakesWhenTheJobGoesBack) {
  Lived(1, {6, 7, 8, 9});
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const RequestId waits = Wait(reader, kNoStep, Level::kCached, 9);
  EXPECT_FALSE(Answered(waits));
  const SessionId second = Life(2);
  ASSERT_TRUE(Resume(second, 2, 6).ok());
  const auto woken = Take<CheckpointInfo>(waits);
  ASSERT_TRUE(woken.ok()) << woken.status();
  EXPECT_EQ(woken->key.step, 6);
}

TEST_F(LineRules, Rule22ACursorMissesNoRevision) {
  const SessionId life = Life(1);
  Save(life, 1);
  const auto latest = Latest(life);
  event::Wait wait{From(life), {"job", kNoStep}, Level::kCached,      1,
                   Soon(),     latest->head,     latest->key.revision};
  Apply(wait);
  EXPECT_FALSE(Answered(wait.caller.request));
  const PartKey again = PartOf(life, 1, 1);
  ASSERT_TRUE(Create(life, again, {{"model"}}).ok());
  ASSERT_TRUE(Commit(life, again, {{"model"}}).ok());
  EXPECT_EQ(Take<CheckpointInfo>(wait.caller.request)->key.revision, 1);
}

// Where people look for a step's files they find those that count.
TEST_F(LineRules, Rule14UsePutsFilesThatStandAsideBackInPlace) {
  Lived(1, {1, 2, 3});
  const SessionId second = Life(2);
  ASSERT_TRUE(Resume(second, 2, 1).ok());
  for (const Step step : {2, 3, 4}) Save(second, step);
  Die(second);
  const SessionId reader = Hello({.writer = -1});
  ASSERT_TRUE(Use(reader, 3, 1).ok());
  EXPECT_THAT(reinstated,
              testing::ElementsAre(CheckpointKey{"job", 2, 1, 0}, CheckpointKey{"job", 3, 1, 0}));
}

// Other nodes write below the same root.
TEST_F(LineRules, TheViewOfSharedStorageAgesWhileNobodyWritesHere) {
  Lived(1, {1, 2});
  const SessionId reader = Hello({.writer = -1});
  EXPECT_EQ(LatestStep(reader), 2);
  SavedElsewhere(3, 2);
  EXPECT_EQ(LatestStep(reader), 2) << "it was read just now";
  Advance(3 * kNanosPerSecond);
  EXPECT_EQ(LatestStep(reader), 3);
  const SessionId third = Life(3);
  Save(third, 4);
  EXPECT_EQ(ManifestIn(manifests.rbegin()->second).lineage.attempt(), 2);
}

// A writer that lives here may have been taken over by another node's, and that is seen without reading
// the whole job each time.
TEST_F(LineRules, Rule8AnotherNodesLifeIsSeenWhileAWriterLivesHere) {
  const SessionId writer = Life(1);
  for (const Step step : {1, 2}) Save(writer, step);
  const SessionId reader = Hello({.writer = -1});
  Advance(3 * kNanosPerSecond);
  const size_t read = scans.size();
  EXPECT_EQ(LatestStep(reader), 2);
  EXPECT_EQ(LatestStep(reader), 2);
  EXPECT_EQ(line_looks.size(), 1u);
  EXPECT_EQ(scans.size(), read) << "nothing new, nothing read";
  SavedElsewhere(7, 2);
  Advance(3 * kNanosPerSecond);
  EXPECT_EQ(LatestStep(reader), 7);
  EXPECT_EQ(scans.size(), read + 1);
  EXPECT_THAT(TrySave(writer, 3), Fails(absl::StatusCode::kFailedPrecondition, "superseded by 2"));
}

TEST_F(LineRules, Rule8AnotherNodesDecisionIsSeenWhileAWriterLivesHere) {
  const SessionId writer = Life(1);
  for (const Step step : {1, 2}) Save(writer, step);
  const SessionId reader = Hello({.writer = -1});
  line_records[{5, LineRecordKind::kUse}] = {"job", 5, LineRecordKind::kUse, LineageFrom(1, 1, {})};
  Advance(3 * kNanosPerSecond);
  EXPECT_EQ(LatestStep(reader), 1);
}

// Storage that hangs, or fails, holds up what a live writer's memory answers once, and not for long.
TEST_F(LineRules, Rule8ALiveWritersAnswersDoNotWaitForStorage) {
  const SessionId writer = Life(1);
  for (const Step step : {1, 2}) Save(writer, step);
  const SessionId reader = Hello({.writer = -1});
  Advance(3 * kNanosPerSecond);
  hold_scans = true;
  event::Latest latest{From(reader), "job", Soon()};
  Apply(latest);
  EXPECT_FALSE(Answered(latest.caller.request));
  event::Wait wait{From(reader), {"job", 2}, Level::kCached, -1, Soon()};
  Apply(wait);
  EXPECT_TRUE(Answered(wait.caller.request)) << "it waits for nothing that memory has";
  Advance(kNanosPerSecond / 4);
  const auto answer = Take<reply::Latest>(latest.caller.request);
  EXPECT_EQ(answer->key.step, 2);
  EXPECT_GT(answer->as_of_unix_ms, 0) << "and it says from when the view is";
  EXPECT_EQ(LatestStep(reader), 2) << "at once";
  scan_status = absl::UnavailableError("away");
  FinishLineLook("job");
  CarryPending();
  EXPECT_EQ(LatestStep(reader), 2);
  EXPECT_EQ(line_looks.size(), 1u) << "not asked again at once";
}

// Where a life comes from is recorded before its files are written, which takes its time.
TEST_F(LineRules, Rule8ALifeThatHasBegunElsewhereIsSeenOnceItHasPublished) {
  const SessionId writer = Life(1);
  for (const Step step : {1, 2}) Save(writer, step);
  const SessionId reader = Hello({.writer = -1});
  line_records[{9, LineRecordKind::kOrigin}] = {"job", 9, LineRecordKind::kOrigin,
                                                LineageFrom(2, 1, {})};
  Advance(3 * kNanosPerSecond);
  EXPECT_EQ(LatestStep(reader), 2);
  SavedElsewhere(7, 9);
  Advance(3 * kNanosPerSecond);
  EXPECT_EQ(LatestStep(reader), 7);
}

TEST_F(LineRules, Rule21WhatALifeElsewhereComesFromStaysBeforeItHasPublished) {
  const SessionId writer = Life(1, PersistMode::kEvery, /*keep_last=*/2);
  for (const Step step : {4, 5}) Save(writer, step);
  line_records[{9, LineRecordKind::kOrigin}] = {"job", 9, LineRecordKind::kOrigin,
                                                LineageFrom(4, 1, {})};
  Advance(3 * kNanosPerSecond);
  EXPECT_EQ(LatestStep(Hello({.writer = -1})), 5);
  for (const Step step : {6, 7}) Save(writer, step);
  EXPECT_TRUE(stored.contains({"job", 4, 1, 0})) << "attempt 9 goes on from it";
  EXPECT_FALSE(stored.contains({"job", 5, 1, 0}));
}

TEST_F(LineRules, Rule21WhatIsDeletedWhileALifeElsewhereHasBegunIsChosenByWhatItHasPublished) {
  const SessionId writer = Life(1, PersistMode::kEvery, /*keep_last=*/3);
  for (const Step step : {2, 3, 4}) Save(writer, step);
  line_records[{9, LineRecordKind::kOrigin}] = {"job", 9, LineRecordKind::kOrigin,
                                                LineageFrom(4, 1, {})};
  Advance(3 * kNanosPerSecond);
  EXPECT_EQ(LatestStep(Hello({.writer = -1})), 4);
  SavedElsewhere(5, 9, /*from=*/4);
  Advance(kNanosPerSecond);
  EXPECT_TRUE(TrySave(writer, 6).ok()) << "it was begun before anybody looked";
  EXPECT_TRUE(stored.contains({"job", 3, 1, 0})) << "5, 4, 3 are the newest of the line";
  EXPECT_THAT(TrySave(writer, 7), Fails(absl::StatusCode::kFailedPrecondition, "superseded by 9"));
}

// While what could not be read is read once more, it is still not taken for missing.
TEST_F(LineRules, Rule8LatestIsNotToldWhileWhatCouldNotBeReadIsReadAgain) {
  Lived(1, {1, 2});
  LoseMemory();
  const SessionId reader = Hello({.writer = -1});
  EXPECT_EQ(LatestStep(reader), 2);
  unread = {{3, "3: Input/output error"}};
  Advance(3 * kNanosPerSecond);
  event::Latest failed{From(reader), "job", Soon()};
  Apply(failed);
  EXPECT_THAT(StatusOf(AnswerTo(failed.caller.request)),
              Fails(absl::StatusCode::kUnavailable, "Input/output"));
  hold_scans = true;
  Advance(3 * kNanosPerSecond);
  event::Latest again{From(reader), "job", now + kNanosPerSecond};
  Apply(again);
  Advance(3 * kNanosPerSecond);
  EXPECT_THAT(StatusOf(AnswerTo(again.caller.request)),
              Fails(absl::StatusCode::kUnavailable, "Input/output"));
}

// The first look since memory was lost is in part; while the next one is under way nothing is deleted either.
TEST_F(LineRules, NothingIsDeletedWhileTheFirstLookIsTriedOnceMore) {
  Lived(1, {1, 2, 3, 4, 5});
  stored.erase({"job", 5, 1, 0});
  unread = {{5, "5: Input/output error"}};
  LoseMemory();
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  EXPECT_THAT(StatusOf(Latest(reader)), Fails(absl::StatusCode::kUnavailable, "Input/output"));
  hold_scans = true;
  const size_t looks = scans.size();
  Advance(3 * kNanosPerSecond);
  Apply(event::Latest{From(reader), "job", now + kNanosPerSecond});
  ASSERT_GT(scans.size(), looks);
  JobPolicy policy;
  policy.keep_last = 2;
  const event::SetPolicy keep_two{From(reader), "job", policy};
  Apply(keep_two);
  Advance(30 * kNanosPerSecond);
  EXPECT_TRUE(AnswerTo(keep_two.caller.request).ok());
  for (Step step = 1; step <= 4; ++step) {
    EXPECT_TRUE(stored.contains({"job", step, 1, 0})) << step;
  }
}

// Another node's files are not said to be missing because storage does not answer.
TEST_F(LineRules, Rule8NothingIsFoundOnlyOnceStorageWasRead) {
  const SessionId writer = Life(1);
  ASSERT_TRUE(Create(writer, PartOf(writer, 1), {{"model"}}).ok());
  const SessionId reader = Hello({.writer = -1});
  Advance(3 * kNanosPerSecond);
  hold_scans = true;
  const event::Latest latest{From(reader), "job", Soon()};
  Apply(latest);
  Advance(kNanosPerSecond);
  EXPECT_FALSE(Answered(latest.caller.request));
  FinishScan("job");
  CarryPending();
  EXPECT_THAT(StatusOf(AnswerTo(latest.caller.request)), Fails(absl::StatusCode::kNotFound, "job"));
}

// A record that does not decode stands there for ever. The job is not read again for it.
TEST_F(LineRules, Rule8ARecordThatCannotBeMadeSenseOfCostsOneReading) {
  const SessionId writer = Life(1);
  Save(writer, 1);
  const SessionId reader = Hello({.writer = -1});
  broken_records = {.published = 7, .decided = 8};
  for (int i = 0; i < 5; ++i) {
    Advance(3 * kNanosPerSecond);
    EXPECT_EQ(LatestStep(reader), 1);
  }
  EXPECT_LE(scans.size(), 2u);
}

// Another node's `use` ends what older attempts wait for.
TEST_F(LineRules, Rule11AUseThatStorageTellsOfEndsCreatesThatWait) {
  const SessionId writer = Life(1);
  for (const Step step : {1, 2}) Save(writer, step);
  hold_makes = true;
  const event::Create create = CreateOf(writer, PartOf(writer, 3), {{"model", 40 * kMiB}});
  Apply(create);
  ASSERT_FALSE(Answered(create.caller.request));
  line_records[{5, LineRecordKind::kUse}] = {"job", 5, LineRecordKind::kUse, LineageFrom(1, 1, {})};
  Advance(3 * kNanosPerSecond);
  EXPECT_EQ(LatestStep(Hello({.writer = -1})), 1);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kFailedPrecondition, "superseded by `use`"));
}

// What is decided by storage waits for all of it, however patient the listing before was.
TEST_F(LineRules, Rule14UseWaitsForStorageWhileAWriterLivesHere) {
  const SessionId writer = Life(1);
  for (const Step step : {1, 2}) Save(writer, step);
  const SessionId reader = Hello({.writer = -1});
  Advance(3 * kNanosPerSecond);
  hold_scans = true;
  event::Use use{From(reader), {"job", 1, 1}, /*fence=*/true, Soon()};
  Apply(use);
  Advance(kNanosPerSecond);
  EXPECT_FALSE(Answered(use.caller.request));
  EXPECT_TRUE(record_writes.empty()) << "nothing is decided yet";
  hold_scans = false;
  FinishLineLook("job");
  FinishScan("job");
  CarryPending();
  EXPECT_EQ(Take<reply::Latest>(use.caller.request)->key.step, 1);
}

// R39: the clock of storage counts, not this node's.
TEST_F(LineRules, Rule21TheGraceIsCountedByTheClockOfStorage) {
  options.keep_abandoned_seconds = 3600;
  Restart();
  Lived(1, {1, 2, 3});
  const SessionId second = Life(2, PersistMode::kEvery, /*keep_last=*/1);
  ASSERT_TRUE(Resume(second, 2, 1).ok());
  for (const Step step : {5, 6}) Save(second, step);
  EXPECT_TRUE(stored.contains({"job", 3, 1, 0}));
  Advance(1800 * kNanosPerSecond);
  Save(second, 7);
  EXPECT_TRUE(stored.contains({"job", 3, 1, 0}));
  Advance(1900 * kNanosPerSecond);
  Save(second, 8);
  EXPECT_FALSE(stored.contains({"job", 3, 1, 0}));
  EXPECT_TRUE(stored.contains({"job", 8, 2, 0}));
}

// What people are told is what is done.
TEST_F(LineRules, Rule21APreviewSaysWhatGoesAndWhen) {
  options.keep_abandoned_seconds = 3600;
  Restart();
  const SessionId first = Life(1);
  for (const Step step : {1, 2, 3, 4}) Save(first, step);
  const SessionId reader = Hello({.writer = -1});
  const auto preview = [&](int64_t keep_last) {
    JobPolicy policy;
    policy.keep_last = keep_last;
    event::PreviewPolicy ask{From(reader), "job", policy, Soon()};
    Apply(ask);
    return *Take<PolicyPreview>(ask.caller.request);
  };
  const auto steps = [](const PolicyPreview& shown) {
    std::vector<std::pair<Step, bool>> all;
    for (const FilesFate& files : shown.files) all.emplace_back(files.key.step, files.now);
    return all;
  };
  using Steps = std::vector<std::pair<Step, bool>>;
  EXPECT_EQ(preview(0).stay, 4u);
  EXPECT_EQ(steps(preview(2)), (Steps{{1, true}, {2, true}}));
  EXPECT_EQ(preview(2).stay, 2u);
  EXPECT_EQ(stored.size(), 4u) << "nothing goes for it";
  Die(first);
  const SessionId second = Life(2);
  ASSERT_TRUE(Resume(second, 2, 1).ok());
  event::PreviewPolicy own{From(second), "job", std::nullopt, Soon()};
  Apply(own);
  EXPECT_TRUE(Take<PolicyPreview>(own.caller.request)->files.empty()) << "its own deletes nothing";
  for (const Step step : {5, 6}) Save(second, step);
  Advance(kNanosPerSecond);
  const PolicyPreview later = preview(2);
  EXPECT_EQ(steps(later), (Steps{{1, true}, {2, false}, {3, false}, {4, false}}));
  EXPECT_EQ(later.files[1].why, "abandoned: once its grace is over");
  EXPECT_EQ(later.files[1].after_unix_ms, recorded_at.at(2) + 3600 * 1000);
  JobPolicy policy;
  policy.keep_last = 2;
  Apply(event::SetPolicy{From(second), "job", policy});
  EXPECT_EQ(steps(preview(2)), (Steps{{2, false}, {3, false}, {4, false}}));
  EXPECT_FALSE(stored.contains({"job", 1, 1, 0}));
}

// Storage that takes no deletion is not read and asked in a loop.
TEST_F(LineRules, Rule21ADeletionThatFailsIsNotTriedAgainAtOnce) {
  delete_status = absl::PermissionDeniedError("read-only file system");
  const SessionId life = Life(1, PersistMode::kEvery, /*keep_last=*/1);
  for (const Step step : {1, 2, 3}) Save(life, step);
  EXPECT_EQ(deletes.size(), 1u) << "of step 1; nothing more before the pause is over";
  EXPECT_LE(scans.size(), 2u);
  event::Remove remove{From(life), {"job", 1}, false, true, Soon()};
  Apply(remove);
  EXPECT_FALSE(AnswerTo(remove.caller.request).ok());
  EXPECT_LE(scans.size(), 3u);
  delete_status = absl::OkStatus();
  Advance(options.persist_retry_max);
  EXPECT_EQ(stored.size(), 1u) << "without anything else that happens";
}

TEST_F(LineRules, Rule21OfTwoDeletionsTheOneThatFailedIsTriedAgain) {
  delete_status_of[1] = absl::UnavailableError("for a moment");
  const SessionId life = Life(1);
  for (const Step step : {1, 2, 3}) Save(life, step);
  JobPolicy policy;
  policy.keep_last = 1;
  Apply(event::SetPolicy{From(life), "job", policy});
  EXPECT_TRUE(stored.contains({"job", 1, 1, 0}));
  EXPECT_FALSE(stored.contains({"job", 2, 1, 0}));
  delete_status_of.clear();
  Advance(options.persist_retry_max);
  EXPECT_FALSE(stored.contains({"job", 1, 1, 0}));
}

// A life whose checkpoints were all removed is known by the record of its origin alone.
TEST_F(LineRules, Rule21ALifeThatIsKnownByItsRecordAloneHoldsNothingBack) {
  Lived(1, {1, 2, 3});
  line_records[{50, LineRecordKind::kOrigin}] = {"job", 50, LineRecordKind::kOrigin,
                                                 LineageFrom(3, 1, {})};
  LoseMemory();
  const SessionId reader = Hello({.writer = -1});
  EXPECT_EQ(LatestStep(reader), 3);
  JobPolicy policy;
  policy.keep_last = 1;
  Apply(event::SetPolicy{From(reader), "job", policy});
  EXPECT_EQ(stored.size(), 1u) << "keep_last is followed";
  const event::ChooseAttempt choose{From(reader), "job", Soon(), /*unix_ms=*/7};
  Apply(choose);
  EXPECT_GT(Take<reply::Attempt>(choose.caller.request)->attempt, 50) << "rule 1";
}

TEST_F(LineRules, RemovedStepsAreRemovedForOneWhoLostItsMemory) {
  Lived(1, {1, 2, 3});
  const SessionId reader = Hello({.writer = -1});
  event::Remove remove{From(reader), {"job", 2}, false, true, Soon()};
  Apply(remove);
  ASSERT_TRUE(AnswerTo(remove.caller.request).ok());
  LoseMemory();
  const SessionId late = Life(1);
  EXPECT_EQ(LatestStep(late), 3);
  EXPECT_THAT(TrySave(late, 2), Fails(absl::StatusCode::kFailedPrecondition, "was removed"));
}

TEST_F(LineRules, RemovingAnAttemptsStepLeavesTheOtherAttempts) {
  Lived(1, {1, 2});
  const SessionId second = Life(2);
  ASSERT_TRUE(Resume(second, 2, 1).ok());
  Save(second, 2);
  event::Remove remove{From(second), {"job", 2, 2}, false, true, Soon()};
  Apply(remove);
  ASSERT_TRUE(AnswerTo(remove.caller.request).ok());
  EXPECT_FALSE(stored.contains({"job", 2, 2, 0}));
  EXPECT_TRUE(stored.contains({"job", 2, 1, 0}));
  EXPECT_TRUE(deletes.back().this_attempt);
}

// What is shown of a step may be incomplete, and what an older life left of it whole.
TEST_F(LineRules, RemovingAWholeStepAsksForEveryLastCopyThatGoesWithIt) {
  Lived(1, {1, 2});
  const SessionId second = Hello({.world_size = 2, .attempt = 2});
  ASSERT_TRUE(Resume(second, 2, 1).ok());
  ASSERT_TRUE(TrySave(second, 2).ok());
  ASSERT_FALSE(Stat(second, 2)->facts.complete);
  const auto remove = [&](Attempt attempt, bool force) {
    event::Remove event{From(second), {"job", 2, attempt}, false, force, Soon()};
    Apply(event);
    return StatusOf(AnswerTo(event.caller.request));
  };
  EXPECT_THAT(remove(0, false), Fails(absl::StatusCode::kFailedPrecondition,
                                      "job/2 attempt=1 revision=0, which is in"));
  EXPECT_TRUE(stored.contains({"job", 2, 1, 0}));
  EXPECT_TRUE(remove(2, false).ok()) << "of that attempt nothing is complete";
  EXPECT_TRUE(stored.contains({"job", 2, 1, 0}));
  EXPECT_THAT(remove(0, false), Fails(absl::StatusCode::kFailedPrecondition, "attempt=1"));
  EXPECT_TRUE(remove(0, true).ok());
  EXPECT_FALSE(stored.contains({"job", 2, 1, 0}));
}

TEST_F(LineRules, RemovingAWholeStepSaysHowManyLastCopiesGo) {
  Lived(1, {1, 2});
  const SessionId second = Life(2);
  ASSERT_TRUE(Resume(second, 2, 1).ok());
  Save(second, 2);
  event::Remove remove{From(second), {"job", 2}, false, false, Soon()};
  Apply(remove);
  EXPECT_THAT(
      StatusOf(AnswerTo(remove.caller.request)),
      Fails(
          absl::StatusCode::kFailedPrecondition,
          "attempt=2 revision=0, which is in memory and in storage, nor of 1 other checkpoint of"));
}

// Who tries one step, and then another, finds both.
TEST_F(LineRules, Rule21NothingIsDeletedWhileADecisionIsAtTheHead) {
  options.keep_abandoned_seconds = 0;
  Restart();
  Lived(1, {1, 2, 3, 4, 5});
  const SessionId second = Life(2, PersistMode::kEvery, /*keep_last=*/2);
  Save(second, 0);
  Die(second);
  const SessionId reader = Hello({.writer = -1});
  ASSERT_TRUE(Use(reader, 5, 1).ok());
  Advance(20 * kNanosPerSecond);
  EXPECT_EQ(LatestStep(reader), 5);
  EXPECT_TRUE(deletes.empty());
  EXPECT_TRUE(Use(reader, 2, 1).ok());
}

TEST_F(LineRules, RemovingAWholeStepSparesNoPinUnseen) {
  Lived(1, {1});
  const SessionId second = Life(2);
  event::Pin pin{From(second), {"job", 1, 1}, true};
  Apply(pin);
  ASSERT_TRUE(AnswerTo(pin.caller.request).ok());
  Save(second, 1);
  event::Remove remove{From(second), {"job", 1}, false, true, Soon()};
  Apply(remove);
  EXPECT_THAT(StatusOf(AnswerTo(remove.caller.request)),
              Fails(absl::StatusCode::kFailedPrecondition, "is pinned"));
}

// The number of a `use` is taken; a `resume` under it would stand beside it in storage.
TEST_F(LineRules, Rule13ResumeDoesNotTakeTheNumberOfAUse) {
  Lived(1, {1, 2, 3});
  const SessionId reader = Hello({.writer = -1});
  const auto used = Use(reader, 3, 1);
  ASSERT_TRUE(used.ok());
  const SessionId next = Life(used->head);
  EXPECT_THAT(StatusOf(Resume(next, used->head, 1)),
              Fails(absl::StatusCode::kFailedPrecondition, "number of a `use`"));
  EXPECT_EQ(LatestStep(next), 3);
}

// A stranger's word about a job that nobody owns yet binds no one.
TEST_F(LineRules, Rule13NobodyDecidesAboutAJobThatNobodyHasSavedIn) {
  const SessionId stranger = Hello({.attempt = 50, .uid = 1001});
  ASSERT_TRUE(Resume(stranger, 50, kNoStep).ok());
  Die(stranger);
  Lived(49, {1, 2});
  const SessionId reader = Hello({.writer = -1});
  EXPECT_EQ(LatestStep(reader), 2);
  Restart();
  EXPECT_EQ(LatestStep(reader), 2);
  LoseMemory();
  EXPECT_EQ(LatestStep(Hello({.writer = -1})), 2);
}

// Another node deletes what is decided for, after it was looked for and before it knows of the decision.
TEST_F(LineRules, Rule13StorageIsReadOnceMoreWhenTheDecisionStandsThere) {
  Lived(1, {1, 2});
  const SessionId second = Life(2);
  event::ResumeFrom resume{From(second), "job", 2, 1, Soon()};
  const LineRecord record = ResumeAndLose(resume, {"job", 1, 1, 0});
  hold_scans = hold_persists = true;
  Apply(event::LineRecordWritten{record, record});
  EXPECT_FALSE(Answered(resume.caller.request)) << "storage is being read";
  hold_scans = false;
  FinishScan("job");
  CarryPending();
  const auto answer = Take<reply::Latest>(resume.caller.request);
  EXPECT_TRUE(answer->recorded);
  EXPECT_FALSE(answer->in_storage) << "said after the look";
  EXPECT_EQ(Stat(second, 1)->level, Level::kCached);
}

// A repeat whose first answer was lost would else fence what has begun to save meanwhile.
TEST_F(LineRules, Rule14TheSameUseAgainIsTheDecisionThatStands) {
  Lived(1, {1, 2, 3});
  const SessionId reader = Hello({.writer = -1});
  const auto used = Use(reader, 2, 1);
  ASSERT_TRUE(used.ok()) << used.status();
  EXPECT_EQ(Use(reader, 2, 1)->head, used->head);
  Restart();
  EXPECT_EQ(Use(reader, 2, 1)->head, used->head) << "a fact in the journal";
  const auto other = Use(reader, 3, 1);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_GT(other->head, used->head);
  EXPECT_GT(Use(reader, 2, 1)->head, other->head) << "it is not what stands";
  // After another attempt has begun, it goes back from that.
  const auto before = Use(reader, 2, 1);
  Lived(before->head + 1, {3});
  const auto after = Use(reader, 2, 1);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_GT(after->head, before->head + 1);
  EXPECT_EQ(LatestStep(reader), 2);
}

// Two nodes chose one number in the same moment: the file that stands counts.
TEST_F(LineRules, Rule14OfTwoUsesUnderOneNumberTheFileThatStandsCounts) {
  Lived(1, {1, 2, 3});
  const SessionId reader = Hello({.writer = -1});
  hold_records = true;
  event::Use use{From(reader), {"job", 3, 1}, false, Soon()};
  Apply(use);
  ASSERT_FALSE(record_writes.empty());
  const LineRecord ours = record_writes.back().record;
  LineRecord theirs = ours;
  theirs.lineage = LineageFrom(2, 1, {});
  Apply(event::LineRecordWritten{ours, theirs});
  EXPECT_THAT(StatusOf(AnswerTo(use.caller.request)),
              Fails(absl::StatusCode::kFailedPrecondition, "another node"));
  EXPECT_EQ(LatestStep(reader), 2);
}

}  // namespace
}  // namespace cairn::engine
