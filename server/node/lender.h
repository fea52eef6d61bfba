// Hands the slabs that an answer lends to the session that asked.
//
// A class of its own because it makes system calls for each slab: the code that delivers an answer
// chooses the thread on which they are made.
#pragma once

#include <memory>

#include "server/cache/cache.h"
#include "server/engine/actions.h"
#include "server/node/event_gate.h"
#include "server/node/sessions.h"

namespace cairn::node {

// Thread-safe.
class Lender {
 public:
  // `cache` and `sessions` outlive the lender.
  Lender(cache::Cache* cache, Sessions* sessions, std::shared_ptr<EventGate> gate)
      : cache_(cache), sessions_(sessions), gate_(std::move(gate)) {}

  // Puts a descriptor on the fd channel for everything that `body` lends. When one fails, returns
  // that failure and tells the engine of every lend that did not leave. Never blocks.
  Status LendAll(SessionId session, const engine::reply::Body& body) const;

 private:
  Status LendOne(SessionId session, const engine::Lend& lend) const;
  Status Send(SessionId session, const engine::Lend& lend) const;

  cache::Cache* const cache_;
  Sessions* const sessions_;
  const std::shared_ptr<EventGate> gate_;
};

}  // namespace cairn::node
