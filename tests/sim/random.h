// All chance in a simulated life comes from one 64-bit seed, through these.
#pragma once

#include <cstdint>
#include <vector>

namespace cairn::engine::sim {

// splitmix64: small, and the same with every standard library, which std::…_distribution is not.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t n) { return n == 0 ? 0 : Next() % n; }
  // Both ends included.
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  bool Permille(uint64_t n) { return Below(1000) < n; }
  template <class T>
  const T& Pick(const std::vector<T>& from) {
    return from[Below(from.size())];
  }

 private:
  uint64_t state_;
};

inline uint64_t Mix(uint64_t a, uint64_t b) { return Rng(a * 0x9e3779b97f4a7c15ull + b).Next(); }

}  // namespace cairn::engine::sim
