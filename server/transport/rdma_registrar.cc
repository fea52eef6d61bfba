#include "server/transport/rdma_registrar.h"

#include <pthread.h>

#include <exception>
#include <utility>

#include "glog/logging.h"

namespace cairn::transport {

RdmaRegistrar::~RdmaRegistrar() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    if (registering_ != nullptr) registering_->BeginDetach();
    wake_.NotifyAll();
  }
  thread_.join();
}

void RdmaRegistrar::Add(std::shared_ptr<RdmaSlab> slab) {
  MutexLock lock(&mu_);
  // Slabs may come and go faster than a device takes them.
  while (!waiting_.empty() && waiting_.front()->detached()) waiting_.pop_front();
  waiting_.push_back(std::move(slab));
  wake_.NotifyAll();
}

void RdmaRegistrar::Run() {
  pthread_setname_np(pthread_self(), "rdma-register");
  while (true) {
    std::shared_ptr<RdmaSlab> slab;
    {
      MutexLock lock(&mu_);
      registering_.reset();
      while (waiting_.empty() && !stopping_) wake_.Wait(&mu_);
      if (stopping_) return;
      slab = std::move(waiting_.front());
      waiting_.pop_front();
      registering_ = slab;
    }
    Status registered;
    try {
      registered = slab->Register();
    } catch (const std::exception& e) {  // no memory
      registered = absl::ResourceExhaustedError(e.what());
    }
    if (!registered.ok() && !absl::IsCancelled(registered)) {
      LOG_EVERY_N(WARNING, 100) << "a slab is registered with no RDMA device until it is used: "
                                << registered;
    }
  }
}

}  // namespace cairn::transport
