// Manifests in files. A job's directory is its owner's, who may have put anything there: a file is
// read piece by piece, and costs no more memory than what it says so far is worth.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "common/manifest.h"
#include "common/status.h"
#include "common/stored.h"

namespace cairn {

struct StoredLimits {
  // Of all the manifests of one checkpoint together, where they are read whole; decoded they take up to
  // three times as much.
  uint64_t manifest_bytes = kMaxManifestBytes;
  // What one reading of a job may find takes so much memory, until whoever asked has it.
  uint64_t memory_bytes = uint64_t{4} << 30;
};

// About what it takes in memory.
uint64_t MemoryOf(const StoredPart& part);
uint64_t MemoryOf(const StoredCheckpoint& checkpoint);

// Whether a name is of two writers of a checkpoint, or a directory of another's, by 64-bit hashes of names
// and directories. It holds a bounded number of them: of more it looks at a part in each of several
// passes over all names.
class NamesSeen {
 public:
  explicit NamesSeen(size_t most = size_t{4} << 20) : most_(most) {}

  void Add(absl::string_view name);
  // True: all names must be added once more, for the next part of the hashes.
  bool NextPass();
  // Passes grow with the names; nobody has so many.
  bool too_many() const { return taken_ > kMaxPasses; }
  bool may_conflict() const { return conflict_.has_value(); }
  // What may be in conflict is this name …
  bool IsIt(absl::string_view name) const;
  // … or a directory of it.
  bool Concerns(absl::string_view name) const;

 private:
  static constexpr int kMaxPasses = 64;
  // The hashes whose last `bits` bits are `rest`.
  struct Pass {
    uint64_t rest = 0;
    int bits = 0;
    bool Has(uint64_t hash) const { return (hash & ((uint64_t{1} << bits) - 1)) == rest; }
  };
  void Narrow();

  const size_t most_;
  Pass now_;
  std::vector<Pass> passes_;  // to come
  int taken_ = 1;             // passes
  absl::flat_hash_set<uint64_t> names_, directories_;
  std::optional<uint64_t> conflict_;
};

using EachObject = std::function<void(const ObjectEntry&)>;

// The manifest that is open in `fd`; of a summary how many objects it has and their bytes, and of lineages
// that of writer 0, which counts. `each_object` hears of each object on the way. DATA_LOSS: it is none.
// UNIMPLEMENTED: a newer format. RESOURCE_EXHAUSTED: it is longer than `max_bytes`. UNAVAILABLE: it cannot
// be read now.
StatusOr<StoredPart> ReadManifestFile(int fd, ManifestDetail detail, uint64_t max_bytes,
                                      const EachObject& each_object);

}  // namespace cairn
