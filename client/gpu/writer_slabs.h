// The slabs that this process saves into, registered with a device, so that it copies into them without a slot between.
// A thread registers each in chunks, in the background, since that takes as long as a save; it stays registered until it
// is unmapped.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "client/cpp/slab_map.h"
#include "client/gpu/device.h"
#include "common/mutex.h"

namespace cairn::gpu {

// Thread-safe. Must not outlive the device; slabs may outlive this.
class WriterSlabs {
 public:
  // `chunk_bytes`: of one registration.
  WriterSlabs(Device* device, uint64_t chunk_bytes);
  ~WriterSlabs();

  // Has it registered, once; not again where the device has refused it.
  void Want(const std::shared_ptr<client::MappedSlab>& slab);
  // Whether the device may copy there, within one registration. So it stays while the slab is mapped.
  bool Registered(const void* at, uint64_t bytes) const;
  // Why the device has refused the last that it refused; empty: none.
  std::string why() const;
  // Waits until nothing is being registered.
  void Settle();

 private:
  class Table;

  void Run();

  // Slabs have it, too, to be taken out of when they end.
  const std::shared_ptr<Table> table_;
  const uint64_t chunk_bytes_;
  Device* const device_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  std::string why_ ABSL_GUARDED_BY(mutex_);
  // Weak: what is retired meanwhile is not kept for this.
  std::deque<std::weak_ptr<client::MappedSlab>> queue_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace cairn::gpu
