// What the engine is given to do: a node of many steps, one step of many writers, one step of many
// objects.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/bench/apply_node.h"
#include "tests/bench/tiny.h"

namespace cairn::bench {

struct ApplySettings {
  int passes = Sized(3, 1);
  int rounds = Sized(12, 1);  // of a pass
  bool table = false;
  size_t large = 0;
};

// What a size or a world came to.
struct ApplyResult {
  std::string name;  // "apply/1000"
  std::vector<Meter::Figures> passes;
  double spin_p50 = 0, spin_worst = 0, snapshot = 0, describe = 0;
  std::string held;
  std::map<std::string, double> p50_of_kind;  // of those there are enough of

  // The median of the passes.
  double Median(double Meter::Figures::*figure) const {
    std::vector<double> all;
    for (const Meter::Figures& pass : passes) all.push_back(pass.*figure);
    std::sort(all.begin(), all.end());
    return all.empty() ? 0 : all[all.size() / 2];
  }
  double P50() const { return Median(&Meter::Figures::p50); }
  const Meter::Figures& Worst() const {
    return *std::max_element(passes.begin(), passes.end(),
                             [](const auto& a, const auto& b) { return a.worst < b.worst; });
  }
};

// With so many objects, or writers; of a tiny round the result's name alone has this number.
ApplyResult RunObjects(const ApplySettings& settings, size_t objects);
ApplyResult RunWriters(const ApplySettings& settings, int32_t writers);
void RunLarge(const ApplySettings& settings, size_t objects);  // prints a table

}  // namespace cairn::bench
