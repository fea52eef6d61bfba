// When a slab is registered with a device, and when it is not: what a client that takes pages away can cost.
#include "server/transport/rdma_slab.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>

#include <future>

#include "absl/strings/str_cat.h"
#include "server/transport/choosing_transport.h"
#include "tests/support/await.h"
#include "tests/transport/fake_verbs.h"
#include "tests/transport/held_device.h"
#include "tests/transport/rdma_nodes.h"
#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

using ::testing::HasSubstr;

constexpr PeerId kOwner = {.rank = 1, .incarnation = 5};
constexpr uint64_t kBytes = 1 << 20;

void TakeAPageAway(const Memory& memory) {
  ASSERT_EQ(
      fallocate(memory.fd()->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPageBytes), 0);
}

class RdmaSlabTest : public ::testing::Test {
 protected:
  const std::shared_ptr<FakeFabric> fabric_ = MakeFakeFabric();
  const std::shared_ptr<FakeVerbsFaults> owners_ = std::make_shared<FakeVerbsFaults>();
  const std::shared_ptr<FakeVerbsFaults> readers_ = std::make_shared<FakeVerbsFaults>();
  const std::string bytes_ = Noise(kBytes, 1);
  Memory owned_{bytes_};
  const Memory fetched_{bytes_};
};

TEST_F(RdmaSlabTest, IsRegisteredAnewOnlySoOftenWithinATime) {
  const auto device = MakeFakeDevice(fabric_, owners_);
  const MonotonicNanos within = testing::Patient(2 * kNanosPerSecond);
  RdmaSlab slab(device.get(), owned_.fd(), kBytes,
                {.believed = 0, .most_anew = 2, .anew_within = within});
  ASSERT_TRUE(slab.Register().ok());
  for (int i = 0; i < 2; ++i) {
    TakeAPageAway(owned_);
    EXPECT_FALSE(slab.Registered());
    ASSERT_TRUE(slab.Register().ok());
    owned_.Write(0, bytes_.substr(0, kPageBytes));
  }
  slab.Distrust();  // counts the same
  const Status refused = slab.Register();
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("registered anew 2 times within ",
                                                        within / kNanosPerMilli, " ms")));
  EXPECT_EQ(owners_->registered, 3);
  EXPECT_FALSE(slab.Registered());
  EXPECT_TRUE(testing::Await([&] { return slab.Register().ok(); }));
  EXPECT_TRUE(slab.Registered());
  EXPECT_EQ(owners_->registered, 4);
}

TEST_F(RdmaSlabTest, WhatFailsToBeRegisteredDoesNotCount) {
  const auto device = MakeFakeDevice(fabric_, owners_);
  RdmaSlab slab(device.get(), owned_.fd(), kBytes, {.most_anew = 1});
  owners_->failing_registers = 5;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(absl::IsResourceExhausted(slab.Register()));
  EXPECT_TRUE(slab.Register().ok());
}

TEST_F(RdmaSlabTest, IsRegisteredInTheBackgroundOnceItIsPrepared) {
  const auto owner = StartRdma(kOwner, MakeFakeDevice(fabric_, owners_));
  EXPECT_TRUE(owner->PreparesMemory());
  ASSERT_TRUE(owner->Attach(kOwned, owned_.fd(), kBytes).ok());
  EXPECT_EQ(owners_->registered, 0);
  owner->Prepare(kOwned);
  EXPECT_TRUE(testing::Await([&] { return owners_->registered == 1; }));
  owner->Prepare(kOwned);  // it is already
  owner->Prepare(99);      // is not attached
  ASSERT_TRUE(owner->Attach(99, fetched_.fd(), kBytes).ok());
  owner->Prepare(99);
  EXPECT_TRUE(testing::Await([&] { return owners_->registered == 2; }));
  owner->Detach(kOwned);
  EXPECT_EQ(owners_->regions, 1);
}

TEST_F(RdmaSlabTest, ThatCannotBeRegisteredInTheBackgroundIsByItsFirstUse) {
  const auto owner = StartRdma(kOwner, MakeFakeDevice(fabric_, owners_));
  ASSERT_TRUE(owner->Attach(kOwned, owned_.fd(), kBytes).ok());
  owners_->failing_registers = 1;
  owner->Prepare(kOwned);
  ASSERT_TRUE(testing::Await([&] { return owners_->failing_registers == 0; }));
  EXPECT_TRUE(owner->Register(kOwned).ok());
  EXPECT_EQ(owners_->registered, 1);
}

// A slab in the background must not hold up another one's first grant, and goes with the transport.
TEST_F(RdmaSlabTest, AFirstGrantWaitsForNoOtherSlabInTheBackground) {
  const auto hold = std::make_shared<HeldDevice::Hold>();
  auto owner =
      StartRdma(kOwner, std::make_unique<HeldDevice>(MakeFakeDevice(fabric_, owners_), hold));
  const auto reader = StartRdma(kReader, MakeFakeDevice(fabric_, readers_));
  const Memory other(kBytes), third(kBytes);
  ASSERT_TRUE(owner->Attach(kOwned, owned_.fd(), kBytes).ok());
  ASSERT_TRUE(owner->Attach(1, other.fd(), kBytes).ok());
  ASSERT_TRUE(owner->Attach(2, third.fd(), kBytes).ok());
  ASSERT_TRUE(reader->Attach(kFetched, fetched_.fd(), kBytes).ok());
  hold->first = 1;  // the other one's alone
  owner->Prepare(1);
  ASSERT_TRUE(testing::Await([&] { return hold->held == 1; }));
  owner->Prepare(2);
  const GrantToken token = NewGrantToken();
  const ExtentRef all = {kOwned, 0, kBytes};
  ASSERT_TRUE(owner->Grant(token, kReader, {all}).ok());
  EXPECT_TRUE(ReadAllOf(reader.get(), *owner, token, *owner->Describe(all), bytes_, fetched_).ok());
  EXPECT_EQ(owners_->registered, 1);
  auto detached = std::async(std::launch::async, [&] { owner->Detach(2); });  // in the queue
  EXPECT_EQ(detached.wait_for(testing::Patient(std::chrono::seconds(30))),
            std::future_status::ready);
  auto gone = std::async(std::launch::async, [&] { owner.reset(); });
  hold->first = 0;
  gone.get();
  EXPECT_EQ(owners_->regions, 0);
}

// A registration that is right is not what made the bytes wrong.
TEST_F(RdmaSlabTest, IsRegisteredAnewWhereItsOwnersBytesAreNotThoseThatCameAndOnlyThere) {
  const RdmaSlabOptions slabs = {.believed = 0};
  const auto owner = StartRdma(kOwner, MakeFakeDevice(fabric_, owners_), {}, {}, slabs);
  const auto reader = StartRdma(kReader, MakeFakeDevice(fabric_, readers_), {}, {}, slabs);
  ASSERT_TRUE(owner->Attach(kOwned, owned_.fd(), kBytes).ok());
  ASSERT_TRUE(reader->Attach(kFetched, fetched_.fd(), kBytes).ok());
  const GrantToken token = NewGrantToken();
  const ExtentRef all = {kOwned, 0, kBytes};
  ASSERT_TRUE(owner->Grant(token, kReader, {all}).ok());
  const auto read = [&](bool again) {
    ReadRequest request = ReadOf(*owner, token, *owner->Describe(all), 4096, 8192, fetched_);
    request.again = again;
    return ReadNow(reader.get(), std::move(request));
  };
  ASSERT_TRUE(read(/*again=*/false).ok());
  ASSERT_TRUE(read(/*again=*/true).ok());
  EXPECT_EQ(owners_->registered, 1);  // what came is what it has
  owned_.Write(8192, "other bytes");
  ASSERT_TRUE(read(/*again=*/true).ok());
  EXPECT_EQ(owners_->registered, 2);
}

class TwoWays : public RdmaSlabTest {
 protected:
  void SetUp() override {
    const RdmaSlabOptions slabs = {
        .believed = 0, .most_anew = 3, .anew_within = 60 * kNanosPerSecond};
    owner_ = std::make_unique<ChoosingTransport>(
        StartTcp(kOwner), StartRdma(kOwner, MakeFakeDevice(fabric_, owners_), {}, {}, slabs));
    reader_ = std::make_unique<ChoosingTransport>(
        StartTcp(kReader), StartRdma(kReader, MakeFakeDevice(fabric_, readers_), {}, {}, slabs));
    ASSERT_TRUE(owner_->Attach(kOwned, owned_.fd(), kBytes).ok());
    ASSERT_TRUE(reader_->Attach(kFetched, fetched_.fd(), kBytes).ok());
  }
  // Under a grant of its own, so that the owner is asked.
  StatusOr<uint32_t> ReadAnew() {
    token_ = NewGrantToken();
    EXPECT_TRUE(owner_->Grant(token_, kReader, {{kOwned, 0, kBytes}}).ok());
    return Read();
  }
  StatusOr<uint32_t> Read() {
    const std::string region = *owner_->Describe({kOwned, 0, kBytes});
    return ReadNow(reader_.get(), ReadOf(*owner_, token_, region, 0, 4096, fetched_));
  }
  GrantToken token_ = {};
  std::unique_ptr<ChoosingTransport> owner_, reader_;
};

TEST_F(TwoWays, AnOwnersSlabThatLosesPagesWithoutPauseIsReadOverTcpAndItsDeviceIsLeftAlone) {
  ASSERT_TRUE(ReadAnew().ok());
  for (int i = 0; i < 20; ++i) {
    TakeAPageAway(owned_);
    ASSERT_TRUE(ReadAnew().ok());  // of what is there
  }
  EXPECT_EQ(owners_->registered, 1 + 3);
  const Traffic traffic = reader_->traffic();
  EXPECT_EQ(traffic.rdma_bytes, (1 + 3) * 4096U);
  EXPECT_EQ(traffic.tcp_bytes, 17 * 4096U);
  EXPECT_EQ(traffic.rdma_grants_left_out, 17U);
  EXPECT_EQ(traffic.rdma_left_out, 0U);  // the peer is not to blame for one slab
  // A grant that was left out is not tried again.
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(reader_->traffic().rdma_grants_left_out, 17U);
  EXPECT_EQ(reader_->traffic().tcp_bytes, 18 * 4096U);
}

TEST_F(TwoWays, AReadersSlabThatLosesPagesWithoutPauseIsReadIntoOverTcp) {
  for (int i = 0; i < 20; ++i) {
    const auto crc = ReadAnew();
    ASSERT_TRUE(crc.ok()) << crc.status();
    EXPECT_EQ(*crc, Crc32c(0, bytes_.data(), 4096));
    TakeAPageAway(fetched_);
  }
  EXPECT_EQ(readers_->registered, 1 + 3);
  EXPECT_EQ(reader_->traffic().rdma_grants_left_out, 16U);
}

}  // namespace
}  // namespace cairn::transport
