// Part of a slab that somebody else fills: who reserved an object in StepWriter::Reserve.
//
// Its addresses are its own, so that they can be taken out of the slab while others still hold them: what is written
// there afterwards is lost, and reaches neither the object nor what the slab holds next. The mapping of which page tables are
// filled goes on to the next view of that part.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "client/cpp/copy_threads.h"
#include "client/cpp/slab_map.h"
#include "common/fd.h"
#include "common/status.h"

namespace cairn::client {

// Shared by the step, which ends it, and by who fills it. Not inherited by forked children.
class SlabView {
 public:
  // [offset, offset + length) of the slab. `offset` is a page's; `length` > 0.
  static StatusOr<std::shared_ptr<SlabView>> Make(std::shared_ptr<MappedSlab> slab, uint64_t offset,
                                                  uint64_t length, CopyThreads* threads);
  ~SlabView();
  SlabView(const SlabView&) = delete;
  SlabView& operator=(const SlabView&) = delete;

  // Where it is filled; in memory of nobody's after End. Never unmapped before this object is gone.
  char* data() const { return lent_.data(); }

  // Takes these addresses out of the slab. Other threads may write there meanwhile. Once.
  Status End();
  // The slab's bytes, between End and Leave.
  const char* bytes() const { return kept_.data(); }
  // Lets go of the slab; after an error of End it does when it goes itself.
  void Leave();

 private:
  SlabView(std::shared_ptr<MappedSlab> slab, uint64_t offset, Mapping mapping);

  const pid_t pid_;
  const uint64_t offset_;
  std::shared_ptr<MappedSlab> slab_;  // until Leave
  Mapping lent_;
  Mapping kept_;  // between End and Leave
};

}  // namespace cairn::client
