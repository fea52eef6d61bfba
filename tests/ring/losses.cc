#include "tests/ring/losses.h"

#include <algorithm>
#include <cmath>

namespace cairn::engine::ringsim {

std::set<Rank> DrawLost(int nodes, int lost, sim::Rng* rng) {
  std::set<Rank> drawn;
  // Floyd's way: each set is as likely, with one number for each of its members.
  for (int last = nodes - lost; last < nodes; ++last) {
    const auto rank = static_cast<Rank>(rng->Below(static_cast<uint64_t>(last) + 1));
    drawn.insert(drawn.contains(rank) ? last : rank);
  }
  return drawn;
}

bool AllHeld(const Holders& holders, const std::set<Rank>& lost) {
  return std::none_of(holders.begin(), holders.end(), [&](const std::set<Rank>& of_part) {
    return std::all_of(of_part.begin(), of_part.end(),
                       [&](Rank rank) { return lost.contains(rank); });
  });
}

double ShareHeld(const Holders& holders, int nodes, int lost, int64_t draws, sim::Rng* rng) {
  int64_t held = 0;
  for (int64_t i = 0; i < draws; ++i) held += AllHeld(holders, DrawLost(nodes, lost, rng)) ? 1 : 0;
  return static_cast<double>(held) / static_cast<double>(draws);
}

double ProbabilityHeld(int nodes, int lost, int replicas) {
  const int left = nodes - lost;
  if (lost == 0) return 1;
  if (left <= 0) return 0;
  // Coefficients up to x^lost; of 1,000 nodes they stay below 10^302.
  std::vector<long double> ways(static_cast<size_t>(lost) + 1, 0);
  ways[0] = 1;
  for (int gap = 0; gap < left; ++gap) {
    for (int k = lost; k > 0; --k) {
      for (int in_gap = 1; in_gap <= std::min(replicas, k); ++in_gap) {
        ways[static_cast<size_t>(k)] += ways[static_cast<size_t>(k - in_gap)];
      }
    }
  }
  long double all = 1;  // C(nodes, lost)
  for (int k = 1; k <= lost; ++k) all = all * (left + k) / k;
  return static_cast<double>(ways[static_cast<size_t>(lost)] / all * nodes / left);
}

double SamplingError(double probability, int64_t draws) {
  const auto n = static_cast<double>(draws);
  return 4 * std::sqrt(probability * (1 - probability) / n) + 1 / n;
}

}  // namespace cairn::engine::ringsim
