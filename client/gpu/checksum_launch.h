// What one launch of the checksum kernel is given. Both sides read it: cuda_device.cc and, through nvcc, kernels.cu.
#pragma once

#include <cstdint>

namespace cairn::gpu {

// Of one thread block, here called a group.
inline constexpr unsigned kChecksumThreads = 256;
inline constexpr unsigned kRangesOfALaunch = 240;

// The grid's y is the range. Its x is as many groups as the longest range takes.
struct ChecksumLaunch {
  struct {
    uint64_t data = 0;
    uint64_t bytes = 0;
  } ranges[kRangesOfALaunch];
  uint64_t share = 1;  // one group for each so many bytes of a range, or fewer
  uint64_t sums = 0;   // of the launch's first range
  uint32_t kind = 0;   // 0: CRC32C, 1: CRC-32
};
static_assert(sizeof(ChecksumLaunch) <= 4096, "a kernel takes no more in its parameters");

}  // namespace cairn::gpu
