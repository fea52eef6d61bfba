#include "client/cpp/slab_map.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace cairn::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kBytes = 64 << 10;

UniqueFd Memory(uint64_t bytes = kBytes) {
  UniqueFd fd(memfd_create("slab", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(fd.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  return fd;
}

// A touch beyond its end would kill the trainer (promise 4).
TEST(SlabMap, MapsNothingThatIsShorterThanTheDaemonSaysOrMayBecomeSo) {
  SlabMap map;
  EXPECT_EQ(map.Map(7, kBytes + 1, Memory()).status().code(), absl::StatusCode::kInternal);
  UniqueFd unsealed(memfd_create("slab", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), kBytes), 0);
  EXPECT_EQ(map.Map(7, kBytes, unsealed).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(map.Find(7), nullptr);
}

TEST(SlabMap, KeepsWhatItMapped) {
  SlabMap map;
  EXPECT_EQ(map.Find(7), nullptr);
  const auto slab = map.Map(7, kBytes, Memory());
  ASSERT_TRUE(slab.ok());
  (*slab)->data()[kBytes - 1] = 'x';
  EXPECT_EQ(map.Find(7), *slab);
  EXPECT_THAT(map.TakeUnmapped(), IsEmpty());
}

// Promise 4 and the pool's rule: "unmapped" is said when it is true, neither before nor twice.
TEST(SlabMap, ARetiredSlabIsReportedOnceWhenItsLastCopyHasEnded) {
  SlabMap map;
  auto in_use = *map.Map(7, kBytes, Memory());
  map.Retire(7);
  EXPECT_EQ(map.Find(7), nullptr);
  EXPECT_THAT(map.TakeUnmapped(), IsEmpty());
  map.Retire(7);  // a repeated answer names it again
  EXPECT_THAT(map.TakeUnmapped(), IsEmpty());
  in_use->data()[0] = 'x';  // still there
  in_use.reset();
  EXPECT_THAT(map.TakeUnmapped(), ElementsAre(7));
  EXPECT_THAT(map.TakeUnmapped(), IsEmpty());
}

TEST(SlabMap, ASlabThatNeverArrivedIsReportedWhenItIsRetired) {
  SlabMap map;
  map.Retire(9);
  EXPECT_THAT(map.TakeUnmapped(), ElementsAre(9));
}

TEST(SlabMap, WhatTheDaemonWasNotToldIsReportedAgainUnlessItIsMappedAnew) {
  SlabMap map;
  ASSERT_TRUE(map.Map(7, kBytes, Memory()).ok());
  map.ReturnUnmapped({7, 8});
  EXPECT_THAT(map.TakeUnmapped(), ElementsAre(8));
}

TEST(SlabMap, MappingASlabAnewIsNotUnmappingIt) {
  SlabMap map;
  ASSERT_TRUE(map.Map(7, kBytes, Memory()).ok());
  ASSERT_TRUE(map.Map(7, kBytes, Memory()).ok());
  EXPECT_THAT(map.TakeUnmapped(), IsEmpty());
  map.Retire(7);
  EXPECT_THAT(map.TakeUnmapped(), ElementsAre(7));
}

TEST(SlabMap, OnlyLargeSlabsArePopulatedAndOnlyOnce) {
  SlabMap map;
  EXPECT_FALSE((*map.Map(1, kBytes, Memory()))->TakeUnpopulated());
  const auto slab = *map.Map(2, 32 << 20, Memory(32 << 20));
  EXPECT_TRUE(slab->TakeUnpopulated());
  EXPECT_FALSE(slab->TakeUnpopulated());
}

}  // namespace
}  // namespace cairn::client
