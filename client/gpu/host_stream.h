// A stream of the host device: a thread that does what it is given in that order. And its events.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "common/mutex.h"

namespace cairn::gpu {

// What has been recorded, and how much of it has happened. Thread-safe.
class HostEvent {
 public:
  // A further recording; its number is what waits are for.
  uint64_t Record();
  void Happen(uint64_t recording);
  uint64_t Recorded() const;
  bool Happened() const;  // all that was recorded; true when nothing was
  void Wait(uint64_t recording) const;

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  uint64_t recorded_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t happened_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Thread-safe. Ends when all it was given is done.
class HostStream {
 public:
  HostStream();
  ~HostStream();
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  void Do(std::function<void()> work);
  void Synchronize();  // waits until all that it was given before is done

 private:
  void Run();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t given_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cairn::gpu
