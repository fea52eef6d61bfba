// A step's tensors as one safetensors file: each whole, whoever saved its parts, in the order of StorageOrder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "client/cpp/weights.h"
#include "client/cpp/weights_plan.h"
#include "common/status.h"

namespace cairn::client {

struct WeightsFile {
  Plan plan;
  std::string header;           // the file's first bytes, with the weights' metadata()
  std::vector<uint64_t> begin;  // of each of plan.tensors, in the file
  uint64_t bytes = 0;           // of all of it
};

// INVALID_ARGUMENT as MakePlan and EncodeSafetensorsHeader.
StatusOr<WeightsFile> LayOutFile(const Weights& weights, const Selection& selection);

// Writes to `fd`, a file without bytes. Reads every block once and verified, and keeps 64 MiB of them at most.
// `written` hears how many bytes are there. Errors of the file begin with `where`.
Status WriteFile(const Weights& weights, const WeightsFile& file, int fd, const std::string& where,
                 absl::FunctionRef<void(uint64_t bytes)> written);

}  // namespace cairn::client
