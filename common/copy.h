// Copying with streaming stores: the destination's lines are not first read into the cache, which
// makes a large copy a quarter cheaper. For destinations that nobody reads soon: slabs, large load
// buffers. The checksums are of the *source* bytes, taken while they are in the cache on their way
// through.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

// As memcpy: ranges must not overlap. When it returns, the stores are visible to other threads as
// ordinary ones are.
void StreamCopy(void* to, const void* from, size_t n);

// Copies and returns the CRC32C of `crc`'s bytes followed by these (common/checksum.h).
uint32_t CopyCrc32c(void* to, const void* from, size_t n, uint32_t crc);

// The same with the CRC-32 of zip records beside it; both values chain in place.
void CopyCrcs(void* to, const void* from, size_t n, uint32_t* crc32c, uint32_t* zip_crc);

}  // namespace cairn
