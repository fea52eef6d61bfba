#include "server/node/storage_watch.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace cairn::node {

StorageWatch::StorageWatch(MonotonicNanos interval, storage::Storage* storage, Clock* clock,
                           std::shared_ptr<EventGate> gate)
    : interval_(interval), storage_(storage), clock_(clock), gate_(std::move(gate)) {}

void StorageWatch::Start() {
  if (storage_ != nullptr) thread_ = std::thread([this] { Run(); });
}

void StorageWatch::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

MonotonicNanos StorageWatch::LookingFor() const {
  MutexLock lock(&mu_);
  return looking_since_ == 0 ? 0 : clock_->Now() - looking_since_;
}

bool StorageWatch::AwaitNext() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(interval_);
  MutexLock lock(&mu_);
  while (!stopping_) {
    if (!wake_.WaitUntil(&mu_, until)) break;
  }
  return !stopping_;
}

void StorageWatch::Look() {
  {
    MutexLock lock(&mu_);
    looking_since_ = clock_->Now();
  }
  StatusOr<RootIdentity> seen = storage_->Identity();
  {
    MutexLock lock(&mu_);
    looking_since_ = 0;
  }
  if (told_.has_value() && *told_ == seen) return;
  told_ = seen;
  gate_->Post(engine::event::StorageSeen{std::move(seen)});
}

void StorageWatch::Run() {
  pthread_setname_np(pthread_self(), "storage watch");
  do {
    Look();
  } while (AwaitNext());
}

}  // namespace cairn::node
