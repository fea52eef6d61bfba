// Rings of tens of nodes, in the ordinary run; the program large_ring (docs/testing.md) takes other sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/ring/large.h"
#include "tests/ring/losses.h"

namespace cairn::engine::ringsim {
namespace {

constexpr int kNodes = 30;

LargeRing RingOf(int nodes, int replicas) {
  LargeRing ring;
  ring.nodes = nodes;
  ring.replicas = replicas;
  return ring;
}

// Its own part and those that it keeps for others come over one link, which nothing else uses.
TEST(LargeRing, AReplacedNodeIsMadeGoodInTheTimeOfItsBytes) {
  for (const int replicas : {1, 2}) {
    const LargeRing ring = RingOf(kNodes, replicas);
    LargeLife life(ring);
    life.Begin();
    ASSERT_EQ(life.failure(), "");
    const double seconds = life.Replace(7);
    ASSERT_EQ(life.failure(), "");
    const double bytes = static_cast<double>(ring.part_bytes) * (1 + replicas);
    const double transfer = bytes / (ring.mbit * 1e6 / 8);
    EXPECT_GT(seconds, transfer);
    EXPECT_LT(seconds, transfer * 1.1 + 4) << "to be met, to be asked and to be heard";
  }
}

TEST(LargeRing, EachPartLiesWithItsOwnerAndTheNextAroundTheRing) {
  LargeLife life(RingOf(kNodes, 2));
  life.Begin();
  ASSERT_EQ(life.failure(), "");
  const Holders holders = life.HoldersNow();
  for (Rank owner = 0; owner < kNodes; ++owner) {
    const std::set<Rank> along{owner, (owner + 1) % kNodes, (owner + 2) % kNodes};
    EXPECT_EQ(holders[static_cast<size_t>(owner)], along);
  }
}

TEST(LargeRing, SharesOfLossesThatAreSurvivedAgreeWithTheFormula) {
  constexpr int64_t kDraws = 20'000;
  for (const int replicas : {1, 2}) {
    LargeLife life(RingOf(kNodes, replicas));
    life.Begin();
    ASSERT_EQ(life.failure(), "");
    const Holders holders = life.HoldersNow();
    sim::Rng rng(11);
    for (const int lost : {1, 2, 3, 5, 8, 12}) {
      const double exact = ProbabilityHeld(kNodes, lost, replicas);
      EXPECT_NEAR(ShareHeld(holders, kNodes, lost, kDraws, &rng), exact,
                  SamplingError(exact, kDraws))
          << lost << " lost, " << replicas << " replicas";
    }
  }
}

// What is counted from where the copies lie is what the members that are left say. 12 and 13 are the owner of a part and
// the one that has its copy.
TEST(LargeRing, WhoIsLeftHasTheStepWhereTheCountSaysSo) {
  for (const std::set<Rank>& lost : {std::set<Rank>{3, 5, 29}, std::set<Rank>{4, 12, 13}}) {
    LargeLife life(RingOf(kNodes, 1));
    life.Begin();
    ASSERT_EQ(life.failure(), "");
    const bool held = AllHeld(life.HoldersNow(), lost);
    life.Lose(lost, 60);  // until they count as lost, and whoever is the job's home has asked all
    EXPECT_EQ(life.Latest(20), held ? 0 : kNoStep);
    EXPECT_EQ(held, !lost.contains(13));
  }
}

// By looking at each set of lost nodes.
double Counted(int nodes, int lost, int replicas) {
  int64_t all = 0, held = 0;
  for (uint32_t set = 0; set < (1u << nodes); ++set) {
    if (__builtin_popcount(set) != lost) continue;
    ++all;
    bool ok = true;
    for (int owner = 0; owner < nodes; ++owner) {
      bool gone = true;
      for (int i = 0; i <= replicas; ++i) gone &= ((set >> ((owner + i) % nodes)) & 1) != 0;
      ok &= !gone;
    }
    held += ok ? 1 : 0;
  }
  return static_cast<double>(held) / static_cast<double>(all);
}

TEST(RingLosses, TheFormulaCountsWhatThereIs) {
  for (const int nodes : {3, 5, 8, 11}) {
    for (int replicas = 0; replicas < std::min(nodes, 4); ++replicas) {
      for (int lost = 0; lost <= nodes; ++lost) {
        EXPECT_NEAR(ProbabilityHeld(nodes, lost, replicas), Counted(nodes, lost, replicas), 1e-12)
            << nodes << " nodes, " << lost << " lost, " << replicas << " replicas";
      }
    }
  }
}

// n/(n−k) · C(n−k, k) / C(n, k).
TEST(RingLosses, WithOneReplicaItIsTheFormulaOfTextbooks) {
  for (const int lost : {1, 2, 10, 50}) {
    const int n = 1000;
    double share = static_cast<double>(n) / (n - lost);
    for (int i = 0; i < lost; ++i)
      share *= static_cast<double>(n - 2 * lost + 1 + i) / (n - lost + 1 + i);
    EXPECT_NEAR(ProbabilityHeld(n, lost, 1), share, 1e-9) << lost;
  }
}

}  // namespace
}  // namespace cairn::engine::ringsim
