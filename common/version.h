// The version of this build, from the project's line in CMakeLists.txt.
#pragma once

#include "absl/strings/string_view.h"

namespace cairn {

absl::string_view Version();  // "0.1.0"

}  // namespace cairn
