// The stores of common/copy.cc: copy_x86_64.cc has streaming ones, copy_generic.cc a memcpy; CMake
// takes one.
#pragma once

#include <cstddef>

namespace cairn::copy_stores {

// As memcpy, but the stores may bypass the cache, and only Fence orders them. `next`, of
// `next_bytes`, is what the caller reads next: it is fetched into the cache during the stores, when
// the memory's read bandwidth would otherwise be idle.
void Stream(char* to, const char* from, size_t n, const char* next, size_t next_bytes);

// Orders the stores of this thread's earlier Streams before its later stores.
void Fence();

}  // namespace cairn::copy_stores
