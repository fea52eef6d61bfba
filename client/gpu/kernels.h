// The code that runs on a GPU, as nvcc built it (kernels.cu): machine code for the chips it was built for, and PTX for
// later ones. Empty where Cairn was built without the CUDA toolkit.
#pragma once

#include "absl/strings/string_view.h"

namespace cairn::gpu {

absl::string_view Kernels();

}  // namespace cairn::gpu
