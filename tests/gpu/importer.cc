// The other process of the contract suite: imports the device memory that its descriptor 3 names, finds Pattern(BYTES)
// there and leaves Pattern(BYTES, 2).
//
// usage: gpu_importer KIND BYTES
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/gpu/device_kinds.h"
#include "tests/gpu/pattern.h"

namespace cairn::gpu {
namespace {

Status Import(Device& device, uint64_t bytes) {
  CAIRN_ASSIGN_OR_RETURN(const DevicePtr memory, device.Import(UniqueFd(3), bytes));
  std::string found(bytes, 0);
  const CopyOut out{memory, found.data(), bytes};
  CAIRN_RETURN_IF_ERROR(device.Copy({&out, 1}, kDefaultStream));
  CAIRN_RETURN_IF_ERROR(device.Synchronize(kDefaultStream));
  if (found != Pattern(bytes)) return absl::DataLossError("other bytes than the exporter's");
  const std::string left = Pattern(bytes, 2);
  const CopyIn in{left.data(), memory, bytes};
  CAIRN_RETURN_IF_ERROR(device.Copy({&in, 1}, kDefaultStream));
  CAIRN_RETURN_IF_ERROR(device.Synchronize(kDefaultStream));
  return device.Free(memory);
}

Status Run(const std::string& name, uint64_t bytes) {
  for (const DeviceKind& kind : DeviceKinds()) {
    if (kind.name != name) continue;
    CAIRN_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, kind.open());
    return Import(*device, bytes);
  }
  return absl::NotFoundError("no such device: " + name);
}

}  // namespace
}  // namespace cairn::gpu

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const cairn::Status imported = cairn::gpu::Run(argv[1], std::strtoull(argv[2], nullptr, 10));
  if (!imported.ok()) std::fprintf(stderr, "%s\n", imported.ToString().c_str());
  return imported.ok() ? 0 : 1;
}
