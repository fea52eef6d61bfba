// How much memory a piece of a test takes at most.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace cairn::testing {

// Of this process, since this was made.
class PeakMemory {
 public:
  PeakMemory() { std::ofstream("/proc/self/clear_refs") << "5"; }
  // The most so far; 0 where a sanitizer keeps what is freed.
  uint64_t Bytes() const {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 0;
#else
    std::ifstream status("/proc/self/status");
    std::string word;
    uint64_t kib = 0;
    while (status >> word) {
      if (word == "VmHWM:") status >> kib;
    }
    return kib << 10;
#endif
  }
};

}  // namespace cairn::testing
