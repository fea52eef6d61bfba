// For programs that measure: what must not fail, and how long something takes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "common/status.h"

namespace cairn::testing {

// Ends the program, and says why, unless it is OK.
inline void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T Must(StatusOr<T> made) {
  Must(made.status());
  return *std::move(made);
}

template <typename What>
double Seconds(const What& what) {
  const auto start = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double Median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of[of.size() / 2];
}

}  // namespace cairn::testing
