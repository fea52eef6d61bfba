// Calls back at the time that the engine asked for last (action::WakeAt).
//
// A class of its own so that setting the time, which happens under the node's lock, takes only
// the timer's lock, and so that the wait has a thread that nothing else needs.
#pragma once

#include <functional>
#include <thread>

#include "common/clock.h"
#include "common/mutex.h"

namespace cairn::node {

// Thread-safe.
class Timer {
 public:
  // `due` runs on the timer's thread, which holds no lock, once per time that was set and not
  // replaced before it came. `clock` outlives the timer.
  Timer(Clock* clock, std::function<void()> due);
  ~Timer() { Stop(); }

  void Start();                 // before it a time that was set is only remembered
  void Set(MonotonicNanos at);  // replaces the previous one
  void Stop();                  // joins the thread; never called from inside `due`

 private:
  void Run();
  bool AwaitDue();  // false: stopping

  Clock* const clock_;
  const std::function<void()> due_;
  Mutex mu_;
  CondVar wake_;
  MonotonicNanos at_ ABSL_GUARDED_BY(mu_) = 0;  // 0: none
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace cairn::node
