// One line of a trace per event, fact and action: its name, and those of its fields that tell one
// from another.
#pragma once

#include <string>

#include "server/engine/actions.h"
#include "server/engine/events.h"
#include "server/facts/facts.h"

namespace cairn::engine::sim {

std::string Name(const Event& event);
std::string Describe(const Event& event);
std::string Describe(const Fact& fact);
std::string Describe(const Action& action);

}  // namespace cairn::engine::sim
