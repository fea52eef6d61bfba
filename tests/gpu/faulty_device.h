// Any device, with faults injected into its calls (tests/support/fault_plan.h explains them). With no fault added it
// passes the contract of the device it stands before.
#pragma once

#include <memory>

#include "client/gpu/device.h"
#include "tests/support/fault_plan.h"

namespace cairn::gpu {

enum class DeviceCall {
  kMemory,
  kAllocate,  // shared or not, and Import
  kExport,
  kFree,
  kAllocatePinned,
  kFreePinned,
  kRegister,
  kUnregister,
  kNewStream,
  kNewEvent,
  kRecord,
  kWait,
  kSynchronize,  // of events and streams, and Happened
  kCopyIn,
  kCopyOut,
  kCopyRows,
  kChecksum,
  kFlip,  // after a copy to the device that succeeded. A failure changes one bit of what came, once it is there
};
using DeviceFault = testing::Fault<DeviceCall>;
using DeviceFaults = testing::FaultPlan<DeviceCall>;

// Which calls a test has fail, one after the other: every one, and fewer where a sanitizer makes them slow.
int Stride();

std::unique_ptr<Device> MakeFaultyDevice(std::unique_ptr<Device> inner,
                                         std::shared_ptr<DeviceFaults> faults);

}  // namespace cairn::gpu
