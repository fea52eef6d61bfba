#include "tests/sim/bytes.h"

#include "common/checksum.h"
#include "common/keys.h"
#include "tests/sim/random.h"

namespace cairn::engine::sim {

std::vector<uint32_t> CrcsOf(const ObjectBytes& bytes) {
  std::vector<uint32_t> crcs;
  for (uint64_t i = 0; i < BlockCount(bytes.length, kBlockBytes); ++i) {
    crcs.push_back(static_cast<uint32_t>(Mix(bytes.content, i)));
  }
  return crcs;
}

}  // namespace cairn::engine::sim
