// Whether a step's weights are good: every block of its safetensors objects, their headers, the index of them all, and
// that the parts of every tensor are a whole.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "client/cpp/session.h"
#include "common/status.h"

namespace cairn::client {

struct WeightsCheck {
  uint64_t objects = 0;
  uint64_t bytes = 0;    // of the objects
  uint64_t tensors = 0;  // of those whose headers are good
  // All that is wrong, each with its object or tensor. Empty: the weights are good.
  std::vector<std::string> wrong;
};

// Opens one object after the other by its name. `checked` hears how many of their bytes are done. An error is why the
// weights could not be checked, as when the daemon goes meanwhile; what is wrong with them is none.
StatusOr<WeightsCheck> CheckWeights(
    const std::vector<std::string>& objects,
    absl::FunctionRef<StatusOr<std::unique_ptr<OpenObject>>(const std::string& name)> open,
    absl::FunctionRef<void(uint64_t bytes)> checked);

}  // namespace cairn::client
