#include "client/cpp/background.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <system_error>
#include <utility>

#include "client/cpp/process.h"

namespace cairn::client {

Background::Background(BackgroundWork work) : pid_(getpid()), work_(std::move(work)) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] {
      Status status = Contain([this] { return work_(beside_); });
      MutexLock lock(&mu_);
      status_ = std::move(status);
      ended_ = true;
      ended_changed_.NotifyAll();
    });
  } catch (const std::system_error& e) {
    MutexLock lock(&mu_);
    status_ = absl::ResourceExhaustedError(absl::StrCat("no thread to copy on: ", e.what()));
    ended_ = true;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Background::~Background() {
  if (!thread_.joinable()) return;
  if (pid_ == getpid()) {
    Hurry();
    thread_.join();
  } else {
    new std::thread(std::move(thread_));  // a forked child has no such thread
  }
}

bool Background::Wait(absl::Duration patience) const {
  const std::chrono::steady_clock::time_point deadline(
      std::chrono::nanoseconds(DeadlineAfter(patience)));
  MutexLock lock(&mu_);
  while (!ended_) {
    if (!ended_changed_.WaitUntil(&mu_, deadline)) return ended_;
  }
  return true;
}

Status Background::status() const {
  MutexLock lock(&mu_);
  return status_;
}

}  // namespace cairn::client
