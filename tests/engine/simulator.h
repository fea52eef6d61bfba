// The seeded simulator of the shipped engine: one thread, a model world around a real
// cairn::engine::Engine, injected time, and everything that happens drawn from one 64-bit seed, so
// that a seed replays exactly.
//
// The world has a cache (slabs, who maps them, readers' locks, makes and destroys that end later),
// a journal (the facts of one Apply are kept whole or lost with its actions), storage (late,
// failing, away), and clients: jobs with several writers that save, abort, die, restart as a new
// attempt, roll back, and readers that open, wait, list, remove, pin. What was promised to them is
// kept in the world, outside the engine, and compared with what the engine answers and does after
// every event.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace cairn::engine {

// A lie planted in the world, to show that the checker objects.
enum class Lie : uint8_t {
  kNone,
  kStorageForgets,      // says persisted and keeps nothing
  kLockReportedGone,    // a probe says that a reader's lock is gone while it is held
  kSlabReportedFree,    // a probe says that nobody has a slab which a process still maps
  kJournalLosesCommit,  // a committed manifest never reaches the journal
  kJournalLosesLent,    // a lease never reaches the journal
  kAnswerLostInside,    // the engine's answer to a caller is swallowed before it counts
  kScribble,       // another process writes over sealed bytes, and verifying says they are fine
  kBudgetIgnored,  // the engine believes in a greater budget than there is
};

struct SimulatorOptions {
  uint64_t seed = 1;
  int events = 220;  // of the clients and the faults, without completions and the end game
  bool trace = false;
  bool digest = false;
  Lie lie = Lie::kNone;
};

struct SimulatorResult {
  std::string failure;  // the first promise that did not hold, in words; empty when all did
  int64_t events = 0;   // Applies
  std::map<std::string, int64_t> counts;  // what happened, so that a test can ask whether it did
  std::vector<std::string> trace;
  std::string digest;  // of facts and actions; see tests/sim/digest.h
};

SimulatorResult Simulate(const SimulatorOptions& options);

}  // namespace cairn::engine
