// Work that a caller does not wait for, on a thread of its own.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/status.h"

namespace cairn::client {

// Nobody waits for it while `beside` holds: it leaves the machine's other cores to the process.
using BackgroundWork = std::function<Status(const std::atomic<bool>& beside)>;

// Thread-safe.
class Background {
 public:
  // The thread takes no signals of the process. RESOURCE_EXHAUSTED, as how the work ended, where the system gives
  // no thread.
  explicit Background(BackgroundWork work);
  ~Background();  // waits for the end, in the process that it began in
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Somebody waits from now on.
  void Hurry() { beside_ = false; }
  // Whether it has ended within `patience`.
  bool Wait(absl::Duration patience) const;
  // How; only when it has ended.
  Status status() const;

 private:
  const pid_t pid_;
  const BackgroundWork work_;
  std::atomic<bool> beside_{true};
  mutable Mutex mu_;
  mutable CondVar ended_changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  Status status_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace cairn::client
