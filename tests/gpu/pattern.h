// Bytes that a seed decides, so that two processes know them.
#pragma once

#include <cstdint>
#include <string>

namespace cairn::gpu {

inline std::string Pattern(uint64_t bytes, uint32_t seed = 1) {
  std::string text(bytes, 0);
  uint32_t x = seed * 2654435761u + 1;
  for (char& c : text) {
    x = x * 1664525u + 1013904223u;
    c = static_cast<char>(x >> 24);
  }
  return text;
}

}  // namespace cairn::gpu
