// What goes wrong from outside: small named things in one table, so that a new one is a row.
#pragma once

namespace cairn::engine::sim {

struct World;

void DoSomeFault(World* world);
// A user deletes the files of a checkpoint in storage, often the last one's, or stops the `rm` half way.
void FilesAreTaken(World* world);
// One of the small ones that a life with a pair of faults has besides.
void DoSomeSmallFault(World* world);

}  // namespace cairn::engine::sim
