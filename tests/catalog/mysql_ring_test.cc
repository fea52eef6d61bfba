// The ring's rows in the database: each statement does what it says, or nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/catalog/mysql_session.h"
#include "server/catalog/ring_table.h"
#include "tests/catalog/mysql_factory.h"
#include "tests/support/await.h"

namespace cairn::catalog {
namespace {

using How = SeatWritten::How;
using ::testing::HasSubstr;

std::string Instance(char of) { return std::string(16, of); }

class MysqlRingTest : public ::testing::Test {
 protected:
  std::unique_ptr<RingTable> Open(const std::string& cluster = "ours") {
    MysqlOptions options = options_;
    options.cluster = cluster;
    options.call_timeout_s = 2;
    auto opened = OpenMysqlRing(options);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return opened.ok() ? *std::move(opened) : nullptr;
  }
  static RingRows Rows(RingTable* ring) {
    const StatusOr<RingRows> rows = ring->Read();
    EXPECT_TRUE(rows.ok()) << rows.status();
    return rows.ok() ? *rows : RingRows{};
  }

  testing::MariaDb& server_ = TheMariaDb();
  MysqlOptions options_ = server_.MakeDatabase();
};

TEST_F(MysqlRingTest, IsMadeOnceAndRaisedByAGreaterEpochAlone) {
  const auto ring = Open();
  EXPECT_EQ(Rows(ring.get()).epoch, 0);
  EXPECT_EQ(ring->Make(1, 3).how, How::kDone);
  EXPECT_EQ(ring->Make(1, 5).how, How::kDone);
  EXPECT_EQ(Rows(ring.get()).epoch, 1);
  ASSERT_EQ(Rows(ring.get()).seats.size(), 3u);
  EXPECT_EQ(Rows(ring.get()).seats[2].incarnation, 0);
  EXPECT_EQ(Rows(ring.get()).seats[2].beat_age_ms, -1);
  EXPECT_EQ(ring->Make(4, 5).how, How::kDone);
  EXPECT_EQ(ring->Make(3, 2).how, How::kDone);
  EXPECT_EQ(Rows(ring.get()).epoch, 4);
  EXPECT_EQ(Rows(ring.get()).seats.size(), 5u);
}

TEST_F(MysqlRingTest, AClaimNamesTheOldIncarnationAndTheOldBeat) {
  const auto ring = Open();
  ASSERT_EQ(ring->Make(1, 2).how, How::kDone);
  EXPECT_EQ(ring->Claim({0, 1, Instance('a')}, "10.0.0.1:7400", 0, 0).how, How::kDone);
  const SeatRow taken = Rows(ring.get()).seats[0];
  EXPECT_EQ(taken.incarnation, 1);
  EXPECT_EQ(taken.instance, Instance('a'));
  EXPECT_EQ(taken.address, "10.0.0.1:7400");
  EXPECT_GE(taken.beat_age_ms, 0);
  // Of an old reading, or another number, it gets nothing.
  EXPECT_EQ(ring->Claim({0, 2, Instance('b')}, "10.0.0.2:7400", 0, 0).how, How::kNot);
  EXPECT_EQ(ring->Claim({0, 2, Instance('b')}, "10.0.0.2:7400", 1, taken.beat - 1).how, How::kNot);
  EXPECT_EQ(ring->Beat({0, 1, Instance('a')}).how, How::kDone);
  EXPECT_EQ(ring->Claim({0, 2, Instance('b')}, "10.0.0.2:7400", 1, taken.beat).how, How::kNot);
  EXPECT_EQ(ring->Claim({0, 2, Instance('b')}, "10.0.0.2:7400", 1, taken.beat + 1).how, How::kDone);
  // The one before has nothing to say any more.
  EXPECT_EQ(ring->Beat({0, 1, Instance('a')}).how, How::kNot);
  EXPECT_EQ(ring->Raise({0, 1, Instance('a')}, 9).how, How::kNot);
  EXPECT_EQ(ring->Release({0, 1, Instance('a')}).how, How::kNot);
  EXPECT_EQ(Rows(ring.get()).seats[0].instance, Instance('b'));
}

// What a node wrote when it had lost its rank and not noticed yet would be rows in the name of another.
TEST_F(MysqlRingTest, RowsAreWrittenByWhoHasTheRankAlone) {
  const auto ring = Open();
  ASSERT_EQ(ring->Make(1, 2).how, How::kDone);
  ASSERT_EQ(ring->Claim({1, 1, Instance('a')}, "10.0.0.1:7400", 0, 0).how, How::kDone);
  MysqlOptions options = options_;
  options.cluster = "ours";
  options.author = {.name = "1", .alone = false};
  options.seat = {.rank = 1, .instance = Instance('a')};
  const auto opened = OpenMysqlCatalog(options);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto write = [&](const std::string& job, int rows) {
    std::vector<Row> batch;
    for (int i = 0; i < rows; ++i) {
      batch.emplace_back(JobRow{.job = absl::StrCat(job, i), .owner_uid = 7, .sequence = 1});
    }
    return (*opened)->Apply(batch);
  };
  EXPECT_TRUE(write("one", 1).ok());
  EXPECT_TRUE(write("two", 2).ok());
  // A greater number of the same life is no other life.
  ASSERT_EQ(ring->Raise({1, 1, Instance('a')}, 4).how, How::kDone);
  EXPECT_TRUE(write("raised", 1).ok());

  const int64_t beat = Rows(ring.get()).seats[1].beat;
  ASSERT_EQ(ring->Claim({1, 5, Instance('b')}, "10.0.0.2:7400", 4, beat).how, How::kDone);
  for (const int rows : {1, 2}) {
    const Status refused = write("late", rows);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("does not give rank 1 to this node"));
  }
  EXPECT_EQ(*(*opened)->Jobs(), (std::vector<std::string>{"one0", "raised0", "two0", "two1"}));
}

// As one that is stopped just before it commits: its connection lives on.
TEST_F(MysqlRingTest, AWriterThatIsStoppedInATransactionHoldsNobodyUpForLong) {
  const auto ring = Open();
  ASSERT_EQ(ring->Make(1, 1).how, How::kDone);
  ASSERT_EQ(ring->Claim({0, 1, Instance('a')}, "10.0.0.1:7400", 0, 0).how, How::kDone);
  const int64_t beat = Rows(ring.get()).seats[0].beat;
  MysqlOptions options = options_;
  options.idle_timeout_s = 5;
  const auto stopped = MysqlSession::Connect(options);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  ASSERT_TRUE((*stopped)->Execute("START TRANSACTION").ok());
  const Status held = (*stopped)->Query(
      "SELECT 1 FROM members WHERE cluster=? AND member_rank=? LOCK IN SHARE MODE",
      {std::string("ours"), int64_t{0}}, [](const MysqlColumns&) {});
  ASSERT_TRUE(held.ok()) << held;
  SeatWritten taken = ring->Claim({0, 2, Instance('b')}, "10.0.0.2:7400", 1, beat);
  EXPECT_NE(taken.how, How::kDone) << "the row was not held";
  EXPECT_TRUE(testing::Await([&] {
    taken = ring->Claim({0, 2, Instance('b')}, "10.0.0.2:7400", 1, beat);
    return taken.how == How::kDone;
  })) << taken.why;
}

TEST_F(MysqlRingTest, OfManyWhoWantOneRankOneGetsIt) {
  constexpr int kMany = 8;
  const auto ring = Open();
  ASSERT_EQ(ring->Make(1, 1).how, How::kDone);
  std::vector<std::unique_ptr<RingTable>> each;
  for (int i = 0; i < kMany; ++i) each.push_back(Open());
  std::vector<How> how(kMany, How::kRefused);
  std::vector<std::thread> threads;
  for (int i = 0; i < kMany; ++i) {
    threads.emplace_back([&, i] {
      how[i] =
          each[i]->Claim({0, 1, Instance(static_cast<char>('a' + i))}, "10.0.0.1:7400", 0, 0).how;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::count(how.begin(), how.end(), How::kDone), 1);
  // Given up for another one's sake is not done, and known.
  EXPECT_EQ(std::count(how.begin(), how.end(), How::kUnknown), 0);
}

TEST_F(MysqlRingTest, OneNodeHasOneRank) {
  const auto ring = Open();
  ASSERT_EQ(ring->Make(1, 2).how, How::kDone);
  ASSERT_EQ(ring->Claim({0, 1, Instance('a')}, "10.0.0.1:7400", 0, 0).how, How::kDone);
  const SeatWritten second = ring->Claim({1, 1, Instance('a')}, "10.0.0.1:7400", 0, 0);
  EXPECT_EQ(second.how, How::kRefused);
  EXPECT_EQ(Rows(ring.get()).seats[1].instance, "");
}

TEST_F(MysqlRingTest, EachChangeOfHandsIsANewVersion) {
  const auto ring = Open();
  ASSERT_EQ(ring->Make(1, 1).how, How::kDone);
  const int64_t first = Rows(ring.get()).version;
  const SeatWritten claim = ring->Claim({0, 1, Instance('a')}, "10.0.0.1:7400", 0, 0);
  EXPECT_EQ(claim.version, first + 1);
  EXPECT_EQ(ring->Beat({0, 1, Instance('a')}).version, first + 1);
  EXPECT_EQ(ring->Raise({0, 1, Instance('a')}, 5).version, first + 2);
  EXPECT_EQ(ring->Release({0, 5, Instance('a')}).version, first + 3);
  const SeatRow left = Rows(ring.get()).seats[0];
  EXPECT_EQ(left.instance, "");
  EXPECT_EQ(left.incarnation, 6);
  EXPECT_EQ(left.address, "");
}

TEST_F(MysqlRingTest, ResizeGivesTheNextEpochAndTakesNobodysRank) {
  const auto ring = Open();
  ASSERT_TRUE(ring->Resize(2).ok());
  EXPECT_EQ(*ring->Resize(3), 2);
  EXPECT_EQ(*ring->Resize(3), 2) << "nothing has changed";
  ASSERT_EQ(ring->Claim({2, 1, Instance('a')}, "10.0.0.1:7400", 0, 0).how, How::kDone);
  const auto refused = ring->Resize(2);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("rank 2 would go"));
  ASSERT_EQ(ring->Release({2, 1, Instance('a')}).how, How::kDone);
  EXPECT_EQ(*ring->Resize(2), 3);
  EXPECT_EQ(ring->Claim({2, 3, Instance('a')}, "10.0.0.1:7400", 2, 2).how, How::kNot)
      << "a rank that is not in the ring";
  for (const int32_t size : {0, -1, 1025}) {
    EXPECT_EQ(ring->Resize(size).status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
}

TEST_F(MysqlRingTest, ClustersDoNotMeetWhateverTheirNames) {
  const auto ours = Open();
  const auto theirs = Open("x' OR '1'='1");
  ASSERT_EQ(ours->Make(1, 1).how, How::kDone);
  EXPECT_EQ(Rows(theirs.get()).epoch, 0);
  ASSERT_EQ(theirs->Make(7, 2).how, How::kDone);
  ASSERT_EQ(ours->Claim({0, 1, Instance('a')}, "'; DROP TABLE members; --", 0, 0).how, How::kDone);
  ASSERT_EQ(theirs->Claim({0, 1, Instance('a')}, "10.0.0.1:7400", 0, 0).how, How::kDone);
  EXPECT_EQ(Rows(ours.get()).seats[0].address, "'; DROP TABLE members; --");
  EXPECT_EQ(Rows(ours.get()).epoch, 1);
  EXPECT_EQ(Rows(theirs.get()).seats.size(), 2u);
  EXPECT_EQ(ours->Claim({0, 2, Instance('b')}, std::string(300, 'x'), 1, 1).how, How::kRefused);
}

// R21.
TEST_F(MysqlRingTest, AServerThatIsKilledOrReadOnlyIsAnError) {
  const auto ring = Open();
  ASSERT_EQ(ring->Make(1, 1).how, How::kDone);
  server_.Kill();
  EXPECT_FALSE(ring->Read().ok());
  EXPECT_NE(ring->Beat({0, 1, Instance('a')}).how, How::kDone);
  server_.Start({"--read-only=1"});
  ASSERT_TRUE(testing::Await([&] { return ring->Read().ok(); }));
  const SeatWritten refused = ring->Claim({0, 1, Instance('a')}, "10.0.0.1:7400", 0, 0);
  EXPECT_NE(refused.how, How::kDone);
  EXPECT_FALSE(refused.why.ok());
  server_.Kill();
  server_.Start();
  ASSERT_TRUE(testing::Await([&] { return ring->Read().ok(); }));
  EXPECT_EQ(ring->Claim({0, 1, Instance('a')}, "10.0.0.1:7400", 0, 0).how, How::kDone);
}

}  // namespace
}  // namespace cairn::catalog
