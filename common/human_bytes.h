// Sizes as people read them, in messages and tables.
#pragma once

#include <cstdint>
#include <string>

namespace cairn {

// Three significant digits in binary units: "0 B", "999 B", "1.50 KiB", "12.0 GiB", "1023 MiB".
std::string HumanBytes(uint64_t bytes);

}  // namespace cairn
