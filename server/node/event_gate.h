// The way into the engine for results of actions: executors, the timer and the cache bring their
// events here.
//
// It stands between them and the node because the cache outlives the node: a callback that the
// cache runs late finds the gate closed, where a pointer to the node would dangle.
#pragma once

#include <functional>

#include "common/mutex.h"
#include "server/engine/events.h"

namespace cairn::node {

// Thread-safe.
class EventGate {
 public:
  // `enter` applies one event; it runs on the posting thread, which holds no lock of the gate.
  explicit EventGate(std::function<void(engine::Event)> enter) : enter_(std::move(enter)) {}

  // Drops the event when the gate is closed.
  void Post(engine::Event event);
  // Runs `what`, which may use the node, on this thread; not when the gate is closed.
  void Run(const std::function<void()>& what);
  // When this returns, no thread is inside `enter` or a `what`, and none will be. Never called from inside it.
  void Close();

 private:
  const std::function<void(engine::Event)> enter_;
  Mutex mu_;
  CondVar left_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  int inside_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::node
