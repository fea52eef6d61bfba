// A node's calls whose answers are outstanding, and what of an event says who asked.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/clock.h"
#include "server/engine/events.h"

namespace cairn::engine::sim {

struct Call {
  int process = -1;  // who asked
  MonotonicNanos deadline = 0;
  int64_t asked_in = 0;  // the number of the node's Apply that it was asked in
  Event event;
  bool scripted = false;  // the end of the life reads the answer itself
};

struct Calls {
  std::map<RequestId, Call> outstanding;
  RequestId next_request = 1;
};

// nullptr: an event that nobody asks.
Caller* CallerOf(Event* event);
const Caller* CallerOf(const Event& event);
// The job that the event names; "" when it names none.
std::string JobOf(const Event& event);

template <class T>
bool Is(const Event& event) {
  return std::holds_alternative<T>(event);
}

}  // namespace cairn::engine::sim
