#include "server/node/attached.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "glog/logging.h"

namespace cairn::node {

Status Attached::Attach(SlabId slab) {
  MutexLock lock(&mu_);
  if (slabs_.contains(slab)) return absl::OkStatus();
  CAIRN_ASSIGN_OR_RETURN(SharedFd description, cache_->Description(slab));
  struct stat is = {};
  if (fstat(description->get(), &is) != 0) return ErrnoStatus(errno, "fstat of a slab");
  CAIRN_RETURN_IF_ERROR(
      transport_->Attach(slab, std::move(description), static_cast<uint64_t>(is.st_size)));
  slabs_.insert(slab);
  return absl::OkStatus();
}

void Attached::Prepare(SlabId slab) {
  if (!transport_->PreparesMemory()) return;
  const Status attached = Attach(slab);
  if (attached.ok()) return transport_->Prepare(slab);
  LOG_EVERY_N(WARNING, 100) << "slab " << slab
                            << " is told to no device until it is used: " << attached;
}

void Attached::Detach(SlabId slab) {
  if (!Has(slab)) return;
  transport_->Detach(slab);
  MutexLock lock(&mu_);
  slabs_.erase(slab);
}

void Attached::DetachAll() {
  std::vector<SlabId> slabs;
  {
    MutexLock lock(&mu_);
    slabs.assign(slabs_.begin(), slabs_.end());
  }
  for (const SlabId slab : slabs) Detach(slab);
}

bool Attached::Has(SlabId slab) const {
  MutexLock lock(&mu_);
  return slabs_.contains(slab);
}

size_t Attached::count() const {
  MutexLock lock(&mu_);
  return slabs_.size();
}

}  // namespace cairn::node
