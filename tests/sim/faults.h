// What goes wrong from outside: small named things in one table, so that a new one is a row.
#pragma once

namespace cairn::engine::sim {

struct World;

void DoSomeFault(World* world);
// One of the small ones that a life with a pair of faults has besides.
void DoSomeSmallFault(World* world);

}  // namespace cairn::engine::sim
