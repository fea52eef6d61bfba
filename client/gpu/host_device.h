// A device made of this process's memory and threads: what runs where there is no GPU, and what tests run against. It
// keeps the driver's rules, so that code which works here does not meet them for the first time on a GPU: what may be
// registered and copied, what is ordered and what is not, what a fork leaves. Device memory that other processes may import lies in memfds.
//
// One difference cannot be hidden: host memory that is registered is not held. After a hole is punched in its file, a
// GPU goes on reading the old page, and this device reads the new one.
#pragma once

#include <memory>

#include "client/gpu/device.h"

namespace cairn::gpu {

struct HostDeviceOptions {
  uint64_t memory_bytes = uint64_t{4} << 30;
  bool read_only_registration = true;  // of which drivers say that they have it, or not
  bool checksums = true;
};

std::unique_ptr<Device> MakeHostDevice(const HostDeviceOptions& options = {});

}  // namespace cairn::gpu
