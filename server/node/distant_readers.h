// Objects that are not in this node's memory and are read in chunks: of storage, by clients without descriptors, and by
// all of them where the storage has no descriptors to lend; and of other members, where this node has no room.
//
// The engine leases memory only; what is open for chunk reads is the node's affair, and so is its
// lease. Chunks are read outside the node's lock, so the table has one of its own.
//
// Storage may hang in any call, in closing a file too, and members may not answer. Threads of this class make the
// calls, and who asks waits for so long and no longer: its connection then serves what memory has.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/clock.h"
#include "common/keys.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/stored.h"
#include "server/node/job_executor.h"
#include "server/storage/storage.h"

namespace cairn::node {

// Thread-safe.
class DistantReaders {
 public:
  // `storage` outlives it, and may be null: nothing is opened there then. `members`: there are others to read from.
  DistantReaders(storage::Storage* storage, bool members);

  // Whether NextLease gave `lease`. The engine counts its leases up from 1 and never gets here.
  static bool IsDistant(LeaseId lease) { return (lease & kDistantBit) != 0; }

  // As Storage::Open; UNAVAILABLE when there was no answer for `patience`. What it returns is closed
  // by a thread of this class, whoever lets go of it last.
  StatusOr<std::shared_ptr<const storage::Reader>> Open(StoredCheckpoint checkpoint,
                                                        const std::string& name,
                                                        storage::Owner reader,
                                                        MonotonicNanos patience);

  // Likewise for one that was opened elsewhere.
  std::shared_ptr<const storage::Reader> Share(const std::string& job,
                                               std::unique_ptr<const storage::Reader> reader);

  // Whoever reads in chunks under it has no descriptor that tells how long.
  LeaseId NextLease(bool chunks);
  static bool IsOfChunks(LeaseId lease) { return (lease & kChunksBit) != 0; }
  // RESOURCE_EXHAUSTED when `session` holds as many as it may, UNAVAILABLE after Stop.
  Status Add(SessionId session, LeaseId lease, const std::string& job,
             std::shared_ptr<const storage::Reader> reader);
  // NOT_FOUND when the lease is not this session's, OUT_OF_RANGE beyond the object, UNAVAILABLE when
  // there is no answer.
  StatusOr<std::string> Read(SessionId session, LeaseId lease, uint64_t offset, uint64_t length);
  bool Holds(SessionId session, LeaseId lease) const;
  // Ends the lease; does nothing when the lease is not this session's.
  void Release(SessionId session, LeaseId lease);
  void ReleaseAll(SessionId session);
  void Stop();  // ends all leases

 private:
  Status NoAnswer(absl::string_view of, MonotonicNanos patience) const;
  static constexpr LeaseId kDistantBit = LeaseId{1} << 62;
  static constexpr LeaseId kChunksBit = LeaseId{1} << 61;

  struct OpenReader {
    SessionId session = 0;
    std::string job;
    // Shared with a read under way, which a release must not end.
    std::shared_ptr<const storage::Reader> reader;
  };

  storage::Storage* const storage_;
  JobExecutor calls_;
  mutable Mutex mu_;  // then that of calls_
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  LeaseId last_lease_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<LeaseId, OpenReader> open_ ABSL_GUARDED_BY(mu_);  // before calls_ goes
};

}  // namespace cairn::node
