// Looks again and again at which storage stands at the root, and tells the engine when that has
// changed (event::StorageSeen), the first time at the start.
//
// A thread of its own, because a root on a network that does not answer may keep it for ever: nobody
// waits for this thread but Stop.
#pragma once

#include <memory>
#include <optional>
#include <thread>

#include "common/clock.h"
#include "common/mutex.h"
#include "server/node/event_gate.h"
#include "server/storage/storage.h"

namespace cairn::node {

// Thread-safe.
class StorageWatch {
 public:
  // All outlive the watch. `storage` may be null: nothing is watched then.
  StorageWatch(MonotonicNanos interval, storage::Storage* storage, Clock* clock,
               std::shared_ptr<EventGate> gate);
  ~StorageWatch() { Stop(); }

  void Start();
  void Stop();
  // For how long the look that is under way has had no answer; 0: none is.
  MonotonicNanos LookingFor() const;

 private:
  void Run();
  void Look();
  bool AwaitNext();  // false: stopping

  const MonotonicNanos interval_;
  storage::Storage* const storage_;
  Clock* const clock_;
  const std::shared_ptr<EventGate> gate_;
  std::optional<StatusOr<RootIdentity>> told_;  // the thread's own

  mutable Mutex mu_;
  CondVar wake_;
  MonotonicNanos looking_since_ ABSL_GUARDED_BY(mu_) = 0;  // 0: not looking
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace cairn::node
