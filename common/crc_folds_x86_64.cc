#include <immintrin.h>

#include "common/crc_folds.h"

namespace cairn::crc_folds {
namespace {

constexpr size_t kLane = sizeof(__m128i), kLanes = 4, kStep = kLane * kLanes;
// For fewer bytes the end, which joins the lanes, costs what the loop saves.
constexpr size_t kWorthFolding = 1024;

// x^n modulo CRC32C's polynomial, reflected: the highest bit is the coefficient of x^0.
constexpr uint32_t Power(int n) {
  uint32_t power = 0x80000000;
  for (int i = 0; i < n; ++i) power = (power & 1) != 0 ? (power >> 1) ^ 0x82F63B78 : power >> 1;
  return power;
}

// Sixteen bytes count `bits` further on as their earlier half times x^(bits + 64) and their later half
// times x^bits. The product of two reflected numbers comes out times x^33.
struct Distance {
  uint32_t earlier, later;
};
constexpr Distance Further(int bits) { return {Power(bits + 64 - 33), Power(bits - 33)}; }
constexpr Distance kNextStep = Further(8 * kStep), kNextLane = Further(8 * kLane);

__attribute__((target("pclmul"))) inline __m128i Factors(Distance distance) {
  return _mm_set_epi64x(distance.later, distance.earlier);
}

__attribute__((target("pclmul"))) inline __m128i Fold(__m128i sum, __m128i factors, __m128i onto) {
  return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(sum, factors, 0x00),
                                     _mm_clmulepi64_si128(sum, factors, 0x11)),
                       onto);
}

// `length` is a multiple of kStep, and not 0.
__attribute__((target("pclmul,sse4.2"))) uint32_t Folded(uint32_t state, const unsigned char* at,
                                                         size_t length) {
  const auto* in = reinterpret_cast<const __m128i*>(at);
  const auto* const end = reinterpret_cast<const __m128i*>(at + length);
  const __m128i step = Factors(kNextStep), lane = Factors(kNextLane);
  __m128i a = _mm_xor_si128(_mm_loadu_si128(in), _mm_cvtsi32_si128(static_cast<int>(state)));
  __m128i b = _mm_loadu_si128(in + 1);
  __m128i c = _mm_loadu_si128(in + 2);
  __m128i d = _mm_loadu_si128(in + 3);
  for (in += kLanes; in < end; in += kLanes) {
    a = Fold(a, step, _mm_loadu_si128(in));
    b = Fold(b, step, _mm_loadu_si128(in + 1));
    c = Fold(c, step, _mm_loadu_si128(in + 2));
    d = Fold(d, step, _mm_loadu_si128(in + 3));
  }
  d = Fold(Fold(Fold(a, lane, b), lane, c), lane, d);
  const uint64_t half = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(d)));
  return static_cast<uint32_t>(
      _mm_crc32_u64(half, static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_unpackhi_epi64(d, d)))));
}

// The first Zen begins a crc32 every third cycle and a multiplication every second: 166 and 111 ms
// per GiB. Later processors, and Intel's, are served as well or better by ISA-L.
const bool kFolds = __builtin_cpu_is("znver1") != 0 && __builtin_cpu_supports("pclmul") != 0;

}  // namespace

size_t Crc32c(uint32_t* state, const unsigned char* at, size_t length) {
  if (!kFolds || length < kWorthFolding) return 0;
  const size_t folded = length / kStep * kStep;
  *state = Folded(*state, at, folded);
  return folded;
}

}  // namespace cairn::crc_folds
