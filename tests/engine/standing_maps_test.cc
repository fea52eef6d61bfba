// Standing mappings: who is lent one, that slabs are recycled while they exist, how they are asked back, and what becomes
// of a slab whose consumer died.
// One file: one fixture has the words for what consumers do.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

constexpr uint64_t kModel = 25 * kMiB;

class StandingMappings : public EngineTest {
 protected:
  static std::vector<Spec> Model() { return {{"model", kModel}}; }
  SessionId Consumer(Who who = {}) {
    who.writer = -1;
    who.attempt = 0;
    return Hello(std::move(who));
  }

  StatusOr<reply::Standing> Ask(SessionId session, LeaseId lease) {
    const event::MapStanding map{From(session), lease};
    Apply(map);
    auto reply = Take<reply::Standing>(map.caller.request);
    if (reply.ok()) mapped[reply->lend.slab].insert(session);
    return reply;
  }
  // A standing mapping of the slab that has the step, which is read under a lease that ends here.
  SlabId Map(SessionId session, Step step) {
    const auto open = Open(session, step);
    EXPECT_TRUE(open.ok()) << open.status();
    if (!open.ok()) return 0;
    const auto standing = Ask(session, open->lend.lease);
    EXPECT_TRUE(standing.ok()) << standing.status();
    Release(session, open->lend.lease);
    return standing.ok() ? standing->lend.slab : 0;
  }
  SlabId SlabOf(SessionId session, Step step) {
    const auto open = Open(session, step);
    EXPECT_TRUE(open.ok()) << open.status();
    if (!open.ok()) return 0;
    Release(session, open->lend.lease);
    return open->lend.slab;
  }
  // The consumer's thread that waits for what it is to give up.
  RequestId Await(SessionId session, const std::vector<SlabId>& gone = {},
                  const std::vector<SlabId>& known = {}) {
    for (const SlabId slab : gone) mapped[slab].erase(session);
    const event::AwaitUnmap await{From(session), gone, known, now + 30 * kNanosPerSecond};
    Apply(await);
    return await.caller.request;
  }
  void GiveUp(SessionId session, SlabId slab) {
    mapped[slab].erase(session);
    Apply(event::AwaitUnmap{From(session), {slab}, {}, 0});
  }
  std::vector<SlabId> Told(RequestId request) {
    const auto unmap = Take<reply::Unmap>(request);
    EXPECT_TRUE(unmap.ok()) << unmap.status();
    return unmap.ok() ? unmap->slabs : std::vector<SlabId>();
  }
  int64_t Counter(const std::string& name) { return Status_().counters[name]; }
  // What step 1 holds stays readable, the slab is not written again, and goes. Ends both sessions.
  void ExpectCondemned(SlabId slab, SessionId writer, SessionId reader) {
    EXPECT_EQ(SlabOf(reader, 1), slab);
    for (Step step : {2, 3, 4}) {
      Save(writer, step, Model());
      EXPECT_NE(SlabOf(reader, step), slab);
    }
    EXPECT_THAT(destroyed, Contains(slab));
    Die(writer);
    Die(reader);
    now += kNanosPerSecond;
  }
};

TEST_F(StandingMappings, AreLentReadWriteToTheJobsOwnConsumer) {
  const SessionId writer = Hello(), consumer = Consumer();
  Save(writer, 1, Model());
  const auto open = Open(consumer, 1);
  ASSERT_TRUE(open.ok());
  const auto standing = Ask(consumer, open->lend.lease);
  ASSERT_TRUE(standing.ok()) << standing.status();
  EXPECT_EQ(standing->lend.mode, LeaseMode::kStanding);
  EXPECT_EQ(standing->lend.slab, open->lend.slab);
  EXPECT_NE(standing->lend.lease, open->lend.lease);
  const auto lent = std::find_if(journal.rbegin(), journal.rend(), [](const Fact& fact) {
    return std::holds_alternative<fact::Lent>(fact);
  });
  ASSERT_NE(lent, journal.rend());
  EXPECT_EQ(std::get<fact::Lent>(*lent).mode, LeaseMode::kStanding);
  EXPECT_EQ(std::get<fact::Lent>(*lent).session, consumer);
  const auto again = Ask(consumer, open->lend.lease);  // the answer was lost
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->lend.lease, standing->lend.lease);
}

TEST_F(StandingMappings, AreNotLentToAnotherUserOrJob) {
  options.own_uid = 0;
  Restart();
  const SessionId writer = Hello();
  Save(writer, 1, Model());
  const SessionId other_job = Consumer({.job = "other"});
  event::Open open = OpenOf(other_job, 1);
  open.ref.job = "job";
  Apply(open);
  const auto opened = Take<reply::Open>(open.caller.request);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_THAT(StatusOf(Ask(other_job, opened->lend.lease)),
              Fails(absl::StatusCode::kPermissionDenied, "another user or job"));
  const SessionId superuser = Consumer({.job = "others", .uid = 0});
  event::Open by_root = OpenOf(superuser, 1);
  by_root.ref.job = "job";
  Apply(by_root);
  const auto opened_by_root = Take<reply::Open>(by_root.caller.request);
  ASSERT_TRUE(opened_by_root.ok()) << opened_by_root.status();
  EXPECT_THAT(StatusOf(Ask(superuser, opened_by_root->lend.lease)),
              Fails(absl::StatusCode::kPermissionDenied, "another user or job"));
  const SessionId root_in_job = Consumer({.uid = 0});
  const auto of_job = Open(root_in_job, 1);
  ASSERT_TRUE(of_job.ok()) << of_job.status();
  EXPECT_THAT(StatusOf(Ask(root_in_job, of_job->lend.lease)),
              Fails(absl::StatusCode::kPermissionDenied, "another user or job"));
}

TEST_F(StandingMappings, AreNotLentUnderALeaseOfAnothersOrOneThatHasEnded) {
  const SessionId writer = Hello(), consumer = Consumer(), other = Consumer();
  Save(writer, 1, Model());
  const auto open = Open(consumer, 1);
  ASSERT_TRUE(open.ok());
  EXPECT_THAT(StatusOf(Ask(other, open->lend.lease)), Fails(absl::StatusCode::kNotFound, "lease"));
  Release(consumer, open->lend.lease);
  EXPECT_THAT(StatusOf(Ask(consumer, open->lend.lease)),
              Fails(absl::StatusCode::kNotFound, "lease"));
}

TEST_F(StandingMappings, AreNotLentOfASlabThatNoWriterMaps) {
  const SessionId writer = Hello(), consumer = Consumer();
  Save(writer, 1, Model());
  Die(writer);
  const auto open = Open(consumer, 1);
  ASSERT_TRUE(open.ok());
  EXPECT_THAT(StatusOf(Ask(consumer, open->lend.lease)),
              Fails(absl::StatusCode::kFailedPrecondition, "no writer maps it"));
}

TEST_F(StandingMappings, TheSlabIsRecycledWhileTheyExist) {
  const SessionId writer = Hello(), consumer = Consumer();
  std::set<SlabId> slabs;
  for (Step step : {1, 2}) {
    Save(writer, step, Model());
    slabs.insert(Map(consumer, step));
  }
  ASSERT_EQ(slabs.size(), 2u);
  const size_t made = makes.size();
  for (Step step : {3, 4, 5, 6}) {
    const auto created = Create(writer, PartOf(writer, step), Model());
    ASSERT_TRUE(created.ok()) << created.status();
    EXPECT_TRUE(slabs.contains(created->extents[0].slab));
    EXPECT_THAT(created->lend, IsEmpty()) << "it has the slab mapped";
    ASSERT_TRUE(Commit(writer, PartOf(writer, step), Model()).ok());
    // Read as a consumer does: under a lease of its own.
    EXPECT_TRUE(slabs.contains(Map(consumer, step)));
  }
  EXPECT_EQ(makes.size(), made);
  EXPECT_THAT(destroyed, IsEmpty());
  EXPECT_TRUE(Status_().quarantined.empty());
}

TEST_F(StandingMappings, AreAskedBackAtOnceWhenTheWriterIsGone) {
  const SessionId first = Hello({.attempt = 1}), consumer = Consumer();
  Save(first, 1, Model());
  const SlabId slab = Map(consumer, 1);
  const RequestId waits = Await(consumer);
  EXPECT_FALSE(Answered(waits));
  Die(first);
  ASSERT_TRUE(Answered(waits));
  EXPECT_THAT(Told(waits), ElementsAre(slab));
  EXPECT_FALSE(Answered(Await(consumer, {}, /*known=*/{slab}))) << "it knows of it";
  EXPECT_THAT(Told(Await(consumer)), ElementsAre(slab)) << "the answer may have been lost";
  GiveUp(consumer, slab);
  // Step 1 is still there, and its slab is like any other.
  EXPECT_EQ(SlabOf(consumer, 1), slab);
  const SessionId second = Hello({.attempt = 2});
  for (Step step : {2, 3}) Save(second, step, Model());
  EXPECT_THAT(destroyed, Not(Contains(slab)));
  EXPECT_EQ(SlabOf(consumer, 3), slab) << "it was recycled";
}

TEST_F(StandingMappings, ASlabIsNotGivenToANewWriterBeforeTheyAreGone) {
  const SessionId first = Hello({.attempt = 1}), consumer = Consumer();
  for (Step step : {1, 2}) Save(first, step, Model());
  const SlabId slab = Map(consumer, 1);
  Die(first);
  const SessionId second = Hello({.attempt = 2});
  event::Create create = CreateOf(second, PartOf(second, 3), Model());
  create.deadline = now + 60 * kNanosPerSecond;
  Apply(create);
  EXPECT_FALSE(Answered(create.caller.request));
  Advance(3 * kNanosPerSecond);
  EXPECT_FALSE(Answered(create.caller.request));
  EXPECT_THAT(destroyed, Not(Contains(slab)));
  GiveUp(consumer, slab);
  ASSERT_TRUE(Answered(create.caller.request)) << "granted once it is back";
  EXPECT_TRUE(Take<reply::Create>(create.caller.request).ok());
}

TEST_F(StandingMappings, WhatIsNotBackInTenSecondsIsNamedInTheRefusal) {
  const SessionId first = Hello({.attempt = 1}), consumer = Consumer({.pid = 4711});
  for (Step step : {1, 2}) Save(first, step, Model());
  const SlabId slab = Map(consumer, 1);
  Die(first);
  const MonotonicNanos died = now;
  const SessionId second = Hello({.attempt = 2});
  event::Create create = CreateOf(second, PartOf(second, 3), Model());
  create.deadline = now + 60 * kNanosPerSecond;
  Apply(create);
  Advance(9 * kNanosPerSecond);
  EXPECT_FALSE(Answered(create.caller.request));
  Advance(2 * kNanosPerSecond);
  ASSERT_TRUE(Answered(create.caller.request)) << "after " << (now - died) / kNanosPerSecond;
  EXPECT_THAT(AnswerTo(create.caller.request).status(),
              Fails(absl::StatusCode::kResourceExhausted, "pid 4711"));
  EXPECT_THAT(AnswerTo(create.caller.request).status(),
              Fails(absl::StatusCode::kResourceExhausted, "has not given up standing mappings"));
  // From now on nobody waits for it.
  event::Create next = CreateOf(second, PartOf(second, 4), Model());
  next.deadline = now + 60 * kNanosPerSecond;
  Apply(next);
  EXPECT_TRUE(Answered(next.caller.request));
  GiveUp(consumer, slab);
  EXPECT_TRUE(TrySave(second, 5, Model()).ok());
}

TEST_F(StandingMappings, ASlabOpenedByPathIsAskedBackFromWriterAndConsumer) {
  options.budget_bytes = 2 * kModel + 16 * kMiB;
  Restart();
  const SessionId writer = Hello(), consumer = Consumer();
  Save(writer, 1, Model());
  const SlabId slab = Map(consumer, 1);
  const auto open = Open(consumer, 1, "model", OpenMode::kFile);
  ASSERT_TRUE(open.ok());
  Release(consumer, open->lend.lease);
  Save(writer, 2, Model());
  const RequestId waits = Await(consumer);
  const event::Create create = CreateOf(writer, PartOf(writer, 3), Model());
  Apply(create);
  const auto told = Take<reply::Create>(create.caller.request);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_THAT(told->retire, ElementsAre(slab));
  ASSERT_TRUE(Answered(waits));
  EXPECT_THAT(Told(waits), ElementsAre(slab));
  unmapped[writer].push_back(slab);
  GiveUp(consumer, slab);
  EXPECT_TRUE(TrySave(writer, 3, Model()).ok());
}

TEST_F(StandingMappings, SurviveTheDaemon) {
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    const auto attempt = static_cast<Attempt>(now);
    const SessionId writer = Hello({.attempt = attempt}), consumer = Consumer();
    Save(writer, 1, Model());
    const SlabId slab = Map(consumer, 1);
    Restart(from);
    // It is recycled as before, and nobody is asked for anything.
    const RequestId waits = Await(consumer);
    for (Step step : {2, 3, 4}) Save(writer, step, Model());
    EXPECT_FALSE(Answered(waits));
    Die(writer);
    ASSERT_TRUE(Answered(waits));
    EXPECT_THAT(Told(waits), Contains(slab));
    Restart(from);
    EXPECT_THAT(Told(Await(consumer)), Contains(slab)) << "and is asked again";
    GiveUp(consumer, slab);
    EXPECT_THAT(destroyed, Not(Contains(slab)));
    Apply(event::SessionEnded{consumer, /*goodbye=*/true});
    sessions.erase(consumer);
    now += kNanosPerSecond;
  }
}

TEST_F(StandingMappings, ADeadConsumersSlabIsDestroyedOnceItIsEmpty) {
  const SessionId writer = Hello(), consumer = Consumer(), reader = Consumer();
  Save(writer, 1, Model());
  const SlabId slab = Map(consumer, 1);
  Die(consumer);
  EXPECT_EQ(Counter("slabs_condemned"), 1);
  EXPECT_EQ(SlabOf(reader, 1), slab) << "what it holds stays readable";
  EXPECT_THAT(StatusOf(Ask(reader, Open(reader, 1)->lend.lease)),
              Fails(absl::StatusCode::kFailedPrecondition, "wanted back"));
  for (auto at = locks.begin(); at != locks.end();) {
    const LeaseId lease = at++->first;
    Release(reader, lease);
  }
  for (Step step : {2, 3, 4}) {
    Save(writer, step, Model());
    EXPECT_NE(SlabOf(reader, step), slab) << "it is not written again";
  }
  EXPECT_THAT(destroyed, Contains(slab));
  EXPECT_EQ(Counter("slabs_condemned_destroyed"), 1);
}

// Bug: younger steps, whose slabs can be recycled, were given up before the step in the condemned one.
TEST_F(StandingMappings, AllSlabsOfADeadConsumerGoInTime) {
  options.budget_bytes = 5 * kModel + 16 * kMiB;
  Restart();
  const SessionId writer = Hello(), consumer = Consumer();
  std::set<SlabId> slabs;
  for (Step step = 1; step <= 10; ++step) {
    Save(writer, step, {{"model", 40 * kMiB}});
    slabs.insert(Map(consumer, step));
  }
  Die(consumer);
  for (Step step = 11; step <= 20; ++step) {
    Save(writer, step, {{"model", 40 * kMiB}});
    EXPECT_FALSE(slabs.contains(SlabOf(writer, step)));
  }
  for (const SlabId slab : slabs) EXPECT_THAT(destroyed, Contains(slab));
  EXPECT_EQ(Counter("slabs_condemned_destroyed"), static_cast<int64_t>(slabs.size()));
}

TEST_F(StandingMappings, AnEmptySlabOfADeadConsumerIsDestroyedAtOnce) {
  options.budget_bytes = 4 * kModel;
  Restart();
  const SessionId writer = Hello(), consumer = Consumer();
  for (Step step : {1, 2}) Save(writer, step, Model());
  const SlabId slab = Map(consumer, 1);
  Apply(event::Remove{From(writer), {"job", 1}, /*memory_only=*/true, /*force=*/true, Soon()});
  Die(consumer);
  const auto created = Create(writer, PartOf(writer, 3), Model());
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_NE(created->extents[0].slab, slab);
  ASSERT_TRUE(Commit(writer, PartOf(writer, 3), Model()).ok());
  EXPECT_THAT(destroyed, Contains(slab)) << "once its writer has unmapped it";
}

TEST_F(StandingMappings, WhatADeadConsumerHadStaysCondemnedAcrossTheDaemonsDeath) {
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    const auto attempt = static_cast<Attempt>(now);
    const SessionId writer = Hello({.attempt = attempt}), consumer = Consumer(),
                    reader = Consumer();
    Save(writer, 1, Model());
    const SlabId slab = Map(consumer, 1);
    Die(consumer);
    Restart(from);
    ExpectCondemned(slab, writer, reader);
  }
}

TEST_F(StandingMappings, AConsumerThatDiesWhileThereIsNoDaemonCondemnsItsSlabs) {
  for (const StartFrom from : kFrom) {
    SCOPED_TRACE(NameOf(from));
    const auto attempt = static_cast<Attempt>(now);
    const SessionId writer = Hello({.attempt = attempt}), consumer = Consumer(),
                    reader = Consumer();
    Save(writer, 1, Model());
    const SlabId slab = Map(consumer, 1);
    mapped[slab].erase(consumer);
    sessions.erase(consumer);
    Restart(from);
    Restart(from);  // it stands in the journal by now
    ExpectCondemned(slab, writer, reader);
  }
}

TEST_F(StandingMappings, AGoodbyeCondemnsNothing) {
  const SessionId writer = Hello(), consumer = Consumer();
  Save(writer, 1, Model());
  const SlabId slab = Map(consumer, 1);
  mapped[slab].erase(consumer);
  sessions.erase(consumer);
  Apply(event::SessionEnded{consumer, /*goodbye=*/true});
  EXPECT_EQ(Counter("slabs_condemned"), 0);
  const size_t made = makes.size();
  for (Step step : {2, 3, 4, 5}) Save(writer, step, Model());
  EXPECT_LE(makes.size(), made + 1);
  EXPECT_THAT(destroyed, Not(Contains(slab)));
}

TEST_F(StandingMappings, OneThatNeverLeftTheDaemonCondemnsNothing) {
  const SessionId writer = Hello(), consumer = Consumer();
  Save(writer, 1, Model());
  const auto open = Open(consumer, 1);
  ASSERT_TRUE(open.ok());
  const event::MapStanding map{From(consumer), open->lend.lease};
  Apply(map);
  const auto standing = Take<reply::Standing>(map.caller.request);
  ASSERT_TRUE(standing.ok());
  Apply(event::LendFailed{standing->lend.lease});
  Die(consumer);
  EXPECT_EQ(Counter("slabs_condemned"), 0);
}

// Bug: the first was forgotten, and its slab used anew while it was mapped.
TEST_F(StandingMappings, OneWhoseSecondDescriptorIsNotSentStays) {
  const SessionId writer = Hello(), consumer = Consumer();
  Save(writer, 1, Model());
  const auto open = Open(consumer, 1);
  ASSERT_TRUE(open.ok());
  const auto first = Ask(consumer, open->lend.lease);
  ASSERT_TRUE(first.ok());
  const auto second = Ask(consumer, open->lend.lease);  // as for another device of the process
  ASSERT_TRUE(second.ok());
  Apply(event::LendFailed{second->lend.lease});
  const RequestId waits = Await(consumer);
  Die(writer);
  ASSERT_TRUE(Answered(waits));
  EXPECT_THAT(Told(waits), ElementsAre(first->lend.slab));
}

// Bug: for what one user's consumer keeps, another's create was refused, which would have waited.
TEST_F(StandingMappings, WhatAnotherUsersConsumerKeepsRefusesNobodyAtOnce) {
  options.budget_bytes = 3 * kModel + 16 * kMiB;
  Restart();
  const SessionId first = Hello({.attempt = 1}), consumer = Consumer({.pid = 4711});
  for (Step step : {1, 2}) Save(first, step, Model());
  const SlabId slab = Map(consumer, 1);
  Die(first);
  Advance(11 * kNanosPerSecond);
  // The other user has what is left, and waits for it as he would without the consumer.
  const SessionId other = Hello({.job = "others", .attempt = 1, .uid = 2000});
  ASSERT_TRUE(Create(other, {{"others", 1, 1, 0}, 0}, Model()).ok());
  const SessionId third = Hello({.job = "thirds", .attempt = 1, .uid = 3000});
  event::Create create = CreateOf(third, {{"thirds", 1, 1, 0}, 0}, Model());
  create.deadline = now + 60 * kNanosPerSecond;
  Apply(create);
  EXPECT_FALSE(Answered(create.caller.request));
  GiveUp(consumer, slab);
  EXPECT_TRUE(Answered(create.caller.request));
}

// Bug: what one user's consumers were still to give up was counted as coming, so that nobody was asked for what he did not
// need: with one slab after the other kept for ten seconds, for ever.
TEST_F(StandingMappings, WhatAnotherUsersConsumerKeepsSparesNobodyFromBeingAsked) {
  options.budget_bytes = 4 * kModel + 8 * kMiB;
  Restart();
  const SessionId third = Hello({.job = "thirds", .attempt = 1, .uid = 3000});
  Save(third, 1, {{"model", 2 * kModel}});
  Apply(event::Remove{From(third), {"thirds", 1}, false, /*force=*/true});
  const SessionId writer = Hello({.attempt = 1}), consumer = Consumer();
  for (Step step : {1, 2}) {
    Save(writer, step, Model());
    unmapped[writer].push_back(Map(consumer, step));
  }
  for (Step step : {1, 2}) Apply(event::Remove{From(writer), {"job", step}, false, true});
  Save(writer, 3, {{"small", 4096}});  // tells that the writer maps them no more
  const SessionId second = Hello({.job = "others", .attempt = 1, .uid = 2000});
  event::Create create = CreateOf(second, PartOf(second, 1), Model());
  create.deadline = now + 60 * kNanosPerSecond;
  Apply(create);
  EXPECT_FALSE(Answered(create.caller.request));
  const auto told = Create(third, PartOf(third, 2), {{"small", 4096}});
  ASSERT_TRUE(told.ok()) << told.status();
  ASSERT_THAT(told->retire, Not(IsEmpty()));
  for (const SlabId slab : told->retire) unmapped[third].push_back(slab);
  ASSERT_TRUE(Create(third, PartOf(third, 2), {{"more", 4096}}).ok());
  EXPECT_TRUE(Answered(create.caller.request));
}

// Bug: each call that waited cost its list whenever a slab was wanted back, and a session had thousands.
TEST_F(StandingMappings, ASessionWaitsOnce) {
  const SessionId writer = Hello(), consumer = Consumer();
  Save(writer, 1, Model());
  const SlabId slab = Map(consumer, 1);
  const RequestId before = Await(consumer);
  const RequestId waits = Await(consumer, {}, {slab, slab, 4711});
  ASSERT_TRUE(Answered(before));
  EXPECT_THAT(Told(before), IsEmpty());
  EXPECT_FALSE(Answered(waits));
  Die(writer);
  ASSERT_TRUE(Answered(waits)) << "what it knew of before it was wanted back is told anew";
  EXPECT_THAT(Told(waits), ElementsAre(slab));
  const RequestId knows = Await(consumer, {}, {4711, slab, slab});
  EXPECT_FALSE(Answered(knows));
}

// It would hold the engine up.
TEST_F(StandingMappings, AListWithoutABoundIsRefused) {
  const SessionId consumer = Consumer();
  const std::vector<SlabId> many(kMaxSlabsPerCall + 1, 7);
  const event::AwaitUnmap known{From(consumer), {}, many, now + kNanosPerSecond};
  Apply(known);
  EXPECT_THAT(AnswerTo(known.caller.request).status(),
              Fails(absl::StatusCode::kInvalidArgument, "known: 3001 slabs"));
  const event::AwaitUnmap gone{From(consumer), many, {}, now + kNanosPerSecond};
  Apply(gone);
  EXPECT_THAT(AnswerTo(gone.caller.request).status(),
              Fails(absl::StatusCode::kInvalidArgument, "unmapped: 3001 slabs"));
}

TEST_F(StandingMappings, ASessionThatEndsStopsWaiting) {
  const SessionId writer = Hello(), consumer = Consumer();
  Save(writer, 1, Model());
  Map(consumer, 1);
  const RequestId waits = Await(consumer);
  Die(consumer);
  ASSERT_TRUE(Answered(waits));
  EXPECT_THAT(AnswerTo(waits).status(), Fails(absl::StatusCode::kUnavailable, "has ended"));
}

TEST_F(StandingMappings, NothingToGiveUpIsAnsweredAtTheDeadline) {
  const SessionId writer = Hello(), consumer = Consumer();
  Save(writer, 1, Model());
  Map(consumer, 1);
  const RequestId waits = Await(consumer);
  Advance(31 * kNanosPerSecond);
  ASSERT_TRUE(Answered(waits));
  EXPECT_THAT(Told(waits), IsEmpty());
}

}  // namespace
}  // namespace cairn::engine
