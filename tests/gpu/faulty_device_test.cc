// That the decorator does what its faults say.
#include "tests/gpu/faulty_device.h"

#include <gtest/gtest.h>

#include "client/gpu/host_device.h"
#include "client/gpu/owned.h"

namespace cairn::gpu {
namespace {

TEST(FaultyDevice, TheNthCallOfAKindFails) {
  const auto faults = std::make_shared<DeviceFaults>();
  const auto device = MakeFaultyDevice(MakeHostDevice(), faults);
  faults->Add({.call = DeviceCall::kAllocate,
               .after = 1,
               .times = 1,
               .error = absl::ResourceExhaustedError("planted")});
  const auto first = NewDeviceBlock(device.get(), 4096);
  EXPECT_TRUE(first.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(device->Allocate(4096).status()));
  const auto third = NewDeviceBlock(device.get(), 4096);
  EXPECT_TRUE(third.ok());
}

TEST(FaultyDevice, ABitFlipsInWhatArrived) {
  const auto faults = std::make_shared<DeviceFaults>();
  const auto device = MakeFaultyDevice(MakeHostDevice(), faults);
  const auto block = NewDeviceBlock(device.get(), 4096);
  ASSERT_TRUE(block.ok());
  faults->Add({.call = DeviceCall::kFlip, .times = 1});
  const std::string sent(4096, 'a');
  std::string back(4096, 0);
  const CopyIn in{sent.data(), block->get(), 4096};
  const CopyOut out{block->get(), back.data(), 4096};
  for (const char want : {'`', 'a'}) {
    ASSERT_TRUE(device->Copy({&in, 1}, kDefaultStream).ok());
    ASSERT_TRUE(device->Copy({&out, 1}, kDefaultStream).ok());
    EXPECT_EQ(back[0], want);
    EXPECT_EQ(back.substr(1), sent.substr(1));
  }
}

}  // namespace
}  // namespace cairn::gpu
