// What a thousand connections leave behind: no queue pair, no descriptor, no memory, no thread.
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/transport/fake_verbs.h"
#include "tests/transport/rdma_nodes.h"
#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

constexpr PeerId kOwner = {.rank = 1, .incarnation = 5};
constexpr uint64_t kBytes = 1 << 20;
constexpr int kCycles = 1000;

struct Held {
  int64_t descriptors = 0, threads = 0, heap_bytes = 0;
  int pairs = 0, regions = 0;
};

int64_t EntriesOf(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

class RdmaLeaks : public ::testing::Test {
 protected:
  Held Now() const {
    Held held;
    held.descriptors = EntriesOf("/proc/self/fd");
    held.threads = EntriesOf("/proc/self/task");
    held.heap_bytes = static_cast<int64_t>(mallinfo2().uordblks);
    held.pairs = owners_->pairs + readers_->pairs;
    held.regions = owners_->regions + readers_->regions;
    return held;
  }
  // After some cycles, which fill caches, no number of further ones needs anything.
  template <typename Cycle>
  void LeavesNothing(const Cycle& cycle) {
    for (int i = 0; i < 100; ++i) cycle();
    const Held before = Now();
    for (int i = 0; i < kCycles; ++i) cycle();
    const Held after = Now();
    EXPECT_EQ(after.descriptors, before.descriptors);
    EXPECT_EQ(after.threads, before.threads);
    EXPECT_EQ(after.pairs, before.pairs);
    EXPECT_EQ(after.regions, before.regions);
    EXPECT_LT(after.heap_bytes - before.heap_bytes,
              kCycles * 64);  // a pointer or two each would be more
  }

  const std::shared_ptr<FakeFabric> fabric_ = MakeFakeFabric();
  const std::shared_ptr<FakeVerbsFaults> owners_ = std::make_shared<FakeVerbsFaults>();
  const std::shared_ptr<FakeVerbsFaults> readers_ = std::make_shared<FakeVerbsFaults>();
  const Memory owned_{Noise(kBytes, 1)};
  const Memory fetched_{static_cast<size_t>(kBytes)};
  const ExtentRef all_ = {kOwned, 0, kBytes};
};

// The owner cuts a reader that may be reading: each time both ends connect again.
TEST_F(RdmaLeaks, AThousandConnectionsThatTheOwnerCuts) {
  const auto owner = StartRdma(kOwner, MakeFakeDevice(fabric_, owners_));
  const auto reader = StartRdma(kReader, MakeFakeDevice(fabric_, readers_));
  ASSERT_TRUE(owner->Attach(kOwned, owned_.fd(), kBytes).ok());
  ASSERT_TRUE(reader->Attach(kFetched, fetched_.fd(), kBytes).ok());
  LeavesNothing([&] {
    const GrantToken token = NewGrantToken();
    ASSERT_TRUE(owner->Grant(token, kReader, {all_}).ok());
    const auto crc =
        ReadNow(reader.get(), ReadOf(*owner, token, *owner->Describe(all_), 0, 4096, fetched_));
    ASSERT_TRUE(crc.ok()) << crc.status();
    EXPECT_EQ(owner->owner()->connections(), 1);
    ASSERT_TRUE(owner->Revoke(token, ItsReads::kMayBeUnderWay));
    EXPECT_EQ(owner->owner()->connections(), 0);
  });
}

// Readers that begin and end, as daemons do that are started again: the owner forgets those that are gone.
TEST_F(RdmaLeaks, AThousandReadersThatComeAndGo) {
  const auto owner = StartRdma(kOwner, MakeFakeDevice(fabric_, owners_));
  ASSERT_TRUE(owner->Attach(kOwned, owned_.fd(), kBytes).ok());
  LeavesNothing([&] {
    const auto reader = StartRdma(kReader, MakeFakeDevice(fabric_, readers_));
    ASSERT_TRUE(reader->Attach(kFetched, fetched_.fd(), kBytes).ok());
    const GrantToken token = NewGrantToken();
    ASSERT_TRUE(owner->Grant(token, kReader, {all_}).ok());
    const auto crc =
        ReadNow(reader.get(), ReadOf(*owner, token, *owner->Describe(all_), 0, 4096, fetched_));
    ASSERT_TRUE(crc.ok()) << crc.status();
    ASSERT_TRUE(owner->Revoke(token, ItsReads::kHaveEnded));
    EXPECT_LE(owner->owner()->connections(), 2);
  });
}

}  // namespace
}  // namespace cairn::transport
