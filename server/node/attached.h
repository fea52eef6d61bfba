// Which slabs the transport may read from and into. They are attached as they are needed, or
// beforehand where a device has to be told of memory, and stay so until they are destroyed or a fetch into them is cut short.
#pragma once

#include <cstddef>

#include "absl/container/flat_hash_set.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/cache/cache.h"
#include "server/transport/transport.h"

namespace cairn::node {

// Thread-safe. Whoever calls Attach has the slab pinned in the engine, and whoever calls Detach knows
// that no one else has: so the two never meet at one slab.
class Attached {
 public:
  // Both outlive it.
  Attached(cache::Cache* cache, transport::Transport* transport)
      : cache_(cache), transport_(transport) {}

  // Nothing happens for a slab that is attached.
  Status Attach(SlabId slab);
  // Where the transport prepares memory: attaches the slab, whose pages are there, before anybody asks for it. The
  // engine does not know the slab yet, so that nobody destroys it meanwhile.
  void Prepare(SlabId slab);
  // On return the transport neither reads nor writes the slab. May wait, as Transport::Detach does.
  void Detach(SlabId slab);
  void DetachAll();
  bool Has(SlabId slab) const;
  size_t count() const;

 private:
  cache::Cache* const cache_;
  transport::Transport* const transport_;
  mutable Mutex mu_;  // a leaf, but for the transport's while it attaches
  absl::flat_hash_set<SlabId> slabs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::node
