// The limit of locked memory, compared with what RDMA needs of it.
#include "server/transport/locked_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace cairn::transport {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMib = 1 << 20;

TEST(LockedMemory, WhatFitsMayBeLocked) {
  const LockedMemory memory = {.limit = 8 * kMib, .unlimited = false, .locked = 0};
  EXPECT_TRUE(MayLock(memory, 8 * kMib, 1).ok());
  EXPECT_TRUE(MayLock(memory, 4 * kMib, 2).ok());
}

TEST(LockedMemory, WhatDoesNotFitIsRefusedWithTheArithmetic) {
  const LockedMemory memory = {.limit = 8 * kMib, .unlimited = false, .locked = 0};
  const Status refused = MayLock(memory, 6 * kMib, 2);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(refused.message(), HasSubstr("6 MiB for each of 2 devices, 12 MiB"));
  EXPECT_THAT(refused.message(), HasSubstr("8 MiB"));
  EXPECT_THAT(refused.message(), HasSubstr("ulimit -l"));
}

TEST(LockedMemory, WhoMayLockWhatItLikesHasNoLimit) {
  EXPECT_TRUE(MayLock({.limit = kMib, .unlimited = true, .locked = 0}, 100 * kMib, 4).ok());
  EXPECT_TRUE(
      MayLock({.limit = std::nullopt, .unlimited = false, .locked = 0}, 100 * kMib, 4).ok());
}

TEST(LockedMemory, NoMemoryIsCalledByItsName) {
  EXPECT_TRUE(absl::IsResourceExhausted(WhyNotRegistered(ENOMEM, "rxe0", kMib)));
  EXPECT_THAT(WhyNotRegistered(ENOMEM, "rxe0", kMib).message(),
              HasSubstr("rxe0: registering 1 MiB"));
  EXPECT_FALSE(absl::IsResourceExhausted(WhyNotRegistered(EFAULT, "rxe0", kMib)));
}

}  // namespace
}  // namespace cairn::transport
