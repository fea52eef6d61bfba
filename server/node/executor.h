// A few threads and a queue, for tasks that may block: writing files, reading them, checking
// checksums.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"

namespace cairn::node {

// The queue needs no bound of its own: every task carries out an action, and the engine bounds how
// many actions of each kind are outstanding. Thread-safe.
class Executor {
 public:
  // `name` is shown by ps and gdb (15 characters).
  Executor(const std::string& name, int threads);
  ~Executor() { Stop(); }

  void Add(std::function<void()> task);
  // Forgets the tasks that have not begun and waits for those that have. Later ones are forgotten.
  void Stop();

 private:
  void Run(const std::string& name);

  Mutex mu_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_;  // last: they use the members above
};

}  // namespace cairn::node
