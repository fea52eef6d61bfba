// The threads that copy. The caller's thread always takes part, so with one thread there are no
// helpers; the others are started at the first copy that is worth sharing. Thread-safe: several
// callers share the helpers.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/mutex.h"

namespace cairn::client {

class CopyThreads {
 public:
  // `threads` ≥ 1, the caller's included.
  explicit CopyThreads(int threads);
  ~CopyThreads();  // joins; no Run may be in progress

  // Runs work(0) … work(count-1), each once, in ascending order of start, on this thread and the
  // helpers; returns when all have ended. `work` must not throw.
  // While `*beside` holds (null: it does not) the helpers stay out of it: this thread works alone.
  void Run(size_t count, absl::FunctionRef<void(size_t)> work,
           const std::atomic<bool>* beside = nullptr);

 private:
  struct Job {
    size_t count = 0;
    absl::FunctionRef<void(size_t)> work;
    std::atomic<size_t> next{0};
    int helpers = 0;  // threads inside, besides the caller; guarded by mu_
  };
  void StartLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Help();

  const int threads_;
  const pid_t pid_;  // in a forked child the caller's thread copies alone
  Mutex mu_;
  CondVar work_;                               // helpers wait for jobs
  CondVar ended_;                              // callers wait for their helpers
  std::list<Job*> jobs_ ABSL_GUARDED_BY(mu_);  // those with work left to start
  std::vector<std::thread> helpers_ ABSL_GUARDED_BY(mu_);
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::client
