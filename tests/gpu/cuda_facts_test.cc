// What the design believes of CUDA, tried on the GPU of this machine; nothing where there is none (make gpu).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>

#include "client/gpu/cuda_device.h"
#include "client/gpu/owned.h"
#include "common/checksum.h"

namespace cairn::gpu {
namespace {

constexpr uint64_t kMiB = 1 << 20, kSlab = 64 * kMiB;

class CudaFacts : public ::testing::Test {
 protected:
  void SetUp() override {
    // A child asks: what opens the driver here cannot open it in the processes that these tests fork.
    if (InChild([] { return CudaAvailable().ok(); }) != 0) GTEST_SKIP() << "no GPU";
  }

  // 0 when `what` said true in a process of its own.
  static int InChild(const std::function<bool()>& what) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(what() ? 0 : 1);
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status;
  }
};

struct Slab {
  Slab() {
    fd = *MakeMemfd("slab", kSlab, 0600);
    mapping = *Mapping::Map(fd.get(), 0, kSlab, PROT_READ | PROT_WRITE, MAP_SHARED);
    std::memset(mapping.data(), 1, kSlab);
  }
  UniqueFd fd;
  Mapping mapping;
};

// What the device has of the slab's first byte after copying it there.
int Arrives(Device& device, const Slab& slab) {
  const auto block = NewDeviceBlock(&device, kSlab);
  char first = 0;
  const CopyIn in{slab.mapping.data(), block->get(), kSlab};
  const CopyOut out{block->get(), &first, 1};
  if (!device.Copy({&in, 1}, kDefaultStream).ok() || !device.Copy({&out, 1}, kDefaultStream).ok() ||
      !device.Synchronize(kDefaultStream).ok()) {
    return -1;
  }
  return first;
}

TEST_F(CudaFacts, AHoleIsNotSeenUntilTheSlabIsRegisteredAnew) {
  EXPECT_EQ(
      InChild([] {
        const Slab slab;
        const auto device = *OpenCudaDevice(0);
        auto registered =
            NewRegistration(device.get(), slab.mapping.data(), kSlab, Access::kReadWrite);
        if (::fallocate(slab.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kMiB) != 0) {
          return false;
        }
        const bool old_page = Arrives(*device, slab) == 1 && slab.mapping.data()[0] == 0;
        slab.mapping.data()[0] = 7;
        const bool old_still = Arrives(*device, slab) == 1;
        if (!registered->Reset().ok()) return false;
        registered = NewRegistration(device.get(), slab.mapping.data(), kSlab, Access::kReadWrite);
        return old_page && old_still && Arrives(*device, slab) == 7;
      }),
      0);
}

TEST_F(CudaFacts, RegisteringCountsForNoLimitOfLockedMemory) {
  EXPECT_EQ(
      InChild([] {
        const rlimit limit{65536, 65536};
        if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
        if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return false;
        const Slab slab;
        const auto device = OpenCudaDevice(0);
        return device.ok() &&
               NewRegistration(device->get(), slab.mapping.data(), kSlab, Access::kReadWrite).ok();
      }),
      0);
}

TEST_F(CudaFacts, ADeviceWritesThroughAProtectedMapping) {
  EXPECT_EQ(InChild([] {
              const Slab slab;
              const auto device = *OpenCudaDevice(0);
              const auto registered =
                  NewRegistration(device.get(), slab.mapping.data(), kSlab, Access::kReadWrite);
              const auto block = NewDeviceBlock(device.get(), 1);
              ::mprotect(slab.mapping.data(), kSlab, PROT_READ);
              const char nine = 9;
              const CopyIn in{&nine, block->get(), 1};
              const CopyOut out{block->get(), slab.mapping.data(), 1};
              return device->Copy({&in, 1}, kDefaultStream).ok() &&
                     device->Copy({&out, 1}, kDefaultStream).ok() &&
                     device->Synchronize(kDefaultStream).ok() && slab.mapping.data()[0] == 9;
            }),
            0);
}

TEST_F(CudaFacts, WhoIsKilledWhileCopyingLeavesTheSlabToOthers) {
  const Slab slab;
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto device = *OpenCudaDevice(0);
    const auto registered =
        NewRegistration(device.get(), slab.mapping.data(), kSlab, Access::kReadWrite);
    const bool told = ::write(ready[1], "x", 1) == 1;
    while (told && Arrives(*device, slab) == 1) {
    }
    ::_exit(1);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "it ended by itself";
  EXPECT_EQ(InChild([&] {
              const auto device = *OpenCudaDevice(0);
              const auto registered =
                  NewRegistration(device.get(), slab.mapping.data(), kSlab, Access::kReadWrite);
              return registered.ok() && Arrives(*device, slab) == 1;
            }),
            0);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace cairn::gpu
