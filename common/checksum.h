// CRC32C (Castagnoli) guards Cairn's blocks; CRC-32 (ISO-HDLC) is what zip records carry.
// Both functions chain: Crc(Crc(0, a), b) == Crc(0, a+b); the value of no bytes is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace cairn {

uint32_t Crc32c(uint32_t crc, const void* data, size_t length);
uint32_t ZipCrc32(uint32_t crc, const void* data, size_t length);

// CRC of a+b from the CRCs of a and of b and b's length, without the bytes.
uint32_t Crc32cCombine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);
uint32_t ZipCrc32Combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

// Code that reads bytes and checks them reads this many at a time and takes their checksum at once,
// while they are still in the second-level cache.
inline constexpr uint64_t kCheckedReadBytes = 256 << 10;

// Number of blocks of an object of `length` bytes.
inline uint64_t BlockCount(uint64_t length, uint64_t block_bytes) {
  return (length + block_bytes - 1) / block_bytes;
}

// CRC32C of each block of [data, data+length).
std::vector<uint32_t> BlockCrcs(const void* data, uint64_t length, uint32_t block_bytes);

}  // namespace cairn
