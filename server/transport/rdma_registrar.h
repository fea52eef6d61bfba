// Registers slabs before anybody asks for them, one after the other on a thread of its own, so that neither the
// first grant of a slab nor the first read into it waits for the device. What is asked for meanwhile does not queue
// here: it is registered at once by whoever needs it (RdmaSlab::Register).
#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "common/mutex.h"
#include "server/transport/rdma_slab.h"

namespace cairn::transport {

// Thread-safe.
class RdmaRegistrar {
 public:
  RdmaRegistrar() : thread_([this] { Run(); }) {}
  // Waits for at most one piece of the slab that is being registered; the others are not.
  ~RdmaRegistrar();
  RdmaRegistrar(const RdmaRegistrar&) = delete;
  RdmaRegistrar& operator=(const RdmaRegistrar&) = delete;

  // A slab that is detached before its turn is passed over. One that cannot be registered is logged, and left to its
  // first use.
  void Add(std::shared_ptr<RdmaSlab> slab) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run();

  Mutex mu_;  // not held while the device is at work
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::shared_ptr<RdmaSlab>> waiting_
      ABSL_GUARDED_BY(mu_);  // at most the slabs that are attached
  std::shared_ptr<RdmaSlab> registering_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // last: it uses the members above
};

}  // namespace cairn::transport
