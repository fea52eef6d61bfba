// What clients may take of the daemon, in all and each user for himself.
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "server/rpc/byte_budget.h"
#include "server/rpc/connection_limits.h"

namespace cairn::rpc {
namespace {

constexpr uint32_t kUser = 1000, kOther = 1001;

TEST(ByteBudget, MessagesOfAUserAreServedInTurn) {
  ByteBudget budget(/*total=*/400, /*per_user=*/100);
  auto held = std::make_unique<Reservation>(&budget, kUser);
  auto large = std::make_unique<Reservation>(&budget, kUser);
  Reservation small(&budget, kUser);
  ASSERT_TRUE(held->TakeInTurn(60));
  EXPECT_FALSE(large->TakeInTurn(90));
  EXPECT_FALSE(small.TakeInTurn(10)) << "it would fit, and the large one would never have its turn";
  EXPECT_TRUE(Reservation(&budget, kOther).TakeInTurn(10)) << "another user does not wait";
  held.reset();
  EXPECT_FALSE(small.TakeInTurn(10));
  EXPECT_TRUE(large->TakeInTurn(90));
  EXPECT_TRUE(small.TakeInTurn(10));
  large.reset();
  EXPECT_EQ(budget.taken(), 10u);
}

TEST(ByteBudget, WhoLeavesTheQueueHoldsUpNobody) {
  ByteBudget budget(400, 100);
  auto held = std::make_unique<Reservation>(&budget, kUser);
  auto first = std::make_unique<Reservation>(&budget, kUser);
  Reservation second(&budget, kUser);
  ASSERT_TRUE(held->TakeInTurn(60));
  EXPECT_FALSE(first->TakeInTurn(90));
  EXPECT_FALSE(second.TakeInTurn(40));
  first.reset();
  EXPECT_TRUE(second.TakeInTurn(40));
  held.reset();
  EXPECT_TRUE(Reservation(&budget, kUser).TakeInTurn(60));
}

TEST(ByteBudget, SomeUsersTogetherLeaveRoomForOneMore) {
  ByteBudget budget(/*total=*/512, /*per_user=*/128);  // of which 128 are uid 0's
  std::vector<std::unique_ptr<Reservation>> held;
  for (uint32_t uid = 1; uid <= 3; ++uid) {
    for (int i = 0; i < 2; ++i) {
      held.push_back(std::make_unique<Reservation>(&budget, uid));
      held.back()->TakeInTurn(64);
    }
  }
  EXPECT_TRUE(Reservation(&budget, kUser).TakeInTurn(64))
      << "users who ask for all they may have took it";
  EXPECT_TRUE(Reservation(&budget, 0).TakeInTurn(128));
}

// A reply that is there is not thrown away because others fill their user's room.
TEST(ByteBudget, WhatIsThereAlreadyMayTakeAsMuchAgain) {
  ByteBudget budget(/*total=*/512, /*per_user=*/100);
  Reservation messages(&budget, kUser), reply(&budget, kUser), next(&budget, kUser);
  ASSERT_TRUE(messages.TakeInTurn(100));
  EXPECT_TRUE(reply.Cover(0));
  EXPECT_TRUE(reply.Cover(60));
  EXPECT_TRUE(reply.Cover(50)) << "it has so much already";
  EXPECT_FALSE(next.Cover(50));
  EXPECT_TRUE(next.Cover(40));
  EXPECT_EQ(budget.taken(), 200u);
}

TEST(ConnectionLimits, CallsThatOutliveTheirConnectionCount) {
  engine::Options options;
  options.user_percent = 50;
  ConnectionLimits limits(4, options);
  auto first = limits.Admit(kUser), second = limits.Admit(kUser);
  ASSERT_TRUE(first->refused().ok() && second->refused().ok());
  const auto call = second;  // under way
  second.reset();
  const auto third = limits.Admit(kUser);
  EXPECT_TRUE(absl::IsResourceExhausted(third->refused())) << third->refused();
  EXPECT_TRUE(limits.Admit(kOther)->refused().ok());
  first.reset();
  EXPECT_TRUE(limits.Admit(kUser)->refused().ok());
}

TEST(ConnectionLimits, TooManyAreNotEvenToldSo) {
  engine::Options options;
  ConnectionLimits limits(1, options);
  const auto only = limits.Admit(kUser);
  std::vector<std::shared_ptr<ConnectionLimits::Ticket>> told;
  while (auto one = limits.Admit(kUser)) {
    EXPECT_FALSE(one->refused().ok());
    told.push_back(std::move(one));
    ASSERT_LT(told.size(), 1000u);
  }
  told.clear();
  EXPECT_NE(limits.Admit(kUser), nullptr);
}

}  // namespace
}  // namespace cairn::rpc
