#include "server/daemon/ring_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/tcp_address.h"
#include "server/engine/membership.h"

namespace cairn::daemon {
namespace {

Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

}  // namespace

engine::RingOptions RingOf(const Options& options, const fact::RingSeat& seat) {
  return engine::SeatedRing(options.node.engine.ring, seat, options.ring_address);
}

Options AsAMember(const Options& options) {
  constexpr size_t kSeveral = 2;
  fact::RingSeat seat;
  seat.rank = std::max(options.node.engine.ring.rank, 0);
  seat.incarnations.resize(std::max(kSeveral, static_cast<size_t>(seat.rank) + 1));
  Options as = options;
  as.node.engine.ring = RingOf(options, seat);
  return as;
}

Status ValidateCatalogRing(const Options& options) {
  const engine::RingOptions& ring = options.node.engine.ring;
  if (!ring.members.empty()) {
    return Bad("ring.nodes: is given, and ring.members = catalog; one of both");
  }
  if (ring.cluster.empty()) return Bad("ring.cluster: missing; ring.members = catalog needs it");
  if (!options.UsesMysql()) {
    return Bad("ring.members: catalog needs catalog.mysql.host or catalog.mysql.socket");
  }
  if (options.ring_address.empty()) {
    return Bad("ring.address: missing; ring.members = catalog needs it");
  }
  const StatusOr<TcpAddress> address = TcpAddress::Parse(options.ring_address);
  if (!address.ok()) return Annotate(address.status(), "ring.address");
  if (address->IsWildcard()) {
    return Bad(absl::StrCat("ring.address: ", options.ring_address,
                            " is not an address that the other members can dial"));
  }
  if (address->port() == 0) {
    return Bad(absl::StrCat("ring.address: ", options.ring_address, " has no port"));
  }
  return AsAMember(options).node.engine.ring.Validate();
}

}  // namespace cairn::daemon
