// Which block is read next, and from whom, on a timeline of the test's own.
#include "server/node/transfer_schedule.h"

#include <functional>
#include <queue>

#include "gtest/gtest.h"

namespace cairn::node {
namespace {

using engine::Rank;
using engine::action::FetchFor;
using How = TransferSchedule::How;

constexpr uint32_t kBlock = kBlockBytes;
constexpr MonotonicNanos kBegin = 1000 * kNanosPerSecond;

std::vector<uint32_t> Blocks(size_t count) { return std::vector<uint32_t>(count, kBlock); }

// It has delivered a block in no time.
void Know(TransferSchedule* schedule, Rank source) {
  constexpr uint64_t kFetch = 1000;
  schedule->Add(kFetch, FetchFor::kLoad, Blocks(1));
  schedule->AddSource(kFetch, source);
  schedule->Ended(schedule->Next(kBegin).value(), How::kVerified, kBegin + 1);
  schedule->Remove(kFetch);
}

// Sources that deliver one block after the other, each at its rate.
class Timeline {
 public:
  Timeline(TransferSchedule* schedule, std::map<Rank, double> bytes_per_second)
      : schedule_(*schedule), rates_(std::move(bytes_per_second)) {}

  // Until nothing is under way and nothing begins. Returns the seconds that it took.
  double Run() {
    Begin();
    while (!ends_.empty() || schedule_.WakeAt(now_) != 0) {
      if (ends_.empty()) {
        now_ = schedule_.WakeAt(now_);
      } else {
        const auto [at, read] = ends_.top();
        ends_.pop();
        now_ = at;
        came_[read.source] += read.length;
        schedule_.Ended(read, How::kVerified, now_);
      }
      Begin();
    }
    return static_cast<double>(now_ - kBegin) / kNanosPerSecond;
  }
  // What may begin now.
  void Begin() {
    while (const auto read = schedule_.Next(now_)) {
      MonotonicNanos& busy = busy_until_[read->source];
      busy = std::max(busy, now_) + static_cast<MonotonicNanos>(
                                        kNanosPerSecond * (read->length / rates_.at(read->source)));
      ends_.emplace(busy, *read);
    }
  }
  const std::map<Rank, uint64_t>& came() const { return came_; }

 private:
  using End = std::pair<MonotonicNanos, TransferSchedule::Read>;
  struct Later {
    bool operator()(const End& a, const End& b) const { return a.first > b.first; }
  };

  TransferSchedule& schedule_;
  const std::map<Rank, double> rates_;
  MonotonicNanos now_ = kBegin;
  std::map<Rank, MonotonicNanos> busy_until_;
  std::map<Rank, uint64_t> came_;
  std::priority_queue<End, std::vector<End>, Later> ends_;
};

TEST(TransferSchedule, NoMoreIsUnderWayThanOneSourceHasCreditFor) {
  MoverOptions options;
  options.in_flight_bytes_per_peer = 3 * kBlock;
  TransferSchedule schedule(options);
  Know(&schedule, 1);
  schedule.Add(1, FetchFor::kLoad, Blocks(10));
  schedule.AddSource(1, 1);
  std::vector<TransferSchedule::Read> begun;
  while (const auto read = schedule.Next(kBegin)) begun.push_back(*read);
  EXPECT_EQ(begun.size(), 3u);
  schedule.Ended(begun[0], How::kVerified, kBegin + 1);
  EXPECT_TRUE(schedule.Next(kBegin + 1).has_value());
  EXPECT_FALSE(schedule.Next(kBegin + 1).has_value());
}

TEST(TransferSchedule, NoMoreIsUnderWayThanThereIsCreditForInAll) {
  MoverOptions options;
  options.in_flight_bytes = 5 * kBlock;
  options.in_flight_bytes_per_peer = 3 * kBlock;
  TransferSchedule schedule(options);
  for (const uint64_t fetch : {1, 2, 3}) {
    Know(&schedule, static_cast<Rank>(fetch));
    schedule.Add(fetch, FetchFor::kLoad, Blocks(10));
    schedule.AddSource(fetch, static_cast<Rank>(fetch));
  }
  size_t begun = 0;
  while (schedule.Next(kBegin)) ++begun;
  EXPECT_EQ(begun, 5u);
  EXPECT_EQ(schedule.in_flight_bytes(), 5 * uint64_t{kBlock});
}

TEST(TransferSchedule, ShortReadsAreBoundedInNumber) {
  MoverOptions options;
  options.reads_per_peer = 7;
  TransferSchedule schedule(options);
  Know(&schedule, 1);
  schedule.Add(1, FetchFor::kLoad, std::vector<uint32_t>(100, 10));
  schedule.AddSource(1, 1);
  size_t begun = 0;
  while (schedule.Next(kBegin)) ++begun;
  EXPECT_EQ(begun, 7u);
}

TEST(TransferSchedule, WhatIsRestoredGoesFirstThenWhatIsLoadedThenReplicasEachByAge) {
  TransferSchedule schedule({});
  Know(&schedule, 1);
  const std::map<uint64_t, FetchFor> fetches = {{1, FetchFor::kReplica}, {2, FetchFor::kLoad},
                                                {3, FetchFor::kRestore}, {4, FetchFor::kRestore},
                                                {5, FetchFor::kLoad},    {6, FetchFor::kReplica}};
  for (const auto& [fetch, what_for] : fetches) {
    schedule.Add(fetch, what_for, Blocks(1));
    schedule.AddSource(fetch, 1);
  }
  std::vector<uint64_t> order;
  while (const auto read = schedule.Next(kBegin)) order.push_back(read->fetch);
  EXPECT_EQ(order, (std::vector<uint64_t>{3, 4, 2, 5, 1, 6}));
}

TEST(TransferSchedule, ThreeSourcesOfOneSpeedShareEvenly) {
  TransferSchedule schedule({});
  schedule.Add(1, FetchFor::kLoad, Blocks(300));
  for (const Rank source : {1, 2, 3}) schedule.AddSource(1, source);
  Timeline timeline(&schedule, {{1, 1e9}, {2, 1e9}, {3, 1e9}});
  timeline.Run();
  EXPECT_TRUE(schedule.Complete(1));
  for (const auto& [source, bytes] : timeline.came()) {
    EXPECT_NEAR(static_cast<double>(bytes) / kBlock, 100, 10) << "source " << source;
  }
}

TEST(TransferSchedule, ASourceOfATenthOfTheSpeedDoesNotHoldUpTheEnd) {
  TransferSchedule schedule({});
  schedule.Add(1, FetchFor::kLoad, Blocks(120));
  for (const Rank source : {1, 2, 3}) schedule.AddSource(1, source);
  Timeline timeline(&schedule, {{1, 1e9}, {2, 1e8}, {3, 1e9}});
  const double ideal = 120.0 * kBlock / 2.1e9;
  EXPECT_LE(timeline.Run(), 1.2 * ideal);
  EXPECT_TRUE(schedule.Complete(1));
}

TEST(TransferSchedule, ASlowSourceThatIsKnownToBeSlowDoesNotHoldUpASmallFetch) {
  TransferSchedule schedule({});
  schedule.Add(1, FetchFor::kLoad, Blocks(60));
  for (const Rank source : {1, 2}) schedule.AddSource(1, source);
  Timeline first(&schedule, {{1, 1e9}, {2, 1e8}});
  first.Run();
  schedule.Remove(1);
  schedule.Add(2, FetchFor::kLoad, Blocks(5));
  for (const Rank source : {1, 2}) schedule.AddSource(2, source);
  Timeline second(&schedule, {{1, 1e9}, {2, 1e8}});
  EXPECT_LE(second.Run(), 1.2 * 5.0 * kBlock / 1e9);
  EXPECT_TRUE(schedule.Complete(2));
}

// Its grant came first, and the other's before anything had been read.
TEST(TransferSchedule, ASlowSourceThatIsThereFirstDoesNotHoldUpTheEnd) {
  TransferSchedule schedule({});
  const std::map<Rank, double> rates = {{1, 1e9}, {2, 1e8}};
  for (const uint64_t fetch : {1, 2}) {  // first it is not known to be slow, then it is
    schedule.Add(fetch, FetchFor::kLoad, Blocks(60));
    schedule.AddSource(fetch, 2);
    Timeline timeline(&schedule, rates);
    timeline.Begin();
    schedule.AddSource(fetch, 1);
    EXPECT_LE(timeline.Run(), 1.2 * 60.0 * kBlock / 1e9);
    EXPECT_TRUE(schedule.Complete(fetch));
    schedule.Remove(fetch);
  }
}

TEST(TransferSchedule, ReplicasKeepTheirRateAndNothingElseDoes) {
  MoverOptions options;
  options.replication_bytes_per_second = 100 << 20;
  TransferSchedule schedule(options);
  schedule.Add(1, FetchFor::kReplica, Blocks(250));  // 1,000 MiB
  schedule.AddSource(1, 1);
  Timeline timeline(&schedule, {{1, 1e10}});
  const double seconds = timeline.Run();
  EXPECT_GE(seconds, 9.5);
  EXPECT_LE(seconds, 10.5);
  EXPECT_TRUE(schedule.Complete(1));

  schedule.Add(2, FetchFor::kLoad, Blocks(250));
  schedule.AddSource(2, 1);
  Timeline load(&schedule, {{1, 1e10}});
  EXPECT_LE(load.Run(), 0.2);
}

TEST(TransferSchedule, ABlockIsNeverUnderWayTwice) {
  TransferSchedule schedule({});
  schedule.Add(1, FetchFor::kLoad, Blocks(4));
  for (const Rank source : {1, 2, 3}) schedule.AddSource(1, source);
  std::set<uint32_t> under_way;
  std::vector<TransferSchedule::Read> begun;
  while (const auto read = schedule.Next(kBegin)) {
    EXPECT_TRUE(under_way.insert(read->block).second);
    begun.push_back(*read);
  }
  schedule.Ended(begun[2], How::kFailed, kBegin + 1);
  const auto again = schedule.Next(kBegin + 1);
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->block, begun[2].block);
}

TEST(TransferSchedule, ABlockThatASourceHadWrongTwiceComesFromAnother) {
  TransferSchedule schedule({});
  schedule.Add(1, FetchFor::kLoad, Blocks(1));
  schedule.AddSource(1, 1);
  for (int time = 0; time < 2; ++time) {
    const auto read = schedule.Next(kBegin);
    ASSERT_TRUE(read.has_value());
    EXPECT_TRUE(schedule.Ended(*read, How::kBad, kBegin + 1));
  }
  schedule.AddSource(1, 2);
  const auto read = schedule.Next(kBegin + 2);
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->source, 2);
  EXPECT_TRUE(schedule.Ended(*read, How::kVerified, kBegin + 3));
  EXPECT_TRUE(schedule.Complete(1));
}

TEST(TransferSchedule, ABlockIsLostOnceEverySourceHadItWrongAndItWasWrongThreeTimes) {
  TransferSchedule schedule({});
  schedule.Add(1, FetchFor::kLoad, Blocks(1));
  for (const Rank source : {1, 2}) schedule.AddSource(1, source);
  std::set<Rank> asked;
  int times = 0;
  for (bool lost = false; !lost; ++times) {
    const auto read = schedule.Next(kBegin + times);
    ASSERT_TRUE(read.has_value());
    asked.insert(read->source);
    lost = !schedule.Ended(*read, How::kBad, kBegin + times + 1);
    ASSERT_LE(times, 4);
  }
  EXPECT_GE(times, 3);
  EXPECT_EQ(asked.size(), 2u);
}

TEST(TransferSchedule, WhatARemovedFetchHasUnderWayKeepsItsCreditUntilItEnds) {
  MoverOptions options;
  options.in_flight_bytes_per_peer = kBlock;
  TransferSchedule schedule(options);
  schedule.Add(1, FetchFor::kLoad, Blocks(2));
  schedule.AddSource(1, 1);
  const auto read = schedule.Next(kBegin);
  ASSERT_TRUE(read.has_value());
  schedule.Remove(1);
  schedule.Add(2, FetchFor::kLoad, Blocks(2));
  schedule.AddSource(2, 1);
  EXPECT_FALSE(schedule.Next(kBegin).has_value());
  schedule.Ended(*read, How::kFailed, kBegin + 1);
  EXPECT_TRUE(schedule.Next(kBegin + 1).has_value());
}

}  // namespace
}  // namespace cairn::node
