// A plan cut into buckets, the unit in which a stream hands tensors out. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "client/cpp/weights_plan.h"

namespace cairn::gpu {

struct Bucket {
  std::vector<client::PlannedBlock> blocks;
  // Tensors that need their memory before the first of these blocks is copied, and those that are whole after the last.
  std::vector<uint32_t> begins;
  std::vector<uint32_t> ends;
};

uint64_t WantedBytes(const client::PlannedBlock& block);

// Buckets of about `bytes` wanted bytes; the first has at most `first`, so that the first layer comes early. A tensor
// may begin in one bucket and end in another. Every block comes once.
std::vector<Bucket> CutByBytes(client::Plan& plan, uint64_t first, uint64_t bytes);

// Where a view lies in its bucket's buffer.
inline constexpr uint64_t kNoBuffer = ~uint64_t{0};
struct ViewBuckets {
  std::vector<Bucket> buckets;
  // Of each tensor; kNoBuffer: it is larger than a buffer and has memory of its own.
  std::vector<uint64_t> offset;
};
// Buckets of whole tensors, which fit into a buffer of `bytes` one after the other, each at a multiple of `alignment`.
// A block in which two buckets have tensors comes in both.
ViewBuckets CutByTensors(client::Plan& plan, uint64_t bytes, uint64_t alignment);

}  // namespace cairn::gpu
