// Every seed is a life of a ring with faults: R16 to R19, R25, R39, R40 as a model sees them.
// CAIRN_SIM_CATALOG=1: in all of them the members stand in the catalog, else in a third; 0: in none.
// CAIRN_SIM_SEED=N replays one life with its trace. CAIRN_SIM_SEEDS=N runs another number of them than
// 1,000; CAIRN_SIM_FIRST=N begins with that seed. The full tier gives both (tests/driver/stages.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "tests/ring/simulator.h"

namespace cairn::engine::ringsim {
namespace {

constexpr int kThreads = 2;
constexpr size_t kShownFailures = 30;
constexpr size_t kFailuresToStopAt = 50;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : std::strtoull(value, nullptr, 10);
}

uint64_t SeedsToRun() {
  const uint64_t seeds = FromEnvironment("CAIRN_SIM_SEEDS", 1000);
  // Under a sanitizer a life takes ten times as long.
  return std::getenv("CAIRN_SANITIZED") == nullptr ? seeds : seeds / 10;
}

// CAIRN_SIM_CONVERGE=0: whether all agree in the end is not looked at.
bool ExpectAgreement() { return FromEnvironment("CAIRN_SIM_CONVERGE", 1) != 0; }

RingSimOptions OptionsOf(uint64_t seed) {
  RingSimOptions options{.seed = seed, .converge = ExpectAgreement()};
  const uint64_t catalog = FromEnvironment("CAIRN_SIM_CATALOG", 2);
  if (catalog < 2) options.catalog = catalog == 1;
  return options;
}

// Each of these lives once showed a mistake. The simulator has changed since, and their lives with it; they run
// each time, whichever seeds have their turn.
constexpr uint64_t kFailedOnce[] = {
    160,  168,  293,  321,  338,  436,  743,  803,  868,  873,  883,  899,  966,  1342, 1649, 1689,
    2082, 2818, 3040, 3162, 3232, 3306, 4251, 5089, 5520, 8300, 8331, 8753, 9020, 9208, 9221};

// A simulation in which nothing happens proves nothing: each of these must happen somewhere.
constexpr const char* kMustHappen[] = {"converged",
                                       "verdict is View",
                                       "told REPLICATED",
                                       "told PERSISTED",
                                       "latest unavailable",
                                       "loaded from memory",
                                       "loaded from storage",
                                       "published",
                                       "part written",
                                       "fetched",
                                       "not fetched",
                                       "grant timed out",
                                       "save refused",
                                       "resumed in words",
                                       "aborted",
                                       "a daemon dies",
                                       "a node dies",
                                       "two nodes die",
                                       "a node pauses",
                                       "a node is in safe mode",
                                       "a link breaks",
                                       "a link breaks one way",
                                       "a node is cut off",
                                       "the ring splits",
                                       "bad weather",
                                       "a data port is blocked",
                                       "storage is slow",
                                       "storage is away",
                                       "a clock jumps",
                                       "a rank is claimed twice",
                                       "replaced while it lives",
                                       "a spare takes a rank",
                                       "fenced",
                                       "woke up fenced",
                                       "the database is away",
                                       "the database is slow",
                                       "the database does not answer",
                                       "the database is restored",
                                       "a node is without the database",
                                       "a node dies, the database away",
                                       "oversleeps, the database away",
                                       "took a greater incarnation",
                                       "goes on in a ring of another size",
                                       "the ring grows",
                                       "the ring shrank",
                                       "drained"};

void Replay(uint64_t seed) {
  RingSimOptions options = OptionsOf(seed);
  options.trace = true;
  const SimulatorResult result = Simulate(options);
  for (const std::string& line : result.trace) printf("%s\n", line.c_str());
  EXPECT_EQ(result.failure, "");
}

std::vector<uint64_t> SeedsFrom(uint64_t first, uint64_t count) {
  std::vector<uint64_t> seeds(count);
  std::iota(seeds.begin(), seeds.end(), first);
  return seeds;
}

// The lives of some seeds, side by side.
class ManyLives {
 public:
  explicit ManyLives(std::vector<uint64_t> seeds) : seeds_(std::move(seeds)) {}

  void Run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back([this] { RunSome(); });
    for (std::thread& thread : threads) thread.join();
  }
  void ExpectNoFailure() const {
    size_t shown = 0;
    for (const auto& [seed, failure] : failures) {
      if (++shown > kShownFailures) break;
      ADD_FAILURE() << failure << "\n  replay: CAIRN_SIM_SEED=" << seed << " "
                    << testing::internal::GetArgvs()[0];
    }
    EXPECT_EQ(failures.size(), 0u);
  }
  void PrintCounts() const {
    printf("%zu seeds, %lld events\n", seeds_.size(), static_cast<long long>(events));
    for (const auto& [what, count] : counts) {
      printf("  %-32s %lld\n", what.c_str(), static_cast<long long>(count));
    }
  }

  // Read only after Run.
  std::map<uint64_t, std::string> failures;
  std::map<std::string, int64_t> counts;
  int64_t events = 0;

 private:
  void RunSome() {
    for (;;) {
      const size_t index = next_.fetch_add(1);
      if (index >= seeds_.size()) return;
      const uint64_t seed = seeds_[index];
      const SimulatorResult result = Simulate(OptionsOf(seed));
      MutexLock lock(&mu_);
      for (const auto& [what, count] : result.counts) counts[what] += count;
      events += result.events;
      if (!result.failure.empty()) failures[seed] = result.failure;
      if (failures.size() >= kFailuresToStopAt) return;
    }
  }

  const std::vector<uint64_t> seeds_;
  std::atomic<size_t> next_ = 0;
  Mutex mu_;  // for the results, while lives run
};

TEST(RingSimulator, EveryPromiseHoldsForEverySeed) {
  if (const uint64_t seed = FromEnvironment("CAIRN_SIM_SEED", 0); seed != 0) return Replay(seed);
  ManyLives lives(SeedsFrom(FromEnvironment("CAIRN_SIM_FIRST", 1), SeedsToRun()));
  lives.Run();
  lives.ExpectNoFailure();
  lives.PrintCounts();
  // With the members in the catalog in all lives, or in none, some things cannot happen.
  if (SeedsToRun() < 500 || FromEnvironment("CAIRN_SIM_CATALOG", 2) < 2) return;
  for (const char* what : kMustHappen) {
    EXPECT_GT(lives.counts[what], 0) << what << " never happened";
  }
}

TEST(RingSimulator, EveryPromiseHoldsForSeedsThatFailedOnce) {
  if (FromEnvironment("CAIRN_SIM_SEED", 0) != 0) return;
  ManyLives lives({std::begin(kFailedOnce), std::end(kFailedOnce)});
  lives.Run();
  lives.ExpectNoFailure();
}

// The first failure among some seeds of a world with a lie in it.
std::string FailureWith(Lie lie, std::optional<bool> catalog = std::nullopt) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const SimulatorResult result = Simulate({.seed = seed, .lie = lie, .catalog = catalog});
    if (!result.failure.empty()) return result.failure;
  }
  return "";
}

TEST(RingSimulatorChecker, ObjectsWhenAFetchBringsOtherBytes) {
  EXPECT_THAT(FailureWith(Lie::kFetchChangesBytes), testing::HasSubstr("promise 2"));
}

TEST(RingSimulatorChecker, ObjectsWhenAReplicaIsLostThatIsSaidToBeHeld) {
  EXPECT_THAT(FailureWith(Lie::kReplicaLost), testing::HasSubstr("promise 1"));
}

TEST(RingSimulatorChecker, ObjectsWhenStorageForgetsWhatItAcknowledged) {
  EXPECT_THAT(FailureWith(Lie::kStorageForgets), testing::HasSubstr("promise"));
}

TEST(RingSimulatorChecker, ObjectsWhenGrantedBytesAreWrittenOver) {
  EXPECT_THAT(FailureWith(Lie::kGrantIgnored), testing::HasSubstr("was granted, and"));
}

TEST(RingSimulatorChecker, ObjectsWhenARankIsTakenFromWhoLives) {
  EXPECT_THAT(FailureWith(Lie::kProbesAreDeaf, /*catalog=*/true),
              testing::HasSubstr("which lives and answers"));
}

TEST(RingSimulator, TheSameSeedIsTheSameLife) {
  for (const bool catalog : {false, true}) {
    for (const uint64_t seed : {3u, 4u}) {
      const RingSimOptions options{
          .seed = seed, .trace = true, .converge = ExpectAgreement(), .catalog = catalog};
      EXPECT_EQ(Simulate(options).trace, Simulate(options).trace)
          << "seed " << seed << ", catalog " << catalog;
    }
  }
}

}  // namespace
}  // namespace cairn::engine::ringsim
