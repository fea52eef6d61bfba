// What is the host device's own.
#include "client/gpu/host_device.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>

#include "client/gpu/cuda_device.h"
#include "client/gpu/host_memory.h"
#include "client/gpu/owned.h"

namespace cairn::gpu {
namespace {

TEST(HostDevice, AsADriverWithoutReadOnlyRegistration) {
  const auto device = MakeHostDevice({.read_only_registration = false});
  StatusOr<Mapping> page = Mapping::Anonymous(4096);
  ASSERT_TRUE(page.ok());
  EXPECT_TRUE(absl::IsUnimplemented(device->Register(page->data(), 4096, Access::kRead)));
  EXPECT_TRUE(device->Register(page->data(), 4096, Access::kReadWrite).ok());
}

TEST(HostDevice, WhatIsUnmappedIsNotUnregisteredAnyMore) {
  const auto device = MakeHostDevice({});
  StatusOr<Mapping> pages = Mapping::Anonymous(4 * 4096);
  ASSERT_TRUE(pages.ok());
  void* const at = pages->data();
  ASSERT_TRUE(device->Register(at, 4 * 4096, Access::kReadWrite).ok());
  pages->Reset();
  const Status late = device->Unregister(at);
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
  EXPECT_TRUE(absl::IsNotFound(device->Unregister(at))) << "it is forgotten all the same";
}

TEST(HostDevice, AsADeviceWithoutChecksums) {
  const auto device = MakeHostDevice({.checksums = false});
  const auto block = NewDeviceBlock(device.get(), 4096);
  ASSERT_TRUE(block.ok());
  const Range range{block->get(), 100};
  EXPECT_TRUE(absl::IsUnimplemented(
      device->Checksum(Sum::kCrc32c, {&range, 1}, block->get() + 256, kDefaultStream)));
}

TEST(HostDevice, ItsMemoryIsLimited) {
  const auto device = MakeHostDevice({.memory_bytes = 10'000});
  const auto first = NewDeviceBlock(device.get(), 6'000);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(device->Memory()->free, 4'000u);
  const Status more = device->Allocate(4'001).status();
  EXPECT_TRUE(absl::IsResourceExhausted(more)) << more;
  EXPECT_NE(more.message().find("4000 of 10000 are free"), std::string::npos) << more;
}

TEST(HostDevice, ARangeBeyondAnAllocationIsRefused) {
  const auto device = MakeHostDevice();
  const auto block = NewDeviceBlock(device.get(), 10'000);
  ASSERT_TRUE(block.ok());
  const std::string bytes(10'001, 'x');
  const CopyIn beyond{bytes.data(), block->get(), 10'001},
      inside{bytes.data(), block->get() + 1, 9'999};
  EXPECT_TRUE(absl::IsInvalidArgument(device->Copy({&beyond, 1}, kDefaultStream)));
  EXPECT_TRUE(device->Copy({&inside, 1}, kDefaultStream).ok());
}

TEST(IsMapped, LooksAtEveryPage) {
  StatusOr<Mapping> pages = Mapping::Anonymous(3 * 4096);
  ASSERT_TRUE(pages.ok());
  char* const at = pages->data();
  EXPECT_TRUE(*IsMapped(at, 3 * 4096, true));
  ASSERT_EQ(::mprotect(at + 4096, 4096, PROT_READ), 0);
  EXPECT_FALSE(*IsMapped(at, 3 * 4096, true));
  EXPECT_TRUE(*IsMapped(at, 3 * 4096, false));
  EXPECT_TRUE(*IsMapped(at, 4096, true));
  ASSERT_EQ(::mprotect(at + 4096, 4096, PROT_NONE), 0);
  EXPECT_FALSE(*IsMapped(at, 3 * 4096, false));
  EXPECT_TRUE(*IsMapped(at + 2 * 4096, 4096, true));
}

TEST(CudaDevice, SaysWhyThereIsNone) {
  const Status available = CudaAvailable();
  if (available.ok()) {
    const Status none = OpenCudaDevice(1'000).status();
    EXPECT_TRUE(absl::IsInvalidArgument(none)) << none;
    EXPECT_NE(none.message().find("device: 1000"), std::string::npos) << none;
    EXPECT_TRUE(absl::IsInvalidArgument(OpenCudaDevice(-1).status()));
    return;
  }
  EXPECT_TRUE(absl::IsUnavailable(available)) << available;
  EXPECT_GT(available.message().size(), 10u);
  EXPECT_EQ(OpenCudaDevice(0).status(), available);
}

}  // namespace
}  // namespace cairn::gpu
