#include "common/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "common/copy.h"

namespace cairn {
namespace {

std::vector<char> RandomBytes(size_t n, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<char> bytes(n);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Bit by bit, as the standards define them.
uint32_t Slow(uint32_t polynomial, const char* data, size_t n) {
  uint32_t crc = 0xFFFFFFFF;
  for (size_t i = 0; i < n; ++i) {
    crc ^= static_cast<uint8_t>(data[i]);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? (crc >> 1) ^ polynomial : crc >> 1;
  }
  return ~crc;
}

TEST(Checksums, AreTheStandardOnes) {
  EXPECT_EQ(Crc32c(0, "123456789", 9), 0xE3069283u);
  EXPECT_EQ(ZipCrc32(0, "123456789", 9), 0xCBF43926u);
  const std::vector<char> zeros(32, 0);
  EXPECT_EQ(Crc32c(0, zeros.data(), 32), 0x8A9136AAu);  // RFC 3720, B.4
  for (size_t n : {1, 7, 63, 64, 65, 255, 1000, 4097}) {
    const auto bytes = RandomBytes(n);
    EXPECT_EQ(Crc32c(0, bytes.data(), n), Slow(0x82F63B78, bytes.data(), n)) << n;
    EXPECT_EQ(ZipCrc32(0, bytes.data(), n), Slow(0xEDB88320, bytes.data(), n)) << n;
  }
}

// Long runs go another way than short ones; the ends of either, and any alignment, must meet.
TEST(Checksums, LongRunsAreSummedAsShortOnes) {
  const auto bytes = RandomBytes(20000);
  for (size_t from : {0, 1, 7, 16, 63}) {
    for (size_t n : {1023, 1024, 1025, 1087, 1088, 4096, 8191, 16385}) {
      uint32_t crc = 77;
      for (size_t at = 0; at < n; at += 100) {
        crc = Crc32c(crc, bytes.data() + from + at, std::min<size_t>(100, n - at));
      }
      EXPECT_EQ(Crc32c(77, bytes.data() + from, n), crc) << n << " bytes from " << from;
    }
  }
}

TEST(Checksums, OfNothingAreZeroAndChangeNothing) {
  EXPECT_EQ(Crc32c(0, nullptr, 0), 0u);
  EXPECT_EQ(ZipCrc32(0, nullptr, 0), 0u);
  EXPECT_EQ(Crc32c(0x1234, nullptr, 0), 0x1234u);
  EXPECT_EQ(ZipCrc32(0x1234, nullptr, 0), 0x1234u);
}

TEST(Checksums, ChainAndCombineAsIfTheBytesStoodTogether) {
  const auto bytes = RandomBytes(10000);
  const uint32_t crc = Crc32c(0, bytes.data(), bytes.size());
  const uint32_t zip = ZipCrc32(0, bytes.data(), bytes.size());
  for (size_t cut : {0, 1, 3, 64, 4096, 5000, 9999, 10000}) {
    const char* b = bytes.data() + cut;
    const size_t rest = bytes.size() - cut;
    EXPECT_EQ(Crc32c(Crc32c(0, bytes.data(), cut), b, rest), crc) << cut;
    EXPECT_EQ(ZipCrc32(ZipCrc32(0, bytes.data(), cut), b, rest), zip) << cut;
    EXPECT_EQ(Crc32cCombine(Crc32c(0, bytes.data(), cut), Crc32c(0, b, rest), rest), crc) << cut;
    EXPECT_EQ(ZipCrc32Combine(ZipCrc32(0, bytes.data(), cut), ZipCrc32(0, b, rest), rest), zip)
        << cut;
  }
}

TEST(Checksums, CombineOverLengthsThatNoBufferHas) {
  // The CRC of n zero bytes, doubled up to 2^40 of them: combining must agree with doubling.
  const char zero = 0;
  uint32_t crc = Crc32c(0, &zero, 1), zip = ZipCrc32(0, &zero, 1);
  uint64_t length = 1;
  for (int i = 0; i < 20; ++i, length *= 2) {
    crc = Crc32cCombine(crc, crc, length);
    zip = ZipCrc32Combine(zip, zip, length);
  }
  const std::vector<char> zeros(length, 0);
  EXPECT_EQ(crc, Crc32c(0, zeros.data(), length));
  EXPECT_EQ(zip, ZipCrc32(0, zeros.data(), length));
  // (a+b)+c == a+(b+c) at 2^40.
  const uint64_t far = uint64_t{1} << 40;
  EXPECT_EQ(Crc32cCombine(Crc32cCombine(1, 2, far), 3, far + 5),
            Crc32cCombine(1, Crc32cCombine(2, 3, far + 5), far + far + 5));
}

TEST(Checksums, PerBlockCoverTheShortLastBlock) {
  const auto bytes = RandomBytes(3 * 4096 + 1);
  const auto crcs = BlockCrcs(bytes.data(), bytes.size(), 4096);
  ASSERT_EQ(crcs.size(), 4u);
  EXPECT_EQ(crcs[1], Crc32c(0, bytes.data() + 4096, 4096));
  EXPECT_EQ(crcs[3], Crc32c(0, bytes.data() + 3 * 4096, 1));
  EXPECT_TRUE(BlockCrcs(nullptr, 0, 4096).empty());
}

TEST(StreamCopying, CopiesExactlyTheRangeAtEveryAlignment) {
  constexpr size_t kGuard = 128;
  const auto source = RandomBytes(70000);
  for (size_t n : {0, 1, 63, 64, 4095, 4096, 4097, 65536, 65537}) {
    for (size_t to_skew : {0, 1, 15, 16, 63}) {
      for (size_t from_skew : {0, 1, 8, 33}) {
        std::vector<char> target(n + 3 * kGuard, 'g');
        char* to = target.data() + kGuard + to_skew;
        StreamCopy(to, source.data() + from_skew, n);
        ASSERT_EQ(std::string(to, n), std::string(source.data() + from_skew, n));
        ASSERT_EQ(std::string(target.data(), to), std::string(kGuard + to_skew, 'g'));
        ASSERT_EQ(std::string(to + n, target.data() + target.size()),
                  std::string(2 * kGuard - to_skew, 'g'));
      }
    }
  }
}

TEST(StreamCopying, FusedChecksumsAreThoseOfTheSource) {
  const auto source = RandomBytes((1 << 20) + 77);
  std::vector<char> target(source.size());
  EXPECT_EQ(CopyCrc32c(target.data(), source.data(), source.size(), Crc32c(0, "x", 1)),
            Crc32c(Crc32c(0, "x", 1), source.data(), source.size()));
  EXPECT_EQ(target, source);

  std::fill(target.begin(), target.end(), 0);
  uint32_t crc = 0, zip = 0;
  CopyCrcs(target.data(), source.data(), 100, &crc, &zip);
  CopyCrcs(target.data() + 100, source.data() + 100, source.size() - 100, &crc, &zip);
  EXPECT_EQ(crc, Crc32c(0, source.data(), source.size()));
  EXPECT_EQ(zip, ZipCrc32(0, source.data(), source.size()));
  EXPECT_EQ(target, source);
}

}  // namespace
}  // namespace cairn
