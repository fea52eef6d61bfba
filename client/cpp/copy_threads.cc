#include "client/cpp/copy_threads.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

namespace cairn::client {
namespace {

// Until nothing is left to start, or `*beside` holds no longer.
void Work(std::atomic<size_t>* next, size_t count, absl::FunctionRef<void(size_t)> work,
          const std::atomic<bool>* beside = nullptr) {
  while (beside == nullptr || beside->load(std::memory_order_relaxed)) {
    const size_t i = next->fetch_add(1, std::memory_order_relaxed);
    if (i >= count) return;
    work(i);
  }
}

}  // namespace

CopyThreads::CopyThreads(int threads) : threads_(std::max(threads, 1)), pid_(getpid()) {}

CopyThreads::~CopyThreads() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (pid_ != getpid()) {
    // A forked child has none of the threads, and its copy of the lock may be held for ever.
    new std::vector<std::thread>(std::move(helpers_));
    return;
  }
  std::vector<std::thread> helpers;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    helpers.swap(helpers_);
  }
  work_.NotifyAll();
  for (std::thread& helper : helpers) helper.join();
}

void CopyThreads::StartLocked() {
  // The trainer's signals must reach the trainer's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    while (helpers_.size() + 1 < static_cast<size_t>(threads_)) {
      helpers_.emplace_back([this] { Help(); });
    }
  } catch (const std::system_error&) {
    // The system gives no more threads: the copy is slower, and still right.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void CopyThreads::Run(size_t count, absl::FunctionRef<void(size_t)> work,
                      const std::atomic<bool>* beside) {
  Job job = {count, work};
  if (beside != nullptr) Work(&job.next, count, work, beside);
  if (job.next.load(std::memory_order_relaxed) >= count) return;
  if (threads_ == 1 || count <= 1 || pid_ != getpid()) {
    Work(&job.next, count, work);
    return;
  }
  {
    MutexLock lock(&mu_);
    StartLocked();
    jobs_.push_back(&job);
  }
  work_.NotifyAll();
  Work(&job.next, count, work);
  MutexLock lock(&mu_);
  jobs_.remove(&job);
  while (job.helpers > 0) ended_.Wait(&mu_);
}

void CopyThreads::Help() {
  MutexLock lock(&mu_);
  for (;;) {
    while (jobs_.empty() && !stop_) work_.Wait(&mu_);
    if (stop_) return;
    Job* const job = jobs_.front();
    ++job->helpers;
    mu_.Unlock();
    Work(&job->next, job->count, job->work);
    mu_.Lock();
    jobs_.remove(job);  // nothing is left to start
    if (--job->helpers == 0) ended_.NotifyAll();
  }
}

}  // namespace cairn::client
