// The language of keeper and daemon: what it refuses.
#include <fcntl.h>
#include <sys/socket.h>

#include <chrono>
#include <future>
#include <random>

#include "absl/strings/str_cat.h"
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
    uint16_t version = 1;
  };
  std::vector<Message> messages = {
      {"begin", MessageType::kBegin, {{2, 0}}, "three deaths in a minute", 3},
      {"slabs", MessageType::kSlabs, {{7, 1 << 20}, {9, 4096}}, "", 2},
      {"sessions", MessageType::kSessions, {{4, kHasChannel | kHasPidfd}, {5, 0}}, "", 2},
      {"end", MessageType::kEnd, {{2, 2}}, "", 0},
      {"hold_slab", MessageType::kHoldSlab, {{10, 8192}}, "", 1},
      {"drop_slab", MessageType::kDropSlab, {{10, 0}}, "", 0},
      {"hold_session", MessageType::kHoldSession, {{6, kHasProgress}}, "", 1},
      {"drop_session", MessageType::kDropSession, {{6, 0}}, "", 0},
  };
  // Version 2: a hold names its request, and is answered.
  for (size_t i = 0, count = messages.size(); i < count; ++i) {
    Message later = messages[i];
    later.version = 2;
    if (later.name.starts_with("hold")) later.items.push_back({77, 0});
    messages.push_back(later);
  }
  messages.push_back({"answer_held", MessageType::kAnswer, {{77, 0}}, "", 0, 2});
  messages.push_back(
      {"answer_refused", MessageType::kAnswer, {{78, 8}}, "no descriptor left", 0, 2});
  messages.push_back({"serving", MessageType::kServing, {{0, 0}}, "", 0, 2});
  // Version 3: each slab comes and goes with what it is for.
  for (size_t i = 0, count = messages.size(); i < count; ++i) {
    if (messages[i].version != 2) continue;
    Message later = messages[i];
    later.version = 3;
    if (later.name == "hold_slab") later.items[1].value = 1;
    if (later.name == "slabs") later.items.insert(later.items.begin(), {1, 0});
    messages.push_back(later);
  }
  // Version 4: a black box comes with the beginning.
  for (size_t i = 0, count = messages.size(); i < count; ++i) {
    if (messages[i].version != 3) continue;
    Message later = messages[i];
    later.version = 4;
    if (later.name == "begin") later.fds = 4;
    messages.push_back(later);
  }
  std::vector<std::string> files;
  for (const Message& expected : messages) {
    files.push_back(absl::StrCat(expected.name, ".v", expected.version));
    const std::string golden =
        Golden("keeper/" + files.back(),
               Encode(expected.type, expected.items, expected.text, expected.version));
    const auto decoded = Decode(Received(golden, expected.fds));
    ASSERT_TRUE(decoded.ok()) << expected.name << ": " << decoded.status();
    EXPECT_EQ(decoded->version, expected.version) << expected.name;
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
  EXPECT_EQ(Decode(Received(bytes, 4))->text.size(), kMaxText);
}

TEST(KeeperWire, WrongNumbersOfDescriptorsAreRefused) {
  const std::string slab = Encode(MessageType::kHoldSlab, {{1, 4096}, {2, 0}});
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(Received(slab, 0)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(Received(slab, 2)).status()));
  EXPECT_TRUE(Decode(Received(slab, 0), /*fds_lost=*/true).ok());
  const std::string two = Encode(MessageType::kHoldSlab, {{1, 1}, {2, 2}, {3, 3}});
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(Received(two, 2)).status()));
  const std::string odd = Encode(MessageType::kHoldSession, {{1, 8}, {2, 0}});
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(Received(odd, 1)).status()));
  const std::string nothing = Encode(MessageType::kDropSlab, {});
  EXPECT_TRUE(absl::IsInvalidArgument(Decode(Received(nothing, 0), true).status()));
}

TEST(KeeperWire, AnotherVersionIsRefusedAsSuch) {
  std::string bytes = Encode(MessageType::kDropSlab, {{1, 0}});
  for (char version : {0, 5}) {
    bytes[4] = version;
    const Status status = Decode(Received(bytes, 0)).status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("version ", int{version}, "; this build knows 1 to 4")));
  }
}

// R24: any bytes are safe to hand in.
TEST(KeeperWire, MutilatedMessagesNeverCrash) {
  std::mt19937 random(1);
  const std::string good = Encode(MessageType::kSlabs, {{0, 0}, {1, 2}, {3, 4}}, "text");
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (unsigned flips = random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    bytes.resize(random() % (bytes.size() + 8));
    const auto message = Decode(Received(bytes, static_cast<int>(random() % 3)));
    if (message.ok()) {
      EXPECT_LE(message->items.size(), 3u);
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

// A keeper that a test plays: what a link sends arrives at `keeper`.
class LinkTest : public ::testing::Test {
 protected:
  // `slabs`: the items of a message of theirs, which comes with one descriptor.
  void Connect(uint16_t version, const std::vector<Item>& slabs = {}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    keeper_.Reset(ends[0]);
    const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const int fd = null.get();
    const std::vector<int> fds(version >= kBlackBoxVersion ? 4 : 3, fd);
    ASSERT_EQ(SendMessage(ends[0], Encode(MessageType::kBegin, {{0, 0}}, {}, version), fds),
              absl::OkStatus());
    if (!slabs.empty()) {
      ASSERT_EQ(SendMessage(ends[0], Encode(MessageType::kSlabs, slabs, {}, version), {fd}),
                absl::OkStatus());
    }
    const uint64_t count = slabs.empty() ? 0 : 1;
    ASSERT_EQ(SendMessage(ends[0], Encode(MessageType::kEnd, {{count, 0}}, {}, version), {}),
              absl::OkStatus());
    auto link = Link::Connect(ends[1], &inherited_);
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
  }

  std::future<Status> Hold(SlabId slab, fact::SlabUse use = fact::SlabUse::kObjects) {
    return std::async(std::launch::async,
                      [this, slab, use] { return link_->Hold(slab, 4096, use, 0); });
  }
  Message Receive() {
    auto received = ReceiveMessage(keeper_.get(), kMaxMessage);
    EXPECT_TRUE(received.ok()) << received.status();
    auto message = Decode(*std::move(received));
    EXPECT_TRUE(message.ok()) << message.status();
    return message.ok() ? *std::move(message) : Message();
  }
  void Answer(uint64_t request, absl::StatusCode code, absl::string_view text = "",
              uint16_t version = kVersion) {
    EXPECT_EQ(SendMessage(keeper_.get(),
                          Encode(MessageType::kAnswer, {{request, static_cast<uint64_t>(code)}},
                                 text, version),
                          {}),
              absl::OkStatus());
  }

  UniqueFd keeper_;
  node::Inherited inherited_;
  std::unique_ptr<Link> link_;
};

TEST_F(LinkTest, EachHoldGetsItsOwnAnswer) {
  Connect(kVersion);
  std::future<Status> first = Hold(1);
  const Message one = Receive();
  std::future<Status> second = Hold(2);
  const Message two = Receive();
  EXPECT_EQ(two.items[0].id, 2u);
  Answer(12345, absl::StatusCode::kInternal);  // of nobody
  Answer(two.items[1].id, absl::StatusCode::kResourceExhausted, "no room");
  const Status refused = second.get();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("keeper: no room"));
  EXPECT_EQ(first.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  Answer(one.items[1].id, absl::StatusCode::kOk);
  EXPECT_EQ(first.get(), absl::OkStatus());
}

TEST_F(LinkTest, HoldsFailWhenTheKeeperIsGone) {
  Connect(kVersion);
  std::future<Status> waiting = Hold(1);
  Receive();
  keeper_.Reset();
  EXPECT_TRUE(absl::IsUnavailable(waiting.get()));
  EXPECT_TRUE(absl::IsUnavailable(link_->Hold(2, 4096, fact::SlabUse::kObjects, 0)));
  link_->Drop(1);
}

TEST_F(LinkTest, NothingWaitsForRoomInTheSocket) {
  Connect(kVersion);
  constexpr SlabId kSlabs = 5000;
  for (SlabId slab = 1; slab <= kSlabs; ++slab) link_->Drop(slab);
  std::future<Status> last = Hold(kSlabs + 1);
  for (SlabId slab = 1; slab <= kSlabs; ++slab) ASSERT_EQ(Receive().items[0].id, slab);
  Answer(Receive().items[1].id, absl::StatusCode::kOk);
  EXPECT_EQ(last.get(), absl::OkStatus());
}

TEST_F(LinkTest, WhatASlabIsForIsToldToTheKeeperAndToTheNextDaemon) {
  constexpr auto kManifests = static_cast<uint64_t>(fact::SlabUse::kManifests);
  Connect(kVersion, {{kManifests, 0}, {7, 4096}});
  ASSERT_EQ(inherited_.slabs.size(), 1u);
  EXPECT_EQ(inherited_.slabs[0].slab, 7u);
  EXPECT_EQ(inherited_.slabs[0].use, fact::SlabUse::kManifests);
  std::future<Status> held = Hold(8, fact::SlabUse::kManifests);
  const Message hold = Receive();
  EXPECT_EQ(hold.items[1].value, kManifests);
  Answer(hold.items[1].id, absl::StatusCode::kOk);
  EXPECT_EQ(held.get(), absl::OkStatus());
}

// It may be that of a later build.
TEST_F(LinkTest, AUseThatIsNotKnownIsNotThatOfManifests) {
  Connect(kVersion, {{257, 0}, {7, 4096}});
  EXPECT_EQ(inherited_.slabs.at(0).use, fact::SlabUse::kObjects);
}

TEST_F(LinkTest, KeeperOfTheThirdVersionHasNoBlackBox) {
  Connect(3);
  EXPECT_TRUE(inherited_.fd_listener.valid());
  EXPECT_FALSE(inherited_.black_box.valid());
}

TEST_F(LinkTest, BlackBoxComesWithTheRest) {
  Connect(kVersion);
  EXPECT_TRUE(inherited_.black_box.valid());
}

TEST_F(LinkTest, KeeperOfTheSecondVersionIsToldAndTellsNoUses) {
  Connect(2, {{7, 4096}});
  EXPECT_EQ(inherited_.slabs.at(0).use, fact::SlabUse::kObjects);
  std::future<Status> held = Hold(8, fact::SlabUse::kManifests);
  const Message hold = Receive();
  EXPECT_EQ(hold.version, 2);
  EXPECT_EQ(hold.items[1].value, 0u);
  Answer(hold.items[1].id, absl::StatusCode::kOk, "", 2);
  EXPECT_EQ(held.get(), absl::OkStatus());
}

// A keeper is as old as the node's memory: version 1 answered nothing.
TEST_F(LinkTest, KeeperOfTheFirstVersionIsWorkedWithAsItIs) {
  Connect(1);
  EXPECT_EQ(link_->Hold(7, 4096, fact::SlabUse::kManifests, 0), absl::OkStatus());
  Message hold = Receive();
  EXPECT_EQ(hold.version, 1);
  EXPECT_EQ(hold.type, MessageType::kHoldSlab);
  EXPECT_EQ(hold.items.size(), 1u);
  Status held = absl::UnknownError("not called");
  link_->HoldSession(3, -1, -1, -1, [&](Status status) { held = std::move(status); });
  EXPECT_EQ(held, absl::OkStatus());
  EXPECT_EQ(Receive().type, MessageType::kHoldSession);
  link_->Serving();  // which that version does not know
  link_->DropSession(3);
  EXPECT_EQ(Receive().type, MessageType::kDropSession);
}

}  // namespace
}  // namespace cairn::keeper
