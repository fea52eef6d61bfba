// Addresses of members, and how people and certificates name them.
#include "common/tcp_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <utility>

#include "common/member_name.h"
#include "common/ring_nodes.h"
#include "common/tcp_listener.h"
#include "tests/support/patience.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(TcpAddress, IsReadAndWrittenInNumbers) {
  for (const char* text : {"127.0.0.1:0", "10.1.2.3:65535", "[::1]:7400", "[fe80::1]:1"}) {
    const auto address = TcpAddress::Parse(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->ToString(), text);
  }
  for (const char* text :
       {"", "127.0.0.1", ":1", "host:1", "127.0.0.1:", "127.0.0.1:65536", "::1:7", "127.0.0.1:+7",
        "127.0.0.1: 7", "[]:1", "[127.0.0.1]:1", "127.0.0.1:x"}) {
    EXPECT_FALSE(TcpAddress::Parse(text).ok()) << text;
  }
}

TEST(TcpAddress, KnowsWhatOnlyThisHostReaches) {
  for (const char* text : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1"}) {
    EXPECT_TRUE(TcpAddress::Parse(text)->IsLoopback()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "128.0.0.1:1", "10.0.0.1:1", "[::]:1", "[fe80::1]:1"}) {
    EXPECT_FALSE(TcpAddress::Parse(text)->IsLoopback()) << text;
  }
}

TEST(TcpAddress, KnowsWhatNobodyCanDial) {
  EXPECT_TRUE(TcpAddress::Parse("0.0.0.0:1")->IsWildcard());
  EXPECT_TRUE(TcpAddress::Parse("[::]:1")->IsWildcard());
  for (const char* text : {"0.0.0.1:1", "127.0.0.1:1", "10.0.0.1:1", "[::1]:1"}) {
    EXPECT_FALSE(TcpAddress::Parse(text)->IsWildcard()) << text;
  }
}

TEST(TcpAddress, HasNeighboursOnOtherPorts) {
  EXPECT_EQ(TcpAddress::Parse("[::1]:7400")->WithPort(9).ToString(), "[::1]:9");
  EXPECT_EQ(TcpAddress::Parse("127.0.0.1:7400")->WithPort(7401).port(), 7401);
}

TEST(RingNodes, AreAListOfRanksAndAddresses) {
  const auto nodes = ParseRingNodes("1=127.0.0.2:7400, 0=127.0.0.1:7400,");
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  EXPECT_THAT(*nodes, ElementsAre(Pair(0, "127.0.0.1:7400"), Pair(1, "127.0.0.2:7400")));
  EXPECT_EQ(RingNodesText(*nodes), "0=127.0.0.1:7400,1=127.0.0.2:7400");
  for (const char* text : {"0", "x=127.0.0.1:1", "-1=127.0.0.1:1", "0=127.0.0.1:1,0=127.0.0.2:1"}) {
    EXPECT_FALSE(ParseRingNodes(text).ok()) << text;
  }
}

TEST(RingNodes, EachHasAnAddressOfItsOwnThatOthersCanDial) {
  const auto refusal = [](const char* text) {
    return std::string(ParseRingNodes(text).status().message());
  };
  EXPECT_EQ(refusal("1=127.0.0.1:7400,0=127.0.0.1:7400"),
            "ranks 0 and 1 are both at 127.0.0.1:7400");
  EXPECT_EQ(refusal("0=127.0.0.1:7400,1=0.0.0.0:7400"),
            "rank 1: 0.0.0.0:7400 is not an address that the other members can dial");
  EXPECT_THAT(refusal("0=[::]:7400"), HasSubstr("rank 0: [::]:7400"));
}

TEST(ListenTcp, AnAddressInUseIsNamed) {
  const auto first = ListenTcp(*TcpAddress::Parse("127.0.0.1:0"));
  ASSERT_TRUE(first.ok()) << first.status();
  const TcpAddress taken = *TcpAddress::OfSocket(first->get());
  const auto second = ListenTcp(taken);
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(absl::StrCat(taken.ToString(), ": Address already in use")));
}

// As the one of a daemon that was killed a moment ago has it, or any other process.
TEST(TcpListener, ListensOnceAPortThatIsTakenIsFree) {
  const std::atomic<bool> go_on = false, stop = true;
  auto other = ListenTcp(*TcpAddress::Parse("127.0.0.1:0"));
  ASSERT_TRUE(other.ok()) << other.status();
  const TcpAddress taken = *TcpAddress::OfSocket(other->get());
  const auto listener = TcpListener::Open(taken);
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_THAT((*listener)->Problem(),
              HasSubstr(absl::StrCat(taken.ToString(), ": Address already in use")));
  EXPECT_EQ((*listener)->fd(), -1);
  EXPECT_FALSE((*listener)->Await(stop, RealClock()->Now() + kNanosPerSecond));
  EXPECT_FALSE((*listener)->Await(go_on, RealClock()->Now()));
  other->Reset();
  EXPECT_TRUE(
      (*listener)->Await(go_on, RealClock()->Now() + testing::Patient(60 * kNanosPerSecond)));
  EXPECT_EQ((*listener)->Problem(), "");
  EXPECT_EQ(TcpAddress::OfSocket((*listener)->fd())->ToString(), taken.ToString());
}

TEST(TcpListener, SaysWhichPortTheKernelChose) {
  const auto listener = TcpListener::Open(*TcpAddress::Parse("127.0.0.1:0"));
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_EQ((*listener)->Problem(), "");
  EXPECT_NE((*listener)->address().port(), 0);
}

TEST(TcpListener, AnAddressThatIsNotThisHostsIsAnError) {
  const auto listener = TcpListener::Open(*TcpAddress::Parse("192.0.2.1:7400"));
  EXPECT_THAT(std::string(listener.status().message()), HasSubstr("192.0.2.1:7400: "));
}

TEST(MemberName, IsAUriInACertificate) {
  EXPECT_EQ(MemberUri({"train-7", 12}), "cairn://cluster/train-7/rank/12");
  MemberName name;
  ASSERT_TRUE(ParseMemberUri("cairn://cluster/train-7/rank/12", &name));
  EXPECT_EQ(name, (MemberName{"train-7", 12}));
  for (const char* uri :
       {"", "cairn://cluster/", "cairn://cluster/a/b/rank/1", "cairn://cluster//rank/1",
        "cairn://cluster/a/rank/", "cairn://cluster/a/rank/-1", "cairn://cluster/a/rank/01",
        "cairn://cluster/a/rank/1/", "cairn://cluster/a/rank/99999999999",
        "https://cluster/a/rank/1", "cairn://cluster/../rank/1"}) {
    EXPECT_FALSE(ParseMemberUri(uri, &name)) << uri;
  }
}

TEST(MemberName, AClusterIsNamedAsAJobIs) {
  EXPECT_TRUE(ValidateCluster("train-7").ok());
  for (const char* cluster : {"", "a b", "a/b", ".a"}) {
    EXPECT_THAT(std::string(ValidateCluster(cluster).message()), HasSubstr("is not"));
  }
}

}  // namespace
}  // namespace cairn
