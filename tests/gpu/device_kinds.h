// The devices that the contract suite is about: those that need no GPU, and the GPU where there is one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/gpu/device.h"

namespace cairn::gpu {

struct DeviceKind {
  std::string name;
  std::function<StatusOr<std::unique_ptr<Device>>()> open;
};

std::vector<DeviceKind> DeviceKinds();

inline void PrintTo(const DeviceKind& kind, std::ostream* out) { *out << kind.name; }

}  // namespace cairn::gpu
