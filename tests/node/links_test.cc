#include "server/node/links.h"

#include <gtest/gtest.h>

#include <new>

namespace cairn::testing {
namespace {

// For each call there is no memory.
class FullLinks : public node::PeerLinks {
 public:
  void Tell(engine::Rank, engine::peer::Message) override { throw std::bad_alloc(); }
  StatusOr<Granted> AskGrant(engine::Rank, const engine::peer::GrantQuestion&,
                             MonotonicNanos) override {
    throw std::bad_alloc();
  }
  StatusOr<std::string> AskTransport(engine::Rank, const std::string&, MonotonicNanos) override {
    throw std::bad_alloc();
  }
  void EndGrant(engine::Rank, node::EndedGrant) override { throw std::bad_alloc(); }
  void SetView(const engine::RingView&) override { throw std::bad_alloc(); }
  std::string Problem() const override { throw std::bad_alloc(); }
};

// The daemon hung when it stopped: it waited for calls that had thrown.
TEST(Links, ACallThatThrowsHasLeft) {
  FullLinks full;
  node::Links links;
  links.Set(&full);
  EXPECT_THROW(links.Tell(1, engine::peer::ReportWanted{"job"}), std::bad_alloc);
  EXPECT_THROW((void)links.AskGrant(1, {}, 0), std::bad_alloc);
  EXPECT_THROW((void)links.AskTransport(1, "", 0), std::bad_alloc);
  EXPECT_THROW(links.EndGrant(1, {7}), std::bad_alloc);
  EXPECT_THROW((void)links.Problem(), std::bad_alloc);
  links.Set(nullptr);
  links.Tell(1, engine::peer::ReportWanted{"job"});  // nobody is told
}

}  // namespace
}  // namespace cairn::testing
