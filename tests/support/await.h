// A test waits for a state, never for a time.
#pragma once

#include <chrono>
#include <thread>

#include "tests/support/patience.h"

namespace cairn::testing {

// Looks again and again until `holds()`. False: it did not come to that within `bound`, times the patience factor.
template <typename Holds>
[[nodiscard]] bool Await(const Holds& holds,
                         std::chrono::nanoseconds bound = std::chrono::seconds(60)) {
  const auto until = std::chrono::steady_clock::now() + Patient(bound);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return holds();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace cairn::testing
