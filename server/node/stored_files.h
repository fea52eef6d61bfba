// Files of storage that clients without descriptors read in chunks.
//
// The engine leases memory only; a file that is open for chunk reads is the node's affair, and so is
// its lease. Chunks are read outside the node's lock, so the table has one of its own.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/fd.h"
#include "common/keys.h"
#include "common/mutex.h"
#include "common/status.h"

namespace cairn::node {

// Thread-safe.
class StoredFiles {
 public:
  // Whether NextLease gave `lease`. The engine counts its leases up from 1 and never gets here.
  static bool IsStored(LeaseId lease) { return (lease & kStoredBit) != 0; }

  LeaseId NextLease();
  // RESOURCE_EXHAUSTED when `session` holds as many as it may. `length` bytes may be read.
  Status Add(SessionId session, LeaseId lease, UniqueFd file, uint64_t length);
  // NOT_FOUND when the lease is not this session's, OUT_OF_RANGE beyond the file.
  StatusOr<std::string> Read(SessionId session, LeaseId lease, uint64_t offset,
                             uint64_t length) const;
  // Closes the file; does nothing when the lease is not this session's.
  void Release(SessionId session, LeaseId lease);
  void ReleaseAll(SessionId session);

 private:
  static constexpr LeaseId kStoredBit = LeaseId{1} << 62;

  struct OpenFile {
    SessionId session = 0;
    UniqueFd file;
    uint64_t length = 0;
  };

  mutable Mutex mu_;
  LeaseId last_lease_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<LeaseId, OpenFile> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::node
