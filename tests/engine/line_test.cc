// The engine's line against common/line.h, which says the same in one pass over everything: random
// histories of attempts that begin, move, complete steps out of order, lose them, and are forgotten, and
// of decisions.
#include "server/engine/line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "tests/support/line.h"

namespace cairn::engine {
namespace {

using testing::Optional;

// What the line is told, and the same as common/line.h wants it.
class RandomHistory {
 public:
  explicit RandomHistory(uint32_t seed) : random_(seed) {}

  void Step_() {
    switch (Up(8)) {
      case 0:
        Begin();
        break;
      case 1:
        Move();
        break;
      case 2:
      case 3:
        Lose();
        break;
      default:
        Complete();
    }
  }

  History Known() const {
    History history;
    for (const auto& [number, origin] : origins_) {
      history.attempts[number] = {origin.first, origin.lineage, {}};
    }
    history.decisions = decisions_;
    // Ids ascend: the last revision stays.
    for (const CheckpointId& id : complete_) {
      history.attempts[id.attempt].complete[id.step] = id.revision;
    }
    return history;
  }

  void Compare() const {
    const History known = Known();
    std::vector<LineStep> line;
    for (auto id = line_.Next(kNoStep); id.has_value(); id = line_.Next(id->step)) {
      line.push_back({id->step, id->attempt, id->revision});
      EXPECT_TRUE(line_.Has(*id));
      EXPECT_THAT(line_.At(id->step), Optional(*id));
      EXPECT_FALSE(line_.Abandoned(*id));
    }
    ASSERT_EQ(line, ComputeLine(known));
    ASSERT_EQ(line_.Head(), HeadOf(known));
    const std::optional<CheckpointId> newest = line_.Newest();
    ASSERT_EQ(newest.has_value(), !line.empty());
    if (newest.has_value()) {
      EXPECT_EQ(newest->step, line.back().step);
    }
    for (Step step = 0; step < kSteps; ++step) {
      ASSERT_EQ(line_.LineageBelow(step), LineageBelow(known, kEveryAttempt, step)) << step;
    }
    const std::vector<LineStep> abandoned = Abandoned(known);
    for (const CheckpointId& id : complete_) {
      const LineStep own{id.step, id.attempt, id.revision};
      // Of several revisions only the newest counts there; the others are superseded, or as it is.
      bool newest_revision = true;
      for (const CheckpointId& other : complete_) {
        newest_revision &= !(other.step == id.step && other.attempt == id.attempt && other > id);
      }
      if (!newest_revision) continue;
      const bool expected = std::find(abandoned.begin(), abandoned.end(), own) != abandoned.end();
      EXPECT_EQ(line_.Abandoned(id), expected) << id.step << "." << id.attempt;
    }
  }

 private:
  static constexpr Step kSteps = 12;

  int Up(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }
  Attempt Number() { return numbers_ += 1 + Up(2); }
  // Of anything that is complete, older than `number`; or nothing; or not known.
  Lineage SomeLineage(Attempt number) {
    if (Up(5) == 0) return Lineage::OfUnknown();
    std::vector<CheckpointId> older;
    for (const CheckpointId& id : complete_) {
      if (id.attempt < number) older.push_back(id);
    }
    if (older.empty() || Up(6) == 0) return {};
    const CheckpointId& id = older[static_cast<size_t>(Up(static_cast<int>(older.size())))];
    return LineageFrom(id.step, id.attempt, origins_[id.attempt].lineage);
  }
  void Begin() {
    const Attempt number = Number();
    if (Up(3) == 0) {
      decisions_[number] = SomeLineage(number);
    } else {
      origins_[number] = {Up(kSteps), SomeLineage(number)};
    }
    Tell();
  }
  void Move() {  // where an attempt comes from is settled later than it began
    if (origins_.empty()) return;
    const auto at = std::next(origins_.begin(), Up(static_cast<int>(origins_.size())));
    at->second.lineage = SomeLineage(at->first);
    Tell();
  }
  void Complete() {
    if (origins_.empty()) return Begin();
    const Attempt attempt =
        std::next(origins_.begin(), Up(static_cast<int>(origins_.size())))->first;
    const CheckpointId id{Up(kSteps), attempt, Up(3)};
    if (complete_.insert(id).second) line_.Add(id);
  }
  void Lose() {
    if (complete_.empty()) return;
    const auto at = std::next(complete_.begin(), Up(static_cast<int>(complete_.size())));
    line_.Remove(*at);
    complete_.erase(at);
  }
  // Attempts that left nothing behind may be forgotten.
  void Tell() {
    for (auto at = origins_.begin(); at != origins_.end();) {
      bool empty = true;
      for (const CheckpointId& id : complete_) empty &= id.attempt != at->first;
      at = empty && Up(2) == 0 ? origins_.erase(at) : std::next(at);
    }
    line_.SetAttempts(origins_, decisions_);
  }

  std::mt19937 random_;
  Attempt numbers_ = 0;
  std::map<Attempt, Line::Origin> origins_;
  std::map<Attempt, Lineage> decisions_;
  std::set<CheckpointId> complete_;
  Line line_;
};

TEST(EngineLine, SaysWhatTheRuleSaysAfterEachChange) {
  for (uint32_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomHistory history(seed);
    for (int i = 0; i < 60; ++i) {
      history.Step_();
      history.Compare();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// A line that is stale stays so through any number of changes, whatever they are.
TEST(EngineLine, SaysWhatTheRuleSaysAfterManyUnreadChanges) {
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomHistory history(seed);
    for (int i = 0; i < 40; ++i) history.Step_();
    history.Compare();
    if (testing::Test::HasFatalFailure()) return;
  }
}

// What a scan of storage brings: every step of an older attempt, one by one. Each would mean the whole
// line; it is built once.
TEST(EngineLine, ManyStepsOfAnOlderAttemptMakeTheLineStaleOnce) {
  Line line;
  int all = line.SetAttempts({{1, {0, {}}}}, {{2, LineageFrom(70'000, 1, {})}}).all ? 1 : 0;
  for (Step step = 0; step < 100'000; ++step) all += line.Add({step, 1, 0}).all ? 1 : 0;
  EXPECT_EQ(all, 1);
  EXPECT_THAT(line.Newest(), Optional(CheckpointId{70'000, 1, 0}));
  EXPECT_FALSE(line.Add({99'999, 1, 1}).all) << "beyond what counts of attempt 1";
  EXPECT_TRUE(line.Abandoned({70'001, 1, 0}));
}

}  // namespace
}  // namespace cairn::engine
