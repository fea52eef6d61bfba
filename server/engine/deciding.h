// Which calls are the whole ring's affair, on whatever node they are said.
#pragma once

#include <optional>
#include <string>
#include <type_traits>

#include "server/engine/events.h"
#include "server/engine/journal_use.h"

namespace cairn::engine {

struct Deciding {
  bool decides = false;  // it is acknowledged when two journals have it (decisions.h)
  // Of a job or step that this node does not know the job's home is asked first.
  bool asks_home = false;
  // Not of a life that another one has replaced: it only holds what it has, and may write it.
  bool refused_when_superseded = false;
};

template <class E>
constexpr Deciding DecidingOf() {
  if constexpr (kIsOneOf<E, event::Use, event::ResumeFrom, event::Remove, event::Pin,
                         event::SetPolicy>) {
    return {.decides = true, .asks_home = true, .refused_when_superseded = true};
  } else if constexpr (std::is_same_v<E, event::PersistNow>) {
    return {.decides = true, .asks_home = true};
  } else if constexpr (std::is_same_v<E, event::PreviewPolicy>) {
    return {.asks_home = true};
  }
  return {};
}

template <class E>
const std::string& JobOf(const E& event) {
  if constexpr (requires { event.ref; }) {
    return event.ref.job;
  } else {
    return event.job;
  }
}

// nullopt: the call carries none.
template <class E>
std::optional<MonotonicNanos> DeadlineOf(const E& event) {
  if constexpr (requires { event.deadline; }) {
    return event.deadline;
  } else {
    return std::nullopt;
  }
}

// What goes from this node's memory is nobody else's affair.
template <class E>
bool OfThisNodeAlone(const E& event) {
  if constexpr (std::is_same_v<E, event::Remove>) return event.memory_only;
  return false;
}

}  // namespace cairn::engine
