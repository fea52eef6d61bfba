#include "tests/sim/promises.h"

#include <vector>

#include "common/manifest.h"

namespace cairn::engine::sim {

const PartPromise* Promises::Find(const PartKey& part) const {
  const auto at = parts.find(part);
  return at == parts.end() ? nullptr : &at->second;
}

std::string Promises::DigestOf(const CheckpointKey& key, int32_t world_size) const {
  std::vector<absl::string_view> digests;
  for (Writer writer = 0; writer < world_size; ++writer) {
    const PartPromise* part = Find({key, writer});
    digests.push_back(part == nullptr ? absl::string_view() : part->digest);
  }
  return CheckpointDigest(digests);
}

}  // namespace cairn::engine::sim
