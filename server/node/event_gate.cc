#include "server/node/event_gate.h"

#include <utility>

namespace cairn::node {

void EventGate::Post(engine::Event event) {
  Run([&] { enter_(std::move(event)); });
}

void EventGate::Run(const std::function<void()>& what) {
  {
    MutexLock lock(&mu_);
    if (closed_) return;
    ++inside_;
  }
  what();
  MutexLock lock(&mu_);
  if (--inside_ == 0) left_.NotifyAll();
}

void EventGate::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
  while (inside_ > 0) left_.Wait(&mu_);
}

}  // namespace cairn::node
