// What carries out the steps of a node's membership, and in which order its host hears what became of them.
#include "server/node/membership_loop.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cairn::node {
namespace {

using testing::ElementsAre;

std::string Instance(char of) { return std::string(engine::kInstanceBytes, of); }

// A ring of two ranks that one member has.
class OneRow : public catalog::RingTable {
 public:
  explicit OneRow(catalog::SeatRow row) : row_(std::move(row)) {}
  StatusOr<catalog::RingRows> Read() override { return catalog::RingRows{1, 1, {row_, row_}}; }
  catalog::SeatWritten Beat(const catalog::SeatName&) override { return Not(); }
  catalog::SeatWritten Claim(const catalog::SeatName&, const std::string&, int64_t,
                             int64_t) override {
    return Not();
  }
  catalog::SeatWritten Raise(const catalog::SeatName&, int64_t) override { return Not(); }
  catalog::SeatWritten Release(const catalog::SeatName& name) override {
    released_ = name.instance == row_.instance && name.incarnation == row_.incarnation;
    return Not();
  }
  catalog::SeatWritten Make(int64_t, int32_t) override { return Not(); }
  StatusOr<int64_t> Resize(int32_t) override {
    if (released_) return 2;
    return absl::FailedPreconditionError("somebody has it");
  }

 private:
  static catalog::SeatWritten Not() { return {catalog::SeatWritten::How::kNot, {}, 1}; }
  const catalog::SeatRow row_;
  bool released_ = false;
};

// Notes what it hears until it is to be replaced.
class Host : public MembershipHost {
 public:
  void SeatChanged(const fact::RingSeat& seat) override { Note(absl::StrCat("seat ", seat.rank)); }
  void ViewChanged(const engine::RingView&) override {}
  void Fenced(const engine::MemberId& by) override {
    Note(absl::StrCat("fenced by ", by.incarnation));
  }
  void Replace(const std::string&) override { Note("replace"); }
  bool MayClaim() override { return true; }
  bool Leaves() override { return false; }
  bool NothingIsOnlyHere() override { return true; }
  bool MayStartAnew() override {
    Note("asked whether it may start anew");
    return true;
  }

  std::vector<std::string> UntilReplaced() {
    MutexLock lock(&mu_);
    while (heard_.empty() || heard_.back() != "replace") come_.Wait(&mu_);
    return heard_;
  }

 private:
  void Note(std::string what) {
    MutexLock lock(&mu_);
    if (!heard_.empty() && heard_.back() == "replace") return;
    heard_.push_back(std::move(what));
    come_.NotifyAll();
  }
  Mutex mu_;
  CondVar come_;
  std::vector<std::string> heard_ ABSL_GUARDED_BY(mu_);
};

// Else it goes on admitting saves as the rank that another life has, until its daemon has ended.
TEST(MembershipLoop, AFencedNodeHearsItBeforeItIsAskedWhetherItMayStartAnew) {
  fact::RingSeat seat;
  seat.instance = Instance('m');
  seat.rank = 0;
  seat.incarnation = 1;
  seat.epoch = 1;
  seat.incarnations = {1};
  engine::MembershipOptions options;
  options.address = "10.0.0.1:7400";
  options.new_instance = &MembershipLoop::NewInstance;
  engine::RingOptions runs_as;
  runs_as.rank = 0;
  runs_as.epoch = seat.epoch;
  runs_as.members = {{0, options.address}};
  Host host;
  MembershipLoop loop(
      options, seat, runs_as,
      [] {
        return std::make_unique<OneRow>(catalog::SeatRow{2, Instance('o'), "10.0.0.2:7400"});
      },
      [](const std::string&, engine::Rank) { return true; }, RealClock(), &host);
  loop.Start();
  EXPECT_THAT(host.UntilReplaced(),
              ElementsAre("seat 0", "seat 0", "fenced by 2", "asked whether it may start anew",
                          "seat -1", "replace"));
  loop.Stop();
}

// Bug: a rank whose machine is gone kept the ring from being made smaller, for only its own node could give it back.
TEST(MembershipLoop, ARankThatStandsStillAndDoesNotAnswerGivesWayToASmallerRing) {
  const auto resize = [](int64_t beat_age_ms, bool answers) {
    engine::MembershipOptions options;
    options.still = 15 * kNanosPerSecond;
    Host host;
    MembershipLoop loop(
        options, fact::RingSeat(), engine::RingOptions(),
        [beat_age_ms] {
          return std::make_unique<OneRow>(
              catalog::SeatRow{2, Instance('o'), "10.0.0.2:7400", 7, beat_age_ms});
        },
        [answers](const std::string&, engine::Rank) { return answers; }, RealClock(), &host);
    return loop.Resize(1).ok();
  };
  EXPECT_TRUE(resize(15'000, /*answers=*/false));
  EXPECT_FALSE(resize(15'000, /*answers=*/true))
      << "the catalog is away for it, not for its neighbours";
  EXPECT_FALSE(resize(14'000, /*answers=*/false)) << "it may come back";
  EXPECT_FALSE(resize(-1, /*answers=*/false)) << "it has only just begun";
}

}  // namespace
}  // namespace cairn::node
