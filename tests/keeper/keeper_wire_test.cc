// The language of keeper and daemon: what it refuses.
#include <fcntl.h>
#include <sys/socket.h>

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/keeper/link.h"
#include "server/keeper/wire.h"
#include "tests/golden/golden.h"

namespace cairn::keeper {
namespace {

using ::testing::HasSubstr;

ReceivedMessage Received(std::string bytes, int fds) {
  ReceivedMessage message;
  message.bytes = std::move(bytes);
  for (int i = 0; i < fds; ++i) message.fds.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return message;
}

TEST(KeeperWire, WhatIsEncodedIsDecoded) {
  const std::string bytes =
      Encode(MessageType::kSessions, {{7, kHasChannel | kHasPidfd}, {8, 0}}, "why");
  const auto message = Decode(Received(bytes, 2));
  ASSERT_TRUE(message.ok()) << message.status();
  EXPECT_EQ(message->type, MessageType::kSessions);
  ASSERT_EQ(message->items.size(), 2u);
  EXPECT_EQ(message->items[0].id, 7u);
  EXPECT_EQ(message->items[1].value, 0u);
  EXPECT_EQ(message->text, "why");
  EXPECT_EQ(message->fds.size(), 2u);
}

TEST(KeeperWire, EveryMessageIsWhatItsGoldenFileSays) {
  struct Message {
    std::string name;
    MessageType type;
    std::vector<Item> items;
    std::string text;
    int fds;
  };
  const std::vector<Message> messages = {
      {"begin", MessageType::kBegin, {{2, 0}}, "three deaths in a minute", 3},
      {"slabs", MessageType::kSlabs, {{7, 1 << 20}, {9, 4096}}, "", 2},
      {"sessions", MessageType::kSessions, {{4, kHasChannel | kHasPidfd}, {5, 0}}, "", 2},
      {"end", MessageType::kEnd, {{2, 2}}, "", 0},
      {"hold_slab", MessageType::kHoldSlab, {{10, 8192}}, "", 1},
      {"drop_slab", MessageType::kDropSlab, {{10, 0}}, "", 0},
      {"hold_session", MessageType::kHoldSession, {{6, kHasProgress}}, "", 1},
      {"drop_session", MessageType::kDropSession, {{6, 0}}, "", 0},
  };
  std::vector<std::string> files;
  for (const Message& expected : messages) {
    files.push_back(expected.name + ".v1");
    const std::string golden =
        Golden("keeper/" + files.back(), Encode(expected.type, expected.items, expected.text));
    const auto decoded = Decode(Received(golden, expected.fds));
    ASSERT_TRUE(decoded.ok()) << expected.name << ": " << decoded.status();
    EXPECT_EQ(decoded->type, expected.type) << expected.name;
    EXPECT_EQ(decoded->text, expected.text) << expected.name;
    ASSERT_EQ(decoded->items.size(), expected.items.size()) << expected.name;
    for (size_t i = 0; i < expected.items.size(); ++i) {
      EXPECT_EQ(decoded->items[i].id, expected.items[i].id) << expected.name;
      EXPECT_EQ(decoded->items[i].value, expected.items[i].value) << expected.name;
    }
  }
  ExpectGoldenFilesAre("keeper", files);
}

TEST(KeeperWire, OverlongTextIsCut) {
  const std::string bytes = Encode(MessageType::kBegin, {{0, 0}}, std::string(5000, 'x'));
  EXPECT_LE(bytes.size(), kMaxMessage);
  EXPECT_EQ(Decode(Received(bytes, 3))->text.size(), kMaxText);
}

TEST(KeeperWire, WrongNumbersOfDescriptorsAreRefused) {
  const std::string slab = Encode(MessageType::kHoldSlab, {{1, 4096}});
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(Received(slab, 0)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(Received(slab, 2)).status()));
  const std::string two = Encode(MessageType::kHoldSlab, {{1, 1}, {2, 2}});
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(Received(two, 2)).status()));
  const std::string odd = Encode(MessageType::kHoldSession, {{1, 8}});
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(Received(odd, 1)).status()));
}

TEST(KeeperWire, AnotherVersionIsRefusedAsSuch) {
  std::string bytes = Encode(MessageType::kDropSlab, {{1, 0}});
  bytes[4] = 2;
  const Status status = Decode(Received(bytes, 0)).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2; this build knows 1"));
}

// R24: any bytes are safe to hand in.
TEST(KeeperWire, MutilatedMessagesNeverCrash) {
  std::mt19937 random(1);
  const std::string good = Encode(MessageType::kSlabs, {{1, 2}, {3, 4}}, "text");
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (unsigned flips = random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % (bytes.size() + 8));
    const auto message = Decode(Received(bytes, static_cast<int>(random() % 3)));
    if (message.ok()) {
      EXPECT_LE(message->items.size(), 2u);
    }
  }
}

TEST(KeeperLink, ConnectRefusesADescriptorThatIsNotAKeepers) {
  node::Inherited inherited;
  EXPECT_FALSE(Link::Connect(::open("/dev/null", O_RDONLY | O_CLOEXEC), &inherited).ok());
  const auto connect_to = [&](const std::string& bytes) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd keeper(ends[0]);
    if (!bytes.empty()) {
      EXPECT_EQ(SendMessage(keeper.get(), bytes, {}), absl::OkStatus());
    }
    ::shutdown(keeper.get(), SHUT_WR);
    return Link::Connect(ends[1], &inherited).status();
  };
  EXPECT_TRUE(absl::IsUnavailable(connect_to("")));
  EXPECT_TRUE(absl::IsInvalidArgument(connect_to("hello")));
  EXPECT_TRUE(absl::IsInvalidArgument(connect_to(Encode(MessageType::kDropSlab, {{1, 0}}))));
  // An end that was promised more than was sent, or nothing at all.
  EXPECT_TRUE(absl::IsInvalidArgument(connect_to(Encode(MessageType::kEnd, {{5, 0}}))));
  EXPECT_TRUE(absl::IsInvalidArgument(connect_to(Encode(MessageType::kEnd, {{0, 0}}))));
}

}  // namespace
}  // namespace cairn::keeper
