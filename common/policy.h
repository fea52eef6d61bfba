// What a job's owner decides about its checkpoints, and how people write it. Flags, configuration
// files, Python, the command line and the JSON of `status` all use these names.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace cairn {

// Who may read a job's checkpoints besides its owner. The daemon accepts only kOwner so far.
// Numbers are those of the wire.
enum class Readers : uint8_t { kOwner = 0, kGroup = 1, kAll = 2 };

// When checkpoints of a job go to storage. Numbers are those of the wire.
enum class PersistMode : uint8_t {
  kOnDemand = 0,  // only when asked: persist(step)
  kEvery = 1,     // every complete step that `every` divides (1: all)
  kNewest = 2,    // the newest complete step; one that is superseded before its turn is skipped
};

inline constexpr int32_t kRingsReplicas = -1;
inline constexpr int32_t kMostReplicas = 63;

struct JobPolicy {
  PersistMode mode = PersistMode::kNewest;
  int64_t every = 1;       // kEvery: steps with step % every == 0
  int64_t keep_last = 0;   // files of the newest N complete steps on the line stay; 0: all stay
  int64_t keep_every = 0;  // with keep_last: so do those with step % keep_every == 0; 0: none
  Readers readers = Readers::kOwner;
  // Copies of each part that other members of the ring are to hold; kRingsReplicas: the ring's default.
  int32_t replicas = kRingsReplicas;
  bool operator==(const JobPolicy&) const = default;
};

absl::string_view PersistModeName(PersistMode mode);  // "on-demand", "every", "newest"
absl::string_view ReadersName(Readers readers);       // "owner", "group", "all"
// INVALID_ARGUMENT quotes `name` and lists the names there are; the caller names the field.
StatusOr<PersistMode> ParsePersistMode(absl::string_view name);
StatusOr<Readers> ParseReaders(absl::string_view name);

}  // namespace cairn
