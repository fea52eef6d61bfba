// The CUDA driver, found at run time: nothing of Cairn needs the toolkit to be built, or links a CUDA library. Names,
// numbers and layouts are those of the driver API, 12.0 and later (cuda.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/status.h"

namespace cairn::gpu::driver {

using CUresult = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUhandle = unsigned long long;  // CUmemGenericAllocationHandle

// CUresult, as far as Cairn tells them apart.
inline constexpr CUresult kInvalidValue = 1, kOutOfMemory = 2, kNotInitialized = 3, kNoDevice = 100,
                          kInvalidDevice = 101, kNoBinaryForGpu = 209, kUnsupportedPtx = 222,
                          kInvalidHandle = 400, kNotReady = 600, kAlreadyRegistered = 712,
                          kNotRegistered = 713, kNotSupported = 801;

// CUdevice_attribute.
inline constexpr int kReadOnlyRegisterAttribute = 113, kNumaNodeAttribute = 134;

struct CUlocation {  // CUmemLocation
  int type = 0;      // 1: a device
  int id = 0;
};

struct CUallocation {    // CUmemAllocationProp
  int type = 1;          // pinned on the device
  int handle_types = 1;  // a file descriptor
  CUlocation location = {1, 0};
  void* security_attributes = nullptr;
  unsigned char flags[8] = {};
};

struct CUaccess {  // CUmemAccessDesc
  CUlocation location = {1, 0};
  int flags = 3;  // read and write
};

struct CUcopyAttributes {  // CUmemcpyAttributes
  int source_order = 1;    // as the stream orders
  CUlocation source, destination;
  unsigned flags = 0;
};

struct CUrows {  // CUDA_MEMCPY2D
  size_t from_x = 0, from_y = 0;
  int from_type = 1;  // host
  const void* from_host = nullptr;
  CUdeviceptr from_device = 0;
  void* from_array = nullptr;
  size_t from_pitch = 0;
  size_t to_x = 0, to_y = 0;
  int to_type = 2;  // device
  void* to_host = nullptr;
  CUdeviceptr to_device = 0;
  void* to_array = nullptr;
  size_t to_pitch = 0;
  size_t width = 0, height = 0;
};

// X(name, symbol, arguments): what every driver from 12.0 on has …
#define CAIRN_CUDA_CALLS(X)                                                                      \
  X(DriverGetVersion, "cuDriverGetVersion", (int*))                                              \
  X(GetErrorName, "cuGetErrorName", (CUresult, const char**))                                    \
  X(GetErrorString, "cuGetErrorString", (CUresult, const char**))                                \
  X(DeviceGetCount, "cuDeviceGetCount", (int*))                                                  \
  X(DeviceGetName, "cuDeviceGetName", (char*, int, int))                                         \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, int))                                \
  X(PrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext*, int))                             \
  X(PrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int))                                    \
  X(CtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext))                                          \
  X(CtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext*))                                           \
  X(CtxSynchronize, "cuCtxSynchronize", ())                                                      \
  X(MemGetInfo, "cuMemGetInfo_v2", (size_t*, size_t*))                                           \
  X(MemAlloc, "cuMemAlloc_v2", (CUdeviceptr*, size_t))                                           \
  X(MemFree, "cuMemFree_v2", (CUdeviceptr))                                                      \
  X(MemHostRegister, "cuMemHostRegister_v2", (void*, size_t, unsigned))                          \
  X(MemHostUnregister, "cuMemHostUnregister", (void*))                                           \
  X(MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void*, size_t, CUstream))       \
  X(MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void*, CUdeviceptr, size_t, CUstream))             \
  X(Memcpy2DAsync, "cuMemcpy2DAsync_v2", (const CUrows*, CUstream))                              \
  X(MemsetD8Async, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream))            \
  X(StreamCreate, "cuStreamCreate", (CUstream*, unsigned))                                       \
  X(StreamDestroy, "cuStreamDestroy_v2", (CUstream))                                             \
  X(StreamSynchronize, "cuStreamSynchronize", (CUstream))                                        \
  X(StreamWaitEvent, "cuStreamWaitEvent", (CUstream, CUevent, unsigned))                         \
  X(EventCreate, "cuEventCreate", (CUevent*, unsigned))                                          \
  X(EventDestroy, "cuEventDestroy_v2", (CUevent))                                                \
  X(EventRecord, "cuEventRecord", (CUevent, CUstream))                                           \
  X(EventQuery, "cuEventQuery", (CUevent))                                                       \
  X(EventSynchronize, "cuEventSynchronize", (CUevent))                                           \
  X(ModuleLoadData, "cuModuleLoadData", (CUmodule*, const void*))                                \
  X(ModuleUnload, "cuModuleUnload", (CUmodule))                                                  \
  X(ModuleGetFunction, "cuModuleGetFunction", (CUfunction*, CUmodule, const char*))              \
  X(LaunchKernel, "cuLaunchKernel",                                                              \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
     void**, void**))                                                                            \
  X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity",                                \
    (size_t*, const CUallocation*, int))                                                         \
  X(MemCreate, "cuMemCreate", (CUhandle*, size_t, const CUallocation*, unsigned long long))      \
  X(MemRelease, "cuMemRelease", (CUhandle))                                                      \
  X(MemAddressReserve, "cuMemAddressReserve",                                                    \
    (CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long))                             \
  X(MemAddressFree, "cuMemAddressFree", (CUdeviceptr, size_t))                                   \
  X(MemMap, "cuMemMap", (CUdeviceptr, size_t, size_t, CUhandle, unsigned long long))             \
  X(MemUnmap, "cuMemUnmap", (CUdeviceptr, size_t))                                               \
  X(MemSetAccess, "cuMemSetAccess", (CUdeviceptr, size_t, const CUaccess*, size_t))              \
  X(MemExportToShareableHandle, "cuMemExportToShareableHandle",                                  \
    (void*, CUhandle, int, unsigned long long))                                                  \
  X(MemImportFromShareableHandle, "cuMemImportFromShareableHandle", (CUhandle*, void*, int))

// … and what newer ones have: null in the others.
#define CAIRN_NEWER_CUDA_CALLS(X)                         \
  X(MemcpyBatchAsync, "cuMemcpyBatchAsync_v2", /* 13.0 */ \
    (CUdeviceptr*, CUdeviceptr*, size_t*, size_t, CUcopyAttributes*, size_t*, size_t, CUstream))

struct Calls {
#define X(name, symbol, arguments) CUresult(*name) arguments = nullptr;
  CAIRN_CUDA_CALLS(X)
  CAIRN_NEWER_CUDA_CALLS(X)
#undef X
};

// This process's driver, ready to use. UNAVAILABLE, and why: there is none, it is too old, it has no device. What was
// found first stays.
StatusOr<const Calls*> Find();

// A failed call as a Status: "what: out of memory (CUDA_ERROR_OUT_OF_MEMORY)". OK for 0.
Status ToStatus(const Calls& calls, CUresult result, const std::string& what);

}  // namespace cairn::gpu::driver
