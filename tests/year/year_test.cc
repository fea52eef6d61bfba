// R35: a year of one node (world.h). What the engine holds in memory, what the journal must keep, what it
// does for a step, and what lies in storage are at the end what they were at the beginning.
//
// CAIRN_YEAR_STEPS=N runs another number of steps; `make year` a million, which is a year of injected
// time. Without it 40,000 in the ordinary tier, 200,000 in the full one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "server/engine/model.h"
#include "tests/year/world.h"

namespace cairn::year {
namespace {

using engine::kKeptDropped;

constexpr double kGrowth = 1.05;
// The processor's time is as noisy as the machine, so the quietest quarter of a window is compared, and
// loosely: allocations and events are exact.
constexpr double kGrowthOfTime = 1.5;
constexpr size_t kRowsShown = 12;

int64_t StepsToRun() {
  const char* steps = std::getenv("CAIRN_YEAR_STEPS");
  if (steps != nullptr && *steps != '\0') return std::strtoll(steps, nullptr, 10);
  const char* tier = std::getenv("CAIRN_TIER");
  return tier != nullptr && std::string(tier) == "all" ? 200'000 : 40'000;
}

double FactsOf(const Sample& sample, const char* kind) {
  const auto at = sample.facts.find(kind);
  return at == sample.facts.end() ? 0 : static_cast<double>(at->second);
}

// What is there for good, for each thing that once happened to a job that is still there:
//   removed   a step that was removed for good: a fact, an entry in memory, a tombstone in storage
//   decided   a `resume` or `use`: the newest 64 of a job in journal and memory, each a file
//   dropped   a part that was dropped with its objects: the last 1,024 of a job's newest life
//   aborted   a part whose writer withdrew it: the last 1,024 of a job's newest life, in memory
//   lineage   a life: an entry, of at most 1,024, in the lineages of all that came after it: attempts,
//             decisions, and the manifests of what is in memory
// And data: what is known of a checkpoint that storage has (`stored`, a figure of its own).
struct History {
  double removed = 0, decided = 0, dropped = 0, aborted = 0, lineage = 0, stored = 0;
};
constexpr double History::*kHistory[] = {&History::removed, &History::decided, &History::dropped,
                                         &History::aborted, &History::lineage, &History::stored};
History HistoryIn(const Sample& sample) {
  return {FactsOf(sample, "step_removed"),
          FactsOf(sample, "line_decided"),
          FactsOf(sample, "object_dropped"),
          static_cast<double>(sample.aborted),
          static_cast<double>(sample.lineage_entries),
          static_cast<double>(sample.files.checkpoints)};
}

// `floor`: what may come on top of the 5 %, so that no single step, lease or slab decides. `history`:
// so much may come for each of these.
struct Figure {
  const char* name;
  double (*of)(const Sample&);
  double floor;
  History history = {};
  double growth = kGrowth;
};

constexpr Figure kFigures[] = {
    {"heap, bytes",
     [](const Sample& s) { return static_cast<double>(s.heap.bytes); },
     32 << 10,
     {.removed = 200,
      .decided = 500,
      .dropped = 160,
      .aborted = 64,
      .lineage = 56,
      .stored = 3000}},
    {"heap, blocks",
     [](const Sample& s) { return static_cast<double>(s.heap.blocks); },
     300,
     {.removed = 2, .decided = 6, .dropped = 1, .aborted = 1, .lineage = 0.02, .stored = 40}},
    {"journal, live bytes",
     [](const Sample& s) { return static_cast<double>(s.journal_bytes); },
     12 << 10,
     {.removed = 64, .decided = 128, .dropped = 80, .lineage = 20, .stored = 60}},
    {"journal, live facts",
     [](const Sample& s) {
       double facts = 0;
       for (const auto& [kind, count] : s.facts) facts += static_cast<double>(count);
       return facts;
     },
     40,
     {.removed = 1, .decided = 1, .dropped = 1, .stored = 1}},
    // Spells of storage that is away, and of full memory, make two more or fewer in 10,000 steps.
    {"events per step", [](const Sample& s) { return s.work.events; }, 3},
    {"allocations per step", [](const Sample& s) { return s.work.allocations; }, 20},
    {"us of a call, median",
     [](const Sample& s) { return s.work.call_us; },
     0.2,
     {},
     kGrowthOfTime},
    {"us of a step",
     [](const Sample& s) { return s.work.us; },
     5,
     {.lineage = 0.001},
     kGrowthOfTime},
    {"checkpoints in storage",
     [](const Sample& s) { return static_cast<double>(s.files.checkpoints); }, 16},
};

// Samples from `begin` to `end` of the run.
class Window {
 public:
  Window(const std::vector<Sample>& samples, double begin, double end)
      : first_(samples.begin() + static_cast<ptrdiff_t>(begin * samples.size())),
        last_(samples.begin() + static_cast<ptrdiff_t>(end * samples.size())) {}

  template <class Of>
  double Mean(const Of& of) const {
    double sum = 0;
    for (auto at = first_; at != last_; ++at) sum += of(*at);
    return sum / static_cast<double>(last_ - first_);
  }
  // Of the lowest quarter the highest.
  template <class Of>
  double Quartile(const Of& of) const {
    std::vector<double> values;
    for (auto at = first_; at != last_; ++at) values.push_back(of(*at));
    std::sort(values.begin(), values.end());
    return values[values.size() / 4];
  }
  double Value(const Figure& figure) const {
    return figure.growth == kGrowth ? Mean(figure.of) : Quartile(figure.of);
  }
  int64_t from() const { return first_->step; }
  int64_t to() const { return std::prev(last_)->step; }

 private:
  const std::vector<Sample>::const_iterator first_, last_;
};

// What the later window may have more of the figure, for the history that has come since.
double MoreForHistory(const Figure& figure, const Window& early, const Window& late) {
  double more = 0;
  for (const auto what : kHistory) {
    const auto of = [what](const Sample& sample) { return HistoryIn(sample).*what; };
    more += std::max(0.0, late.Mean(of) - early.Mean(of)) * (figure.history.*what);
  }
  return more;
}

void PrintRow(const char* name, const std::vector<Sample>& samples,
              const std::function<double(const Sample&)>& of) {
  printf("%-24s", name);
  for (size_t i = 0; i < kRowsShown; ++i) {
    const Window window(samples, double(i) / kRowsShown, double(i + 1) / kRowsShown);
    printf(" %9.1f", window.Mean(of));
  }
  printf("\n");
}

void PrintTable(const std::vector<Sample>& samples) {
  PrintRow("step", samples, [](const Sample& s) { return double(s.step); });
  for (const Figure& figure : kFigures) PrintRow(figure.name, samples, figure.of);
  PrintRow("history: removed", samples, [](const Sample& s) { return HistoryIn(s).removed; });
  PrintRow("history: decided", samples, [](const Sample& s) { return HistoryIn(s).decided; });
  PrintRow("history: dropped", samples, [](const Sample& s) { return HistoryIn(s).dropped; });
  PrintRow("history: aborted", samples, [](const Sample& s) { return HistoryIn(s).aborted; });
  PrintRow("history: lineage", samples, [](const Sample& s) { return HistoryIn(s).lineage; });
  PrintRow("records in storage", samples, [](const Sample& s) { return double(s.files.records); });
  PrintRow("tombstones in storage", samples,
           [](const Sample& s) { return double(s.files.tombstones); });
}

constexpr const char* kMustHappen[] = {"aborted",
                                       "create refused: RESOURCE_EXHAUSTED",
                                       "deaths of the daemon",
                                       "dropped from memory",
                                       "files deleted by policy",
                                       "files removed",
                                       "jobs forgotten",
                                       "not persisted",
                                       "opened from memory",
                                       "opened from storage",
                                       "persisted",
                                       "pinned",
                                       "removed",
                                       "resumed from the latest",
                                       "scans",
                                       "storage away",
                                       "used",
                                       "waits in vain",
                                       "waits reached",
                                       "went back"};

TEST(Year, WhatThereIsAtItsEndIsWhatThereWasAtItsBeginning) {
  const int64_t steps = StepsToRun();
  World world(/*seed=*/1, steps);
  const std::vector<Sample> samples = world.Run();
  ASSERT_EQ(world.broken(), "");
  printf("%lld steps, %.0f days\n", static_cast<long long>(steps), world.days());
  PrintTable(samples);
  for (const auto& [what, count] : world.counters()) {
    printf("  %-40s %lld\n", what.c_str(), static_cast<long long>(count));
  }
  // After the first steps, in which what has a bound fills up.
  const double begin = std::min(0.25, 10'000.0 / steps), end = std::min(0.5, 50'000.0 / steps);
  const Window early(samples, begin, end), late(samples, 1 - (end - begin), 1);
  for (const Figure& figure : kFigures) {
    // The processor's time is for who runs this alone: `make year`.
    if (figure.growth == kGrowthOfTime && std::getenv("CAIRN_YEAR_STEPS") == nullptr) continue;
    const double began = early.Value(figure), ended = late.Value(figure);
    const double history = MoreForHistory(figure, early, late);
    EXPECT_LE(ended, began * figure.growth + figure.floor + history)
        << figure.name << ": " << began << " in steps " << early.from() << " to " << early.to()
        << ", " << ended << " in steps " << late.from() << " to " << late.to() << "; " << history
        << " of it may be history";
  }
  for (const char* what : kMustHappen) {
    EXPECT_TRUE(world.counters().contains(what)) << what << " never happened";
  }
}

// What the test above takes for history has a bound for each thing that happened.
TEST(Year, HistoryIsOneSmallThingForEachLifeDecisionAndRemoval) {
  World world(/*seed=*/2, 10'000);
  for (const Sample& sample : world.Run()) {
    const History history = HistoryIn(sample);
    const auto& [lives, used, removed] = sample.past;
    EXPECT_LE(history.removed, removed);
    EXPECT_LE(history.decided, lives + used);
    EXPECT_LE(history.dropped, 4 * (kKeptDropped + 1));  // jobs
    const double holders =
        FactsOf(sample, "attempt_begun") + history.decided + FactsOf(sample, "part_committed");
    EXPECT_LE(history.lineage, lives * holders);
    EXPECT_LE(sample.files.records, 2 * lives + used);
    EXPECT_LE(sample.files.tombstones, removed);
  }
  EXPECT_EQ(world.broken(), "");
}

}  // namespace
}  // namespace cairn::year
