// CRC32C by carry-less multiplication, for processors on which that is faster than the crc32
// instruction that ISA-L uses. Not to be included by anything but checksum.cc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn::crc_folds {

// Takes as many of the bytes into *state (which is not inverted, as ISA-L's) as are worth it, from the
// first on, and returns their number: 0 on every other processor.
size_t Crc32c(uint32_t* state, const unsigned char* at, size_t length);

}  // namespace cairn::crc_folds
