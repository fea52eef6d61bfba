// Manifests in files. A job's directory is its owner's, who may have put anything there: a file is
// read piece by piece, and costs no more memory than what it says so far is worth.
#pragma once

#include <cstdint>

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
  // That one reading of a job may find; each takes about 500 bytes until the engine has them.
  uint64_t parts = uint64_t{1} << 32;
};

// Which names a checkpoint's writers have used, and which directories, by 64-bit hashes: whether two
// writers may be in each other's way, in 20 bytes for each name.
class NamesSeen {
 public:
  void Add(absl::string_view name);
  // False: certainly no name is of two writers, or a directory of another. True: look at the names.
  bool may_conflict() const { return may_conflict_; }

 private:
  absl::flat_hash_set<uint64_t> names_, directories_;
  bool may_conflict_ = false;
};

// The manifest that is open in `fd`; of a summary how many objects it has and their bytes, and its names
// go to `names` where that is not null. DATA_LOSS: it is none. UNIMPLEMENTED: a newer format.
// RESOURCE_EXHAUSTED: it is longer than `max_bytes`. UNAVAILABLE: it cannot be read now.
StatusOr<StoredPart> ReadManifestFile(int fd, ManifestDetail detail, uint64_t max_bytes,
                                      NamesSeen* names);

}  // namespace cairn
