// Objects in storage that clients read in chunks: those without descriptors, and all of them where
// the storage has no descriptors to lend.
//
// The engine leases memory only; what is open for chunk reads is the node's affair, and so is its
// lease. Chunks are read outside the node's lock, so the table has one of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/keys.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/storage/storage.h"

namespace cairn::node {

// Thread-safe.
class StoredReaders {
 public:
  // Whether NextLease gave `lease`. The engine counts its leases up from 1 and never gets here.
  static bool IsStored(LeaseId lease) { return (lease & kStoredBit) != 0; }

  LeaseId NextLease();
  // RESOURCE_EXHAUSTED when `session` holds as many as it may.
  Status Add(SessionId session, LeaseId lease, std::shared_ptr<const storage::Reader> reader);
  // NOT_FOUND when the lease is not this session's, OUT_OF_RANGE beyond the object.
  StatusOr<std::string> Read(SessionId session, LeaseId lease, uint64_t offset,
                             uint64_t length) const;
  // Ends the lease; does nothing when the lease is not this session's.
  void Release(SessionId session, LeaseId lease);
  void ReleaseAll(SessionId session);

 private:
  static constexpr LeaseId kStoredBit = LeaseId{1} << 62;

  struct OpenReader {
    SessionId session = 0;
    // Shared with a read under way, which a release must not end.
    std::shared_ptr<const storage::Reader> reader;
  };

  mutable Mutex mu_;
  LeaseId last_lease_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<LeaseId, OpenReader> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::node
