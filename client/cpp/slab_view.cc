#include "client/cpp/slab_view.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "client/cpp/copy_engine.h"
#include "common/keys.h"

namespace cairn::client {

StatusOr<std::shared_ptr<SlabView>> SlabView::Make(std::shared_ptr<MappedSlab> slab,
                                                   uint64_t offset, uint64_t length,
                                                   CopyThreads* threads) {
  const uint64_t pages = (length + kPageBytes - 1) / kPageBytes * kPageBytes;
  Mapping mapping = slab->TakeSpare(offset, pages);
  if (!mapping.valid()) {
    CAIRN_ASSIGN_OR_RETURN(mapping, slab->Again(offset, pages));
    // Otherwise each page costs who fills it a fault, which is more than filling it.
    threads->Run((pages + kBlockBytes - 1) / kBlockBytes, [&](size_t block) {
      char* const from = mapping.data() + block * kBlockBytes;
      Populate(from, std::min(from + kBlockBytes, mapping.data() + pages));
    });
  }
  return std::shared_ptr<SlabView>(new SlabView(std::move(slab), offset, std::move(mapping)));
}

SlabView::SlabView(std::shared_ptr<MappedSlab> slab, uint64_t offset, Mapping mapping)
    : pid_(getpid()), offset_(offset), slab_(std::move(slab)), lent_(std::move(mapping)) {}

SlabView::~SlabView() {
  if (pid_ == getpid()) return;
  // A forked child has no mapping there, or another one.
  new Mapping(std::move(lent_));
  new Mapping(std::move(kept_));
}

Status SlabView::End() {
  CAIRN_ASSIGN_OR_RETURN(kept_, lent_.MoveAway());
  return absl::OkStatus();
}

void SlabView::Leave() {
  if (!kept_.valid()) return;
  slab_->KeepSpare(offset_, std::move(kept_));
  slab_.reset();
}

}  // namespace cairn::client
