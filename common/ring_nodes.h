// The members of a ring as people write them: "0=10.0.0.1:7400,1=10.0.0.2:7400".
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace cairn {

// Rank → ADDRESS:PORT, in the form of TcpAddress::ToString; no two ranks have one address. INVALID_ARGUMENT quotes
// what is wrong; the caller names the field.
StatusOr<std::map<int32_t, std::string>> ParseRingNodes(absl::string_view text);
// The same, leniently: what is no RANK=ADDRESS:PORT, or no address of one host, is left out, and two ranks may have one
// address. For what a database said.
std::map<int32_t, std::string> KnownRingNodes(absl::string_view text);
std::string RingNodesText(const std::map<int32_t, std::string>& nodes);

}  // namespace cairn
