// Every seed is a life of the engine with faults: R1, R2, R13, R14, R15, R25, R28, R29, R30 as a
// model sees them. CAIRN_SIM_SEEDS says how many (10000); CAIRN_SIM_SEED replays one, with its
// trace. CAIRN_SIM_DIGESTS=FILE writes a line per seed that says what the engine decided.
#include "tests/engine/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "common/mutex.h"

namespace cairn::engine {
namespace {

constexpr uint64_t kSeeds = 10'000;
constexpr int kThreads = 2;
constexpr size_t kShownFailures = 12;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : std::strtoull(value, nullptr, 10);
}

std::string HowToReplay(uint64_t seed) {
  return "CAIRN_SIM_SEED=" + std::to_string(seed) + " " + testing::internal::GetArgvs()[0] +
         " --gtest_filter=Simulator.EveryPromiseHoldsForEverySeed";
}

TEST(Simulator, EveryPromiseHoldsForEverySeed) {
  if (const uint64_t seed = FromEnvironment("CAIRN_SIM_SEED", 0); seed != 0) {
    SimulatorOptions options;
    options.seed = seed;
    options.trace = true;
    const SimulatorResult result = Simulate(options);
    for (const std::string& line : result.trace) printf("%s\n", line.c_str());
    EXPECT_EQ(result.failure, "") << HowToReplay(seed);
    return;
  }
  const uint64_t seeds = FromEnvironment("CAIRN_SIM_SEEDS", kSeeds);
  std::atomic<uint64_t> next{1};
  Mutex mu;
  std::map<uint64_t, std::string> failures;
  std::map<std::string, int64_t> counts;
  std::map<uint64_t, std::string> digests;
  const char* digests_file = std::getenv("CAIRN_SIM_DIGESTS");
  int64_t events = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (;;) {
        SimulatorOptions options;
        options.seed = next.fetch_add(1);
        if (options.seed > seeds) return;
        options.digest = digests_file != nullptr;
        const SimulatorResult result = Simulate(options);
        MutexLock lock(&mu);
        for (const auto& [what, count] : result.counts) counts[what] += count;
        events += result.events;
        if (options.digest) digests[options.seed] = result.digest;
        if (!result.failure.empty()) failures[options.seed] = result.failure;
        if (failures.size() >= 200) return;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (digests_file != nullptr) {
    std::ofstream file(digests_file);
    for (const auto& [seed, digest] : digests) file << "seed=" << seed << " " << digest << "\n";
    EXPECT_TRUE(file.flush().good()) << digests_file << " could not be written";
  }
  size_t shown = 0;
  for (const auto& [seed, failure] : failures) {
    if (++shown > kShownFailures) break;
    ADD_FAILURE() << failure << "\n  replay: " << HowToReplay(seed);
  }
  EXPECT_EQ(failures.size(), 0u);
  printf("%llu seeds, %lld events\n", static_cast<unsigned long long>(seeds),
         static_cast<long long>(events));
  for (const auto& [what, count] : counts)
    printf("  %-32s %lld\n", what.c_str(), static_cast<long long>(count));
  if (seeds < 1000) return;
  // A simulation in which nothing happens proves nothing.
  for (const char* what : {"complete",
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
                           "chunk read"}) {
    EXPECT_GT(counts[what], 0) << what << " never happened";
  }
}

// The first failure among some seeds of a world with a lie in it.
std::string FailureWith(Lie lie) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SimulatorOptions options;
    options.seed = seed;
    options.lie = lie;
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

TEST(SimulatorChecker, ObjectsWhenAnAnswerNeverComes) {
  EXPECT_THAT(FailureWith(Lie::kAnswerLostInside), testing::HasSubstr("promise 4"));
}

TEST(SimulatorChecker, ObjectsWhenSealedBytesAreWrittenOver) {
  EXPECT_THAT(FailureWith(Lie::kScribble), testing::HasSubstr("other bytes"));
}

TEST(SimulatorChecker, ObjectsWhenTheBudgetIsExceeded) {
  EXPECT_THAT(FailureWith(Lie::kBudgetIgnored), testing::HasSubstr("promise 8"));
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
}  // namespace cairn::engine
