// Sizes of a tiny round (tests/bench/run.py --tiny): the tests run each row once, as small as it can be, and look at
// what goes wrong, not at the figures. Python asks bench_row.py.
#pragma once

#include <cstdlib>

namespace cairn::bench {

inline bool Tiny() {
  static const bool tiny = std::getenv("CAIRN_BENCH_TINY") != nullptr;
  return tiny;
}

template <typename T>
T Sized(T full, T tiny) {
  return Tiny() ? tiny : full;
}

}  // namespace cairn::bench
