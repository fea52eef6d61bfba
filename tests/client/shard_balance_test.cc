#include "client/cpp/shard_balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

namespace cairn::client {
namespace {

void ByIndex(absl::Span<uint32_t>) {}  // as they come

// What the ranks have of it, by rank.
std::vector<uint64_t> Loads(const std::vector<HeldShard>& shards,
                            const std::vector<ShardOfRank>& given, int32_t ranks) {
  std::vector<uint64_t> loads(static_cast<size_t>(ranks), 0);
  for (const auto& [shard, rank] : given) loads[static_cast<size_t>(rank)] += shards[shard].bytes;
  return loads;
}

TEST(BalanceShards, EachGoesToTheHolderWithTheFewestBytes) {
  const std::vector<int32_t> all = {0, 1, 2};
  const std::vector<int32_t> second = {1};
  const std::vector<HeldShard> shards = {{10, all}, {30, all}, {20, all}, {40, second}};
  const auto given = BalanceShards(shards, 3, ByIndex);
  ASSERT_TRUE(given.ok()) << given.status();
  std::vector<std::pair<uint32_t, int32_t>> pairs;
  for (const auto& [shard, rank] : *given) pairs.emplace_back(shard, rank);
  // The one with one holder first, then the larger ones.
  EXPECT_EQ(pairs, (std::vector<std::pair<uint32_t, int32_t>>{{3, 1}, {1, 0}, {2, 2}, {0, 2}}));
  EXPECT_EQ(Loads(shards, *given, 3), (std::vector<uint64_t>{30, 40, 30}));
}

TEST(BalanceShards, OfEqualsTheLowestRankWhateverTheOrderOfHolders) {
  const std::vector<int32_t> holders = {3, 1, 2};
  const std::vector<HeldShard> shards = {{0, holders}, {0, holders}};
  const auto given = BalanceShards(shards, 4, ByIndex);
  ASSERT_TRUE(given.ok()) << given.status();
  for (const auto& one : *given) EXPECT_EQ(one.rank, 1);
}

TEST(BalanceShards, WhatOthersHaveTheMainCopyOfComesLast) {
  const std::vector<int32_t> all = {0, 1};
  const std::vector<HeldShard> shards = {{100, all, true}, {1, all, false}};
  const auto given = BalanceShards(shards, 2, ByIndex);
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ((*given)[0].shard, 1U);
  EXPECT_EQ((*given)[1].rank, 1);
}

TEST(BalanceShards, NamesDecideBetweenEqualsNotTheOrderInWhichTheyCome) {
  const std::vector<int32_t> all = {0, 1, 2, 3};
  std::vector<uint32_t> names(64);
  std::iota(names.begin(), names.end(), 0U);
  std::mt19937 random(20261127);
  std::vector<int32_t> expected;
  for (int round = 0; round < 8; ++round) {
    std::vector<HeldShard> shards;
    for (const uint32_t name : names) shards.push_back({name % 7 * 4, all});
    const auto given = BalanceShards(shards, 4, [&names](absl::Span<uint32_t> equals) {
      EXPECT_TRUE(std::is_sorted(equals.begin(), equals.end()));
      std::sort(equals.begin(), equals.end(),
                [&names](uint32_t a, uint32_t b) { return names[a] < names[b]; });
    });
    ASSERT_TRUE(given.ok()) << given.status();
    std::vector<int32_t> by_name(names.size());
    for (const auto& [shard, rank] : *given) by_name[names[shard]] = rank;
    if (round == 0) expected = by_name;
    EXPECT_EQ(by_name, expected);
    std::shuffle(names.begin(), names.end(), random);
  }
}

TEST(BalanceShards, LargeOnesComeFirstInEachOrderOfMagnitude) {
  const std::vector<int32_t> one = {0};
  const std::vector<int32_t> two = {0, 1};
  std::mt19937_64 random(20261127);
  std::vector<HeldShard> shards;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t bytes = random() >> (random() % 64);
    shards.push_back({bytes, i % 3 != 0 ? one : two, i % 5 == 0});
  }
  std::vector<uint32_t> expected(shards.size());
  std::iota(expected.begin(), expected.end(), 0U);
  std::stable_sort(expected.begin(), expected.end(), [&shards](uint32_t a, uint32_t b) {
    return std::make_tuple(shards[a].of_others, shards[a].holders.size(), ~shards[a].bytes) <
           std::make_tuple(shards[b].of_others, shards[b].holders.size(), ~shards[b].bytes);
  });
  const auto given = BalanceShards(shards, 2, ByIndex);
  ASSERT_TRUE(given.ok()) << given.status();
  std::vector<uint32_t> order;
  for (const auto& [shard, rank] : *given) order.push_back(shard);
  EXPECT_EQ(order, expected);
}

TEST(BalanceShards, RefusesWhatNobodyHoldsOrSomebodyOutside) {
  const std::vector<int32_t> outside = {0, 2};
  const std::vector<int32_t> below = {-1};
  EXPECT_EQ(BalanceShards({HeldShard{1, {}}}, 2, ByIndex).status().message(),
            "shard 0: no rank holds it");
  EXPECT_EQ(BalanceShards({HeldShard{1, outside}}, 2, ByIndex).status().message(),
            "shard 0: rank 2 is not in 0 … 1");
  EXPECT_FALSE(BalanceShards({HeldShard{1, below}}, 2, ByIndex).ok());
  EXPECT_TRUE(BalanceShards({}, 0, ByIndex)->empty());
}

}  // namespace
}  // namespace cairn::client
