#include "tests/sim/calls.h"

#include <variant>

namespace cairn::engine::sim {

Caller* CallerOf(Event* event) {
  return std::visit(
      [](auto& e) -> Caller* {
        if constexpr (requires { e.caller.request; }) return &e.caller;
        return nullptr;
      },
      *event);
}

const Caller* CallerOf(const Event& event) { return CallerOf(const_cast<Event*>(&event)); }

std::string JobOf(const Event& event) {
  return std::visit(
      [](const auto& e) -> std::string {
        if constexpr (requires { e.ref.job; }) return e.ref.job;
        if constexpr (requires { e.job.size(); }) return e.job;
        return "";
      },
      event);
}

}  // namespace cairn::engine::sim
