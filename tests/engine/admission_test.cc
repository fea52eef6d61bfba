// Admission: what a create reserves, waits for or is refused, for all writers of a step alike.
#include "tests/engine/engine_fixture.h"

namespace cairn::engine {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

class Admission : public EngineTest {};

TEST_F(Admission, LengthsThatSumToNothingModulo2To64EvictNobody) {
  const SessionId victim = Hello({.job = "victim"});
  Save(victim, 1);
  Save(victim, 2);
  std::vector<Spec> specs;
  for (int i = 0; i < (1 << 16) - 1; ++i) specs.push_back({absl::StrCat(i), uint64_t{1} << 48});
  specs.push_back({"first", 16 * kMiB});
  specs.push_back({"last", (uint64_t{1} << 48) - 16 * kMiB});
  const SessionId session = Hello();
  EXPECT_THAT(StatusOf(Create(session, PartOf(session, 1), specs)),
              Fails(absl::StatusCode::kResourceExhausted, "never fit"));
  EXPECT_TRUE(Open(victim, 1).ok());
  EXPECT_TRUE(Open(victim, 2).ok());
}

// What a live reader still maps is not about to come back, so others' steps are given up in its place.
TEST_F(Admission, WhatAReaderMapsOfARemovedStepIsNotCountedOn) {
  const SessionId hold = Hello({.job = "hold"});
  Save(hold, 1, {{"model", 16 * kMiB}});
  const SessionId reader = Hello({.job = "hold", .writer = -1, .attempt = 0});
  ASSERT_TRUE(Open(reader, 1).ok());
  const auto released = Open(reader, 1);
  ASSERT_TRUE(released.ok());
  Release(reader, released->lend.lease, /*closes=*/false);  // so that it is probed
  Die(hold);
  event::Remove remove{From(reader), {"hold", 1}, false, true, Soon()};
  Apply(remove);
  ASSERT_TRUE(AnswerTo(remove.caller.request).ok());
  const SessionId other = Hello({.job = "other"});
  Save(other, 1, {{"model", 20 * kMiB}});
  Save(other, 2, {{"model", kMiB}});
  Die(other);
  const SessionId third = Hello({.job = "third"});
  EXPECT_TRUE(Create(third, PartOf(third, 1), {{"model", 32 * kMiB}}).ok());
}

// Once the first create is granted the others are, whatever the sizes that slabs are rounded to.
TEST_F(Admission, WhatIsToComeHasItsMemoryOnceTheFirstCreateIsGranted) {
  const SessionId other = Hello({.job = "other"});
  int granted = 0, refused = 0;
  for (uint64_t kept = 8000; kept < 16'000; kept += 250) {
    const PartKey kept_part = PartOf(other, static_cast<Step>(kept));
    ASSERT_TRUE(Create(other, kept_part, {{"kept", kept << 10}}).ok());
    const SessionId session = Hello({.job = absl::StrCat("job", kept)});
    const PartKey part = PartOf(session, 1);
    event::Create first = CreateOf(session, part, {{"o", 1028 << 10}});
    first.deadline = now + kNanosPerSecond;
    first.to_come = {.objects = 49, .bytes = 49 * (1028 << 10), .name_bytes = 99};
    Apply(first);
    Advance(2 * kNanosPerSecond);
    ++(AnswerTo(first.caller.request).ok() ? granted : refused);
    if (AnswerTo(first.caller.request).ok()) {
      for (int i = 0; i < 49; ++i) {
        ASSERT_TRUE(Create(session, part, {{absl::StrCat("o", i), 1028 << 10}}).ok())
            << i << " with " << kept << " KiB kept";
      }
    }
    Die(session);
    Apply(event::Abort{From(other), kept_part});
  }
  EXPECT_GT(granted, 0);  // both sides of the edge were met
  EXPECT_GT(refused, 0);
}

// That slabs are a little larger is a wish, not a condition.
TEST_F(Admission, AStepThatJustFitsIsAdmittedWithWhatIsToCome) {
  const SessionId session = Hello();
  const PartKey part = PartOf(session, 1);
  event::Create first = CreateOf(session, part, {{"o", kMiB}});
  first.to_come = {.objects = 60, .bytes = 60 * kMiB, .name_bytes = 180};
  Apply(first);
  ASSERT_TRUE(Answered(first.caller.request));
  EXPECT_TRUE(AnswerTo(first.caller.request).ok());
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(Create(session, part, {{absl::StrCat("o", i), kMiB}}).ok()) << i;
  }
}

TEST_F(Admission, JobThatFitsTwiceCanAlwaysSave) {  // R30
  const SessionId session = Hello();
  for (Step step = 1; step <= 12; ++step) {
    const uint64_t bytes = (step % 3 == 0 ? 20 : step % 3 == 1 ? 27 : 9) * kMiB;
    EXPECT_TRUE(TrySave(session, step, {{"model", bytes}}).ok()) << step;
  }
}

TEST_F(Admission, IdleSlabsOfAnotherJobAreAskedForAndGiven) {  // R30
  const SessionId a = Hello({.job = "a"});
  Save(a, 1, {{"model", 20 * kMiB}});
  Save(a, 2, {{"model", 20 * kMiB}});
  const SessionId b = Hello({.job = "b"});
  event::Create create = CreateOf(b, PartOf(b, 1), {{"model", 30 * kMiB}});
  Apply(create);
  EXPECT_FALSE(Answered(create.caller.request)) << "the other job still maps it";
  const auto mine = Create(a, PartOf(a, 3), {{"note", 100}});
  ASSERT_TRUE(mine.ok());
  EXPECT_THAT(mine->retire, SizeIs(1));
  ASSERT_TRUE(Create(a, PartOf(a, 3), {{"more", 100}}).ok());
  EXPECT_TRUE(AnswerTo(create.caller.request).ok()) << StatusOf(AnswerTo(create.caller.request));
}

TEST_F(Admission, AllLocalWritersShareOneVerdict) {  // R30: room for six of eight ranks
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
                Fails(absl::StatusCode::kResourceExhausted, "80.0 MiB wanted"));
  }
  EXPECT_EQ(Status_().writing_bytes, 0u) << "no rank may hold memory";
}

TEST_F(Admission, StepThatHoldsNothingWaitsForMemoryToOneDeadline) {
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
      << "an empty commit is refused like the creates";
  Die(other);
  Apply(event::Remove{
      From(Hello({.job = "other", .attempt = 0})), {"other", 1}, false, true, Soon()});
  EXPECT_TRUE(TrySave(a, 1, {{"x", 15 * kMiB}}, /*revision=*/1).ok())
      << "a new revision is decided anew";
}

TEST_F(Admission, NextStepIsEstimatedByTheLast) {
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

TEST_F(Admission, GrantThatTheSameEventTakesBackIsARefusal) {
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

TEST_F(Admission, StepThatNeedsMoreThanThereIsRefusedForAll) {
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

TEST_F(Admission, SlabInTheMakingIsHurriedRatherThanMadeTwice) {
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

TEST_F(Admission, SlabThatCannotBeMadeIsAnErrorNotAHang) {  // R8
  const SessionId session = Hello();
  make_status = absl::ResourceExhaustedError("memfd_create: no memory");
  EXPECT_THAT(TrySave(session, 1), Fails(absl::StatusCode::kResourceExhausted, "no memory"));
  make_status = absl::OkStatus();
  EXPECT_TRUE(TrySave(session, 1, {{"model"}}, 1).ok());
}

TEST_F(Admission, PoolIsMadeAtStartWithinTheBudget) {
  options.pool_slabs = {8 * kMiB, 8 * kMiB, 4 * kMiB};
  Restart();
  std::multiset<uint64_t> sizes;
  for (const auto& make : makes) sizes.insert(make.bytes);
  EXPECT_EQ(sizes.count(8 * kMiB), 2u);
  EXPECT_EQ(sizes.count(4 * kMiB), 1u);
}

TEST_F(Admission, NextSaveIsProvidedForInTheBackground) {
  const SessionId session = Hello();
  Save(session, 1, {{"model", 12 * kMiB}});
  const size_t made = makes.size();
  hold_makes = true;
  EXPECT_TRUE(Create(session, PartOf(session, 2), {{"model", 12 * kMiB}}).ok());
  EXPECT_EQ(makes.size(), made);
}

TEST_F(Admission, EnteringAStepAgainGivesUpWhatWasBegunOfIt) {
  const SessionId session = Hello();
  for (Revision revision = 0; revision < 8; ++revision) {
    const auto created = Create(session, PartOf(session, 1, revision), {{"model", 20 * kMiB}});
    ASSERT_TRUE(created.ok()) << created.status();
    EXPECT_EQ(Status_().writing_bytes, 20 * kMiB);
  }
}

// A step that cannot be admitted whatever is given up took every old step of the other jobs along.
TEST_F(Admission, StepsOfOtherJobsAreNotGivenUpWhereThatCannotSuffice) {
  const SessionId other = Hello({.job = "other"});
  for (Step step : {1, 2, 3}) Save(other, step, {{"model", 15 * kMiB}});
  const SessionId session = Hello();
  const auto create = CreateOf(session, PartOf(session, 1), {{"model", 55 * kMiB}});
  Apply(create);
  for (Step step : {1, 2, 3}) EXPECT_TRUE(Stat(other, step).ok()) << step;
  Advance(11 * kNanosPerSecond);
  EXPECT_THAT(StatusOf(AnswerTo(create.caller.request)),
              Fails(absl::StatusCode::kResourceExhausted, "55.0 MiB wanted"));
  for (Step step : {1, 2, 3}) EXPECT_TRUE(Stat(other, step).ok()) << step;
  const auto smaller = CreateOf(session, PartOf(session, 1, 1), {{"model", 40 * kMiB}});
  Apply(smaller);
  EXPECT_FALSE(Stat(other, 1).ok()) << "where it suffices, they are";
  EXPECT_FALSE(Stat(other, 2).ok());
}

TEST_F(Admission, RefusalNamesWhoHoldsWhat) {
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
              Fails(absl::StatusCode::kResourceExhausted, "leased 60.0 MiB (pid 4242)"));
}

}  // namespace
}  // namespace cairn::engine
