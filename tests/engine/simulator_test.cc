// Every seed is a life of the engine with faults: R1, R2, R13, R14, R15, R25, R28, R29, R30 as a
// model sees them. CAIRN_SIM_SEED=N replays one life with its trace. CAIRN_SIM_SEEDS=N runs another
// number of them than 10,000. CAIRN_SIM_DIGESTS=FILE also writes a line per seed that says what the
// engine decided: two builds of the engine decide alike where the lines are the same.
// CAIRN_SIM_PAIR=FAULT,FAULT with CAIRN_SIM_SEED=N replays one life in which both faults strike
// together, CAIRN_SIM_PAIR_SEEDS=N runs another number of lives of each pair.
#include "tests/sim/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace cairn::engine::sim {
namespace {

constexpr uint64_t kSeeds = 10'000;
constexpr uint64_t kSeedsPerPair = 24;
constexpr int kThreads = 2;
constexpr size_t kShownFailures = 12;
constexpr size_t kFailuresToStopAt = 200;

// A simulation in which nothing happens proves nothing: each of these must happen somewhere.
constexpr const char* kMustHappen[] = {"complete",
                                       "latest",
                                       "opened from memory",
                                       "opened from storage",
                                       "persisted",
                                       "waited for PERSISTED",
                                       "refused",
                                       "unmap first",
                                       "superseded",
                                       "restarted",
                                       "resumed",
                                       "repeated",
                                       "commit answered again",
                                       "commit without seals",
                                       "commit taken to a new session",
                                       "create answered again",
                                       "crash",
                                       "crash in recovery",
                                       "facts lost with their actions",
                                       "budget shrunk",
                                       "death while saving",
                                       "slab not made",
                                       "manifest not written",
                                       "persist failed",
                                       "persist refused for good",
                                       "incomplete step given up",
                                       "storage away",
                                       "storage slow",
                                       "scan failed",
                                       "scan never answers",
                                       "stale mapping",
                                       "stale reader",
                                       "verification failed",
                                       "bit flip",
                                       "bit flip in a manifest",
                                       "description not lent",
                                       "journal full",
                                       "snapshot",
                                       "drained",
                                       "liveness",
                                       "aborted",
                                       "files deleted",
                                       "chunk written",
                                       "chunk read"};

constexpr const char* kMustHappenInPairs[] = {"files given up by policy",
                                              "abandoned files deleted",
                                              "abandoned files deleted after a grace",
                                              "origin unknown at first",
                                              "a stopped reader holds something",
                                              "written by another node",
                                              "line records listed",
                                              "resumed with success",
                                              "used",
                                              "liveness"};

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : std::strtoull(value, nullptr, 10);
}

std::string HowToReplay(uint64_t seed, const std::optional<FaultPair>& pair) {
  std::string both, test = "EveryPromiseHoldsForEverySeed";
  if (pair) {
    const std::vector<std::string> names = FaultsInPairs();
    both = "CAIRN_SIM_PAIR=" + names[pair->first] + "," + names[pair->second] + " ";
    test = "EveryPairOfFaultsKeepsThePromises";
  }
  return both + "CAIRN_SIM_SEED=" + std::to_string(seed) + " " + testing::internal::GetArgvs()[0] +
         " --gtest_filter=Simulator." + test;
}

void Replay(uint64_t seed, const std::optional<FaultPair>& pair = {}) {
  SimulatorOptions options;
  options.seed = seed;
  options.trace = true;
  options.pair = pair;
  const SimulatorResult result = Simulate(options);
  for (const std::string& line : result.trace) printf("%s\n", line.c_str());
  EXPECT_EQ(result.failure, "") << HowToReplay(seed, pair);
}

// The lives of seeds 1 to `seeds`, run side by side.
class ManyLives {
 public:
  ManyLives(uint64_t seeds, bool with_digests) : seeds_(seeds), with_digests_(with_digests) {}
  // Lives of these pairs of faults in turn.
  ManyLives(uint64_t seeds, std::vector<FaultPair> pairs)
      : seeds_(seeds), with_digests_(false), pairs_(std::move(pairs)) {}

  void Run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back([this] { RunSome(); });
    for (std::thread& thread : threads) thread.join();
  }

  void ExpectNoFailure() const {
    size_t shown = 0;
    for (const auto& [seed, failure] : failures) {
      if (++shown > kShownFailures) break;
      ADD_FAILURE() << failure << "\n  replay: " << HowToReplay(seed, PairOf(seed));
    }
    EXPECT_EQ(failures.size(), 0u);
  }
  void WriteDigests(const char* path) const {
    std::ofstream file(path);
    for (const auto& [seed, digest] : digests) file << "seed=" << seed << " " << digest << "\n";
    EXPECT_TRUE(file.flush().good()) << path << " could not be written";
  }
  void PrintCounts() const {
    printf("%llu seeds, %lld events\n", static_cast<unsigned long long>(seeds_),
           static_cast<long long>(events));
    for (const auto& [what, count] : counts) {
      printf("  %-32s %lld\n", what.c_str(), static_cast<long long>(count));
    }
  }

  // Read only after Run.
  std::map<uint64_t, std::string> failures;
  std::map<uint64_t, std::string> digests;
  std::map<std::string, int64_t> counts;
  int64_t events = 0;

 private:
  std::optional<FaultPair> PairOf(uint64_t seed) const {
    if (pairs_.empty()) return std::nullopt;
    return pairs_[(seed - 1) % pairs_.size()];
  }
  void RunSome() {
    for (;;) {
      SimulatorOptions options;
      options.seed = next_.fetch_add(1);
      if (options.seed > seeds_) return;
      options.digest = with_digests_;
      options.pair = PairOf(options.seed);
      const SimulatorResult result = Simulate(options);
      MutexLock lock(&mu_);
      for (const auto& [what, count] : result.counts) counts[what] += count;
      events += result.events;
      if (with_digests_) digests[options.seed] = result.digest;
      if (!result.failure.empty()) failures[options.seed] = result.failure;
      if (failures.size() >= kFailuresToStopAt) return;
    }
  }

  const uint64_t seeds_;
  const bool with_digests_;
  const std::vector<FaultPair> pairs_;
  std::atomic<uint64_t> next_{1};
  Mutex mu_;  // for the results, while lives run
};

TEST(Simulator, EveryPromiseHoldsForEverySeed) {
  if (const uint64_t seed = FromEnvironment("CAIRN_SIM_SEED", 0); seed != 0) return Replay(seed);
  const uint64_t seeds = FromEnvironment("CAIRN_SIM_SEEDS", kSeeds);
  const char* digests_file = std::getenv("CAIRN_SIM_DIGESTS");
  ManyLives lives(seeds, digests_file != nullptr);
  lives.Run();
  lives.ExpectNoFailure();
  lives.PrintCounts();
  if (digests_file != nullptr) lives.WriteDigests(digests_file);
  if (seeds < 1000) return;
  for (const char* what : kMustHappen)
    EXPECT_GT(lives.counts[what], 0) << what << " never happened";
}

// Each fault with each other, and with itself.
std::vector<FaultPair> AllPairs() {
  std::vector<FaultPair> pairs;
  const size_t many = FaultsInPairs().size();
  for (size_t first = 0; first < many; ++first) {
    for (size_t second = first; second < many; ++second) pairs.push_back({first, second});
  }
  return pairs;
}

FaultPair PairOf(const std::string& first, const std::string& second) {
  const std::vector<std::string> names = FaultsInPairs();
  const auto index = [&](const std::string& name) {
    const auto at = std::find(names.begin(), names.end(), name);
    EXPECT_NE(at, names.end()) << "no fault is called " << name;
    return at == names.end() ? 0 : static_cast<size_t>(at - names.begin());
  };
  return {index(first), index(second)};
}

FaultPair PairFromEnvironment() {
  const std::string both = std::getenv("CAIRN_SIM_PAIR");
  const size_t comma = both.find(',');
  EXPECT_NE(comma, std::string::npos) << "CAIRN_SIM_PAIR: two names, with a comma between them";
  if (comma == std::string::npos) return {};
  return PairOf(both.substr(0, comma), both.substr(comma + 1));
}

TEST(Simulator, EveryPairOfFaultsKeepsThePromises) {
  if (std::getenv("CAIRN_SIM_PAIR") != nullptr) {
    return Replay(FromEnvironment("CAIRN_SIM_SEED", 1), PairFromEnvironment());
  }
  const std::vector<FaultPair> pairs = AllPairs();
  const uint64_t seeds = FromEnvironment("CAIRN_SIM_PAIR_SEEDS", kSeedsPerPair);
  ManyLives lives(seeds * pairs.size(), pairs);
  lives.Run();
  lives.ExpectNoFailure();
  lives.PrintCounts();
  if (seeds < kSeedsPerPair) return;
  for (const std::string& fault : FaultsInPairs()) {
    EXPECT_GT(lives.counts[fault], 0) << fault << " never happened";
  }
  for (const char* what : kMustHappenInPairs) {
    EXPECT_GT(lives.counts[what], 0) << what << " never happened";
  }
}

// The first failure among some seeds of a world with a lie in it.
std::string FailureWith(Lie lie, const std::optional<FaultPair>& pair = {}) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SimulatorOptions options;
    options.seed = seed;
    options.lie = lie;
    options.pair = pair;
    const SimulatorResult result = Simulate(options);
    if (!result.failure.empty()) return result.failure;
  }
  return "";
}

TEST(SimulatorChecker, ObjectsWhenStorageForgetsWhatItAcknowledged) {
  EXPECT_THAT(FailureWith(Lie::kStorageForgets), testing::HasSubstr("promise 1"));
}

TEST(SimulatorChecker, ObjectsWhenALockIsReportedGoneThatIsHeld) {
  EXPECT_THAT(FailureWith(Lie::kLockReportedGone),
              testing::AnyOf(testing::HasSubstr("promise 6"), testing::HasSubstr("promise 8")));
}

TEST(SimulatorChecker, ObjectsWhenASlabIsReportedFreeThatIsMapped) {
  EXPECT_THAT(FailureWith(Lie::kSlabReportedFree),
              testing::AnyOf(testing::HasSubstr("promise 6"), testing::HasSubstr("promise 8")));
}

TEST(SimulatorChecker, ObjectsWhenTheJournalLosesACommit) {
  EXPECT_THAT(FailureWith(Lie::kJournalLosesCommit),
              testing::AnyOf(testing::HasSubstr("promise 3"), testing::HasSubstr("snapshot")));
}

TEST(SimulatorChecker, ObjectsWhenTheJournalLosesALease) {
  EXPECT_THAT(FailureWith(Lie::kJournalLosesLent),
              testing::AnyOf(testing::HasSubstr("promise 6"), testing::HasSubstr("snapshot")));
}

TEST(SimulatorChecker, ObjectsWhenAnAnswerNeverComes) {
  EXPECT_THAT(FailureWith(Lie::kAnswerLostInside), testing::HasSubstr("promise 4"));
}

TEST(SimulatorChecker, ObjectsWhenSealedBytesAreWrittenOver) {
  EXPECT_THAT(FailureWith(Lie::kScribble), testing::HasSubstr("other bytes"));
}

TEST(SimulatorChecker, ObjectsWhenTheBudgetIsExceeded) {
  EXPECT_THAT(FailureWith(Lie::kBudgetIgnored), testing::HasSubstr("promise 8"));
}

TEST(SimulatorChecker, ObjectsWhenAbandonedFilesGoBeforeTheirGraceIsOver) {
  EXPECT_THAT(FailureWith(Lie::kRecordsLookOld, PairOf("life-that-resumes", "life-that-completes")),
              testing::HasSubstr("retention"));
}

TEST(Simulator, TheSameSeedIsTheSameLife) {
  for (uint64_t seed : {7u, 8u, 9u}) {
    SimulatorOptions options;
    options.seed = seed;
    options.trace = true;
    const SimulatorResult first = Simulate(options);
    EXPECT_EQ(Simulate(options).trace, first.trace) << "seed " << seed;
  }
}

}  // namespace
}  // namespace cairn::engine::sim
