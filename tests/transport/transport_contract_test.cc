// What every transport must do (server/transport/transport.h). A back end or a decorator joins with a
// line in the list at the end; what only one back end does has a test file of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tests/transport/contract_kinds.h"
#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

using ::testing::HasSubstr;

class TransportContract : public ::testing::TestWithParam<ContractKind> {
 protected:
  static constexpr PeerId kOwner = {.rank = 1, .incarnation = 5};

  void SetUp() override {
    ASSERT_TRUE(owner_->Attach(kOwned, owned_.fd(), owned_.size()).ok());
    ASSERT_TRUE(reader_->Attach(kFetched, fetched_.fd(), fetched_.size()).ok());
  }
  // A grant of the whole slab, and its region.
  GrantToken GrantAll() {
    const GrantToken token = NewGrantToken();
    EXPECT_TRUE(owner_->Grant(token, kReader, {All()}).ok());
    return token;
  }
  ExtentRef All() const { return {kOwned, 0, owned_.size()}; }
  std::string Region(const ExtentRef& extent) {
    const auto region = owner_->Describe(extent);
    EXPECT_TRUE(region.ok()) << region.status();
    return region.ok() ? *region : "";
  }
  StatusOr<uint32_t> Read(const GrantToken& token, uint64_t offset, uint64_t length) {
    return ReadNow(reader_.get(), ReadOf(*owner_, token, Region(All()), offset, length, fetched_));
  }

  const std::string bytes_ = Noise(10'000'001, 1);
  const Memory owned_{bytes_};
  Memory fetched_{bytes_.size() + kPageBytes};
  const std::unique_ptr<Transport> owner_ = GetParam().start(kOwner);
  std::unique_ptr<Transport> reader_ = GetParam().start(kReader);
};

TEST_P(TransportContract, BytesArriveWithTheirChecksum) {
  const GrantToken token = GrantAll();
  for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0, 1}, {0, kBlockBytes}, {4095, 4098}, {bytes_.size() - 1, 1}, {123, 256 << 10}}) {
    const auto crc = Read(token, offset, length);
    ASSERT_TRUE(crc.ok()) << crc.status();
    EXPECT_EQ(*crc, Crc32c(0, bytes_.data() + offset, length));
    EXPECT_EQ(fetched_.Read(offset, length), bytes_.substr(offset, length));
  }
}

TEST_P(TransportContract, ManyReadsAtOnceMixNothingUp) {
  const GrantToken token = GrantAll();
  const std::string region = Region(All());
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(
        ReadAllOf(reader_.get(), *owner_, token, region, bytes_, fetched_, /*ahead=*/64).ok());
    EXPECT_EQ(fetched_.Read(0, bytes_.size()), bytes_);
  }
}

TEST_P(TransportContract, OnlyTheBytesThatWereAskedForAreTouched) {
  const GrantToken token = GrantAll();
  ASSERT_TRUE(Read(token, 5000, 3000).ok());
  EXPECT_EQ(fetched_.Read(0, 5000), std::string(5000, '\0'));
  EXPECT_EQ(fetched_.Read(8000, 5000), std::string(5000, '\0'));
}

TEST_P(TransportContract, WithoutAGrantNothingIsRead) {
  const auto crc = Read(NewGrantToken(), 0, 100);
  EXPECT_TRUE(absl::IsPermissionDenied(crc.status())) << crc.status();
  EXPECT_EQ(fetched_.Read(0, 100), std::string(100, '\0'));
}

TEST_P(TransportContract, AGrantIsOfItsExtentsAlone) {
  const GrantToken token = NewGrantToken();
  ASSERT_TRUE(owner_->Grant(token, kReader, {{kOwned, 8192, 4096}, {kOwned, 16384, 4096}}).ok());
  EXPECT_TRUE(Read(token, 8192, 4096).ok());
  EXPECT_TRUE(Read(token, 16384 + 4095, 1).ok());
  for (const auto& [offset, length] : std::vector<std::pair<uint64_t, uint64_t>>{
           {8191, 1}, {8191, 2}, {12288, 1}, {12287, 2}, {16384, 4097}, {0, 1}}) {
    const auto crc = Read(token, offset, length);
    EXPECT_TRUE(absl::IsPermissionDenied(crc.status())) << offset << " " << crc.status();
  }
}

TEST_P(TransportContract, AGrantIsOfItsReaderAlone) {
  const GrantToken token = NewGrantToken();
  ASSERT_TRUE(owner_->Grant(token, {.rank = 3, .incarnation = 7}, {All()}).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(Read(token, 0, 1).status()));
}

TEST_P(TransportContract, ARevokedGrantReadsNothing) {
  const GrantToken token = GrantAll(), other = GrantAll();
  ASSERT_TRUE(Read(token, 0, 1000).ok());
  EXPECT_TRUE(owner_->Revoke(token, ItsReads::kMayBeUnderWay));
  EXPECT_FALSE(owner_->Revoke(token, ItsReads::kMayBeUnderWay));
  EXPECT_TRUE(absl::IsPermissionDenied(Read(token, 0, 1000).status()));
  EXPECT_TRUE(Read(other, 0, 1000).ok());
}

TEST_P(TransportContract, AGrantThatItsReaderHasFinishedReadsNothingOnceItIsRevoked) {
  const GrantToken token = GrantAll(), other = GrantAll();
  ASSERT_TRUE(Read(token, 0, 1000).ok());
  ASSERT_TRUE(Read(other, 0, 1000).ok());
  EXPECT_TRUE(owner_->Revoke(token, reader_->Finish(owner_->Address(), token)));
  EXPECT_TRUE(absl::IsPermissionDenied(Read(token, 0, 1000).status()));
  EXPECT_TRUE(Read(other, 0, 1000).ok());
}

TEST_P(TransportContract, RevokingAPeerEndsAllItsGrants) {
  const GrantToken token = GrantAll(), other = GrantAll();
  owner_->RevokePeer({.rank = 2, .incarnation = 6});  // another life
  EXPECT_TRUE(Read(token, 0, 10).ok());
  owner_->RevokePeer(kReader);
  EXPECT_TRUE(absl::IsPermissionDenied(Read(token, 0, 10).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(Read(other, 0, 10).status()));
}

// That nothing of it is left in a queue is for each back end to show: tcp_transport_test.cc.
TEST_P(TransportContract, RevokedInTheMiddleAReadEndsWithItsBytesOrAnError) {
  for (int round = 0; round < 8; ++round) {
    const GrantToken token = GrantAll();
    const std::string region = Region(All());
    std::vector<std::pair<uint64_t, std::future<StatusOr<uint32_t>>>> reads;
    for (uint64_t at = 0; at + kBlockBytes <= bytes_.size(); at += kBlockBytes / 2) {
      reads.emplace_back(
          at, Begin(reader_.get(), ReadOf(*owner_, token, region, at, kBlockBytes, fetched_)));
    }
    // In another place of them each time.
    for (size_t i = 0; i < static_cast<size_t>(round) % (reads.size() + 1); ++i)
      reads[i].second.wait();
    EXPECT_TRUE(owner_->Revoke(token, ItsReads::kMayBeUnderWay));
    for (auto& [at, read] : reads) {
      const auto crc = read.get();
      if (crc.ok()) {
        EXPECT_EQ(*crc, Crc32c(0, bytes_.data() + at, kBlockBytes));
      } else {
        EXPECT_TRUE(absl::IsPermissionDenied(crc.status()) || absl::IsUnavailable(crc.status()))
            << crc.status();
      }
    }
    // A stream that the owner cut for it may still be chosen, which says no more than that.
    Status after = Read(token, 0, 1).status();
    while (absl::IsUnavailable(after)) after = Read(token, 0, 1).status();
    EXPECT_TRUE(absl::IsPermissionDenied(after)) << after;
  }
}

TEST_P(TransportContract, GrantsAreRefusedThatReachBeyondTheSlab) {
  const GrantToken token = NewGrantToken();
  EXPECT_TRUE(
      absl::IsOutOfRange(owner_->Grant(token, kReader, {All(), {kOwned, 4096, owned_.size()}})));
  EXPECT_TRUE(absl::IsNotFound(owner_->Grant(token, kReader, {{kOwned + 1, 0, 10}})));
  EXPECT_TRUE(absl::IsOutOfRange(owner_->Describe({kOwned, 0, owned_.size() + 1}).status()));
  EXPECT_TRUE(absl::IsOutOfRange(owner_->Describe({kOwned, ~uint64_t{0}, 2}).status()));
  EXPECT_TRUE(absl::IsNotFound(owner_->Describe({kOwned + 1, 0, 10}).status()));
  // A grant that was refused gave nothing.
  EXPECT_TRUE(absl::IsPermissionDenied(Read(token, 0, 1).status()));
  ASSERT_TRUE(owner_->Grant(token, kReader, {All()}).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(owner_->Grant(token, kReader, {All()})));
}

TEST_P(TransportContract, WrongRequestsAreNamed) {
  const GrantToken token = GrantAll();
  const ReadRequest good = ReadOf(*owner_, token, Region(All()), 0, 100, fetched_);
  const auto error = [&](const std::function<void(ReadRequest*)>& spoil) {
    ReadRequest request = good;
    spoil(&request);
    return ReadNow(reader_.get(), request).status();
  };
  EXPECT_THAT(error([](auto* r) { r->length = 0; }).message(), HasSubstr("length: 0"));
  EXPECT_THAT(error([](auto* r) { r->length = kMaxReadBytes + 1; }).message(), HasSubstr("length"));
  EXPECT_THAT(error([](auto* r) { r->region = "x"; }).message(), HasSubstr("region"));
  EXPECT_THAT(error([](auto* r) { r->offset = ~uint64_t{0}; }).message(), HasSubstr("offset"));
  EXPECT_THAT(error([](auto* r) { r->into_offset = ~uint64_t{0} - 5; }).message(),
              HasSubstr("into_offset"));
  EXPECT_TRUE(absl::IsOutOfRange(error([](auto* r) { r->into.length *= 2; })));
  EXPECT_TRUE(absl::IsNotFound(error([](auto* r) { r->into.slab = 99; })));
}

TEST_P(TransportContract, SlabsAreAttachedOnceAndWithTheirBytes) {
  EXPECT_TRUE(absl::IsAlreadyExists(owner_->Attach(kOwned, owned_.fd(), owned_.size())));
  EXPECT_TRUE(absl::IsInvalidArgument(owner_->Attach(33, owned_.fd(), owned_.size() + 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(owner_->Attach(33, owned_.fd(), 0)));
  owner_->Detach(33);
  EXPECT_TRUE(owner_->Attach(33, owned_.fd(), 100).ok());
  EXPECT_TRUE(absl::IsOutOfRange(owner_->Describe({33, 0, 101}).status()));
}

TEST_P(TransportContract, ADetachedSlabIsNotReadFrom) {
  const GrantToken token = GrantAll();
  const std::string region = Region(All());
  owner_->Detach(kOwned);
  const auto crc = ReadNow(reader_.get(), ReadOf(*owner_, token, region, 0, 100, fetched_));
  EXPECT_TRUE(absl::IsPermissionDenied(crc.status())) << crc.status();
  // Nor by the old grant once a slab has its number again.
  ASSERT_TRUE(owner_->Attach(kOwned, owned_.fd(), owned_.size()).ok());
  const auto again = ReadNow(reader_.get(), ReadOf(*owner_, token, region, 0, 100, fetched_));
  EXPECT_TRUE(absl::IsPermissionDenied(again.status())) << again.status();
}

TEST_P(TransportContract, ADetachedSlabIsNotWrittenTo) {
  for (int round = 0; round < 8; ++round) {
    const GrantToken token = GrantAll();
    const std::string region = Region(All());
    std::vector<std::future<StatusOr<uint32_t>>> reads;
    for (int i = 0; i < 8; ++i) {
      reads.push_back(
          Begin(reader_.get(), ReadOf(*owner_, token, region, 0, kBlockBytes, fetched_)));
    }
    for (int i = 0; i < round; ++i) reads[i].wait();
    reader_->Detach(kFetched);
    const std::string mark(kBlockBytes, static_cast<char>(round + 1));
    fetched_.Write(0, mark);
    for (auto& read : reads) {
      const auto crc = read.get();
      // NOT_FOUND: the decorator had not begun it.
      EXPECT_TRUE(crc.ok() || absl::IsCancelled(crc.status()) || absl::IsNotFound(crc.status()))
          << crc.status();
    }
    EXPECT_EQ(fetched_.Read(0, kBlockBytes), mark);
    ASSERT_TRUE(reader_->Attach(kFetched, fetched_.fd(), fetched_.size()).ok());
    EXPECT_TRUE(owner_->Revoke(token, ItsReads::kMayBeUnderWay));
  }
}

TEST_P(TransportContract, ReadsRenewTheirGrant) {
  const GrantToken token = GrantAll();
  const auto given = owner_->LastUsed(token);
  ASSERT_TRUE(given.ok());
  ASSERT_TRUE(Read(token, 0, 100).ok());
  EXPECT_GT(*owner_->LastUsed(token), *given);
  EXPECT_TRUE(absl::IsNotFound(owner_->LastUsed(NewGrantToken()).status()));
}

TEST_P(TransportContract, APeerThatIsNotThereIsUnavailable) {
  const GrantToken token = GrantAll();
  ReadRequest request = ReadOf(*owner_, token, Region(All()), 0, 100, fetched_);
  request.address = "127.0.0.1:1";
  const auto crc = ReadNow(reader_.get(), request);
  EXPECT_TRUE(absl::IsUnavailable(crc.status())) << crc.status();
  EXPECT_THAT(crc.status().message(), HasSubstr("127.0.0.1:1"));
}

TEST_P(TransportContract, ADeadlineThatHasPassedEndsTheRead) {
  const GrantToken token = GrantAll();
  ReadRequest request = ReadOf(*owner_, token, Region(All()), 0, 100, fetched_);
  request.deadline = RealClock()->Now() - 1;
  EXPECT_TRUE(absl::IsDeadlineExceeded(ReadNow(reader_.get(), request).status()));
}

TEST_P(TransportContract, EveryReadEndsWhenTheReaderCloses) {
  const GrantToken token = GrantAll();
  const std::string region = Region(All());
  std::atomic<int> ended = 0;
  for (int i = 0; i < 500; ++i) {
    reader_->Read(ReadOf(*owner_, token, region, 0, kBlockBytes, fetched_),
                  [&ended](const StatusOr<uint32_t>&) { ++ended; });
  }
  reader_.reset();
  EXPECT_EQ(ended, 500);
}

// Who is told of a read's end may begin the next one, as a mover does, until there is no transport.
TEST_P(TransportContract, ReadsAreBegunWhereOthersEnd) {
  const GrantToken token = GrantAll();
  const std::string region = Region(All());
  std::atomic<int> ended = 0, under_way = 1;
  std::function<void(const StatusOr<uint32_t>&)> next = [&](const StatusOr<uint32_t>& crc) {
    ++ended;
    if (crc.ok()) {
      ++under_way;
      reader_->Read(ReadOf(*owner_, token, region, 0, 4096, fetched_), next);
    }
    --under_way;
  };
  reader_->Read(ReadOf(*owner_, token, region, 0, 4096, fetched_), next);
  while (ended < 100) std::this_thread::yield();
  owner_->RevokePeer(kReader);
  while (under_way > 0) std::this_thread::yield();
}

TEST_P(TransportContract, BothReadFromEachOtherAtOnce) {
  const GrantToken token = GrantAll(), back = NewGrantToken();
  ASSERT_TRUE(reader_->Grant(back, kOwner, {{kFetched, 0, bytes_.size()}}).ok());
  const Memory returned(bytes_.size());
  ASSERT_TRUE(owner_->Attach(kFetched, returned.fd(), returned.size()).ok());
  ASSERT_TRUE(ReadAllOf(reader_.get(), *owner_, token, Region(All()), bytes_, fetched_).ok());
  const auto region = reader_->Describe({kFetched, 0, bytes_.size()});
  ASSERT_TRUE(region.ok());
  std::thread again([&] {
    EXPECT_TRUE(ReadAllOf(reader_.get(), *owner_, token, Region(All()), bytes_, fetched_).ok());
  });
  EXPECT_TRUE(ReadAllOf(owner_.get(), *reader_, back, *region, bytes_, returned).ok());
  again.join();
  EXPECT_EQ(returned.Read(0, bytes_.size()), bytes_);
}

INSTANTIATE_TEST_SUITE_P(All, TransportContract, ::testing::ValuesIn(ContractKinds()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace cairn::transport
