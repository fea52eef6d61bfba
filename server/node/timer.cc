#include "server/node/timer.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace cairn::node {

Timer::Timer(Clock* clock, std::function<void()> due) : clock_(clock), due_(std::move(due)) {}

void Timer::Start() {
  thread_ = std::thread([this] { Run(); });
}

void Timer::Set(MonotonicNanos at) {
  MutexLock lock(&mu_);
  at_ = at;
  wake_.NotifyOne();
}

void Timer::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

bool Timer::AwaitDue() {
  MutexLock lock(&mu_);
  for (;;) {
    if (stopping_) return false;
    if (at_ == 0) {
      wake_.Wait(&mu_);
      continue;
    }
    const MonotonicNanos left = at_ - clock_->Now();
    if (left <= 0) {
      at_ = 0;
      return true;
    }
    wake_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::nanoseconds(left));
  }
}

void Timer::Run() {
  pthread_setname_np(pthread_self(), "timer");
  while (AwaitDue()) due_();
}

}  // namespace cairn::node
