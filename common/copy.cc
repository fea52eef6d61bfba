#include "common/copy.h"

#include <algorithm>

#include "common/checksum.h"
#include "common/copy_stores.h"

namespace cairn {
namespace {

// Small enough that the first-level cache holds both the piece that the checksum has just read,
// which is then copied, and the piece that comes next.
constexpr size_t kPieceBytes = 8 << 10;

template <typename Checksum>
void CopyInPieces(void* to, const void* from, size_t n, const Checksum& checksum) {
  char* destination = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  while (n > 0) {
    const size_t piece = std::min(n, kPieceBytes);
    checksum(source, piece);
    n -= piece;
    copy_stores::Stream(destination, source, piece, source + piece, std::min(n, kPieceBytes));
    destination += piece;
    source += piece;
  }
  copy_stores::Fence();
}

}  // namespace

void StreamCopy(void* to, const void* from, size_t n) {
  CopyInPieces(to, from, n, [](const char*, size_t) {});
}

void StreamRun(void* to, const void* from, size_t n, const void* next, size_t next_bytes) {
  copy_stores::Stream(static_cast<char*>(to), static_cast<const char*>(from), n,
                      static_cast<const char*>(next), next_bytes);
}

void EndRuns() { copy_stores::Fence(); }

uint32_t CopyCrc32c(void* to, const void* from, size_t n, uint32_t crc) {
  CopyInPieces(to, from, n,
               [&](const char* source, size_t piece) { crc = Crc32c(crc, source, piece); });
  return crc;
}

void CopyCrcs(void* to, const void* from, size_t n, uint32_t* crc32c, uint32_t* zip_crc) {
  CopyInPieces(to, from, n, [&](const char* source, size_t piece) {
    *crc32c = Crc32c(*crc32c, source, piece);
    *zip_crc = ZipCrc32(*zip_crc, source, piece);
  });
}

}  // namespace cairn
