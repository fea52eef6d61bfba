#include "tests/gpu/device_kinds.h"

#include "client/gpu/cuda_device.h"
#include "client/gpu/host_device.h"
#include "tests/gpu/faulty_device.h"

namespace cairn::gpu {

std::vector<DeviceKind> DeviceKinds() {
  std::vector<DeviceKind> kinds = {
      {"Host", []() -> StatusOr<std::unique_ptr<Device>> { return MakeHostDevice(); }},
      {"FaultyWithoutFaults",
       []() -> StatusOr<std::unique_ptr<Device>> {
         return MakeFaultyDevice(MakeHostDevice(), std::make_shared<DeviceFaults>());
       }},
  };
  if (CudaAvailable().ok()) kinds.push_back({"Cuda", [] { return OpenCudaDevice(0); }});
  return kinds;
}

}  // namespace cairn::gpu
