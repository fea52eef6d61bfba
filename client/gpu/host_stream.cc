#include "client/gpu/host_stream.h"

#include <algorithm>
#include <utility>

namespace cairn::gpu {

uint64_t HostEvent::Record() {
  const MutexLock lock(&mutex_);
  return ++recorded_;
}

void HostEvent::Happen(uint64_t recording) {
  const MutexLock lock(&mutex_);
  happened_ = std::max(happened_, recording);
  changed_.NotifyAll();
}

uint64_t HostEvent::Recorded() const {
  const MutexLock lock(&mutex_);
  return recorded_;
}

bool HostEvent::Happened() const {
  const MutexLock lock(&mutex_);
  return happened_ >= recorded_;
}

void HostEvent::Wait(uint64_t recording) const {
  const MutexLock lock(&mutex_);
  while (happened_ < recording) changed_.Wait(&mutex_);
}

HostStream::HostStream() : thread_([this] { Run(); }) {}

HostStream::~HostStream() {
  {
    const MutexLock lock(&mutex_);
    ending_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void HostStream::Do(std::function<void()> work) {
  const MutexLock lock(&mutex_);
  queue_.push_back(std::move(work));
  ++given_;
  changed_.NotifyAll();
}

void HostStream::Synchronize() {
  const MutexLock lock(&mutex_);
  const uint64_t until = given_;
  while (done_ < until) changed_.Wait(&mutex_);
}

void HostStream::Run() {
  mutex_.Lock();
  for (;;) {
    while (queue_.empty() && !ending_) changed_.Wait(&mutex_);
    if (queue_.empty()) break;
    std::function<void()> work = std::move(queue_.front());
    queue_.pop_front();
    mutex_.Unlock();
    work();
    work = nullptr;  // what it holds is let go before anybody hears that it is done
    mutex_.Lock();
    ++done_;
    changed_.NotifyAll();
  }
  mutex_.Unlock();
}

}  // namespace cairn::gpu
