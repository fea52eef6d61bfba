// Each rule of docs/line.md that the pure function has, by its number; and the function against a naive
// reading of the same rules over random histories.
#include "common/line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/stored.h"
#include "tests/support/line.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A history as it comes to be: lineages are those that were known when an attempt began.
class Past {
 public:
  // `from` is on the line; 0: from nothing.
  Past& Life(Attempt attempt, Lineage lineage, const std::vector<Step>& complete,
             Step first = kNoStep) {
    AttemptLine& line = history_.attempts[attempt];
    line.lineage = std::move(lineage);
    line.first = first;
    for (Step step : complete) line.complete[step] = 0;
    return *this;
  }
  Past& From(Attempt attempt, Step step, Attempt of, const std::vector<Step>& complete) {
    return Life(attempt, LineageFrom(step, of, ResolveLineage(history_, of)), complete);
  }
  Past& Start(Attempt attempt, const std::vector<Step>& complete) {
    return Life(attempt, {}, complete);
  }
  Past& Decide(Attempt number, Step step, Attempt of) {
    history_.decisions[number] =
        of == 0 ? Lineage() : LineageFrom(step, of, ResolveLineage(history_, of));
    return *this;
  }

  // "step@attempt" for each entry.
  std::vector<std::string> Line() const { return Words(ComputeLine(history_)); }
  std::vector<std::string> Left() const { return Words(Abandoned(history_)); }
  std::string Latest() const {
    const auto latest = LatestOfLine(history_);
    return latest.has_value() ? Words({*latest})[0] : "none";
  }
  std::string Below(Attempt attempt, Step first) const {
    return OriginText(LineageBelow(history_, attempt, first));
  }
  const History& history() const { return history_; }

 private:
  static std::vector<std::string> Words(const std::vector<LineStep>& steps) {
    std::vector<std::string> words;
    for (const LineStep& s : steps) words.push_back(absl::StrCat(s.step, "@", s.attempt));
    return words;
  }

  History history_;
};

TEST(Line, OfNothingIsEmpty) {
  const Past past;
  EXPECT_THAT(past.Line(), IsEmpty());
  EXPECT_EQ(past.Below(1, 5), "START");
  EXPECT_THAT(past.Left(), IsEmpty());
}

TEST(Line, Rule2CarriesTheNewestCompleteRevision) {
  History history;
  history.attempts[1].complete[7] = 3;
  EXPECT_EQ(LatestOfLine(history), (LineStep{7, 1, 3}));
}

TEST(Line, Rule5IsOwnStepsThenEachEntryUpToItsBound) {
  Past past;
  past.Start(1, {3, 1, 2});
  EXPECT_THAT(past.Line(), ElementsAre("1@1", "2@1", "3@1"));
  past.From(2, 3, 1, {4, 5});
  EXPECT_THAT(past.Line(), ElementsAre("1@1", "2@1", "3@1", "4@2", "5@2"));
  EXPECT_THAT(past.Left(), IsEmpty());
  past.From(3, 2, 1, {3});
  EXPECT_THAT(past.Line(), ElementsAre("1@1", "2@1", "3@3"));
  EXPECT_THAT(past.Left(), ElementsAre("3@1", "4@2", "5@2"));
}

// The one it came from was removed, or its files are gone: those before it still count.
TEST(Line, Rule5NeedsNoParentToBeThere) {
  Past past;
  past.Start(1, {1, 2}).From(2, 2, 1, {3}).From(3, 3, 2, {4});
  History history = past.history();
  history.attempts.erase(2);
  EXPECT_EQ(ComputeLine(history).size(), 3) << "1, 2 and 4";
  EXPECT_EQ(LatestOfLine(history), (LineStep{4, 3, 0}));
}

TEST(Line, Rule7TheHeadIsTheGreatestNumberThatHasSomethingOrWasDecided) {
  Past past;
  past.Start(1, {1, 2, 3, 4}).From(3, 2, 1, {});
  EXPECT_EQ(HeadOf(past.history()), (LineHead{1, false}));
  past.Decide(3, 2, 1);
  EXPECT_EQ(HeadOf(past.history()), (LineHead{3, true}));
  EXPECT_EQ(past.Latest(), "2@1");
  EXPECT_THAT(past.Left(), ElementsAre("3@1", "4@1"));
  past.From(3, 2, 1, {3});
  EXPECT_EQ(HeadOf(past.history()), (LineHead{3, false})) << "of equal numbers the attempt wins";
}

TEST(Line, Rule7ADecisionForNothingLeavesNothing) {
  Past past;
  past.Start(1, {1, 2, 3}).Decide(2, kNoStep, 0);
  EXPECT_EQ(past.Latest(), "none");
}

TEST(Line, Rule9ComesFromTheHighestOnTheLineBelowItsFirstStep) {
  Past past;
  past.Start(1, {10, 20, 30}).From(2, 10, 1, {12});
  EXPECT_EQ(past.Below(3, 31), "step 12 of attempt 2");
  EXPECT_EQ(past.Below(3, 12), "step 10 of attempt 1");
  EXPECT_EQ(past.Below(3, 10), "START");
}

// Killed in its first step, interrupted, refused for want of room: `latest` stays where it was.
TEST(Line, Rule12ALifeThatCompletesNothingMovesNothing) {
  Past past;
  past.Start(1, {1, 2, 3, 4}).From(2, 2, 1, {}).Start(3, {});
  EXPECT_EQ(past.Latest(), "4@1");
  EXPECT_THAT(past.Left(), IsEmpty());
  EXPECT_EQ(past.Below(4, 5), "step 4 of attempt 1");
  past.From(4, 4, 1, {5});
  EXPECT_THAT(past.Line(), ElementsAre("1@1", "2@1", "3@1", "4@1", "5@4"));
}

TEST(Line, Rule14UseBringsBackWhatWasAbandoned) {
  Past past;
  past.Start(1, {1, 2, 3}).From(2, 1, 1, {2, 3, 4});
  EXPECT_EQ(past.Latest(), "4@2");
  past.Decide(3, 3, 1);
  EXPECT_THAT(past.Line(), ElementsAre("1@1", "2@1", "3@1"));
  EXPECT_THAT(past.Left(), ElementsAre("2@2", "3@2", "4@2"));
  EXPECT_EQ(past.Below(4, 100), "step 3 of attempt 1");
}

TEST(Line, Rule16OfALifeWithAnUnknownOriginEndsWithItsOwnSteps) {
  Past past;
  past.Start(1, {1, 2, 3}).Life(2, Lineage::OfUnknown(), {7}, /*first=*/6);
  EXPECT_EQ(past.Latest(), "7@2");
}

TEST(Line, Rule17And18AnUnknownOriginIsDerivedFromTheNumbersBelowIt) {
  Past past;
  past.Start(1, {1, 2, 3}).Life(2, Lineage::OfUnknown(), {7}, /*first=*/3);
  EXPECT_THAT(past.Line(), ElementsAre("1@1", "2@1", "7@2")) << "by its first step, not its lowest";
  past.Life(3, LineageFrom(7, 2, Lineage::OfUnknown()), {8});
  EXPECT_THAT(past.Line(), ElementsAre("1@1", "2@1", "7@2", "8@3")) << "through an open lineage";
  EXPECT_EQ(OriginText(ResolveLineage(past.history(), 2)), "step 2 of attempt 1");
}

TEST(Line, Rule20AChainOfRollbacksKeepsOnlyWhatEachCameFrom) {
  Past past;
  past.Start(1, {10, 20, 30}).From(2, 20, 1, {25, 35}).From(3, 10, 1, {15});
  EXPECT_THAT(past.Line(), ElementsAre("10@1", "15@3"));
  EXPECT_THAT(past.Left(), ElementsAre("20@1", "30@1", "25@2", "35@2"));
}

// --- a naive reading

// Everything that ever happened, told in the order of numbers: for each what it comes from, as one id.
struct Told {
  struct Id {
    Step step = kNoStep;
    Attempt attempt = 0;
  };
  struct One {
    bool attempt = true;  // else a decision
    Id from;
    bool unknown = false;
    Step first = kNoStep;
    std::map<Step, Revision> complete;
  };
  std::map<Attempt, One> all;  // attempts and decisions have numbers of their own here
};

std::map<Step, Attempt> NaiveLine(const Told& told, Attempt below);

Told::Id NaiveOrigin(const Told& told, Attempt number) {
  const Told::One& one = told.all.at(number);
  if (!one.unknown) return one.from;
  Told::Id from;
  for (const auto& [step, attempt] : NaiveLine(told, number)) {
    if (step < one.first) from = {step, attempt};
  }
  return from;
}

// What counts of `number` and before, up to `bound`.
void NaiveFollow(const Told& told, Attempt number, Step bound, std::map<Step, Attempt>* line) {
  const Told::One& one = told.all.at(number);
  for (const auto& [step, revision] : one.complete) {
    if (step <= bound) line->try_emplace(step, number);
  }
  const Told::Id from = NaiveOrigin(told, number);
  if (from.attempt != 0) NaiveFollow(told, from.attempt, std::min(bound, from.step), line);
}

std::map<Step, Attempt> NaiveLine(const Told& told, Attempt below) {
  std::map<Step, Attempt> line;
  for (auto at = std::make_reverse_iterator(told.all.lower_bound(below)); at != told.all.rend();
       ++at) {
    if (at->second.attempt && at->second.complete.empty()) continue;
    NaiveFollow(told, at->first, std::numeric_limits<Step>::max(), &line);
    break;
  }
  return line;
}

class RandomPast {
 public:
  explicit RandomPast(uint32_t seed) : random_(seed) {}

  void Happen() {
    switch (Up(10)) {
      case 0:
      case 1:
        return Begin();
      case 2:
        return Decide();
      case 3:
        return Lose();
      case 4:
        return Settle();
      default:
        return Complete();
    }
  }

  const Told& told() const { return told_; }
  const History& history() const { return history_; }

 private:
  int Up(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  // An attempt begins, sometimes where nobody could tell what it comes from, and sometimes resumed.
  void Begin() {
    const Attempt number = ++numbers_;
    const Step first = Up(14);
    Told::One& one = told_.all[number];
    one.first = first;
    AttemptLine& line = history_.attempts[number];
    line.first = first;
    if (Up(4) == 0) {
      one.unknown = true;
      line.lineage = Lineage::OfUnknown();
      return;
    }
    one.from = NaiveBelow(number, first);
    line.lineage = Stored(one.from);
  }
  void Decide() {
    const Attempt number = ++numbers_;
    Told::One& one = told_.all[number];
    one.attempt = false;
    std::vector<Told::Id> ids;
    for (const auto& [attempt, other] : told_.all) {
      for (const auto& [step, revision] : other.complete) ids.push_back({step, attempt});
    }
    if (!ids.empty() && Up(5) > 0)
      one.from = ids[static_cast<size_t>(Up(static_cast<int>(ids.size())))];
    history_.decisions[number] = Stored(one.from);
  }
  void Complete() {
    const Attempt number = Any();
    if (number == 0) return Begin();
    const Step above = NaiveOrigin(told_, number).step;
    const Step step = std::max<Step>(above + 1, told_.all[number].first) + Up(3);
    const Revision revision = Up(3);
    told_.all[number].complete[step] = revision;
    history_.attempts[number].complete[step] = revision;
  }
  void Lose() {
    const Attempt number = Any();
    if (number == 0 || told_.all[number].complete.empty()) return;
    const Step step = told_.all[number].complete.begin()->first;
    told_.all[number].complete.erase(step);
    history_.attempts[number].complete.erase(step);
  }
  // Everything could be read: unknown origins become facts, once.
  void Settle() {
    for (auto& [number, one] : told_.all) {
      if (!one.unknown) continue;
      one.from = NaiveOrigin(told_, number);
      one.unknown = false;
    }
    for (auto& [number, line] : history_.attempts) line.lineage = ResolveLineage(history_, number);
    for (auto& [number, lineage] : history_.decisions) lineage = ResolveDecision(history_, number);
  }

  Attempt Any() {
    std::vector<Attempt> attempts;
    for (const auto& [number, line] : history_.attempts) attempts.push_back(number);
    return attempts.empty() ? 0
                            : attempts[static_cast<size_t>(Up(static_cast<int>(attempts.size())))];
  }
  Told::Id NaiveBelow(Attempt below, Step first) const {
    Told::Id from;
    for (const auto& [step, attempt] : NaiveLine(told_, below)) {
      if (step < first) from = {step, attempt};
    }
    return from;
  }
  Lineage Stored(const Told::Id& from) const {
    if (from.attempt == 0) return {};
    const auto of = history_.attempts.find(from.attempt);
    return LineageFrom(from.step, from.attempt, of->second.lineage);
  }

  std::mt19937 random_;
  Attempt numbers_ = 0;
  Told told_;
  History history_;
};

// A trainer that dies again and again while storage is away: each life's origin is open.
TEST(Line, HundredsOfLivesFromWhereNobodyKnowsAreResolvedOnceEach) {
  constexpr Attempt kLives = 500;
  Past past;
  for (Attempt life = 1; life <= kLives; ++life) {
    past.Life(life, Lineage::OfUnknown(), {life}, /*first=*/life);
  }
  const std::vector<LineStep> line = ComputeLine(past.history());
  ASSERT_EQ(line.size(), kLives);
  EXPECT_EQ(line.back(), (LineStep{kLives, kLives, 0}));
  const Lineage lineage = ResolveLineage(past.history(), kLives);
  EXPECT_EQ(lineage.entries.size(), kLives - 1);
  EXPECT_EQ(lineage.entries.front(), (LineageEntry{kLives - 1, kLives - 1}));
}

TEST(Line, ALineageThatNamesALaterAttemptEndsThere) {
  Past past;
  past.Life(1, Lineage{{{2, 7}}, /*open=*/true}, {1});
  past.Life(2, Lineage::OfUnknown(), {2}, /*first=*/2);
  EXPECT_EQ(ComputeLine(past.history()).back().step, 2);
}

TEST(LineProperty, SaysWhatANaiveReadingOfTheRulesSays) {
  for (uint32_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomPast past(seed);
    for (int i = 0; i < 40; ++i) {
      past.Happen();
      std::map<Step, Attempt> line;
      for (const LineStep& step : ComputeLine(past.history())) line[step.step] = step.attempt;
      ASSERT_EQ(line, NaiveLine(past.told(), kEveryAttempt)) << "after " << i + 1;
    }
  }
}

// --- from files

StoredCheckpoint Stored(Step step, Attempt attempt, const Lineage& lineage, Step first,
                        Writer writer = 0) {
  StoredCheckpoint stored;
  stored.key = {"run", step, attempt, 0};
  stored.world_size = 1;
  stored.published = true;
  Manifest manifest;
  manifest.job = "run";
  manifest.step = step;
  manifest.attempt = attempt;
  manifest.writer = writer;
  manifest.first = first;
  manifest.lineage = lineage;
  stored.parts.push_back({manifest, "digest"});
  return stored;
}

TEST(StoredHistory, Rule18AnOriginRecordStandsAboveManifestsAndTheLowestThatKnowsAboveOthers) {
  StoredJob stored;
  stored.checkpoints = {
      Stored(9, 2, LineageFrom(3, 1, {}), 7), Stored(7, 2, Lineage::OfUnknown(), 7),
      Stored(8, 2, LineageFrom(2, 1, {}), 7), Stored(2, 1, {}, 1), Stored(3, 1, {}, 1)};
  EXPECT_EQ(OriginText(HistoryOf(stored).attempts.at(2).lineage), "step 2 of attempt 1");
  EXPECT_EQ(HistoryOf(stored).attempts.at(2).first, 7);
  stored.records = {{"run", 2, LineRecordKind::kOrigin, LineageFrom(3, 1, {})},
                    {"run", 5, LineRecordKind::kOrigin, {}},
                    {"run", 4, LineRecordKind::kUse, LineageFrom(2, 1, {})}};
  const History history = HistoryOf(stored);
  EXPECT_EQ(OriginText(history.attempts.at(2).lineage), "step 3 of attempt 1");
  EXPECT_FALSE(history.attempts.contains(5)) << "it left nothing to read";
  EXPECT_EQ(LatestOfLine(history), (LineStep{2, 1, 0})) << "used by hand";
}

// Rule 23, and why records and manifests may be read in any order.
TEST(StoredHistory, IsTheSameInAnyOrder) {
  StoredJob stored;
  stored.checkpoints = {Stored(1, 1, {}, 1), Stored(2, 1, {}, 1),
                        Stored(5, 2, Lineage::OfUnknown(), 2),
                        Stored(6, 2, LineageFrom(1, 1, {}), 2),
                        Stored(7, 3, LineageFrom(6, 2, Lineage::OfUnknown()), 7)};
  stored.records = {{"run", 3, LineRecordKind::kOrigin, LineageFrom(6, 2, Lineage::OfUnknown())},
                    {"run", 2, LineRecordKind::kResume, LineageFrom(1, 1, {})}};
  const std::vector<LineStep> line = ComputeLine(HistoryOf(stored));
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    std::shuffle(stored.checkpoints.begin(), stored.checkpoints.end(), random);
    std::shuffle(stored.records.begin(), stored.records.end(), random);
    ASSERT_EQ(ComputeLine(HistoryOf(stored)), line);
  }
}

}  // namespace
}  // namespace cairn
