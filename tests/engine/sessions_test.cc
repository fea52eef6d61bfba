// Sessions: what they may do, how many there may be, and what becomes of their callers.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

class Sessions : public EngineTest {};

// `cairn status` opens such a session; it used to show a job without a name.
TEST_F(Sessions, SessionWithoutAJobMakesNone) {
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
  EXPECT_THAT(scans, IsEmpty()) << "the root of storage is not a job's directory";
  Save(Hello(), 1);
  EXPECT_EQ(Latest(session, "job")->key.step, 1);
  Die(session);
  EXPECT_THAT(Status_().jobs, SizeIs(1));
}

TEST_F(Sessions, ForeignUidIsDenied) {  // R12
  const SessionId owner = Hello({.uid = 1000});
  Save(owner, 1);
  EXPECT_THAT(StatusOf(TryHello({.uid = 1001})),
              Fails(absl::StatusCode::kPermissionDenied, "owned by uid 1000"));
  const SessionId elsewhere = Hello({.job = "other", .uid = 1001});
  EXPECT_THAT(StatusOf(Latest(elsewhere, "job")),
              Fails(absl::StatusCode::kPermissionDenied, "the caller is uid 1001"));
  EXPECT_TRUE(TryHello({.attempt = 0, .uid = 0}).ok()) << "uid 0 is trusted";
}

TEST_F(Sessions, ClientWithoutDescriptorsWritesAndReadsInChunks) {
  const SessionId session = Hello({.takes_fds = false});
  const PartKey part = PartOf(session, 1);
  const auto created = Create(session, part, {{"a", 100}, {"b", 200}});
  ASSERT_TRUE(created.ok());
  EXPECT_THAT(created->lend, IsEmpty());
  EXPECT_NE(created->extents[0].lease, created->extents[1].lease);
  const auto locate = [&](LeaseId lease, uint64_t offset, uint64_t length, bool write) {
    event::LocateChunk event{From(session), lease, offset, length, write};
    Apply(event);
    const auto chunk = Take<reply::Chunk>(event.caller.request);
    if (chunk.ok() && write) Apply(event::ChunkWritten{chunk->write});
    return chunk;
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

// A write that stalled for more than a second wrote into an extent that had been given on.
TEST_F(Sessions, SlabWithAChunkOnItsWayIsNotGivenOn) {  // promises 2 and 6
  const SessionId session = Hello({.takes_fds = false});
  const auto created = Create(session, PartOf(session, 1), {{"model", 40 * kMiB}});
  ASSERT_TRUE(created.ok());
  event::LocateChunk locate{From(session), created->extents[0].lease, 0, 100, /*write=*/true};
  Apply(locate);
  const auto chunk = Take<reply::Chunk>(locate.caller.request);
  ASSERT_TRUE(chunk.ok());
  Die(session);  // its part is dropped
  Advance(24 * 3600 * kNanosPerSecond);
  const SessionId other = Hello({.job = "other"});
  const auto create = CreateOf(other, PartOf(other, 1), {{"model", 40 * kMiB}});
  Apply(create);
  EXPECT_FALSE(Answered(create.caller.request));
  EXPECT_TRUE(keeper.contains(chunk->extent.slab));
  const SessionId next = Hello({.attempt = 2});
  const auto same_job = Create(next, PartOf(next, 1), {{"small", 1 * kMiB}});
  ASSERT_TRUE(same_job.ok());
  EXPECT_NE(same_job->extents[0].slab, chunk->extent.slab);
  Apply(event::ChunkWritten{chunk->write});
  EXPECT_TRUE(AnswerTo(create.caller.request).ok()) << StatusOf(AnswerTo(create.caller.request));
}

TEST_F(Sessions, NothingIsAdmittedInSafeModeOrWhenTheJournalIsFull) {
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

TEST_F(Sessions, WaitingCallersHaveABound) {  // promise 8
  options.max_waiting = 2;
  Restart();
  const SessionId session = Hello();
  Wait(session, 1, Level::kCached);
  Wait(session, 1, Level::kCached);
  EXPECT_THAT(StatusOf(AnswerTo(Wait(session, 1, Level::kCached))),
              Fails(absl::StatusCode::kResourceExhausted, "waiting callers"));
}

TEST_F(Sessions, SessionsHaveABound) {
  options.max_sessions = 1;
  Restart();
  Hello();
  EXPECT_THAT(StatusOf(TryHello({})), Fails(absl::StatusCode::kResourceExhausted, "sessions"));
}

TEST_F(Sessions, CallersOfAnEndedSessionAreAnswered) {  // promise 4
  const SessionId session = Hello();
  const RequestId wait = Wait(session, 9, Level::kCached);
  Die(session);
  EXPECT_THAT(StatusOf(AnswerTo(wait)), Fails(absl::StatusCode::kUnavailable, "has ended"));
}

}  // namespace
}  // namespace cairn::engine
