// Which back end a read goes over, and what happens when that one does not reach the peer.
#include "server/transport/choosing_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/await.h"
#include "tests/transport/fake_verbs.h"
#include "tests/transport/rdma_nodes.h"
#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

using ::testing::HasSubstr;

enum class Has { kTcp, kRdma, kBoth };

class Choosing : public ::testing::Test {
 protected:
  static constexpr PeerId kOwner = {.rank = 1, .incarnation = 5};

  void Start(Has owner, Has reader, MonotonicNanos left_out = kLongStall) {
    owner_ = Make(kOwner, owner, owners_, left_out);
    reader_ = Make(kReader, reader, readers_, left_out);
    ASSERT_TRUE(owner_->Attach(kOwned, owned_.fd(), owned_.size()).ok());
    ASSERT_TRUE(reader_->Attach(kFetched, fetched_.fd(), fetched_.size()).ok());
    ASSERT_TRUE(owner_->Grant(token_, kReader, {{kOwned, 0, owned_.size()}}).ok());
  }
  std::unique_ptr<ChoosingTransport> Make(PeerId self, Has has,
                                          const std::shared_ptr<FakeVerbsFaults>& faults,
                                          MonotonicNanos left_out) {
    std::unique_ptr<Transport> tcp, rdma;
    if (has != Has::kRdma) tcp = StartTcp(self);
    if (has != Has::kTcp) rdma = StartRdma(self, MakeFakeDevice(fabric_, faults));
    return std::make_unique<ChoosingTransport>(std::move(tcp), std::move(rdma), left_out);
  }
  StatusOr<uint32_t> Read(uint64_t length = 4096) {
    const std::string region = *owner_->Describe({kOwned, 0, owned_.size()});
    return ReadNow(reader_.get(), ReadOf(*owner_, token_, region, 0, length, fetched_));
  }

  const std::shared_ptr<FakeFabric> fabric_ = MakeFakeFabric();
  const std::shared_ptr<FakeVerbsFaults> owners_ = std::make_shared<FakeVerbsFaults>();
  const std::shared_ptr<FakeVerbsFaults> readers_ = std::make_shared<FakeVerbsFaults>();
  const std::string bytes_ = Noise(1 << 20, 1);
  const Memory owned_{bytes_};
  const Memory fetched_{bytes_.size()};
  const GrantToken token_ = NewGrantToken();
  std::unique_ptr<ChoosingTransport> owner_, reader_;
};

TEST_F(Choosing, WhereBothHaveItRdmaIsTaken) {
  Start(Has::kBoth, Has::kBoth);
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(fetched_.Read(0, 4096), bytes_.substr(0, 4096));
  EXPECT_EQ(reader_->traffic().rdma_bytes, 4096U);
  EXPECT_EQ(reader_->traffic().tcp_bytes, 0U);
}

TEST_F(Choosing, AnOwnerWithoutRdmaIsReadOverTcp) {
  Start(Has::kTcp, Has::kBoth);
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(reader_->traffic().tcp_bytes, 4096U);
}

TEST_F(Choosing, AReaderWithoutRdmaReadsOverTcp) {
  Start(Has::kBoth, Has::kTcp);
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(reader_->traffic().tcp_bytes, 4096U);
}

TEST_F(Choosing, WhatHasNothingInCommonSaysSo) {
  Start(Has::kTcp, Has::kRdma);
  EXPECT_THAT(Read().status().message(), HasSubstr("the peer has no RDMA"));
  Start(Has::kRdma, Has::kTcp);
  EXPECT_THAT(Read().status().message(), HasSubstr("this member has none"));
  EXPECT_TRUE(absl::IsUnavailable(Read().status()));
}

TEST_F(Choosing, RdmaAloneIsEnough) {
  Start(Has::kRdma, Has::kRdma);
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(reader_->traffic().rdma_bytes, 4096U);
}

TEST_F(Choosing, APeerThatRdmaDoesNotReachGoesOnOverTcpForAWhile) {
  Start(Has::kBoth, Has::kBoth);
  ASSERT_TRUE(Read().ok());
  readers_->failing_reads = 2;  // the read, and its second try
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(reader_->traffic().rdma_left_out, 1U);
  EXPECT_EQ(reader_->traffic().tcp_bytes, 4096U);
  ASSERT_TRUE(Read().ok());  // RDMA would reach it now, but it is not asked yet
  EXPECT_EQ(reader_->traffic().tcp_bytes, 2 * 4096U);
  EXPECT_EQ(reader_->traffic().rdma_bytes, 4096U);
}

TEST_F(Choosing, APeerThatWasLeftOutIsReadOverRdmaAgain) {
  Start(Has::kBoth, Has::kBoth, /*left_out=*/kNanosPerSecond / 10);
  readers_->failing_reads = 2;
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(reader_->traffic().rdma_bytes, 0U);
  EXPECT_TRUE(
      testing::Await([&] { return Read().ok() && reader_->traffic().rdma_bytes == 4096U; }));
}

TEST_F(Choosing, MemoryThatCannotBeLockedIsReadOverTcp) {
  Start(Has::kBoth, Has::kBoth);
  readers_->failing_registers = 1;
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(reader_->traffic().tcp_bytes, 4096U);
}

TEST_F(Choosing, WhatIsRevokedIsReadOverNeither) {
  Start(Has::kBoth, Has::kBoth);
  ASSERT_TRUE(Read().ok());
  EXPECT_TRUE(owner_->Revoke(token_, ItsReads::kMayBeUnderWay));
  EXPECT_TRUE(absl::IsPermissionDenied(Read().status()));
  readers_->failing_reads = 2;
  EXPECT_TRUE(absl::IsPermissionDenied(Read().status()));
  EXPECT_FALSE(owner_->Revoke(token_, ItsReads::kMayBeUnderWay));
}

}  // namespace
}  // namespace cairn::transport
