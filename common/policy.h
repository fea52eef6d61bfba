// What a job's owner decides about its checkpoints.
#pragma once

#include <cstdint>

namespace cairn {

// Who may read a job's checkpoints besides its owner. Settled on the wire; only kOwner is accepted
// for now.
enum class Readers : uint8_t { kOwner = 0, kGroup = 1, kAll = 2 };

// When checkpoints of a job go to storage.
enum class PersistMode : uint8_t {
  kOnDemand = 0,  // only when asked: persist(step)
  kEvery = 1,     // every `every`-th complete step (1: all)
  kNewest = 2,    // the newest complete one; those superseded before their turn are skipped
};

struct JobPolicy {
  PersistMode mode = PersistMode::kNewest;
  int64_t every = 1;       // kEvery: steps with step % every == 0
  int64_t keep_last = 0;   // files: 0 keeps all; else the newest N complete ones on the line …
  int64_t keep_every = 0;  // … and those with step % keep_every == 0
  Readers readers = Readers::kOwner;
  bool operator==(const JobPolicy&) const = default;
};

}  // namespace cairn
