// The decorator's faults do what tests of other rooms rely on.
#include "tests/transport/faulty_transport.h"

#include <gtest/gtest.h>

#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

class FaultyTransport : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(owner_->Attach(kOwned, owned_.fd(), owned_.size()).ok());
    ASSERT_TRUE(reader_->Attach(kFetched, fetched_.fd(), fetched_.size()).ok());
    ASSERT_TRUE(owner_->Grant(token_, kReader, {{kOwned, 0, owned_.size()}}).ok());
    region_ = *owner_->Describe({kOwned, 0, owned_.size()});
  }
  StatusOr<uint32_t> Read() {
    return ReadNow(reader_.get(), ReadOf(*owner_, token_, region_, 0, bytes_.size(), fetched_));
  }

  const std::string bytes_ = Noise(100'000, 3);
  const Memory owned_{bytes_};
  Memory fetched_{bytes_.size()};
  const GrantToken token_ = NewGrantToken();
  std::string region_;
  const std::shared_ptr<TransportFaults> faults_ = std::make_shared<TransportFaults>();
  const std::unique_ptr<Transport> owner_ = StartTcp({.rank = 1, .incarnation = 5});
  const std::unique_ptr<Transport> reader_ = MakeFaultyTransport(StartTcp(kReader), faults_);
};

TEST_F(FaultyTransport, AReadFailsAfterSoMany) {
  faults_->Add({.call = TransportCall::kRead, .after = 2});
  EXPECT_TRUE(Read().ok());
  EXPECT_TRUE(Read().ok());
  EXPECT_TRUE(absl::IsUnavailable(Read().status()));
}

TEST_F(FaultyTransport, ACutReadMayHaveBroughtItsBytes) {
  faults_->Add({.kind = testing::FaultKind::kMaybeHappened, .call = TransportCall::kRead});
  EXPECT_TRUE(absl::IsUnavailable(Read().status()));
  EXPECT_EQ(fetched_.Read(0, bytes_.size()), bytes_);
}

TEST_F(FaultyTransport, AFlippedBitIsInTheBytesAndInTheirChecksum) {
  faults_->Add({.call = TransportCall::kFlip, .times = 1});
  const auto crc = Read();
  ASSERT_TRUE(crc.ok());
  const std::string came = fetched_.Read(0, bytes_.size());
  EXPECT_NE(came, bytes_);
  EXPECT_EQ(*crc, Crc32c(0, came.data(), came.size()));
  EXPECT_NE(*crc, Crc32c(0, bytes_.data(), bytes_.size()));
  EXPECT_EQ(*Read(), Crc32c(0, bytes_.data(), bytes_.size())) << "once only";
}

TEST_F(FaultyTransport, AReadHangsUntilItIsReleased) {
  faults_->Add({.kind = testing::FaultKind::kHang, .call = TransportCall::kRead});
  auto read = Begin(reader_.get(), ReadOf(*owner_, token_, region_, 0, bytes_.size(), fetched_));
  faults_->WaitUntilHung(1);
  EXPECT_EQ(read.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  faults_->Clear();
  EXPECT_TRUE(read.get().ok());
}

}  // namespace
}  // namespace cairn::transport
