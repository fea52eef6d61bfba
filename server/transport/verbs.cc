#include "server/transport/verbs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cairn::transport {
namespace {

bool IsIpv4(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t byte) { return byte == 0; }) &&
         gid[10] == 0xff && gid[11] == 0xff;
}

bool IsEmpty(const Gid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](uint8_t byte) { return byte == 0; });
}

bool IsLinkLocal(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

// Greater is better; 0: of no use.
int RankOf(const VerbsGid& gid) {
  if (gid.kind != GidKind::kRoceV2 || IsEmpty(gid.gid)) return 0;
  if (IsIpv4(gid.gid)) return 3;
  return IsLinkLocal(gid.gid) ? 1 : 2;
}

}  // namespace

StatusOr<VerbsGid> ChooseGid(const VerbsDeviceInfo& device, const VerbsPort& port) {
  const std::string where = absl::StrCat(device.name, ":", port.number);
  if (!port.active) return absl::UnavailableError(absl::StrCat(where, ": the port is down"));
  if (!port.ethernet) {
    if (port.gids.empty()) return absl::UnavailableError(absl::StrCat(where, ": it has no gid"));
    return port.gids.front();
  }
  const auto best =
      std::max_element(port.gids.begin(), port.gids.end(),
                       [](const VerbsGid& a, const VerbsGid& b) { return RankOf(a) < RankOf(b); });
  if (best == port.gids.end() || RankOf(*best) == 0) {
    return absl::UnavailableError(absl::StrCat(
        where, ": it has no gid of RoCE v2: its network device needs an address, and be up"));
  }
  return *best;
}

}  // namespace cairn::transport
