// A year of one node. Four jobs at a time: one whose only life lasts the whole year, one that lives many
// lives, goes back and is decided for by hand, and two that end after some hundred steps, so that others
// come. Readers, waits, pins, removals, policies of every kind, storage that is slow or away, deaths of
// the daemon. Every so often everybody rests under a policy that keeps few, and what there is is counted.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/year/trainer.h"

namespace cairn::year {

inline constexpr int64_t kStepsInAYear = 1'000'000;

// What was done for a step, on the average, since the rest before.
struct WorkOfSteps {
  double events = 0, allocations = 0, us = 0;
  double call_us = 0;  // the median of calls
};

// What has happened to a job.
struct Past {
  int64_t lives = 0, used = 0, removed = 0;  // of steps, those that somebody wanted removed
};

// What there was at a rest.
struct Sample {
  int64_t step = 0;
  Heap heap;
  uint64_t journal_bytes = 0;            // of a snapshot, encoded
  std::map<std::string, int64_t> facts;  // of it, by kind
  int64_t lineage_entries = 0;           // in those facts, and in the records of parts
  Storage::Files files;
  WorkOfSteps work;
  Past past;            // of the jobs that have a directory
  int64_t aborted = 0;  // parts, in the lives that go on, since a daemon began
};

class World {
 public:
  World(uint64_t seed, int64_t steps);

  std::vector<Sample> Run();
  const std::map<std::string, int64_t>& counters() const { return node_.counters(); }
  const std::string& broken() const { return broken_; }  // an invariant of the engine's, at a rest
  double days() const { return static_cast<double>(node_.now()) / 86400e9; }

 private:
  struct Slot {
    std::unique_ptr<Trainer> trainer;
    int64_t life_permille = 0;  // that a step is the last of its life
    int64_t ends_after = 0;     // saves; 0: never
    Past past;
    CheckpointRef pinned;  // no step: none is
    JobPolicy policy;
  };
  struct Reader {
    SessionId session = 0;
    LeaseId lease = 0;
    int64_t until = 0;
  };

  void OneStep(int64_t step);
  void NewJob(Slot* slot);
  void EndJob(Slot* slot);
  void NewLife(Slot* slot);
  void Weather(int64_t step);  // of storage
  void Read(Slot* slot, int64_t step);
  void EndReaders(int64_t step);
  void Manage(Slot* slot);
  void Pin(Slot* slot);
  void Remove(Slot* slot);
  void Use(Slot* slot);
  void Visit(int64_t step);
  JobPolicy AnyPolicy();
  Sample Rest(int64_t step);

  const int64_t steps_;
  Rng rng_;
  Storage storage_;
  Node node_;
  std::vector<Slot> slots_;
  std::vector<Reader> readers_;
  struct Ended {
    int64_t number = 0;  // of the job that comes when its directory goes
    std::string job;
    Past past;
  };
  std::vector<Ended> ended_;
  int64_t jobs_ = 0, away_until_ = 0, slow_until_ = 0;
  std::string broken_;
};

}  // namespace cairn::year
