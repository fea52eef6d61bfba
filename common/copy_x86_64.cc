#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#include "common/copy.h"

namespace cairn {
namespace {

constexpr size_t kLine = 64;
// Below this the fence costs more than the stores save.
constexpr size_t kWorthStreaming = 4096;

}  // namespace

void StreamCopy(void* to, const void* from, size_t n) {
  char* destination = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  if (n < kWorthStreaming) {
    if (n > 0) std::memcpy(destination, source, n);
    return;
  }
  // Whole lines only: a line that is filled by four stores in a row leaves the core in one piece.
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(destination) % kLine) % kLine;
  if (head > 0) std::memcpy(destination, source, head);
  destination += head;
  source += head;
  n -= head;
  for (; n >= kLine; n -= kLine, destination += kLine, source += kLine) {
    const auto* in = reinterpret_cast<const __m128i*>(source);
    auto* out = reinterpret_cast<__m128i*>(destination);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  // Streaming stores are weakly ordered; whoever is told "done" afterwards must see them.
  _mm_sfence();
  if (n > 0) std::memcpy(destination, source, n);
}

}  // namespace cairn
