#include "common/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>

#include "common/crc_folds.h"

namespace cairn {
namespace {

// crc32_iscsi takes its length as an int.
constexpr size_t kLongestCall = size_t{1} << 30;

// A CRC of a+b is the CRC of a, moved past b's bits, plus the CRC of b. Moving past n bits is
// multiplication by x^n modulo the CRC's polynomial over GF(2). Polynomials are written reflected, as the
// CRCs are: the highest bit is the coefficient of x^0.
constexpr uint32_t kCastagnoli = 0x82F63B78;
constexpr uint32_t kIsoHdlc = 0xEDB88320;
constexpr uint32_t kOne = 0x80000000;

constexpr uint32_t Multiply(uint32_t polynomial, uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = (b & 1) != 0 ? (b >> 1) ^ polynomial : b >> 1;
  }
  return product;
}

// powers[k] = x^(8 * 2^k): moves a CRC past 2^k bytes.
constexpr std::array<uint32_t, 64> BytePowers(uint32_t polynomial) {
  std::array<uint32_t, 64> powers{};
  uint32_t power = kOne >> 8;  // x^8
  for (uint32_t& p : powers) {
    p = power;
    power = Multiply(polynomial, power, power);
  }
  return powers;
}

constexpr std::array<uint32_t, 64> kCastagnoliPowers = BytePowers(kCastagnoli);
constexpr std::array<uint32_t, 64> kIsoHdlcPowers = BytePowers(kIsoHdlc);

uint32_t Combine(uint32_t polynomial, const std::array<uint32_t, 64>& powers, uint32_t crc_a,
                 uint32_t crc_b, uint64_t length_b) {
  uint32_t moved = crc_a;
  for (int k = 0; length_b != 0; ++k, length_b >>= 1) {
    if ((length_b & 1) != 0) moved = Multiply(polynomial, powers[k], moved);
  }
  return moved ^ crc_b;
}

}  // namespace

uint32_t Crc32c(uint32_t crc, const void* data, size_t length) {
  // ISA-L's iSCSI function inverts neither its seed nor its result.
  uint32_t state = ~crc;
  auto* at = const_cast<unsigned char*>(static_cast<const unsigned char*>(data));
  const size_t folded = crc_folds::Crc32c(&state, at, length);
  at += folded;
  length -= folded;
  while (length > 0) {
    const size_t n = std::min(length, kLongestCall);
    state = crc32_iscsi(at, static_cast<int>(n), state);
    at += n;
    length -= n;
  }
  return ~state;
}

uint32_t ZipCrc32(uint32_t crc, const void* data, size_t length) {
  // ISA-L's gzip function inverts both, as zlib's does. Its length is 64 bits wide.
  return length == 0 ? crc : crc32_gzip_refl(crc, static_cast<const unsigned char*>(data), length);
}

uint32_t Crc32cCombine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
  return Combine(kCastagnoli, kCastagnoliPowers, crc_a, crc_b, length_b);
}

uint32_t ZipCrc32Combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
  return Combine(kIsoHdlc, kIsoHdlcPowers, crc_a, crc_b, length_b);
}

std::vector<uint32_t> BlockCrcs(const void* data, uint64_t length, uint32_t block_bytes) {
  std::vector<uint32_t> crcs;
  crcs.reserve(BlockCount(length, block_bytes));
  const char* at = static_cast<const char*>(data);
  for (uint64_t offset = 0; offset < length; offset += block_bytes) {
    crcs.push_back(Crc32c(0, at + offset, std::min<uint64_t>(block_bytes, length - offset)));
  }
  return crcs;
}

}  // namespace cairn
