// Questions about jobs, checkpoints and objects.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

class Finding : public EngineTest {};

TEST_F(Finding, JobsThatWereOnlyAskedAboutAreForgotten) {  // promise 8
  options.storage = true;
  Restart();
  const SessionId session = Hello();
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(Latest(session, absl::StrCat("nowhere", i)).ok());
    event::Wait wait{From(session), {absl::StrCat("never", i), 1}, Level::kCached, -1, now};
    Apply(wait);
    EXPECT_TRUE(Answered(wait.caller.request));
  }
  EXPECT_THAT(Status_().jobs, SizeIs(1));
  Apply(event::Tick{});
  scans.clear();
  EXPECT_FALSE(Latest(session, "nowhere0").ok());
  EXPECT_THAT(scans, SizeIs(1)) << "it was unknown again";
}

TEST_F(Finding, ListingGoesByCursor) {
  const SessionId session = Hello();
  for (Step step = 1; step <= 5; ++step) Save(session, step, {{"a", 10}, {"b", 10}, {"c/d", 10}});
  const auto list = [&](const std::string& path, const std::string& cursor, int32_t limit) {
    event::List event{From(session), path, cursor, limit, Soon()};
    Apply(event);
    return Take<reply::List>(event.caller.request);
  };
  EXPECT_THAT(list("", "", 10)->jobs, ElementsAre("job"));
  auto page = list("job", "", 3);
  ASSERT_TRUE(page.ok());
  EXPECT_THAT(page->checkpoints, SizeIs(3));
  page = list("job", page->next_cursor, 3);
  EXPECT_THAT(page->checkpoints, SizeIs(2));
  EXPECT_EQ(page->next_cursor, "");
  page = list("job/latest", "", 2);
  EXPECT_THAT(page->objects, SizeIs(2));
  page = list("job/5", page->next_cursor, 2);
  EXPECT_EQ(page->objects[0].name, "c/d");
  CheckpointKey first = list("job", "", 1)->checkpoints[0].key;
  EXPECT_THAT(list(ExactListPath(first), "", 10)->objects, SizeIs(3));
  ++first.attempt;
  EXPECT_THAT(StatusOf(list(ExactListPath(first), "", 10)),
              Fails(absl::StatusCode::kNotFound, "step"));
  EXPECT_THAT(StatusOf(list("job/x", "", 2)), Fails(absl::StatusCode::kInvalidArgument, "path"));
  EXPECT_THAT(StatusOf(list("job", "x", 2)), Fails(absl::StatusCode::kInvalidArgument, "cursor"));
  EXPECT_THAT(StatusOf(list("job", "", 0)), Fails(absl::StatusCode::kInvalidArgument, "limit"));
}

// Peek says what Apply would. Where Apply would refuse, wait or look elsewhere, Peek has no answer.
TEST_F(Finding, PeekSaysWhatApplyWouldOrLeavesItToApply) {
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

// The event that brings what a caller waits for may come in the very moment of its deadline.
TEST_F(Finding, WaitReachedAtItsVeryDeadlineIsAnswered) {
  const SessionId session = Hello();
  const event::Wait wait{From(session), {"job", 1}, Level::kCached, -1, Soon()};
  Apply(wait);
  ASSERT_TRUE(Create(session, PartOf(session, 1), {{"model"}}).ok());
  hold_manifests = true;
  Apply(CommitOf(session, PartOf(session, 1), {{"model"}}));
  ASSERT_FALSE(Answered(wait.caller.request));
  now = wait.deadline;
  FinishManifest();
  CarryPending();
  EXPECT_TRUE(Take<CheckpointInfo>(wait.caller.request).ok());
}

}  // namespace
}  // namespace cairn::engine
