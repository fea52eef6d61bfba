// Copying with streaming stores. The destination's lines are not first read into the cache, which
// makes a large copy a quarter cheaper. It suits destinations that nobody reads soon: slabs and
// large load buffers. The checksums are of the *source* bytes, taken while they are in the cache.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

// As memcpy: ranges must not overlap. When it returns, its stores are ordered before this thread's
// later ones, as those of memcpy are.
void StreamCopy(void* to, const void* from, size_t n);

// The same of one of many short runs; EndRuns orders the stores of all of this thread's. `next`, of `next_bytes`, is
// what the caller reads next: it is fetched into the cache meanwhile.
void StreamRun(void* to, const void* from, size_t n, const void* next, size_t next_bytes);
void EndRuns();

// Copies, and returns the CRC32C of the bytes that `crc` covers followed by these bytes
// (common/checksum.h).
uint32_t CopyCrc32c(void* to, const void* from, size_t n, uint32_t crc);

// The same for CRC32C and the CRC-32 of zip records at once; both are updated in place.
void CopyCrcs(void* to, const void* from, size_t n, uint32_t* crc32c, uint32_t* zip_crc);

}  // namespace cairn
