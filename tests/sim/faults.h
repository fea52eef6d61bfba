// What goes wrong from outside: small named things in one table, so that a new one is a row.
#pragma once

namespace cairn::engine::sim {

struct World;

void DoSomeFault(World* world);

}  // namespace cairn::engine::sim
