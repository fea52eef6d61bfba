// An NVIDIA GPU, through the driver's API. The device is used in its primary context, which the CUDA runtime and
// PyTorch use too: their pointers and streams are valid here, and what is allocated here in theirs.
#pragma once

#include <memory>

#include "client/gpu/device.h"

namespace cairn::gpu {

// OK when OpenCudaDevice can open a device here; else UNAVAILABLE, and why not.
Status CudaAvailable();

// UNAVAILABLE as CudaAvailable; INVALID_ARGUMENT when the driver shows no device of this number.
StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int number);

}  // namespace cairn::gpu
