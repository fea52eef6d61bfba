// The devices of this process: each opened at its first use, for streams to it and saves from it.
#pragma once

#include "client/gpu/device_saver.h"
#include "client/gpu/weight_stream.h"
#include "common/status.h"

namespace cairn::python {

// Names the host's own device where others are CUDA's ordinals.
inline constexpr int kHostDevice = -1;

// Both live as long as the process. UNAVAILABLE when there is no such device, with the reason. They may take seconds: call
// them without the GIL.
StatusOr<gpu::Streamer*> StreamerOf(int device);
StatusOr<gpu::DeviceSaver*> SaverOf(int device);

}  // namespace cairn::python
