// Checksums of bytes that lie in device memory.
//
// A CRC is linear, so a range's is the sum (exclusive or) of what its words add. A thread takes every S-th 16 bytes:
// for each of its four words it multiplies a register by x^(8 S) and adds the next word, which is four look-ups in
// shared memory. At the end it multiplies by the distance from its last word to the end of the range. Every polynomial
// here is reflected: bit 31 is x^0.

#include <cstdint>

#include "client/gpu/checksum_launch.h"

namespace {

using cairn::gpu::ChecksumLaunch;
constexpr unsigned kThreads = cairn::gpu::kChecksumThreads;

__host__ __device__ constexpr uint32_t Multiply(uint32_t a, uint32_t b, uint32_t polynomial) {
  uint32_t product = 0;
  for (int i = 31; i >= 0; --i) {
    if (a >> i & 1) product ^= b;
    b = b >> 1 ^ (b & 1 ? polynomial : 0);
  }
  return product;
}

// One kind of CRC. Squaring takes long on a GPU, so the compiler does it: squares[k] is x^(8 * 2^k).
struct Crc {
  uint32_t polynomial = 0;
  uint32_t squares[64] = {};
};

constexpr Crc Prepare(uint32_t polynomial) {
  Crc crc;
  crc.polynomial = polynomial;
  uint32_t square = 0x00800000u;
  for (uint32_t& s : crc.squares) {
    s = square;
    square = Multiply(square, square, polynomial);
  }
  return crc;
}

// By ChecksumLaunch::kind.
__constant__ constexpr Crc kCrcs[] = {Prepare(0x82F63B78u), Prepare(0xEDB88320u)};

// x^(8 n).
__device__ uint32_t Power(uint64_t n, const Crc& crc) {
  uint32_t result = 0x80000000u;
  for (int k = 0; n != 0; ++k, n >>= 1) {
    if (n & 1) result = Multiply(result, crc.squares[k], crc.polynomial);
  }
  return result;
}

}  // namespace

// Adds to sums[y] what this group of threads finds in range y; `sums` begin as zero. The first groups of the grid's x
// share the range out, as many as its length takes; the others have nothing to do.
extern "C" __global__ void __launch_bounds__(kThreads)
    cairn_checksum(const __grid_constant__ ChecksumLaunch launch) {
  __shared__ uint32_t table[4][256];
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(launch.ranges[blockIdx.y].data);
  const uint64_t length = launch.ranges[blockIdx.y].bytes;
  const uint64_t groups = max(uint64_t{1}, (length + launch.share - 1) / launch.share);
  if (blockIdx.x >= groups) return;
  const Crc& crc = kCrcs[launch.kind];
  const uint32_t polynomial = crc.polynomial;
  const uint64_t stride = 16ull * kThreads * groups;
  const uint32_t step = Power(stride, crc);
  for (int k = 0; k < 4; ++k) {
    table[k][threadIdx.x] = Multiply(step, threadIdx.x << (8 * k), polynomial);
  }
  __syncthreads();

  // Bytes up to the first multiple of 16, then 16 at a time, then the bytes that are left.
  const uint64_t head = min(length, uint64_t(-reinterpret_cast<uintptr_t>(bytes)) & 15);
  const uint64_t tail = head + ((length - head) & ~15ull);
  uint32_t r[4] = {0, 0, 0, 0};
  uint64_t at = head + 16ull * (blockIdx.x * kThreads + threadIdx.x), last = 0;
  bool any = false;
  for (; at < tail; at += stride) {
    const uint4 v = *reinterpret_cast<const uint4*>(bytes + at);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    for (int k = 0; k < 4; ++k) {
      r[k] = table[0][r[k] & 255] ^ table[1][r[k] >> 8 & 255] ^ table[2][r[k] >> 16 & 255] ^
             table[3][r[k] >> 24] ^ words[k];
    }
    last = at;
    any = true;
  }
  uint32_t sum = 0;
  if (any) {
    uint32_t distance = Power(length - last - 12, crc);
    for (int k = 3; k >= 0; --k) {
      sum ^= Multiply(r[k], distance, polynomial);
      distance = Multiply(distance, polynomial, polynomial);  // x^32 is the polynomial
    }
  }
  if (blockIdx.x == 0) {
    const auto alone = [&](uint64_t i) {
      sum ^= Multiply(bytes[i], Power(length - i, crc), polynomial);
    };
    if (threadIdx.x < head) alone(threadIdx.x);
    if (threadIdx.x < length - tail) alone(tail + threadIdx.x);
    if (threadIdx.x == 0) {  // a CRC begins with all bits set, and ends with all inverted
      sum ^= ~Multiply(0xffffffffu, Power(length, crc), polynomial);
    }
  }
  for (int n = 16; n > 0; n >>= 1) sum ^= __shfl_xor_sync(0xffffffffu, sum, n);
  if (threadIdx.x % 32 == 0) atomicXor(reinterpret_cast<uint32_t*>(launch.sums) + blockIdx.y, sum);
}
