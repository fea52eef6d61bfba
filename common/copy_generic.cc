#include <cstring>

#include "common/copy.h"

namespace cairn {

void StreamCopy(void* to, const void* from, size_t n) {
  if (n > 0) std::memcpy(to, from, n);
}

}  // namespace cairn
