#include "common/crc_folds.h"

namespace cairn::crc_folds {

size_t Crc32c(uint32_t*, const unsigned char*, size_t) { return 0; }

}  // namespace cairn::crc_folds
