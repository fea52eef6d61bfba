// The fd channel's messages: their bytes, and what is refused.
#include "common/fd_channel.h"

#include <cstring>
#include <random>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace cairn {
namespace {

// Clients in other languages are written against these bytes (proto/README.md).
TEST(FdChannel, MessagesHaveTheirDocumentedBytes) {
  const auto attach = Encode(FdAttach{0x0102, "0123456789abcdef"});
  ASSERT_TRUE(attach.ok()) << attach.status();
  EXPECT_EQ(absl::BytesToHexString(*attach),
            "4341524e"
            "0100"
            "0100"
            "0201000000000000"
            "30313233343536373839616263646566");
  EXPECT_EQ(absl::BytesToHexString(Encode(FdAttached{absl::StatusCode::kNotFound})),
            "4341524e"
            "0100"
            "0200"
            "05000000");
  EXPECT_EQ(absl::BytesToHexString(Encode(FdLent{FdLent::What::kSlab, 7, 8, 4096})),
            "4341524e"
            "0100"
            "0300"
            "0700000000000000"
            "0800000000000000"
            "0010000000000000");
  EXPECT_EQ(absl::BytesToHexString(Encode(FdLent{FdLent::What::kFile, 7, 0, 1})),
            "4341524e"
            "0100"
            "0400"
            "0700000000000000"
            "0000000000000000"
            "0100000000000000");
}

TEST(FdChannel, WhatIsEncodedIsDecoded) {
  const auto attach = DecodeFdAttach(*Encode(FdAttach{9, "0123456789abcdef"}));
  ASSERT_TRUE(attach.ok()) << attach.status();
  EXPECT_EQ(attach->session, 9u);
  EXPECT_EQ(attach->secret, "0123456789abcdef");
  EXPECT_EQ(DecodeFdAttached(Encode(FdAttached{absl::StatusCode::kUnavailable}))->code,
            absl::StatusCode::kUnavailable);
  for (const FdLent::What what : {FdLent::What::kSlab, FdLent::What::kFile}) {
    const auto lent = DecodeFdLent(Encode(FdLent{what, 1, 2, 3}));
    ASSERT_TRUE(lent.ok()) << lent.status();
    EXPECT_EQ(lent->what, what);
    EXPECT_EQ(lent->lease, 1u);
    EXPECT_EQ(lent->slab, 2u);
    EXPECT_EQ(lent->bytes, 3u);
  }
}

TEST(FdChannel, ASecretOfAnotherLengthIsNotSent) {
  EXPECT_TRUE(absl::IsInvalidArgument(Encode(FdAttach{1, "short"}).status()));
}

TEST(FdChannel, AnotherVersionIsRefusedAsSuch) {
  std::string bytes = Encode(FdAttached{});
  bytes[4] = 2;
  EXPECT_TRUE(absl::IsUnimplemented(DecodeFdAttached(bytes).status()));
}

TEST(FdChannel, AnotherTypeMagicOrLengthIsRefused) {
  const std::string slab = Encode(FdLent{FdLent::What::kSlab, 1, 2, 3});
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeFdAttach(slab).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeFdAttached(slab).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeFdLent(Encode(FdAttached{})).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeFdLent(slab + "x").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeFdLent(slab.substr(0, 31)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeFdLent("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeFdLent("X" + slab.substr(1)).status()));
}

// R24: any bytes are safe to hand in.
TEST(FdChannel, MutilatedMessagesNeverCrash) {
  std::mt19937 random(1);
  const std::string messages[] = {*Encode(FdAttach{9, "0123456789abcdef"}), Encode(FdAttached{}),
                                  Encode(FdLent{FdLent::What::kFile, 1, 0, 3})};
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = messages[round % 3];
    for (unsigned flips = random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % (bytes.size() + 8));
    const auto attach = DecodeFdAttach(bytes);
    if (attach.ok()) {
      EXPECT_EQ(attach->secret.size(), kSessionSecretBytes);
    }
    DecodeFdAttached(bytes).IgnoreError();
    DecodeFdLent(bytes).IgnoreError();
  }
}

TEST(FdChannel, AProgressPageWithoutItsMagicOrATotalSaysNothing) {
  alignas(8) char page[kPageBytes] = {};
  EXPECT_FALSE(ReadProgressPage(page).has_value());
  ProgressPage progress{kProgressMagic, 9, 100, 40};
  std::memcpy(page, &progress, sizeof(progress));
  ASSERT_TRUE(ReadProgressPage(page).has_value());
  EXPECT_EQ(ReadProgressPage(page)->step, 9u);
  EXPECT_EQ(ReadProgressPage(page)->bytes_done, 40u);
  progress.bytes_total = 0;
  std::memcpy(page, &progress, sizeof(progress));
  EXPECT_FALSE(ReadProgressPage(page).has_value());
}

}  // namespace
}  // namespace cairn
