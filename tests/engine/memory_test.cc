// Slabs, leases and eviction: which process may have which memory, and what a full node gives up.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

class Memory : public EngineTest {
 protected:
  SlabId SlabOf(SessionId session, Step step, const std::string& name = "model") {
    const auto open = Open(session, step, name);
    EXPECT_TRUE(open.ok()) << open.status();
    if (!open.ok()) return 0;
    Release(session, open->lend.lease);
    return open->lend.slab;
  }
};

TEST_F(Memory, LeasedObjectIsNotEvicted) {  // R14: a stopped reader under pressure
  const SessionId writer = Hello();
  Save(writer, 1, {{"model", 20 * kMiB}});
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const auto open = Open(reader, 1);
  ASSERT_TRUE(open.ok());
  for (Step step : {2, 3, 4, 5}) Save(writer, step, {{"model", 20 * kMiB}});
  EXPECT_THAT(destroyed, Not(Contains(open->lend.slab)));
  EXPECT_TRUE(Open(reader, 1).ok());
  for (Step step : {6, 7}) {
    Save(writer, step, {{"model", 20 * kMiB}});
    EXPECT_NE(SlabOf(writer, step), open->lend.slab);
  }
}

TEST_F(Memory, NewestCompleteStepIsNotGivenUpForTheNextOne) {  // promise 5
  const SessionId session = Hello();
  Save(session, 1, {{"model", 40 * kMiB}});
  const size_t made = makes.size();
  hold_makes = true;
  const PartKey two = PartOf(session, 2);
  EXPECT_THAT(StatusOf(Create(session, two, {{"model", 40 * kMiB}})),
              Fails(absl::StatusCode::kInternal, "not answered yet"))
      << "the newest complete step stays";
  EXPECT_EQ(makes.size(), made);
}

TEST_F(Memory, SteadyStateRecyclesTheStepBeforeTheLast) {  // promise 5
  options.budget_bytes = 100 * kMiB;
  Restart();
  const SessionId session = Hello();
  for (Step step : {1, 2, 3}) Save(session, step, {{"model", 40 * kMiB}});
  const size_t made = makes.size(), probed = probes.size();
  for (Step step : {4, 5, 6}) {
    const auto created = Create(session, PartOf(session, step), {{"model", 40 * kMiB}});
    ASSERT_TRUE(created.ok()) << created.status();
    EXPECT_THAT(created->lend, IsEmpty()) << "it has the slab mapped";
    ASSERT_TRUE(Commit(session, PartOf(session, step), {{"model", 40 * kMiB}}).ok());
  }
  EXPECT_EQ(makes.size(), made);
  EXPECT_EQ(probes.size(), probed);
}

TEST_F(Memory, SlabWithAReaderIsNotReusedBeforeItsLockIsGone) {  // R29
  options.budget_bytes = 100 * kMiB;
  Restart();
  const SessionId writer = Hello();
  Save(writer, 1, {{"model", 40 * kMiB}});
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const auto open = Open(reader, 1);
  ASSERT_TRUE(open.ok());
  // The reader has closed it, but a forked child still maps it.
  Release(reader, open->lend.lease, /*closes=*/false);
  Save(writer, 2, {{"model", 40 * kMiB}});
  const auto waiting = Create(writer, PartOf(writer, 3), {{"model", 40 * kMiB}});
  EXPECT_THAT(StatusOf(waiting), Fails(absl::StatusCode::kInternal, "not answered yet"));
  EXPECT_TRUE(Open(reader, 2).ok());
  locks.erase(open->lend.lease);
  Advance(5 * kNanosPerSecond);
  EXPECT_TRUE(Stat(writer, 3).ok());
  EXPECT_GT(Status_().writing_bytes, 0u) << "granted once the lock was gone";
}

TEST_F(Memory, DeadWritersSlabIsReusedOnlyWhenTheProbeSaysFree) {  // R29
  const SessionId first = Hello({.attempt = 1});
  Save(first, 1, {{"model", 25 * kMiB}});
  const SlabId slab = SlabOf(first, 1);
  Save(first, 2, {{"model", 25 * kMiB}});
  foreign.insert(slab);  // a child that was forked before the writer died
  Die(first);
  const SessionId second = Hello({.attempt = 2});
  const auto created = Create(second, PartOf(second, 3), {{"model", 25 * kMiB}});
  EXPECT_THAT(StatusOf(created), Fails(absl::StatusCode::kInternal, "not answered yet"));
  EXPECT_THAT(destroyed, Not(Contains(slab)));
  EXPECT_THAT(Status_().quarantined, SizeIs(1));
  foreign.clear();
  Advance(kNanosPerSecond);
  EXPECT_GT(Status_().writing_bytes, 0u);
}

TEST_F(Memory, ProbeThatALendOvertookSaysNothing) {  // R29
  const SessionId first = Hello({.attempt = 1});
  Save(first, 1, {{"model", 25 * kMiB}});
  const SlabId slab = SlabOf(first, 1);
  Save(first, 2, {{"model", 25 * kMiB}});
  hold_probes = true;
  Die(first);
  const auto sent =
      std::find_if(probes.rbegin(), probes.rend(), [&](auto& probe) { return probe.slab == slab; });
  ASSERT_NE(sent, probes.rend());
  const event::SlabProbed free = Probe(*sent);
  ASSERT_TRUE(free.free);
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const auto open = Open(reader, 1);
  ASSERT_TRUE(open.ok());
  Release(reader, open->lend.lease, /*closes=*/false);  // a forked child still maps it
  hold_probes = false;
  Apply(free);
  const SessionId second = Hello({.attempt = 2});
  const auto created = Create(second, PartOf(second, 3), {{"model", 25 * kMiB}});
  EXPECT_THAT(StatusOf(created), Fails(absl::StatusCode::kInternal, "not answered yet"));
  locks.erase(open->lend.lease);
  Advance(5 * kNanosPerSecond);
  EXPECT_GT(Status_().writing_bytes, 0u) << "granted once the lock was gone";
}

TEST_F(Memory, SlabOpenedByPathWaitsForItsWriterToUnmap) {
  options.budget_bytes = 100 * kMiB;
  Restart();
  const SessionId writer = Hello();
  Save(writer, 1, {{"model", 40 * kMiB}});
  const SessionId reader = Hello({.writer = -1, .attempt = 0});
  const auto open = Open(reader, 1, "model", OpenMode::kFile);
  ASSERT_TRUE(open.ok());
  EXPECT_TRUE(open->exact);
  EXPECT_EQ(open->lend.mode, LeaseMode::kFile);
  Release(reader, open->lend.lease);
  Save(writer, 2, {{"model", 40 * kMiB}});
  const event::Create create = CreateOf(writer, PartOf(writer, 3), {{"model", 40 * kMiB}});
  Apply(create);
  const auto told = Take<reply::Create>(create.caller.request);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_THAT(told->extents, IsEmpty());
  EXPECT_THAT(told->retire, ElementsAre(open->lend.slab));
  for (SlabId slab : told->retire) unmapped[writer].push_back(slab);
  EXPECT_TRUE(TrySave(writer, 3, {{"model", 40 * kMiB}}).ok());
}

TEST_F(Memory, ObjectThatDoesNotFillItsSlabIsNotAnExactFile) {
  const SessionId session = Hello();
  Save(session, 1, {{"a", 5000}, {"b", 5000}});
  const auto open = Open(session, 1, "b", OpenMode::kFile);
  ASSERT_TRUE(open.ok());
  EXPECT_FALSE(open->exact);
  EXPECT_EQ(open->lend.mode, LeaseMode::kMap);
}

TEST_F(Memory, WriterThatPadsGetsTheWholeSlab) {
  const SessionId session = Hello();
  const uint64_t length = 33 * kMiB + 5;
  event::Create create = CreateOf(session, PartOf(session, 1), {{"zip", length}, {"raw", length}});
  options.budget_bytes = 80 * kMiB;
  create.objects[0].can_pad = true;
  create.objects.pop_back();
  Apply(create);
  const auto created = Take<reply::Create>(create.caller.request);
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_EQ(created->extents[0].length, created->extents[0].slab_bytes);
  EXPECT_LE(created->extents[0].slab_bytes, length + 2 * kMiB);
  Spec padded{"zip", created->extents[0].length};
  EXPECT_TRUE(Commit(session, PartOf(session, 1), {padded}).ok());
  EXPECT_TRUE(Open(session, 1, "zip")->exact);
}

TEST_F(Memory, SlabNeverChangesItsOwner) {  // promise 6
  const SessionId mine = Hello({.job = "mine", .uid = 1000});
  Save(mine, 1, {{"model", 30 * kMiB}});
  Save(mine, 2, {{"model", 30 * kMiB}});
  Die(mine);
  const SessionId theirs = Hello({.job = "theirs", .uid = 1001});
  const auto created = Create(theirs, PartOf(theirs, 1), {{"model", 30 * kMiB}});
  ASSERT_TRUE(created.ok()) << created.status();
  std::map<SlabId, std::string> owner;
  for (const Fact& f : journal) {
    const auto* slab = std::get_if<fact::Slab>(&f);
    if (slab == nullptr || slab->owner_job.empty()) continue;
    EXPECT_TRUE(owner[slab->slab].empty() || owner[slab->slab] == slab->owner_job);
    owner[slab->slab] = slab->owner_job;
  }
  EXPECT_FALSE(destroyed.empty());
}

TEST_F(Memory, NewestCompleteStepOfALiveJobIsNeverEvicted) {
  const SessionId a = Hello({.job = "a"});
  Save(a, 1, {{"model", 40 * kMiB}});
  const SessionId b = Hello({.job = "b"});
  event::Create create = CreateOf(b, PartOf(b, 1), {{"model", 40 * kMiB}});
  Apply(create);
  EXPECT_FALSE(Answered(create.caller.request));
  Advance(11 * kNanosPerSecond);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kResourceExhausted, "budget of 64.0 MiB"));
  EXPECT_TRUE(Open(a, 1).ok());
}

TEST_F(Memory, PinnedStepIsNotEvicted) {
  const SessionId session = Hello();
  Save(session, 1, {{"model", 20 * kMiB}});
  event::Pin pin{From(session), {"job", 1}, true};
  Apply(pin);
  ASSERT_TRUE(AnswerTo(pin.caller.request).ok());
  for (Step step : {2, 3, 4}) Save(session, step, {{"model", 20 * kMiB}});
  EXPECT_NE(SlabOf(session, 1), 0u);
  pin = {From(session), {"job", 1}, false};
  Apply(pin);
  for (Step step : {5, 6}) Save(session, step, {{"model", 20 * kMiB}});
  EXPECT_FALSE(Open(session, 1).ok());
}

TEST_F(Memory, GarbageGoesBeforeWhatIsComplete) {
  const SessionId old = Hello({.writer = 0, .world_size = 2, .attempt = 1});
  Save(old, 1, {{"half", 10 * kMiB}});
  Die(old);
  const SessionId session = Hello({.attempt = 2});
  Save(session, 5, {{"model", 16 * kMiB}});
  Save(session, 6, {{"model", 16 * kMiB}});
  Save(session, 7, {{"model", 24 * kMiB}});
  EXPECT_TRUE(Open(session, 5).ok()) << "the dead attempt's half step was evicted instead";
  EXPECT_FALSE(Stat(session, 1, 1).ok());
}

TEST_F(Memory, OwnIdleMemoryGoesBeforeAnotherJobsLastStep) {
  options.storage = true;
  Restart();
  const SessionId done = Hello({.job = "done"});
  Save(done, 1, {{"model", 16 * kMiB}});
  Die(done);
  const SessionId session = Hello();
  Save(session, 1, {{"model", 10 * kMiB}});
  Save(session, 2, {{"model", 14 * kMiB}});
  Save(session, 3, {{"model", 22 * kMiB}});
  Save(session, 4, {{"model", 18 * kMiB}});
  const SessionId reader = Hello({.job = "done", .writer = -1, .attempt = 0});
  event::StatCheckpoint stat{From(reader), {"done", 1}, Soon()};
  Apply(stat);
  EXPECT_EQ(Take<CheckpointInfo>(stat.caller.request)->level, Level::kPersisted);
}

TEST_F(Memory, LendThatFailedLeavesNoLease) {
  const SessionId session = Hello();
  const auto created = Create(session, PartOf(session, 1), {{"model"}});
  ASSERT_TRUE(created.ok());
  mapped[created->extents[0].slab].clear();
  Apply(event::LendFailed{created->extents[0].lease});
  Apply(event::Abort{From(session), PartOf(session, 1)});
  Save(session, 2);
  const auto open = Open(session, 2);
  ASSERT_TRUE(open.ok());
  locks.erase(open->lend.lease);
  Apply(event::LendFailed{open->lend.lease});
  EXPECT_EQ(Status_().sessions[0].leased_bytes, 0u);
}

TEST_F(Memory, ConcurrentOpensHaveALeaseEach) {
  const SessionId session = Hello();
  Save(session, 1);
  const auto one = Open(session, 1), two = Open(session, 1, "model", OpenMode::kRead);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_NE(one->lend.lease, two->lend.lease);
  EXPECT_EQ(two->lend.mode, LeaseMode::kRead);
  EXPECT_EQ(Status_().sessions[0].leased_bytes, 8 * kMiB);
}

}  // namespace
}  // namespace cairn::engine
