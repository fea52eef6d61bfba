// The end of a life, without faults: when everybody is dead and nobody sees anything, all that was
// held comes back, and a job that fits twice can save.
#pragma once

namespace cairn::engine::sim {

struct World;

void EndLife(World* world);

}  // namespace cairn::engine::sim
