// Bytes are not simulated, only which bytes they are: a content is a number, and its checksums
// follow from it.
#pragma once

#include <cstdint>
#include <vector>

namespace cairn::engine::sim {

struct ObjectBytes {
  uint64_t length = 0;
  uint64_t content = 0;
  bool operator==(const ObjectBytes&) const = default;
};

// A checksum per block, as the client would have sealed them.
std::vector<uint32_t> CrcsOf(const ObjectBytes& bytes);

}  // namespace cairn::engine::sim
