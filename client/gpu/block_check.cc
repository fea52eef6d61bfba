#include "client/gpu/block_check.h"

#include "common/checksum.h"

namespace cairn::gpu {

bool ChecksOnDevice(const client::PlannedBlock& block, uint64_t block_bytes) {
  if (block.pieces.size() > kMostRunsChecked) return false;
  uint64_t wanted = 0, end = 0;
  for (const client::PlannedPiece& piece : block.pieces) {
    if (piece.count != 1 || piece.from < end) return false;
    end = piece.from + piece.width;
    wanted += piece.width;
  }
  return end <= block_bytes && wanted >= block_bytes / 2;
}

std::vector<Gap> Gaps(const client::PlannedBlock& block, uint64_t block_bytes) {
  std::vector<Gap> gaps;
  uint64_t at = 0;
  for (const client::PlannedPiece& piece : block.pieces) {
    gaps.push_back({at, piece.from - at});
    at = piece.from + piece.width;
  }
  gaps.push_back({at, block_bytes - at});
  return gaps;
}

uint32_t CombineBlock(const client::PlannedBlock& block, const std::vector<Gap>& gaps,
                      const std::vector<uint32_t>& gap_crcs, const uint32_t* piece_crcs) {
  uint32_t crc = gap_crcs[0];
  for (size_t i = 0; i < block.pieces.size(); ++i) {
    crc = Crc32cCombine(crc, piece_crcs[i], block.pieces[i].width);
    crc = Crc32cCombine(crc, gap_crcs[i + 1], gaps[i + 1].length);
  }
  return crc;
}

}  // namespace cairn::gpu
