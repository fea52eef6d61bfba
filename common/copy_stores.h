// The stores of common/copy.cc: copy_x86_64.cc has streaming ones, copy_generic.cc a memcpy; CMake
// takes one.
#pragma once

#include <cstddef>

namespace cairn::copy_stores {

// As memcpy, but the stores may pass the cache by and are ordered only by Fence. `next`, of
// `next_bytes`, is what the caller reads next: it is fetched into the cache beside the stores,
// which alone would leave the memory's reading side idle.
void Stream(char* to, const char* from, size_t n, const char* next, size_t next_bytes);

// Makes the stores of this thread's Streams visible to other threads as ordinary ones are.
void Fence();

}  // namespace cairn::copy_stores
