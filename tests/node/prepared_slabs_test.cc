// A node whose transport has a device: its slabs are registered before anybody asks for them, and not beyond their end.
#include <chrono>
#include <functional>
#include <thread>

#include "tests/node/saving_node.h"
#include "tests/support/await.h"
#include "tests/transport/fake_verbs.h"
#include "tests/transport/rdma_nodes.h"

namespace cairn::node {
namespace {

class PreparedSlabs : public testing::SavingNode {
 protected:
  void SetUp() override {
    SavingNode::SetUp();
    device_ = transport::StartRdma({.rank = 0, .incarnation = 1},
                                   transport::MakeFakeDevice(transport::MakeFakeFabric(), counts_));
    transport_ = device_.get();
    StartNode();
  }
  int64_t Attached() {
    const auto state = node().State(CallerOf(0));
    EXPECT_TRUE(state.ok()) << state.status();
    return state.ok() ? state->engine.counters.at("slabs_attached") : -1;
  }

  const std::shared_ptr<transport::FakeVerbsFaults> counts_ =
      std::make_shared<transport::FakeVerbsFaults>();
  std::unique_ptr<transport::RdmaTransport> device_;
};

TEST_F(PreparedSlabs, ASlabThatWasMadeIsRegisteredBeforeAnybodyAsksForIt) {
  ASSERT_TRUE(Save(Begin(), 1, "weights", std::string(1 << 20, 'w')).ok());
  EXPECT_TRUE(testing::Await([&] { return counts_->regions >= 1; }));
  EXPECT_TRUE(testing::Await([&] { return counts_->regions == Attached(); }));
  StopNode();
  EXPECT_EQ(counts_->regions, 0);
}

TEST_F(PreparedSlabs, ASlabThatTheKeeperHeldIsRegisteredByTheNextDaemon) {
  ASSERT_TRUE(Save(Begin(), 1, "weights", std::string(1 << 20, 'w')).ok());
  ASSERT_TRUE(testing::Await([&] { return counts_->regions >= 1; }));
  StopNode();
  ASSERT_EQ(counts_->regions, 0);
  const int before = counts_->registered;
  StartNode();
  EXPECT_TRUE(
      testing::Await([&] { return counts_->regions >= 1 && counts_->regions == Attached(); }));
  EXPECT_GT(counts_->registered, before);
}

// Its pages go back to the system, which a registration would keep them from.
TEST_F(PreparedSlabs, ASlabThatIsDestroyedWasDeregistered) {
  const SessionId session = Begin();
  ASSERT_TRUE(Save(session, 1, "weights", std::string(1 << 20, 'w')).ok());
  ASSERT_TRUE(testing::Await([&] { return counts_->regions >= 1; }));
  const auto destroyed = [&] { return cache().counters().slabs_destroyed; };
  const uint64_t before = destroyed();
  // Each step is larger than what is free, so that the slabs of those before give way.
  for (Step step = 2; step < 6; ++step) {
    const std::string bytes(static_cast<size_t>(step) * (5 << 20), 'w');
    ASSERT_TRUE(Save(session, step, "weights", bytes).ok());
  }
  EXPECT_TRUE(testing::Await([&] { return destroyed() > before; }));
  EXPECT_TRUE(testing::Await([&] {
    const int64_t attached = Attached();
    return attached == counts_->regions && static_cast<size_t>(attached) <= keeper_.slabs();
  }));
}

}  // namespace
}  // namespace cairn::node
