// Several devices: reads are striped over them, and one that fails is left out for a while.
#include "server/transport/rails_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/await.h"
#include "tests/transport/fake_verbs.h"
#include "tests/transport/rails_nodes.h"
#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

using ::testing::HasSubstr;

constexpr PeerId kOwner = {.rank = 1, .incarnation = 5};
constexpr MonotonicNanos kLeftOut = kNanosPerSecond;

class Rails : public ::testing::Test {
 protected:
  static constexpr size_t kRails = 2;

  // Rails do not reach each other: each is a network of its own.
  std::vector<std::unique_ptr<VerbsDevice>> Devices(
      size_t count, const std::vector<std::shared_ptr<FakeVerbsFaults>>& faults) {
    std::vector<std::unique_ptr<VerbsDevice>> devices;
    for (size_t i = 0; i < count; ++i) devices.push_back(MakeFakeDevice(fabrics_[i], faults[i]));
    return devices;
  }
  void Start(size_t owners = kRails, size_t readers = kRails, MonotonicNanos left_out = kLeftOut) {
    owner_ = StartRails(kOwner, Devices(owners, owners_), left_out);
    reader_ = StartRails(kReader, Devices(readers, readers_), left_out);
    ASSERT_TRUE(owner_->Attach(kOwned, owned_.fd(), owned_.size()).ok());
    ASSERT_TRUE(reader_->Attach(kFetched, fetched_.fd(), fetched_.size()).ok());
    ASSERT_TRUE(owner_->Grant(token_, kReader, {All()}).ok());
  }
  ExtentRef All() const { return {kOwned, 0, owned_.size()}; }
  ReadRequest Request(uint64_t length = 4096) {
    return ReadOf(*owner_, token_, *owner_->Describe(All()), 0, length, fetched_);
  }
  Status ReadAll() {
    return ReadAllOf(reader_.get(), *owner_, token_, *owner_->Describe(All()), bytes_, fetched_);
  }
  static std::vector<std::shared_ptr<FakeVerbsFaults>> Faults() {
    return {std::make_shared<FakeVerbsFaults>(), std::make_shared<FakeVerbsFaults>()};
  }

  const std::vector<std::shared_ptr<FakeFabric>> fabrics_ = {MakeFakeFabric(), MakeFakeFabric()};
  const std::vector<std::shared_ptr<FakeVerbsFaults>> owners_ = Faults(), readers_ = Faults();
  const std::string bytes_ = Noise(40'000'001, 1);
  const Memory owned_{bytes_};
  const Memory fetched_{bytes_.size()};
  const GrantToken token_ = NewGrantToken();
  std::unique_ptr<RailsTransport> owner_, reader_;
};

TEST_F(Rails, ReadsAreStripedOverAllAndEachDeviceHasItsOwnRegistration) {
  Start();
  ASSERT_TRUE(ReadAll().ok());
  EXPECT_EQ(fetched_.Read(0, bytes_.size()), bytes_);
  for (size_t rail = 0; rail < kRails; ++rail) {
    EXPECT_GE(readers_[rail]->reads, 16) << rail;  // chunks of a megabyte, of 39
    EXPECT_EQ(readers_[rail]->regions, 1) << rail;
    EXPECT_EQ(owners_[rail]->regions, 1) << rail;
  }
  owner_->Detach(kOwned);
  reader_->Detach(kFetched);
  for (size_t rail = 0; rail < kRails; ++rail) {
    EXPECT_EQ(readers_[rail]->regions + owners_[rail]->regions, 0) << rail;
  }
}

TEST_F(Rails, OneThatFailsIsLeftOutForAWhileAndItsReadsGoOverTheOther) {
  Start(kRails, kRails, /*left_out=*/60 * kNanosPerSecond);
  ASSERT_TRUE(ReadAll().ok());
  readers_[1]->failing_reads = 1'000'000;
  ASSERT_TRUE(ReadAll().ok());
  EXPECT_EQ(fetched_.Read(0, bytes_.size()), bytes_);
  EXPECT_EQ(reader_->traffic().rdma_rails_left_out, 1U);
  readers_[1]->failing_reads = 0;
  const int before = readers_[1]->reads;
  ASSERT_TRUE(ReadNow(reader_.get(), Request()).ok());
  ASSERT_TRUE(ReadNow(reader_.get(), Request()).ok());
  EXPECT_EQ(readers_[1]->reads, before);  // it would work, and is not asked yet
}

TEST_F(Rails, OneThatWasLeftOutIsReadOverAgain) {
  Start(kRails, kRails, /*left_out=*/kNanosPerSecond / 10);
  readers_[1]->failing_reads = 1'000'000;
  ASSERT_TRUE(ReadAll().ok());
  EXPECT_GE(reader_->traffic().rdma_rails_left_out, 1U);
  readers_[1]->failing_reads = 0;
  const int before = readers_[1]->reads;
  EXPECT_TRUE(testing::Await([&] { return ReadAll().ok() && readers_[1]->reads > before; }));
}

// Its owner's rail knows how the bytes came, and that rail's registrations are in doubt.
TEST_F(Rails, WhatIsWantedAgainIsReadOverTheRailThatItCameOver) {
  Start();
  for (int turn = 0; turn < 4; ++turn) {
    const int64_t before[kRails] = {readers_[0]->reads, readers_[1]->reads};
    ASSERT_TRUE(ReadNow(reader_.get(), Request()).ok());
    const size_t rail = readers_[0]->reads > before[0] ? 0 : 1;
    const int64_t came = readers_[rail]->reads, other = readers_[1 - rail]->reads;
    ReadRequest again = Request();
    again.again = true;
    ASSERT_TRUE(ReadNow(reader_.get(), again).ok());
    EXPECT_GT(readers_[rail]->reads, came) << turn;
    EXPECT_EQ(readers_[1 - rail]->reads, other) << turn;
  }
}

TEST_F(Rails, WhereAllFailThePeerIsUnavailableAndTriedAgain) {
  Start();
  for (const auto& faults : readers_) faults->failing_reads = 2;  // the read, and its second try
  const auto crc = ReadNow(reader_.get(), Request());
  EXPECT_TRUE(absl::IsUnavailable(crc.status())) << crc.status();
  EXPECT_EQ(reader_->traffic().rdma_rails_left_out, 2U);
  EXPECT_TRUE(ReadNow(reader_.get(), Request()).ok());  // for want of another
}

TEST_F(Rails, AnOwnerWithFewerIsReadOverThoseThatItHas) {
  // The second is on a network where the owner has nothing, and is not tried again however long the reads take.
  Start(/*owners=*/1, /*readers=*/2, /*left_out=*/60 * kNanosPerSecond);
  ASSERT_EQ(ReadAll(), absl::OkStatus());
  EXPECT_EQ(fetched_.Read(0, bytes_.size()), bytes_);
  EXPECT_EQ(reader_->traffic().rdma_rails_left_out, 1U);
}

TEST_F(Rails, AReaderWithFewerReadsOverThoseThatItHas) {
  Start(/*owners=*/2, /*readers=*/1);
  ASSERT_TRUE(ReadAll().ok());
  EXPECT_EQ(fetched_.Read(0, bytes_.size()), bytes_);
}

TEST_F(Rails, APortThatIsDownIsAProblemOnlyWhereAllAre) {
  Start();
  owners_[0]->port_down = true;
  EXPECT_EQ(owner_->Problem(), "");
  owners_[1]->port_down = true;
  EXPECT_THAT(owner_->Problem(), HasSubstr("the port is down; "));
}

TEST_F(Rails, WhatIsRevokedIsReadOverNone) {
  Start();
  ASSERT_TRUE(ReadAll().ok());
  EXPECT_TRUE(owner_->Revoke(token_, ItsReads::kMayBeUnderWay));
  for (size_t i = 0; i < 2 * kRails; ++i) {
    EXPECT_TRUE(absl::IsPermissionDenied(ReadNow(reader_.get(), Request()).status()));
  }
  EXPECT_FALSE(owner_->Revoke(token_, ItsReads::kMayBeUnderWay));
}

TEST_F(Rails, AnEndInTheMiddleOfReadsThatFailLeavesNone) {
  Start();
  for (const auto& faults : readers_) faults->failing_reads = 1'000'000;
  std::vector<std::future<StatusOr<uint32_t>>> reads;
  for (int i = 0; i < 200; ++i) reads.push_back(Begin(reader_.get(), Request()));
  reader_.reset();
  for (auto& read : reads) EXPECT_FALSE(read.get().ok());
  EXPECT_EQ(readers_[0]->pairs + readers_[1]->pairs, 0);
}

}  // namespace
}  // namespace cairn::transport
