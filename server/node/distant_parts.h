// Objects of parts that other members have in memory and for which this node has no room: what the parts consist of, and
// their bytes, a block at a time through a little memory of the node's own. No byte of a block is returned before the
// block was compared with its checksum.
//
// That memory is no slab of the engine's: no ledger knows it, and it goes with the daemon, or before, with the last object
// that is open.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/engine/actions.h"
#include "server/facts/part_record.h"
#include "server/node/links.h"
#include "server/node/options.h"
#include "server/storage/storage.h"
#include "server/transport/transport.h"

namespace cairn::node {

// Thread-safe. Calls wait for other members, to their deadlines.
class DistantParts {
 public:
  // All outlive it, and the readers that it opened do not outlive it.
  DistantParts(const MoverOptions& options, Links* links, transport::Transport* transport,
               Clock* clock);
  ~DistantParts() { Stop(); }

  // What the part consists of. UNAVAILABLE, naming each source, when none of them says so.
  StatusOr<std::shared_ptr<const PartTable>> Table(const engine::reply::PartElsewhere& part,
                                                   MonotonicNanos deadline);

  struct Found {
    PartKey part;
    std::shared_ptr<const ObjectEntry> entry;
  };
  // The object of that name of one of the parts. As Table; NOT_FOUND when none has it.
  StatusOr<Found> Find(const std::vector<engine::reply::PartElsewhere>& parts,
                       const std::string& name, MonotonicNanos deadline);
  struct Object {
    Found found;
    // Reads as from storage, but whole blocks that verified. DATA_LOSS: no source has the block as its checksum says;
    // UNAVAILABLE: none that is left could be read. Its destructor only tells the source that it has ended.
    std::unique_ptr<const storage::Reader> reader;
  };
  // As Find.
  StatusOr<Object> Open(const std::vector<engine::reply::PartElsewhere>& parts,
                        const std::string& name, MonotonicNanos deadline);

  // Reads under way end with CANCELLED, and later ones at once.
  void Stop();

 private:
  class Scratch;
  class Granted;
  class Reader;

  struct Place;
  StatusOr<Place> PlaceOf(const std::vector<engine::reply::PartElsewhere>& parts,
                          const std::string& name, MonotonicNanos deadline);
  std::shared_ptr<Granted> GrantedOf(const engine::reply::PartElsewhere& part);
  StatusOr<std::shared_ptr<Scratch>> TakeScratch();

  const MoverOptions options_;
  Links* const links_;
  transport::Transport* const transport_;
  Clock* const clock_;
  Mutex mu_;  // before the transport's and those of the parts
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::weak_ptr<Scratch> scratch_ ABSL_GUARDED_BY(mu_);  // the readers' that are open
  SlabId last_slab_ ABSL_GUARDED_BY(mu_);
  std::deque<std::shared_ptr<Granted>> kept_ ABSL_GUARDED_BY(mu_);  // the parts that were used last
  std::atomic<uint64_t> last_reader_{0};
};

}  // namespace cairn::node
