#include "client/python/src/devices.h"

#include <atomic>
#include <map>
#include <memory>
#include <utility>

#include "client/cpp/process.h"
#include "client/gpu/cuda_device.h"
#include "client/gpu/host_device.h"
#include "common/mutex.h"

namespace cairn::python {
namespace {

struct OpenDevice {
  explicit OpenDevice(std::unique_ptr<gpu::Device> device)
      : streamer(std::move(device)), saver(streamer.device()) {}

  gpu::Streamer streamer;
  gpu::DeviceSaver saver;  // after the device, which the streamer has
};

// Never destroyed, for a process ends in any order. A forked child makes its own, which a GPU refuses; it never looks at
// its parent's, whose lock may be held.
struct Devices {
  const pid_t process = client::ThisPid();
  Mutex mutex;
  std::map<int, OpenDevice*> open ABSL_GUARDED_BY(mutex);
};

Devices* DevicesHere() {
  static std::atomic<Devices*> here{nullptr};
  Devices* found = here.load();
  while (found == nullptr || found->process != client::ThisPid()) {
    auto* const made = new Devices;
    if (here.compare_exchange_strong(found, made)) return made;
    delete made;
  }
  return found;
}

StatusOr<OpenDevice*> Open(int device) {
  Devices* const here = DevicesHere();
  MutexLock lock(&here->mutex);
  OpenDevice*& found = here->open[device];
  if (found != nullptr) return found;
  std::unique_ptr<gpu::Device> made;
  if (device == kHostDevice) {
    gpu::HostDeviceOptions options;
    options.memory_bytes = uint64_t{1} << 46;  // as much as the process may have
    made = gpu::MakeHostDevice(options);
  } else {
    CAIRN_ASSIGN_OR_RETURN(made, gpu::OpenCudaDevice(device));
  }
  found = new OpenDevice(std::move(made));
  return found;
}

}  // namespace

StatusOr<gpu::Streamer*> StreamerOf(int device) {
  CAIRN_ASSIGN_OR_RETURN(OpenDevice* const open, Open(device));
  return &open->streamer;
}

StatusOr<gpu::DeviceSaver*> SaverOf(int device) {
  CAIRN_ASSIGN_OR_RETURN(OpenDevice* const open, Open(device));
  return &open->saver;
}

}  // namespace cairn::python
