// Slabs, leases, admission, eviction: who may have which memory, and what a full node does.
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

TEST_F(Memory, SlabIsReusedBySessionThatMapsItWithoutAskingAnyone) {  // promise 5
  const SessionId session = Hello();
  Save(session, 1, {{"model", 40 * kMiB}});
  const size_t made = makes.size();
  hold_makes = true;
  const PartKey two = PartOf(session, 2);
  EXPECT_THAT(StatusOf(Create(session, two, {{"model", 40 * kMiB}})),
              Fails(absl::StatusCode::kInternal, "not answered yet"))
      << "the newest complete step is never given up for the next one";
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
  Release(reader, open->lend.lease, /*closes=*/false);  // says so, but a forked child maps it still
  Save(writer, 2, {{"model", 40 * kMiB}});
  const auto waiting = Create(writer, PartOf(writer, 3), {{"model", 40 * kMiB}});
  EXPECT_THAT(StatusOf(waiting), Fails(absl::StatusCode::kInternal, "not answered yet"));
  EXPECT_TRUE(Open(reader, 2).ok());
  locks.erase(open->lend.lease);
  const RequestId request = last_request;
  (void)request;
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
  Release(reader, open->lend.lease, /*closes=*/false);  // a forked child maps it still
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

TEST_F(Memory, ObjectThatDoesNotFillItsSlabIsNoExactFile) {
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
              Fails(absl::StatusCode::kResourceExhausted, "budget of 67108864"));
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
  EXPECT_TRUE(Open(session, 5).ok()) << "the half step of the dead attempt made room";
  EXPECT_FALSE(Stat(session, 1, 1).ok());
}

TEST_F(Memory, JobThatFitsTwiceCanAlwaysSave) {  // R30
  const SessionId session = Hello();
  for (Step step = 1; step <= 12; ++step) {
    const uint64_t bytes = (step % 3 == 0 ? 20 : step % 3 == 1 ? 27 : 9) * kMiB;
    EXPECT_TRUE(TrySave(session, step, {{"model", bytes}}).ok()) << step;
  }
}

TEST_F(Memory, MemoryOfAnotherJobsIdleSlabsIsAskedForAndComes) {  // R30
  const SessionId a = Hello({.job = "a"});
  Save(a, 1, {{"model", 20 * kMiB}});
  Save(a, 2, {{"model", 20 * kMiB}});
  const SessionId b = Hello({.job = "b"});
  event::Create create = CreateOf(b, PartOf(b, 1), {{"model", 30 * kMiB}});
  Apply(create);
  EXPECT_FALSE(Answered(create.caller.request)) << "a has it mapped";
  const auto mine = Create(a, PartOf(a, 3), {{"note", 100}});
  ASSERT_TRUE(mine.ok());
  EXPECT_THAT(mine->retire, SizeIs(1));
  ASSERT_TRUE(Create(a, PartOf(a, 3), {{"more", 100}}).ok());
  EXPECT_TRUE(AnswerTo(create.caller.request).ok()) << StatusOf(AnswerTo(create.caller.request));
}

TEST_F(Memory, AllLocalWritersShareOneVerdict) {  // R30: room for six of eight ranks
  std::vector<SessionId> ranks;
  for (int rank = 0; rank < 8; ++rank) {
    ranks.push_back(Hello({.writer = rank, .world_size = 8, .local_writers = 8}));
  }
  std::vector<RequestId> requests;
  for (int rank = 0; rank < 8; ++rank) {
    const auto create =
        CreateOf(ranks[rank], PartOf(ranks[rank], 1), {{absl::StrCat("rank", rank), 10 * kMiB}});
    Apply(create);
    requests.push_back(create.caller.request);
  }
  for (RequestId request : requests) {
    EXPECT_THAT(StatusOf(AnswerTo(request)),
                Fails(absl::StatusCode::kResourceExhausted, "83886080 bytes wanted"));
  }
  EXPECT_EQ(Status_().used_bytes + Status_().writing_bytes, 0u + Status_().used_bytes);
  EXPECT_EQ(Status_().writing_bytes, 0u) << "no rank holds memory";
}

TEST_F(Memory, StepThatHoldsNothingWaitsForMemoryToOneDeadline) {
  const SessionId a = Hello({.job = "a", .writer = 0, .world_size = 2, .local_writers = 2});
  const SessionId b = Hello({.job = "a", .writer = 1, .world_size = 2, .local_writers = 2});
  const SessionId other = Hello({.job = "other"});
  Save(other, 1, {{"model", 40 * kMiB}});
  const auto first = CreateOf(a, PartOf(a, 1), {{"x", 15 * kMiB}});
  Apply(first);
  now += kNanosPerSecond;
  const auto second = CreateOf(b, PartOf(b, 1), {{"y", 15 * kMiB}});
  Apply(second);
  EXPECT_FALSE(Answered(first.caller.request));
  EXPECT_FALSE(Answered(second.caller.request));
  Advance(9 * kNanosPerSecond);
  EXPECT_THAT(StatusOf(AnswerTo(first.caller.request)),
              Fails(absl::StatusCode::kResourceExhausted, ""));
  EXPECT_THAT(StatusOf(AnswerTo(second.caller.request)),
              Fails(absl::StatusCode::kResourceExhausted, ""));
  EXPECT_THAT(StatusOf(Commit(a, PartOf(a, 1), {})),
              Fails(absl::StatusCode::kResourceExhausted, ""))
      << "an empty commit does not sneak past the verdict";
  Die(other);
  Apply(event::Remove{
      From(Hello({.job = "other", .attempt = 0})), {"other", 1}, false, true, Soon()});
  EXPECT_TRUE(TrySave(a, 1, {{"x", 15 * kMiB}}, /*revision=*/1).ok())
      << "a new try is a new verdict";
}

TEST_F(Memory, NextStepIsEstimatedByTheLast) {
  const SessionId a = Hello({.writer = 0, .world_size = 2, .local_writers = 2});
  const SessionId b = Hello({.writer = 1, .world_size = 2, .local_writers = 2});
  Save(a, 1, {{"x", 1 * kMiB}});
  Save(b, 1, {{"y", 30 * kMiB}});
  const auto create = CreateOf(a, PartOf(a, 2), {{"x", 1 * kMiB}});
  const SessionId other = Hello({.job = "other"});
  const auto theirs = CreateOf(other, PartOf(other, 1), {{"z", 10 * kMiB}});
  Apply(create);
  ASSERT_TRUE(AnswerTo(create.caller.request).ok());
  Apply(theirs);
  EXPECT_FALSE(Answered(theirs.caller.request)) << "b's 30 MiB are set aside";
  EXPECT_TRUE(TrySave(b, 2, {{"y", 30 * kMiB}}).ok());
}

TEST_F(Memory, GrantThatTheSameEventTakesBackIsARefusal) {
  const Who who{.world_size = 2, .local_writers = 2, .takes_fds = false};
  Who other = who;
  other.writer = 1;
  const SessionId a = Hello(who), b = Hello(other);
  hold_makes = true;
  const auto first = CreateOf(a, PartOf(a, 1), {{"x", 15 * kMiB}});
  const auto second = CreateOf(b, PartOf(b, 1), {{"y", 50 * kMiB}});
  Apply(first);
  Apply(second);
  ASSERT_FALSE(Answered(first.caller.request));
  const action::MakeSlab make = makes.back();
  keeper[make.slab] = make.bytes;
  Apply(event::SlabMade{make.slab, absl::OkStatus()});  // enough for the first, never for both
  EXPECT_THAT(StatusOf(AnswerTo(second.caller.request)),
              Fails(absl::StatusCode::kResourceExhausted, ""));
  EXPECT_THAT(StatusOf(AnswerTo(first.caller.request)),
              Fails(absl::StatusCode::kResourceExhausted, ""))
      << "its extents are gone";
}

TEST_F(Memory, StepThatNeedsMoreThanThereIsRefusedForAll) {
  const SessionId a = Hello({.writer = 0, .world_size = 2, .local_writers = 2});
  const SessionId b = Hello({.writer = 1, .world_size = 2, .local_writers = 2});
  const auto first = CreateOf(a, PartOf(a, 1), {{"x", 2 * kMiB}});
  Apply(first);
  ASSERT_TRUE(AnswerTo(first.caller.request).ok());
  EXPECT_THAT(StatusOf(Create(b, PartOf(b, 1), {{"y", 63 * kMiB}})),
              Fails(absl::StatusCode::kResourceExhausted, "more than it was admitted with"));
  EXPECT_EQ(Status_().writing_bytes, 0u);
  EXPECT_THAT(StatusOf(Commit(a, PartOf(a, 1), {{"x", 2 * kMiB}})),
              Fails(absl::StatusCode::kResourceExhausted, ""));
}

TEST_F(Memory, SlabInTheMakingIsHurriedRatherThanMadeTwice) {
  options.pool_slabs = {30 * kMiB};
  keeper.clear();
  hold_makes = true;
  Restart();
  const SessionId session = Hello();
  const auto create = CreateOf(session, PartOf(session, 1), {{"model", 30 * kMiB}});
  Apply(create);
  EXPECT_FALSE(Answered(create.caller.request));
  SlabId pool = 0;
  for (const auto& make : makes) {
    if (make.bytes == 30 * kMiB) pool = make.slab;
  }
  EXPECT_THAT(hurried, ElementsAre(pool));
  keeper[pool] = 30 * kMiB;
  Apply(event::SlabMade{pool, absl::OkStatus()});
  EXPECT_TRUE(AnswerTo(create.caller.request).ok());
}

TEST_F(Memory, SlabThatCannotBeMadeIsAnErrorNotAHang) {  // R8
  const SessionId session = Hello();
  make_status = absl::ResourceExhaustedError("memfd_create: no memory");
  EXPECT_THAT(TrySave(session, 1), Fails(absl::StatusCode::kResourceExhausted, "no memory"));
  make_status = absl::OkStatus();
  EXPECT_TRUE(TrySave(session, 1, {{"model"}}, 1).ok());
}

TEST_F(Memory, PoolIsMadeAtStartWithinTheBudget) {
  options.pool_slabs = {8 * kMiB, 8 * kMiB, 4 * kMiB};
  Restart();
  std::multiset<uint64_t> sizes;
  for (const auto& make : makes) sizes.insert(make.bytes);
  EXPECT_EQ(sizes.count(8 * kMiB), 2u);
  EXPECT_EQ(sizes.count(4 * kMiB), 1u);
}

TEST_F(Memory, NextSaveIsProvidedForInTheBackground) {
  const SessionId session = Hello();
  Save(session, 1, {{"model", 12 * kMiB}});
  const size_t made = makes.size();
  hold_makes = true;
  EXPECT_TRUE(Create(session, PartOf(session, 2), {{"model", 12 * kMiB}}).ok());
  EXPECT_EQ(makes.size(), made);
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

TEST_F(Memory, EnteringAStepAgainGivesUpWhatWasBegunOfIt) {
  const SessionId session = Hello();
  for (Revision revision = 0; revision < 8; ++revision) {
    const auto created = Create(session, PartOf(session, 1, revision), {{"model", 20 * kMiB}});
    ASSERT_TRUE(created.ok()) << created.status();
    EXPECT_EQ(Status_().writing_bytes, 20 * kMiB);
  }
}

TEST_F(Memory, JobsThatWereOnlyAskedAboutAreForgotten) {  // promise 8
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

TEST_F(Memory, RefusalNamesWhoHoldsWhat) {
  const SessionId writer = Hello();
  Save(writer, 1, {{"model", 30 * kMiB}});
  Save(writer, 2, {{"model", 30 * kMiB}});
  const SessionId reader = Hello({.writer = -1, .attempt = 0, .pid = 4242});
  ASSERT_TRUE(Open(reader, 1).ok());
  ASSERT_TRUE(Open(reader, 2).ok());
  event::Create create = CreateOf(writer, PartOf(writer, 3), {{"model", 30 * kMiB}});
  Apply(create);
  Advance(11 * kNanosPerSecond);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kResourceExhausted, "leased 62914560 (pid 4242)"));
}

TEST_F(Memory, ListingGoesByCursor) {
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
  EXPECT_THAT(StatusOf(list("job/x", "", 2)), Fails(absl::StatusCode::kInvalidArgument, "path"));
  EXPECT_THAT(StatusOf(list("job", "x", 2)), Fails(absl::StatusCode::kInvalidArgument, "cursor"));
  EXPECT_THAT(StatusOf(list("job", "", 0)), Fails(absl::StatusCode::kInvalidArgument, "limit"));
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
