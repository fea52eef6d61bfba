// Bytes that a seed decides, so that two processes know them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace cairn::gpu {

inline std::string Pattern(uint64_t bytes, uint32_t seed = 1) {
  std::string text(bytes, 0);
  uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;
  for (uint64_t at = 0; at < bytes; at += sizeof(x)) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    const uint64_t word = x ^ (x >> 32);  // its low bits alone repeat soon
    std::memcpy(text.data() + at, &word, std::min<uint64_t>(sizeof(word), bytes - at));
  }
  return text;
}

}  // namespace cairn::gpu
