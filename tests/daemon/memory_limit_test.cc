// R8: the budget is checked against every limit that binds, before a page is touched.
#include "server/daemon/memory_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace cairn::daemon {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGiB = 1ull << 30;

// A captured tree in place of "/".
class CapturedTree : public ::testing::Test {
 protected:
  CapturedTree() {
    std::string pattern = std::filesystem::temp_directory_path() / "cairn-tree-XXXXXX";
    root_ = mkdtemp(pattern.data());
    Put("/proc/meminfo",
        "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   33554432 kB\n");
  }
  ~CapturedTree() override { std::filesystem::remove_all(root_); }

  void Put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  MemoryLimit Read() {
    auto limit = ReadMemoryLimit(root_);
    EXPECT_TRUE(limit.ok()) << limit.status();
    return *limit;
  }

  std::string root_;
};

TEST_F(CapturedTree, WithoutCgroupsTheMachineIsTheLimit) {
  EXPECT_EQ(Read().bytes, 64 * kGiB);
  EXPECT_EQ(Read().available_bytes, 32 * kGiB);
}

TEST_F(CapturedTree, AVersionTwoLimitBinds) {
  Put("/proc/self/cgroup", "0::/system.slice/cairn.service\n");
  Put("/sys/fs/cgroup/system.slice/cairn.service/memory.max", "8589934592\n");
  EXPECT_EQ(Read().bytes, 8 * kGiB);
  EXPECT_THAT(Read().source, HasSubstr("/system.slice/cairn.service"));
}

TEST_F(CapturedTree, ASmallerAncestorBinds) {
  Put("/proc/self/cgroup", "0::/pod/container\n");
  Put("/sys/fs/cgroup/pod/container/memory.max", "max\n");
  Put("/sys/fs/cgroup/pod/memory.max", "4294967296\n");
  EXPECT_EQ(Read().bytes, 4 * kGiB);
}

TEST_F(CapturedTree, AVersionOneLimitBinds) {
  Put("/proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/abc\n0::/\n");
  Put("/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "2147483648\n");
  EXPECT_EQ(Read().bytes, 2 * kGiB);
}

TEST_F(CapturedTree, VersionOnesNoLimitIsNoLimit) {
  Put("/proc/self/cgroup", "4:memory:/\n");
  Put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(Read().source, "MemTotal");
}

// A container sees its own group as the mount's root, though /proc names the host's path.
TEST_F(CapturedTree, AContainersOwnRootBinds) {
  Put("/proc/self/cgroup", "4:memory:/docker/abc\n");
  Put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n");
  EXPECT_EQ(Read().bytes, kGiB);
}

TEST_F(CapturedTree, TheDefaultBudgetIsHalfOfWhatBindsAndIsAvailable) {
  EXPECT_EQ(DefaultBudget(Read()), 16 * kGiB);
  Put("/proc/self/cgroup", "0::/a\n");
  Put("/sys/fs/cgroup/a/memory.max", "8589934592\n");
  EXPECT_EQ(DefaultBudget(Read()), 4 * kGiB);
}

TEST_F(CapturedTree, ABudgetOverTheLimitIsRefusedWithTheArithmetic) {
  Put("/proc/self/cgroup", "0::/a\n");
  Put("/sys/fs/cgroup/a/memory.max", "8589934592\n");
  EXPECT_TRUE(CheckBudget(4 * kGiB, Read()).ok());
  // The default fits, however small the limit.
  for (const uint64_t mib : {160, 256, 300, 1000, 100'000}) {
    const MemoryLimit limit{mib << 20, "a test", mib << 20};
    EXPECT_TRUE(CheckBudget(DefaultBudget(limit), limit).ok()) << mib;
    EXPECT_GT(DefaultBudget(limit), 0u) << mib;
  }
  // Beside the slabs: the daemon's own 128 MiB, and tables of a thirteenth of the budget.
  EXPECT_TRUE(CheckBudget(7 * kGiB + (300 << 20), Read()).ok());
  EXPECT_FALSE(CheckBudget(7 * kGiB + (600 << 20), Read()).ok());
  const Status refused = CheckBudget(8 * kGiB, Read());
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("memory.budget"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("8589934592"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("memory.max"));
}

TEST(MemoryLimit, ThisMachineCanBeRead) { EXPECT_TRUE(ReadMemoryLimit().ok()); }

}  // namespace
}  // namespace cairn::daemon
