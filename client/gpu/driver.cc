#include "client/gpu/driver.h"

#include <dlfcn.h>

namespace cairn::gpu::driver {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";

StatusOr<const Calls*> Load() {
  // Never closed: the driver has threads of its own.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat("no CUDA driver: ", dlerror()));
  }
  const auto init = reinterpret_cast<CUresult (*)(unsigned)>(dlsym(library, "cuInit"));
  if (init == nullptr) return absl::UnavailableError(absl::StrCat(kLibrary, " has no cuInit"));
  auto* calls = new Calls;  // lives as long as the library
#define X(name, symbol, arguments) \
  calls->name = reinterpret_cast<CUresult(*) arguments>(dlsym(library, symbol));
  CAIRN_CUDA_CALLS(X)
  CAIRN_NEWER_CUDA_CALLS(X)
#undef X
#define X(name, symbol, arguments)                                                   \
  if (calls->name == nullptr) {                                                      \
    return absl::UnavailableError(                                                   \
        absl::StrCat(kLibrary, " has no " symbol ": Cairn needs CUDA 12 or later")); \
  }
  CAIRN_CUDA_CALLS(X)
#undef X
  if (const CUresult ready = init(0); ready != 0) {
    return absl::UnavailableError(ToStatus(*calls, ready, "cuInit").message());
  }
  int devices = 0;
  CAIRN_RETURN_IF_ERROR(ToStatus(*calls, calls->DeviceGetCount(&devices), "cuDeviceGetCount"));
  if (devices == 0) return absl::UnavailableError("the CUDA driver shows no device");
  return calls;
}

absl::StatusCode CodeOf(CUresult result) {
  switch (result) {
    case kInvalidValue:
    case kInvalidHandle:
      return absl::StatusCode::kInvalidArgument;
    case kOutOfMemory:
      return absl::StatusCode::kResourceExhausted;
    case kNoDevice:
    case kInvalidDevice:
      return absl::StatusCode::kUnavailable;
    case kAlreadyRegistered:
      return absl::StatusCode::kAlreadyExists;
    case kNotRegistered:
      return absl::StatusCode::kNotFound;
    case kNotSupported:
    case kNoBinaryForGpu:
    case kUnsupportedPtx:
      return absl::StatusCode::kUnimplemented;
    case kNotInitialized:  // in a forked child
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

StatusOr<const Calls*> Find() {
  static const StatusOr<const Calls*> found = Load();
  return found;
}

Status ToStatus(const Calls& calls, CUresult result, const std::string& what) {
  if (result == 0) return absl::OkStatus();
  const char *name = nullptr, *text = nullptr;
  if (calls.GetErrorName(result, &name) != 0 || name == nullptr) name = "an unknown error";
  if (calls.GetErrorString(result, &text) != 0 || text == nullptr) text = "failed";
  return Status(CodeOf(result), absl::StrCat(what, ": ", text, " (", name, ", ", result, ")"));
}

}  // namespace cairn::gpu::driver
