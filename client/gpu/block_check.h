// How a block that lies in pieces at its destination is compared with its checksum: the device takes the checksums of
// the pieces, the host those of what lies between them and is not wanted. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "client/cpp/weights_plan.h"

namespace cairn::gpu {

// A block is checked on the device when its pieces are at most this many runs, and half of it.
inline constexpr size_t kMostRunsChecked = 64;
bool ChecksOnDevice(const client::PlannedBlock& block, uint64_t block_bytes);

// Bytes [from, from + length) of a block that nobody wants.
struct Gap {
  uint64_t from = 0;
  uint64_t length = 0;
};
// Of a block that ChecksOnDevice: before, between and behind its pieces, one more than there are of these.
std::vector<Gap> Gaps(const client::PlannedBlock& block, uint64_t block_bytes);

// CRC32C of the block, from those of the gaps and of the pieces.
uint32_t CombineBlock(const client::PlannedBlock& block, const std::vector<Gap>& gaps,
                      const std::vector<uint32_t>& gap_crcs, const uint32_t* piece_crcs);

}  // namespace cairn::gpu
