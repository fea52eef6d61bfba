#include "common/version.h"

namespace cairn {

absl::string_view Version() { return CAIRN_VERSION; }

}  // namespace cairn
