// What is the RDMA transport's own, over devices in this process: what breaks, and what is put back together.
#include "server/transport/rdma_transport.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>

#include <thread>

#include "tests/support/await.h"
#include "tests/support/patience.h"
#include "tests/transport/fake_verbs.h"
#include "tests/transport/rdma_nodes.h"
#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

using ::testing::HasSubstr;

class RdmaTransportTest : public ::testing::Test {
 protected:
  static constexpr PeerId kOwner = {.rank = 1, .incarnation = 5};

  void Start(const RdmaReaderOptions& reader = {}, const RdmaOwnerOptions& owner = {},
             const FakeVerbsOptions& device = {}, const RdmaSlabOptions& slabs = {}) {
    owner_ = StartRdma(kOwner, MakeFakeDevice(fabric_, owners_, device), {}, owner, slabs);
    reader_ = StartRdma(kReader, MakeFakeDevice(fabric_, readers_, device), reader, {}, slabs);
    ASSERT_TRUE(owner_->Attach(kOwned, owned_.fd(), owned_.size()).ok());
    ASSERT_TRUE(reader_->Attach(kFetched, fetched_.fd(), fetched_.size()).ok());
    ASSERT_TRUE(owner_->Grant(token_, kReader, {All()}).ok());
    region_ = *owner_->Describe(All());
  }
  ExtentRef All() const { return {kOwned, 0, owned_.size()}; }
  ReadRequest Request(uint64_t offset, uint64_t length) {
    return ReadOf(*owner_, token_, region_, offset, length, fetched_);
  }
  StatusOr<uint32_t> Read(uint64_t offset, uint64_t length) {
    return ReadNow(reader_.get(), Request(offset, length));
  }
  Status ReadAll() {
    return ReadAllOf(reader_.get(), *owner_, token_, region_, bytes_, fetched_, /*ahead=*/16);
  }

  const std::shared_ptr<FakeFabric> fabric_ = MakeFakeFabric();
  const std::shared_ptr<FakeVerbsFaults> owners_ = std::make_shared<FakeVerbsFaults>();
  const std::shared_ptr<FakeVerbsFaults> readers_ = std::make_shared<FakeVerbsFaults>();
  const std::unique_ptr<VerbsDevice> readers_device_ = MakeFakeDevice(fabric_, readers_);
  const std::string bytes_ = Noise(20'000'001, 1);
  const Memory owned_{bytes_};
  Memory fetched_{bytes_.size() + kPageBytes};
  const GrantToken token_ = NewGrantToken();
  std::string region_;
  std::unique_ptr<RdmaTransport> owner_, reader_;
};

TEST_F(RdmaTransportTest, AReadThatFailsIsReadOnceMoreOverANewConnection) {
  Start();
  ASSERT_TRUE(Read(0, 1000).ok());
  readers_->failing_reads = 1;
  EXPECT_TRUE(ReadAll().ok());
  EXPECT_EQ(fetched_.Read(0, bytes_.size()), bytes_);
  EXPECT_EQ(owner_->owner()->connections(), 1);  // the first one was replaced
}

TEST_F(RdmaTransportTest, AReadThatFailsTwiceIsUnavailable) {
  Start();
  readers_->failing_reads = 2;
  const auto crc = Read(0, 1000);
  EXPECT_TRUE(absl::IsUnavailable(crc.status())) << crc.status();
  EXPECT_THAT(crc.status().message(), HasSubstr(owner_->Address()));
  EXPECT_TRUE(Read(0, 1000).ok());
}

TEST_F(RdmaTransportTest, ACompletionWithoutAnEventIsFoundAllTheSame) {
  Start();
  readers_->lost_events = 1000;
  EXPECT_TRUE(ReadAll().ok());
}

TEST_F(RdmaTransportTest, SmallQueuesAreEnough) {
  FakeVerbsOptions device;
  device.limits.queued = 1;
  device.limits.completions = 2;
  Start({}, {}, device);
  EXPECT_TRUE(ReadAll().ok());
  EXPECT_EQ(fetched_.Read(0, bytes_.size()), bytes_);
}

TEST_F(RdmaTransportTest, ASlabIsRegisteredInPiecesThatTheDeviceTakes) {
  FakeVerbsOptions device;
  device.limits.region_bytes = 3 << 20;
  Start({}, {}, device);
  EXPECT_TRUE(ReadAll().ok());
  EXPECT_EQ(fetched_.Read(0, bytes_.size()), bytes_);
  EXPECT_EQ(owners_->regions, 10);  // of 2 MiB
}

TEST_F(RdmaTransportTest, MemoryThatCannotBeLockedFailsTheReadAndNoMore) {
  Start();
  readers_->failing_registers = 1;
  EXPECT_TRUE(absl::IsResourceExhausted(Read(0, 1000).status()));
  EXPECT_TRUE(Read(0, 1000).ok());
  owner_->Detach(kOwned);
  ASSERT_TRUE(owner_->Attach(kOwned, owned_.fd(), owned_.size()).ok());
  ASSERT_TRUE(owner_->Grant(token_, kReader, {All()}).ok());
  owners_->failing_registers = 1;
  const auto crc = Read(0, 1000);
  EXPECT_TRUE(absl::IsUnavailable(crc.status())) << crc.status();
  EXPECT_TRUE(Read(0, 1000).ok());
}

TEST_F(RdmaTransportTest, NothingIsRegisteredBeforeItIsNeeded) {
  Start();
  EXPECT_EQ(owners_->regions, 0);
  ASSERT_TRUE(owner_->Register(kOwned).ok());
  EXPECT_EQ(owners_->regions, 1);
  EXPECT_TRUE(absl::IsNotFound(owner_->Register(99)));
  ASSERT_TRUE(Read(0, 1000).ok());
  EXPECT_EQ(owners_->regions, 1);
}

// The device would go on reading the page that it had, and writing into a page that is nobody's.
TEST_F(RdmaTransportTest, ASlabThatHasLostAPageIsRegisteredAnew) {
  RdmaSlab slab(readers_device_.get(), fetched_.fd(), fetched_.size());
  fetched_.Write(0, bytes_);
  ASSERT_TRUE(slab.Register().ok());
  const uint32_t key = slab.local_pieces().at(0).key;
  ASSERT_TRUE(slab.Register().ok());
  EXPECT_EQ(slab.local_pieces().at(0).key, key);
  ASSERT_EQ(
      fallocate(fetched_.fd()->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kPageBytes),
      0);
  EXPECT_FALSE(slab.Registered());
  ASSERT_TRUE(slab.Register().ok());
  EXPECT_NE(slab.local_pieces().at(0).key, key);
}

// It has as many blocks as before, so nothing but its bytes shows it.
TEST_F(RdmaTransportTest, ASlabThatIsNotBelievedIsRegisteredAnewOnBothSides) {
  Start({}, {}, {}, {.believed = 0});  // else one that was just registered is believed
  ASSERT_TRUE(Read(0, 1000).ok());
  const auto anew = [&] {
    ReadRequest request = Request(4096, 1000);  // how it came before is not known
    request.again = true;
    return ReadNow(reader_.get(), std::move(request));
  };
  const int registered = readers_->registered + owners_->registered;
  ASSERT_TRUE(anew().ok());
  EXPECT_EQ(readers_->registered + owners_->registered, registered + 2);
  ASSERT_TRUE(Read(0, 1000).ok());
  EXPECT_EQ(readers_->registered + owners_->registered, registered + 2);
}

TEST_F(RdmaTransportTest, APortThatGoesDownIsAProblemUntilItIsUp) {
  Start();
  EXPECT_EQ(reader_->Problem(), "");
  readers_->port_down = true;
  EXPECT_THAT(reader_->Problem(), HasSubstr("fake0:1: the port is down"));
  EXPECT_THAT(Read(0, 1000).status().message(), HasSubstr("the port is down"));
  readers_->port_down = false;
  EXPECT_TRUE(Read(0, 1000).ok());
}

TEST_F(RdmaTransportTest, ADetachedSlabIsDeregisteredWhenDetachReturns) {
  Start();
  std::promise<void> told, detached;
  reader_->Read(Request(0, 1000),
                [&told, until = std::make_shared<std::future<void>>(detached.get_future())](
                    const StatusOr<uint32_t>& crc) {
                  EXPECT_TRUE(crc.ok()) << crc.status();
                  told.set_value();
                  until->wait();  // whoever is told of a read's end has the slab still
                });
  told.get_future().wait();
  reader_->Detach(kFetched);
  EXPECT_EQ(readers_->regions, 0);
  detached.set_value();
  owner_->Detach(kOwned);
  EXPECT_EQ(owners_->regions, 0);
}

TEST_F(RdmaTransportTest, ADetachDoesNotWaitForADeafPeer) {
  Start();
  ASSERT_TRUE(Read(0, 1000).ok());
  readers_->deaf = true;
  auto read = Begin(reader_.get(), Request(0, kBlockBytes));
  while (read.wait_for(std::chrono::milliseconds(20)) != std::future_status::timeout) {
  }
  reader_->Detach(kFetched);
  EXPECT_TRUE(absl::IsCancelled(read.get().status()));
}

TEST_F(RdmaTransportTest, AConnectionThatMovesNothingIsGivenUp) {
  Start({.stall = kNanosPerSecond});
  readers_->deaf = true;
  const auto crc = Read(0, 1000);
  EXPECT_TRUE(absl::IsUnavailable(crc.status())) << crc.status();
  EXPECT_THAT(crc.status().message(), HasSubstr("nothing has moved for 1000 ms"));
  readers_->deaf = false;
  EXPECT_TRUE(Read(0, 1000).ok());
}

TEST_F(RdmaTransportTest, ADeadlineEndsAReadThatIsUnderWayAndNoOther) {
  Start();
  ASSERT_TRUE(Read(0, 1000).ok());
  readers_->deaf = true;
  ReadRequest short_one = Request(0, 1000);
  short_one.deadline = RealClock()->Now() + 200 * kNanosPerMilli;
  auto late = Begin(reader_.get(), std::move(short_one));
  auto patient = Begin(reader_.get(), Request(8192, 1000));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late.get().status()));
  readers_->deaf = false;
  EXPECT_TRUE(patient.get().ok());
}

TEST_F(RdmaTransportTest, AGrantWhoseReadsHaveEndedCutsNothing) {
  Start();
  ASSERT_TRUE(Read(0, 1000).ok());
  const int pairs = readers_->pairs;
  // While one is under way they have not.
  readers_->deaf = true;
  auto read = Begin(reader_.get(), Request(0, 1000));
  EXPECT_EQ(reader_->Finish(owner_->Address(), token_), ItsReads::kMayBeUnderWay);
  readers_->deaf = false;
  ASSERT_TRUE(read.get().ok());
  EXPECT_EQ(reader_->Finish(owner_->Address(), token_), ItsReads::kHaveEnded);
  EXPECT_EQ(reader_->Finish("nobody", token_), ItsReads::kHaveEnded);
  EXPECT_TRUE(owner_->Revoke(token_, ItsReads::kHaveEnded));
  EXPECT_EQ(owner_->owner()->connections(), 1);
  EXPECT_TRUE(absl::IsPermissionDenied(Read(0, 1000).status()));  // it is not remembered
  EXPECT_EQ(owner_->owner()->connections(), 1);
  EXPECT_EQ(readers_->pairs, pairs);
}

TEST_F(RdmaTransportTest, TheOwnerForgetsTheLeastRecentlyUsedConnection) {
  Start({}, {.max_connections = 2});
  RdmaOwner* const owner = owner_->owner();
  RdmaConnect connect;
  connect.endpoints.resize(1);
  const auto first = owner->Connect(kReader, connect), second = owner->Connect(kReader, connect);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(owner->Open(kReader, {first->connection, token_}).ok());  // used last
  ASSERT_TRUE(owner->Connect({.rank = 7, .incarnation = 1}, connect).ok());
  EXPECT_EQ(owner->connections(), 2);
  EXPECT_TRUE(owner->Open(kReader, {first->connection, token_}).ok());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(owner->Open(kReader, {second->connection, token_}).status()));
  // A reader whose own was forgotten connects again.
  ASSERT_TRUE(Read(0, 1000).ok());
  ASSERT_TRUE(owner->Connect({.rank = 8, .incarnation = 1}, connect).ok());
  ASSERT_TRUE(owner->Connect({.rank = 9, .incarnation = 1}, connect).ok());
  EXPECT_TRUE(Read(0, 1000).ok());
}

TEST_F(RdmaTransportTest, AConnectionIsReplacedByItsReaderAlone) {
  Start();
  RdmaOwner* const owner = owner_->owner();
  RdmaConnect connect;
  connect.endpoints.resize(1);
  const auto mine = owner->Connect(kReader, connect);
  ASSERT_TRUE(mine.ok());
  connect.replaces = mine->connection;
  ASSERT_TRUE(owner->Connect({.rank = 7, .incarnation = 1}, connect).ok());
  EXPECT_TRUE(owner->Open(kReader, {mine->connection, token_}).ok());
  ASSERT_TRUE(owner->Connect(kReader, connect).ok());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(owner->Open(kReader, {mine->connection, token_}).status()));
}

// The device does not tell the owner of reads, so the reader does, and an owner that revokes what is not used sees it.
TEST_F(RdmaTransportTest, AReadThatGoesOnIsToldToTheOwner) {
  const int64_t never = testing::Patient(3600 * kNanosPerSecond);
  Start({.stall = never, .idle = never});  // nothing else asks
  ASSERT_TRUE(Read(0, 1000).ok());
  readers_->deaf = true;
  auto read = Begin(reader_.get(), Request(0, 1000));
  const MonotonicNanos given = *owner_->LastUsed(token_);
  EXPECT_TRUE(testing::Await([&] { return *owner_->LastUsed(token_) > given; }));
  readers_->deaf = false;
  EXPECT_TRUE(read.get().ok());
}

TEST_F(RdmaTransportTest, AStrangersConnectionOpensNothing) {
  Start();
  RdmaConnect connect;
  connect.endpoints.resize(1);
  const PeerId other = {.rank = 3, .incarnation = 1};
  const auto connected = owner_->owner()->Connect(other, connect);
  ASSERT_TRUE(connected.ok());
  // Neither the reader's token over its own, nor its own connection with the reader's name.
  EXPECT_TRUE(absl::IsPermissionDenied(
      owner_->owner()->Open(other, {connected->connection, token_}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      owner_->owner()->Open(kReader, {connected->connection, token_}).status()));
  connect.endpoints.resize(9);
  EXPECT_THAT(owner_->owner()->Connect(other, connect).status().message(),
              HasSubstr("endpoints: 9"));
}

TEST_F(RdmaTransportTest, AnIdleConnectionIsClosed) {
  Start({.stall = 10 * kNanosPerMilli, .idle = 20 * kNanosPerMilli});
  ASSERT_TRUE(Read(0, 1000).ok());
  EXPECT_TRUE(testing::Await([&] { return readers_->pairs == 0; }));
  EXPECT_TRUE(Read(0, 1000).ok());
}

// What a grant has taken of the bound on extents is given back with it.
TEST(GrantTableTest, WhatIsErasedCountsNoMore) {
  GrantTable grants;
  const auto any = [](const ExtentRef&) { return absl::OkStatus(); };
  const std::vector<ExtentRef> half(kMaxGrantedExtents / 2 + 1, ExtentRef{kOwned, 0, 4096});
  for (int i = 0; i < 3; ++i) {
    const GrantToken token = NewGrantToken();
    ASSERT_TRUE(grants.Add(token, kReader, half, any).ok());
    EXPECT_TRUE(absl::IsResourceExhausted(grants.Add(NewGrantToken(), kReader, half, any)));
    EXPECT_EQ(grants.OfSlab(kOwned).size(), 1U);
    EXPECT_TRUE(grants.Erase(token));
    EXPECT_TRUE(grants.OfSlab(kOwned).empty());
  }
}

TEST(RdmaOptions, EachBoundIsNamed) {
  EXPECT_THAT(RdmaReaderOptions{.queue_pairs = 0}.Validate().message(),
              HasSubstr("queue_pairs: 0"));
  EXPECT_THAT(RdmaReaderOptions{.chunk_bytes = 100}.Validate().message(),
              HasSubstr("chunk_bytes: 100"));
  EXPECT_THAT(RdmaReaderOptions{.chunks = 0}.Validate().message(), HasSubstr("chunks: 0"));
  EXPECT_THAT(RdmaOwnerOptions{.max_connections = 0}.Validate().message(),
              HasSubstr("max_connections: 0"));
  EXPECT_TRUE(RdmaReaderOptions{}.Validate().ok());
}

TEST(RdmaSlots, AreWhatIsAskedForAndWhatTheDeviceHas) {
  const VerbsLimits plenty = {.queued = 1024, .completions = 4096};
  EXPECT_EQ(SlotsOf({.queue_pairs = 2, .chunks = 32}, plenty), 16);
  EXPECT_EQ(SlotsOf({.queue_pairs = 2, .chunks = 33}, plenty), 17);
  EXPECT_EQ(SlotsOf({.queue_pairs = 2, .chunks = 32}, {.queued = 4, .completions = 4096}), 4);
  EXPECT_EQ(SlotsOf({.queue_pairs = 2, .chunks = 32}, {.queued = 1024, .completions = 6}), 3);
}

VerbsGid GidOf(int index, GidKind kind, std::initializer_list<uint8_t> head) {
  VerbsGid gid = {.index = index, .kind = kind, .gid = {}};
  std::copy(head.begin(), head.end(), gid.gid.begin());
  gid.gid[15] = 1;
  return gid;
}

TEST(ChooseGidTest, TakesRoutedRoceByAnIpv4Address) {
  const VerbsGid local = GidOf(0, GidKind::kRoceV2, {0xfe, 0x80}),
                 first = GidOf(1, GidKind::kRoceV1, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}),
                 routed = GidOf(2, GidKind::kRoceV2, {0x20, 0x01}),
                 ipv4 = GidOf(3, GidKind::kRoceV2, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff});
  const VerbsDeviceInfo device = {.name = "mlx5_0", .limits = {}, .ports = {}};
  VerbsPort port = {.number = 1,
                    .active = true,
                    .ethernet = true,
                    .mtu_bytes = 1024,
                    .lid = 0,
                    .gids = {local, first}};
  EXPECT_EQ(ChooseGid(device, port)->index, 0);
  port.gids.push_back(routed);
  EXPECT_EQ(ChooseGid(device, port)->index, 2);
  port.gids.push_back(ipv4);
  EXPECT_EQ(ChooseGid(device, port)->index, 3);
  port.gids = {first};
  EXPECT_THAT(ChooseGid(device, port).status().message(),
              HasSubstr("mlx5_0:1: it has no gid of RoCE v2"));
  port.active = false;
  EXPECT_THAT(ChooseGid(device, port).status().message(), HasSubstr("mlx5_0:1: the port is down"));
}

}  // namespace
}  // namespace cairn::transport
