// Threads for calls of storage, and a queue of them for each job. A call may hang for as long as
// storage does; what hangs below one job's directory leaves the other jobs their threads.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"

namespace cairn::node {

// Thread-safe. Jobs take turns. A queue needs no bound of its own: the engine bounds what Add is
// called for, and each Run has a caller that waits.
class JobExecutor {
 public:
  // A job has at most `per_job` of the `threads`. With one its tasks run in the order in which they
  // came. `name` is shown by ps and gdb (15 characters).
  JobExecutor(const std::string& name, int threads, int per_job);
  ~JobExecutor() { Stop(); }

  void Add(const std::string& job, std::function<void()> task);
  // Returns once the task has run, or after `patience`: false. A task that has not begun then is
  // forgotten; one that has goes on, so it must own all that it uses.
  bool Run(const std::string& job, MonotonicNanos patience, std::function<void()> task);
  // Forgets the tasks that have not begun and waits for those that have, however long they hang.
  // Later ones are forgotten.
  void Stop();

 private:
  // Somebody in Run.
  struct Waiter {
    CondVar wake;       // with mu_
    bool done = false;  // guarded by mu_
  };
  struct Task {
    std::function<void()> run;
    std::shared_ptr<Waiter> waiter;  // null: nobody waits
  };
  struct Queue {
    std::deque<Task> waiting;
    int running = 0;
    bool in_turn = false;
  };

  void Put(const std::string& job, Task task) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes out the task that this one waits for, if it has not begun.
  Task Withdraw(const std::string& job, const Waiter& waiter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the job a turn when it has a task that may begin; forgets it when it has none at all.
  void Settle(const std::string& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunTasks(const std::string& name);

  const int per_job_;
  Mutex mu_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Queue> jobs_ ABSL_GUARDED_BY(mu_);  // with tasks that wait or run
  // Each job of which a task may begin, once.
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mu_);
  std::set<std::shared_ptr<Waiter>> waiters_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;  // last: they use the members above
};

}  // namespace cairn::node
