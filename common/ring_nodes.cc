#include "common/ring_nodes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/tcp_address.h"

namespace cairn {

StatusOr<std::map<int32_t, std::string>> ParseRingNodes(absl::string_view text) {
  std::map<int32_t, std::string> nodes;
  for (absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(absl::StripAsciiWhitespace(item), absl::MaxSplits('=', 1));
    int32_t rank = 0;
    if (!absl::SimpleAtoi(halves.first, &rank) || rank < 0) {
      return absl::InvalidArgumentError(absl::StrCat("\"", item, "\" is not RANK=ADDRESS:PORT: \"",
                                                     halves.first, "\" is not a rank"));
    }
    CAIRN_ASSIGN_OR_RETURN(const TcpAddress address, TcpAddress::Parse(halves.second));
    if (address.IsWildcard()) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", rank, ": ", address.ToString(),
                       " is not an address that the other members can dial"));
    }
    for (const auto& [other, taken] : nodes) {
      if (taken != address.ToString() || other == rank) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "ranks ", std::min(other, rank), " and ", std::max(other, rank), " are both at ", taken));
    }
    if (!nodes.emplace(rank, address.ToString()).second) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " stands there twice"));
    }
  }
  return nodes;
}

std::map<int32_t, std::string> KnownRingNodes(absl::string_view text) {
  std::map<int32_t, std::string> nodes;
  for (absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(absl::StripAsciiWhitespace(item), absl::MaxSplits('=', 1));
    int32_t rank = 0;
    if (!absl::SimpleAtoi(halves.first, &rank) || rank < 0) continue;
    const StatusOr<TcpAddress> address = TcpAddress::Parse(halves.second);
    if (address.ok() && !address->IsWildcard()) nodes.emplace(rank, address->ToString());
  }
  return nodes;
}

std::string RingNodesText(const std::map<int32_t, std::string>& nodes) {
  return absl::StrJoin(nodes, ",", absl::PairFormatter("="));
}

}  // namespace cairn
