#include "server/node/executor.h"

#include <pthread.h>

#include <exception>
#include <utility>

#include "glog/logging.h"

namespace cairn::node {

Executor::Executor(const std::string& name, int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this, name] { Run(name); });
}

void Executor::Add(std::function<void()> task) {
  MutexLock lock(&mu_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  wake_.NotifyOne();
}

void Executor::Stop() {
  std::deque<std::function<void()>> forgotten;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    forgotten.swap(tasks_);
    wake_.NotifyAll();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void Executor::Run(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(&mu_);
      while (tasks_.empty() && !stopping_) wake_.Wait(&mu_);
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    try {
      task();
    } catch (const std::exception& e) {
      // Every task reports the result of an action. Without a report the engine would keep what the
      // action pinned for ever; the keeper's next daemon decides anew.
      LOG(FATAL) << name << ": " << e.what();
    }
  }
}

}  // namespace cairn::node
