// The owner's end of RDMA: answers readers, and takes away what they were given. The device serves their reads
// without a thread of ours, and does not tell of them.
//
// A grant whose reads may be under way ends by the end of each connection that was told its keys: on return of
// Revoke the device does nothing for their queue pairs any more. Its other reads are cut with it; their reader
// connects again. Where the reader has said that its reads have ended, it posts none any more: a grant ends so
// every time in the normal course, and costs nobody a connection.
//
// Invariant: who was told keys of a grant has its token in `opened` of a connection that is in `connections_`,
// until that connection's queue pairs are destroyed or the grant is gone.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/transport/grant_table.h"
#include "server/transport/rdma_control.h"
#include "server/transport/rdma_options.h"
#include "server/transport/rdma_slab.h"
#include "server/transport/verbs.h"

namespace cairn::transport {

// Thread-safe.
class RdmaOwner {
 public:
  // All outlive it; the options are valid. `port` is one of the device's.
  RdmaOwner(const RdmaOwnerOptions& options, VerbsDevice* device, int port,
            VerbsCompletions* completions, RdmaSlabs* slabs);

  // --- what readers ask
  StatusOr<RdmaConnected> Connect(PeerId reader, const RdmaConnect& request);
  StatusOr<RdmaOpened> Open(PeerId reader, const RdmaOpen& request);

  // --- as Transport says
  Status Grant(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents);
  bool Revoke(const GrantToken& token, ItsReads reads);
  void RevokePeer(PeerId reader);
  StatusOr<MonotonicNanos> LastUsed(const GrantToken& token) const;
  // All that name the slab.
  void RevokeSlab(SlabId slab);

  int connections() const;

 private:
  struct Connection {
    PeerId reader;
    std::vector<std::unique_ptr<VerbsQueuePair>> pairs;
    std::set<GrantToken> opened;
    uint64_t used = 0;  // greater is later
  };

  StatusOr<Connection> Make(PeerId reader, const RdmaConnect& request, RdmaConnected* connected);
  // The grant, if it is this reader's.
  StatusOr<GrantTable::Entry*> Granted(PeerId reader, const GrantToken& token)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds the keys of the grant's slabs, and notes that this connection knows them. False, and nothing is noted: one
  // of them is being registered anew just now.
  StatusOr<bool> Tell(PeerId reader, const RdmaOpen& request,
                      const std::vector<std::shared_ptr<RdmaSlab>>& slabs, RdmaOpened* opened)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Those that make room for one more of the reader are dropped.
  void MakeRoom(PeerId reader) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropOldest(const std::function<bool(const Connection&)>& which)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool RevokeLocked(const GrantToken& token, ItsReads reads) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const RdmaOwnerOptions options_;
  VerbsDevice* const device_;
  const int port_;
  VerbsCompletions* const completions_;
  RdmaSlabs* const slabs_;

  // Held while queue pairs are destroyed, some milliseconds: whoever revokes another grant of the same connection
  // meanwhile must not return before.
  mutable Mutex mu_;
  GrantTable grants_ ABSL_GUARDED_BY(mu_);
  std::map<RdmaConnectionId, Connection> connections_ ABSL_GUARDED_BY(mu_);
  RdmaConnectionId next_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn::transport
