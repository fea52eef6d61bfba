// The seeded simulator of the shipped engine: one thread, a model world around real
// cairn::engine::Engine objects, injected time. Everything that happens is drawn from one 64-bit
// seed, so that a seed replays exactly.
//
// The world (world.h) holds nodes, storage and clients. A node (node.h) is one daemon with what
// outlives it: slabs, the journal, the keeper's sessions. The facts of one Apply are kept whole or
// lost together with its actions. Storage (storage.h) may be late, failing or away. Clients
// (clients.h) are jobs with several writers that save, abort, die, restart as a new attempt or go
// back, and readers that open, wait, list, remove and pin. What was promised to them is kept
// outside the engine (promises.h) and compared with what the engine answers and does after every
// event (checks.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace cairn::engine::sim {

// A lie planted in the world, to show that the checks object.
enum class Lie : uint8_t {
  kNone,
  kStorageForgets,      // storage says that it persisted a checkpoint and keeps nothing
  kLockReportedGone,    // a probe says that a reader's lock is gone while it is held
  kSlabReportedFree,    // a probe says that a slab is free while a process still maps it
  kJournalLosesCommit,  // a committed manifest never reaches the journal
  kJournalLosesLent,    // a lease never reaches the journal
  kAnswerLostInside,    // the engine's answer to a caller is swallowed before it counts
  kScribble,            // another process writes over sealed bytes, and their checksums then fit
  kBudgetIgnored,       // the engine believes in a greater budget than there is
  kRecordsLookOld,      // storage says that origins were recorded long before they were
};

// Two of FaultsInPairs, by index.
struct FaultPair {
  size_t first = 0, second = 0;
};
// The names of the faults that can be forced to strike together (pairs.h).
std::vector<std::string> FaultsInPairs();

struct SimulatorOptions {
  uint64_t seed = 1;
  int events = 220;  // of the clients and the faults; completions and the end are not counted
  bool trace = false;
  bool digest = false;
  Lie lie = Lie::kNone;
  // These strike together some times, in a life with a policy that deletes files; other faults are
  // rare then.
  std::optional<FaultPair> pair = {};
};

struct SimulatorResult {
  std::string failure;  // the first promise that did not hold, in words; empty when all did
  int64_t events = 0;   // Applies
  std::map<std::string, int64_t> counts;  // what happened, so that a test can ask whether it did
  std::vector<std::string> trace;
  std::string digest;  // of facts and actions, node by node; see digest.h
};

SimulatorResult Simulate(const SimulatorOptions& options);

}  // namespace cairn::engine::sim
