#include "server/node/job_executor.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <utility>

#include "glog/logging.h"

namespace cairn::node {

JobExecutor::JobExecutor(const std::string& name, int threads, int per_job) : per_job_(per_job) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this, name] { RunTasks(name); });
}

void JobExecutor::Add(const std::string& job, std::function<void()> task) {
  MutexLock lock(&mu_);
  if (!stopping_) Put(job, {std::move(task), nullptr});
}

bool JobExecutor::Run(const std::string& job, MonotonicNanos patience, std::function<void()> task) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(patience);
  const auto waiter = std::make_shared<Waiter>();
  Task forgotten;  // destroyed once mu_ is released
  MutexLock lock(&mu_);
  if (stopping_) return false;
  Put(job, {std::move(task), waiter});
  waiters_.insert(waiter);
  while (!waiter->done && !stopping_) {
    if (!waiter->wake.WaitUntil(&mu_, until)) break;
  }
  waiters_.erase(waiter);
  if (!waiter->done) forgotten = Withdraw(job, *waiter);
  return waiter->done;
}

void JobExecutor::Stop() {
  std::map<std::string, Queue> forgotten;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    turns_.clear();
    for (auto& [job, queue] : jobs_) {
      forgotten[job].waiting.swap(queue.waiting);
    }
    for (const std::shared_ptr<Waiter>& waiter : waiters_) waiter->wake.NotifyAll();
    wake_.NotifyAll();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void JobExecutor::Put(const std::string& job, Task task) {
  jobs_[job].waiting.push_back(std::move(task));
  Settle(job);
}

JobExecutor::Task JobExecutor::Withdraw(const std::string& job, const Waiter& waiter) {
  const auto at = jobs_.find(job);
  if (at == jobs_.end()) return {};
  std::deque<Task>& waiting = at->second.waiting;
  for (auto task = waiting.begin(); task != waiting.end(); ++task) {
    if (task->waiter.get() != &waiter) continue;
    Task withdrawn = std::move(*task);
    waiting.erase(task);
    Settle(job);
    return withdrawn;
  }
  return {};
}

void JobExecutor::Settle(const std::string& job) {
  const auto at = jobs_.find(job);
  Queue& queue = at->second;
  if (queue.in_turn || stopping_) return;
  if (queue.waiting.empty()) {
    if (queue.running == 0) jobs_.erase(at);
  } else if (queue.running < per_job_) {
    queue.in_turn = true;
    turns_.push_back(job);
    wake_.NotifyOne();
  }
}

void JobExecutor::RunTasks(const std::string& name) {
  pthread_setname_np(pthread_self(), name.substr(0, 15).c_str());
  for (;;) {
    std::string job;
    Task task;
    {
      MutexLock lock(&mu_);
      while (turns_.empty() && !stopping_) wake_.Wait(&mu_);
      if (stopping_) return;
      job = std::move(turns_.front());
      turns_.pop_front();
      Queue& queue = jobs_.at(job);
      queue.in_turn = false;
      if (!queue.waiting.empty()) {  // else it was withdrawn
        task = std::move(queue.waiting.front());
        queue.waiting.pop_front();
        ++queue.running;
      }
      Settle(job);
    }
    if (!task.run) continue;
    try {
      task.run();
    } catch (const std::exception& e) {
      // Every task reports the result of an action. Without a report the engine would keep what the
      // action pinned for ever; the keeper's next daemon decides anew.
      LOG(FATAL) << name << ": " << e.what();
    }
    task.run = nullptr;  // what it owns may be a file, whose closing may hang
    MutexLock lock(&mu_);
    --jobs_.at(job).running;
    if (task.waiter != nullptr) {
      task.waiter->done = true;
      task.waiter->wake.NotifyAll();
    }
    Settle(job);
  }
}

}  // namespace cairn::node
