// Parts that come from other members: whole, checked, and in the face of what goes wrong on the way.
#include "server/node/mover.h"

#include <thread>

#include "gtest/gtest.h"
#include "tests/node/members.h"

namespace cairn::node {
namespace {

using testing::Neighbours;
using testing::Owner;
using testing::Part;
using testing::Reader;
using transport::TransportCall;
using FaultKind = testing::FaultKind;

constexpr size_t kMiB = 1 << 20;

MoverOptions Quick() {
  MoverOptions options;
  options.back_off = 2 * kNanosPerMilli;
  return options;
}

TEST(Mover, APartArrivesAsItWas) {
  const Part part({3 * kBlockBytes + 17, 0, 1, kPageBytes, kBlockBytes});
  Owner owner(1, part);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  const auto fetched = reader.Fetch(part, {1});
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  EXPECT_EQ(fetched.digest, part.digest());
  EXPECT_EQ(fetched.table->head.Part(), part.key);
  reader.ExpectBytesOf(part, *fetched.table);
  EXPECT_EQ(reader.mover->counters().bytes, part.bytes());
}

TEST(Mover, TheGrantEndsBeforeTheFetchDoes) {
  const Part part({kMiB});
  Owner owner(1, part);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  ASSERT_TRUE(reader.Fetch(part, {1}).status.ok());
  EXPECT_EQ(owner.events.Next<engine::event::GrantEnded>().grant, 1u);
  EXPECT_EQ(owner.granter().count(), 0u);
}

TEST(Mover, APartOfEmptyObjectsArrives) {
  const Part part({0, 0});
  Owner owner(1, part);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  const auto fetched = reader.Fetch(part, {1});
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  EXPECT_EQ(fetched.table->extents.size(), 2u);
}

TEST(Mover, ManySmallObjectsArrive) {
  const Part part(std::vector<size_t>(3000, 100));
  Owner owner(1, part);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  const auto fetched = reader.Fetch(part, {1});
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  reader.ExpectBytesOf(part, *fetched.table);
}

// An earlier daemon died in the midst of it.
TEST(Mover, OfAFetchBegunBeforeOnlyBlocksThatDoNotVerifyAreRead) {
  const Part part({6 * size_t{kBlockBytes} + 100});
  const std::string& object = part.objects[0];
  Owner owner(1, part);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  engine::action::Fetch fetch = reader.FetchOf(part, {1});
  fetch.begun_before = true;
  const auto put = [&](size_t block, char wrong) {
    std::string bytes = object.substr(block * kBlockBytes, kBlockBytes);
    bytes[0] = static_cast<char>(bytes[0] ^ wrong);
    ASSERT_TRUE(reader.memory.cache->Write(fetch.slab, block * kBlockBytes, bytes).ok());
  };
  for (const size_t there : {0, 2, 3}) put(there, 0);
  put(4, 1);
  reader.mover->Start(fetch);
  const auto fetched = reader.events.Next<engine::event::Fetched>();
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  reader.ExpectBytesOf(part, *fetched.table);
  EXPECT_EQ(reader.mover->counters().kept_bytes, 3 * uint64_t{kBlockBytes});
  EXPECT_EQ(reader.mover->counters().bytes, part.bytes() - 3 * uint64_t{kBlockBytes});
}

TEST(Mover, AFetchBegunBeforeOfWhichAllIsThereReadsNothing) {
  const Part part({2 * size_t{kBlockBytes}});
  Owner owner(1, part);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  engine::action::Fetch fetch = reader.FetchOf(part, {1});
  fetch.begun_before = true;
  ASSERT_TRUE(reader.memory.cache->Write(fetch.slab, 0, part.objects[0]).ok());
  reader.mover->Start(fetch);
  const auto fetched = reader.events.Next<engine::event::Fetched>();
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  EXPECT_EQ(reader.mover->counters().bytes, 0u);
}

TEST(Mover, AFlippedBlockIsReadAgain) {
  const Part part({4 * size_t{kBlockBytes}});
  Owner owner(1, part);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  reader.faults->Add({.call = TransportCall::kFlip, .after = 2, .times = 1});
  const auto fetched = reader.Fetch(part, {1});
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  reader.ExpectBytesOf(part, *fetched.table);
  EXPECT_EQ(reader.mover->counters().bad_blocks, 1u);
  EXPECT_EQ(reader.faults->Calls(TransportCall::kRead), 5);
}

TEST(Mover, ABlockThatIsBadThreeTimesIsDataLossThatNamesIt) {
  const Part part({kMiB, 3 * size_t{kBlockBytes}});
  Owner owner(1, part);
  owner.Spoil(1, 2 * kBlockBytes + 5);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  const auto fetched = reader.Fetch(part, {1});
  EXPECT_TRUE(absl::IsDataLoss(fetched.status)) << fetched.status;
  EXPECT_NE(fetched.status.message().find("block 2 of \"object-1001\""), std::string::npos)
      << fetched.status;
  EXPECT_EQ(reader.mover->counters().bad_blocks, 3u);
  EXPECT_EQ(fetched.table, nullptr);
}

TEST(Mover, ABlockThatOneSourceHasWrongComesFromTheOther) {
  const Part part({6 * size_t{kBlockBytes}});
  Owner bad(1, part), good(2, part);
  for (uint64_t block = 0; block < 6; ++block) bad.Spoil(0, block * kBlockBytes);
  Reader reader;
  reader.neighbours.owners = {{1, &bad}, {2, &good}};
  const auto fetched = reader.Fetch(part, {1, 2});
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  reader.ExpectBytesOf(part, *fetched.table);
}

TEST(Mover, WhenASourceDiesTheOtherFinishesAndNothingVerifiedIsReadTwice) {
  const Part part({20 * size_t{kBlockBytes}});
  Owner first(1, part), second(2, part);
  MoverOptions options = Quick();
  options.in_flight_bytes_per_peer = 2 * kBlockBytes;
  Reader reader(options);
  reader.neighbours.owners = {{1, &first}, {2, &second}};
  reader.faults->Add({.kind = FaultKind::kHang, .call = TransportCall::kRead, .after = 12});
  auto fetch = reader.FetchOf(part, {1});
  reader.mover->Start(fetch);
  reader.faults->WaitUntilHung(1);
  first.Die();
  reader.mover->From({1, {1, 2}});
  reader.faults->Clear();
  const auto fetched = reader.events.Next<engine::event::Fetched>();
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  reader.ExpectBytesOf(part, *fetched.table);
  EXPECT_EQ(reader.mover->counters().bytes, part.bytes());
  EXPECT_LE(reader.mover->counters().failed_reads, 4u);
}

TEST(Mover, ACutIsReadAgainFromTheSameSourceWhenThereIsNoOther) {
  const Part part({8 * size_t{kBlockBytes}});
  Owner owner(1, part);
  Reader reader(Quick());
  reader.neighbours.owners = {{1, &owner}};
  reader.faults->Add({.call = TransportCall::kRead, .after = 3, .times = 2});
  const auto fetched = reader.Fetch(part, {1});
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  reader.ExpectBytesOf(part, *fetched.table);
  EXPECT_EQ(reader.mover->counters().bytes, part.bytes());
}

TEST(Mover, WithoutASourceAFetchIsUnavailableAndSaysWhyOfEach) {
  const Part part({kMiB});
  Owner dead(1, part);
  dead.Die();
  Reader reader(Quick());
  reader.neighbours.owners = {{1, &dead}};
  const auto fetched = reader.Fetch(part, {1, 2});
  EXPECT_TRUE(absl::IsUnavailable(fetched.status)) << fetched.status;
  EXPECT_NE(fetched.status.message().find("rank 1: it is dead"), std::string::npos);
  EXPECT_NE(fetched.status.message().find("rank 2: it does not have the part"), std::string::npos);
}

TEST(Mover, AnotherManifestThanTheOneAskedForIsNotRead) {
  const Part part({kMiB}), other({kMiB, 5});
  Owner owner(1, other);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  const auto fetched = reader.Fetch(part, {1});
  EXPECT_TRUE(absl::IsUnavailable(fetched.status)) << fetched.status;
  EXPECT_EQ(reader.faults->Calls(TransportCall::kRead), 0);
}

TEST(Mover, AnotherUsersPartIsNotRead) {
  const Part part({kMiB});
  Owner owner(1, part);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  auto fetch = reader.FetchOf(part, {1});
  fetch.uid = part.manifest.owner_uid + 1;
  reader.mover->Start(fetch);
  const auto fetched = reader.events.Next<engine::event::Fetched>();
  EXPECT_TRUE(absl::IsUnavailable(fetched.status)) << fetched.status;
  EXPECT_EQ(reader.faults->Calls(TransportCall::kRead), 0);
}

TEST(Mover, APartThatDoesNotFitItsSlabIsRefusedWithTheArithmetic) {
  const Part part({kMiB, kMiB + 1});
  Owner owner(1, part);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  auto fetch = reader.FetchOf(part, {1});
  fetch.slab_bytes = 2 * kMiB;
  reader.mover->Start(fetch);
  const auto fetched = reader.events.Next<engine::event::Fetched>();
  EXPECT_TRUE(absl::IsFailedPrecondition(fetched.status)) << fetched.status;
  EXPECT_EQ(reader.faults->Calls(TransportCall::kRead), 0);
}

TEST(Mover, AfterACancelNothingIsWrittenIntoTheSlabAnyMore) {
  const Part part({20 * size_t{kBlockBytes}});
  Owner owner(1, part);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  reader.neighbours.loses_ends = true;  // the owner would still let the reads go on
  reader.faults->Add({.kind = FaultKind::kHang, .call = TransportCall::kRead, .after = 2});
  const auto fetch = reader.FetchOf(part, {1});
  reader.mover->Start(fetch);
  reader.faults->WaitUntilHung(1);
  reader.mover->Cancel(fetch.fetch);
  const auto fetched = reader.events.Next<engine::event::Fetched>();
  EXPECT_TRUE(absl::IsCancelled(fetched.status)) << fetched.status;
  // The slab has its next writer; what was under way goes on, and does not reach it.
  const std::string mine = testing::Noise(fetch.slab_bytes, 77);
  ASSERT_TRUE(reader.memory.cache->Write(fetch.slab, 0, mine).ok());
  reader.faults->Clear();
  reader.mover->Start(reader.FetchOf(part, {1}, /*fetch=*/2));  // its reads stand behind those
  ASSERT_TRUE(reader.events.Next<engine::event::Fetched>().status.ok());
  EXPECT_TRUE(reader.memory.Read({fetch.slab, 0, 0}, fetch.slab_bytes) == mine);
}

TEST(Mover, OfAPartThereIsOneFetchAtATime) {
  const Part part({4 * size_t{kBlockBytes}});
  Owner owner(1, part);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  reader.faults->Add({.kind = FaultKind::kHang, .call = TransportCall::kRead});
  reader.mover->Start(reader.FetchOf(part, {1}));
  reader.faults->WaitUntilHung(1);
  reader.mover->Start(reader.FetchOf(part, {1}, /*fetch=*/2));
  const auto second = reader.events.Next<engine::event::Fetched>();
  EXPECT_EQ(second.fetch, 2u);
  EXPECT_TRUE(absl::IsAlreadyExists(second.status));
  reader.faults->Clear();
  EXPECT_TRUE(reader.events.Next<engine::event::Fetched>().status.ok());
}

TEST(Mover, ThreeSourcesShareTheReading) {
  const Part part({24 * size_t{kBlockBytes}});
  Owner a(1, part), b(2, part), c(3, part);
  Reader reader;
  reader.neighbours.owners = {{1, &a}, {2, &b}, {3, &c}};
  const auto fetched = reader.Fetch(part, {1, 2, 3});
  ASSERT_TRUE(fetched.status.ok()) << fetched.status;
  reader.ExpectBytesOf(part, *fetched.table);
  EXPECT_EQ(reader.mover->counters().bytes, part.bytes());
}

TEST(Mover, AGrantThatEndedWhileItsFetchWaitedItsTurnIsAskedForAnew) {
  const Part part({2 * size_t{kBlockBytes}}), next({kMiB}, "next");
  Owner owner(1, part), of_next(2, next, {.without_progress = kNanosPerSecond / 2});
  MoverOptions options;
  options.in_flight_bytes = options.in_flight_bytes_per_peer = kBlockBytes;
  options.source_tries = options.last_source_tries = 1;  // no failure is forgiven
  Reader reader(options);
  reader.neighbours.owners = {{1, &owner}, {2, &of_next}};
  reader.faults->Add({.kind = FaultKind::kHang, .call = TransportCall::kRead});
  reader.mover->Start(reader.FetchOf(part, {1}));
  reader.faults->WaitUntilHung(1);
  reader.mover->Start(reader.FetchOf(next, {2}, /*fetch=*/2));
  of_next.events.Next<engine::event::GrantEnded>();
  reader.faults->Clear();
  for (int fetch = 0; fetch < 2; ++fetch) {
    const auto fetched = reader.events.Next<engine::event::Fetched>();
    EXPECT_TRUE(fetched.status.ok()) << fetched.fetch << ": " << fetched.status;
  }
  EXPECT_EQ(of_next.granted, 2u);
}

// Two members grant their parts, and nobody can reach their data. The next tries are far away.
TEST(Mover, FetchesWhoseSourcesAllRestHoldUpNoOther) {
  const Part first({kMiB}, "first"), second({kMiB}, "second"), part({kMiB});
  Owner of_first(1, first), of_second(2, second), owner(3, part);
  MoverOptions options;
  options.active_fetches = 2;
  options.back_off = 3600 * kNanosPerSecond;
  Reader reader(options);
  reader.neighbours.owners = {{1, &of_first}, {2, &of_second}, {3, &owner}};
  reader.neighbours.addresses = {{1, "127.0.0.1:1"}, {2, "127.0.0.1:1"}};
  auto fetch = reader.FetchOf(first, {1}, /*fetch=*/1);
  fetch.what_for = engine::action::FetchFor::kLoad;
  reader.mover->Start(fetch);
  fetch = reader.FetchOf(second, {2}, /*fetch=*/2);
  fetch.what_for = engine::action::FetchFor::kLoad;
  reader.mover->Start(fetch);
  while (reader.mover->counters().failed_reads < 2) std::this_thread::yield();
  reader.mover->Start(reader.FetchOf(part, {3}, /*fetch=*/3));
  const auto fetched = reader.events.Next<engine::event::Fetched>();
  EXPECT_EQ(fetched.fetch, 3u);
  EXPECT_TRUE(fetched.status.ok()) << fetched.status;
}

// It has been waiting for its turn when they begin to rest.
TEST(Mover, OneThatWaitsIsAskedForWhenTheSourcesOfTheOthersBeginToRest) {
  const Part first({kMiB}, "first"), second({kMiB}, "second"), part({kMiB});
  Owner of_first(1, first), of_second(2, second), owner(3, part);
  MoverOptions options;
  options.active_fetches = 2;
  options.back_off = 3600 * kNanosPerSecond;
  Reader reader(options);
  reader.neighbours.owners = {{1, &of_first}, {2, &of_second}, {3, &owner}};
  reader.neighbours.addresses = {{1, "127.0.0.1:1"}, {2, "127.0.0.1:1"}};
  reader.faults->Add({.kind = FaultKind::kHang, .call = TransportCall::kRead});
  auto fetch = reader.FetchOf(first, {1}, /*fetch=*/1);
  fetch.what_for = engine::action::FetchFor::kLoad;
  reader.mover->Start(fetch);
  fetch = reader.FetchOf(second, {2}, /*fetch=*/2);
  fetch.what_for = engine::action::FetchFor::kLoad;
  reader.mover->Start(fetch);
  reader.faults->WaitUntilHung(1);
  while (of_first.granted + of_second.granted < 2) std::this_thread::yield();
  reader.mover->Start(reader.FetchOf(part, {3}, /*fetch=*/3));
  reader.faults->Clear();
  const auto fetched = reader.events.Next<engine::event::Fetched>();
  EXPECT_EQ(fetched.fetch, 3u);
}

TEST(Mover, StoppingInTheMiddleWritesNothingAfterwards) {
  const Part part({20 * size_t{kBlockBytes}});
  Owner owner(1, part);
  Reader reader;
  reader.neighbours.owners = {{1, &owner}};
  reader.faults->Add({.kind = FaultKind::kHang, .call = TransportCall::kRead, .after = 5});
  const auto fetch = reader.FetchOf(part, {1});
  reader.mover->Start(fetch);
  reader.faults->WaitUntilHung(1);
  reader.mover->Stop();
  const std::string mine = testing::Noise(fetch.slab_bytes, 78);
  ASSERT_TRUE(reader.memory.cache->Write(fetch.slab, 0, mine).ok());
  reader.faults->Clear();
  reader.memory.transport.reset();  // all reads have ended
  EXPECT_TRUE(reader.memory.Read({fetch.slab, 0, 0}, fetch.slab_bytes) == mine);
  EXPECT_EQ(reader.events.Count<engine::event::Fetched>(), 0u);
}

}  // namespace
}  // namespace cairn::node
