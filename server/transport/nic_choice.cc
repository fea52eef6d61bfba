#include "server/transport/nic_choice.h"

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace cairn::transport {
namespace {

struct Named {
  std::string device;
  std::optional<int> port;
};

StatusOr<std::vector<Named>> Parse(absl::string_view list) {
  std::vector<Named> all;
  for (const absl::string_view item : absl::StrSplit(list, ',')) {
    Named named;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(item, absl::MaxSplits(':', 1));
    named.device = std::string(parts.first);
    if (parts.first.size() != item.size()) {
      int port = 0;
      if (!absl::SimpleAtoi(parts.second, &port) || port < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("NCCL_IB_HCA: \"", parts.second, "\" is no port"));
      }
      named.port = port;
    }
    if (named.device.empty()) return absl::InvalidArgumentError("NCCL_IB_HCA: a name is empty");
    all.push_back(std::move(named));
  }
  return all;
}

}  // namespace

StatusOr<std::vector<NicPort>> ChooseNics(absl::string_view nccl_ib_hca,
                                          const std::vector<NicPort>& ports) {
  if (nccl_ib_hca.empty()) return ports;
  absl::string_view list = nccl_ib_hca;
  const bool others = absl::ConsumePrefix(&list, "^");
  const bool exact = absl::ConsumePrefix(&list, "=");
  CAIRN_ASSIGN_OR_RETURN(const std::vector<Named> named, Parse(list));
  std::vector<NicPort> chosen;
  for (const NicPort& port : ports) {
    const bool is_named = std::any_of(named.begin(), named.end(), [&](const Named& one) {
      const bool device =
          exact ? port.device == one.device : absl::StartsWith(port.device, one.device);
      return device && one.port.value_or(port.port) == port.port;
    });
    if (is_named != others) chosen.push_back(port);
  }
  if (!chosen.empty()) return chosen;
  const std::string there = absl::StrJoin(ports, ", ", [](std::string* out, const NicPort& port) {
    absl::StrAppend(out, port.device, ":", port.port);
  });
  return absl::InvalidArgumentError(absl::StrCat("NCCL_IB_HCA: \"", nccl_ib_hca,
                                                 "\" chooses no RDMA port; there are ",
                                                 there.empty() ? "none" : there));
}

}  // namespace cairn::transport
