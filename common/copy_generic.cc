#include <cstring>

#include "common/copy_stores.h"

namespace cairn::copy_stores {

void Stream(char* to, const char* from, size_t n, const char*, size_t) {
  if (n > 0) std::memcpy(to, from, n);
}

void Fence() {}

}  // namespace cairn::copy_stores
