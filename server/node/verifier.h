// Checks sealed bytes against their checksums (action::Verify).
//
// Threads of its own because a check reads whole objects: callers, the persister and the engine's
// other results must not stand behind it.
#pragma once

#include <memory>

#include "common/clock.h"
#include "server/cache/cache.h"
#include "server/engine/actions.h"
#include "server/node/event_gate.h"
#include "server/node/executor.h"

namespace cairn::node {

// Thread-safe.
class Verifier {
 public:
  // `cache` and `clock` outlive the verifier.
  Verifier(int threads, cache::Cache* cache, Clock* clock, std::shared_ptr<EventGate> gate);

  // Returns at once; event::Verified follows, unless Stop comes first.
  void Start(engine::action::Verify action);
  void Stop() { executor_.Stop(); }

 private:
  Status Check(const engine::action::Verify& action) const;

  cache::Cache* const cache_;
  Clock* const clock_;
  const std::shared_ptr<EventGate> gate_;
  Executor executor_;  // last: its threads use the members above
};

}  // namespace cairn::node
