// The wire of a ring whose members stand in the catalog: an address may move, and views travel.
#include <fcntl.h>
#include <sys/socket.h>

#include <string>
#include <thread>
#include <vector>

#include "server/rpc/peer_probe.h"
#include "tests/rpc/peers_fixture.h"

namespace cairn::testing {
namespace {

class PeersOfCatalog : public PeersFixture {
 protected:
  void SetUp() override {
    PeersFixture::SetUp();
    ring_.erase(2);
  }
  // At `address`, with what a member knows of the others.
  rpc::PeersOptions OptionsAt(engine::Rank rank, const std::string& address,
                              const std::map<engine::Rank, std::string>& others) const {
    rpc::PeersOptions options = Options(rank);
    options.ring.from_catalog = true;
    options.ring.members = others;
    options.ring.members[rank] = address;
    return options;
  }
  engine::RingView View(int64_t second, const std::string& at) const {
    return {1, {{1, ring_.at(0)}, {second, at}}};
  }

  const HeldPort other_port_;
  const std::string elsewhere_ = other_port_.address();
  std::unique_ptr<Member> first_, second_, third_;
};

TEST_F(PeersOfCatalog, ARankIsDialledWhereTheNewestViewHasIt) {
  first_ = Start(a_, OptionsAt(0, ring_[0], {{1, ""}}));
  EXPECT_TRUE(first_->host.AwaitNobody(1));
  second_ = Start(b_, OptionsAt(1, ring_[1], {{0, ring_[0]}}));
  first_->peers->SetView(View(b_.incarnation, ring_[1]));
  EXPECT_TRUE(first_->host.AwaitMember(1, b_));
  // Another node has the rank now; the one before it answers still.
  const engine::MemberId next = Life(1, b_.incarnation + 1, 'n');
  third_ = Start(next, OptionsAt(1, elsewhere_, {{0, ring_[0]}}));
  first_->peers->SetView(View(next.incarnation, elsewhere_));
  EXPECT_TRUE(first_->host.AwaitMember(1, next));
  EXPECT_TRUE(third_->host.AwaitMember(0, a_));
  // The old one hears that there is a newer life.
  EXPECT_TRUE(second_->host.AwaitSeenOfOurs(next.incarnation));
}

TEST_F(PeersOfCatalog, AViewReachesWhoIsGreeted) {
  first_ = Start(a_, OptionsAt(0, ring_[0], {{1, ring_[1]}}));
  second_ = Start(b_, OptionsAt(1, ring_[1], {{0, ring_[0]}}));
  ASSERT_TRUE(first_->host.AwaitMember(1, b_));
  ASSERT_TRUE(second_->host.AwaitMember(0, a_));
  engine::RingView view = View(b_.incarnation, ring_[1]);
  view.epoch = 5;
  view.seats.push_back({7, "10.0.0.9:7400"});
  first_->peers->SetView(view);
  EXPECT_TRUE(second_->host.AwaitView(view));
}

TEST_F(PeersOfCatalog, AProbeTellsWhoIsThereFromSilence) {
  first_ = Start(a_, OptionsAt(0, ring_[0], {{1, ring_[1]}}));
  rpc::PeersOptions probe = OptionsAt(engine::kNoRank, elsewhere_, {{0, ""}});
  probe.call_timeout = kNanosPerSecond / 2;
  EXPECT_TRUE(rpc::SomebodyAnswers(probe, ring_[0], 0));
  EXPECT_FALSE(rpc::SomebodyAnswers(probe, ring_[0], 1)) << "who answers has another rank";
  EXPECT_FALSE(rpc::SomebodyAnswers(probe, ring_[1], 1)) << "nobody listens";
  EXPECT_FALSE(rpc::SomebodyAnswers(probe, "", 1));
  // As of a process that was stopped: the kernel takes connections, and nothing comes.
  const auto listens = ListenTcp(*TcpAddress::Parse("127.0.0.1:0"));
  ASSERT_TRUE(listens.ok());
  const std::string silent = TcpAddress::OfSocket(listens->get())->ToString();
  EXPECT_FALSE(rpc::SomebodyAnswers(probe, silent, 1));
  // Whatever else is there: nobody knows that it is not the one. It waits for its callers, as the listener does not.
  ASSERT_EQ(::fcntl(listens->get(), F_SETFL, 0), 0);
  std::thread answers([&] {
    std::vector<UniqueFd> callers;  // the probe above, which has gone, among them
    for (;;) {
      callers.emplace_back(::accept(listens->get(), nullptr, nullptr));
      if (!callers.back().valid()) return;
      ::send(callers.back().get(), "nonsense, but somebody", 22, MSG_NOSIGNAL);
    }
  });
  probe.call_timeout = 10 * kNanosPerSecond;  // who answers may be slow
  EXPECT_TRUE(rpc::SomebodyAnswers(probe, silent, 1));
  ::shutdown(listens->get(), SHUT_RDWR);  // accept returns
  answers.join();
}

}  // namespace
}  // namespace cairn::testing
