// Standing mappings: a consumer that streams version after version keeps the slabs of its job mapped, shared and
// writable, so that it can register them once with a device. They are written anew all the same: what is read there
// counts when it matches its checksum *after* it was read. A writer keeps the slabs that it writes into in the same way, so
// that a device copies straight into them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/status.h"

namespace cairn::client {

// One slab. Destroying it unmaps the slab, and tells the node; whatever holds the pages has let go before. Not inherited
// by forked children.
class StandingMapping {
 public:
  virtual ~StandingMapping() = default;
  virtual char* data() const = 0;
  virtual uint64_t bytes() const = 0;
};

// Where an object lies in its slab.
struct StandingPlace {
  // In this process the same for all objects in it; empty: the object lies in none.
  std::string slab;
  uint64_t offset = 0;  // of the object
  // Asks the node for the slab, while the object is open, or the slab is mapped for writing. `wanted_back` is called when
  // the node, or the session that ends, wants the mapping back: from a thread of the session's, perhaps before `map` has
  // returned, perhaps more than once. It returns when the mapping is destroyed or will be at once.
  //   PERMISSION_DENIED, FAILED_PRECONDITION  as mapStanding in proto/cairn.thrift
  //   UNIMPLEMENTED                           the daemon is older than this
  //   CANCELLED                               the object is closed
  using Map =
      std::function<StatusOr<std::unique_ptr<StandingMapping>>(std::function<void()> wanted_back)>;
  Map map;
};

}  // namespace cairn::client
