// What peers may read over TCP, and which streams have sent of it. One lock guards both, so that a
// grant ends for all streams at one instant.
//
// Invariants:
//   1. A stream sends bytes of a slab only between Begin and End of a question under a grant.
//   2. A grant's streams (streams_of_) are those that may hold bytes of it in their queues: it has each stream from
//      Begin until that stream is closed, or was seen with an empty queue.
//   3. Revoke takes the grant out first (no Begin succeeds any more), then waits until each such stream
//      is closed by a reset, or had an empty queue while it was sending nothing of the grant.
//
// sendfile queues references to the slab's pages, not copies: who reused the slab while they wait for
// the peer would send the new bytes. (Between two nodes of one machine the peer's queue refers to these
// pages, too. Its reader compares checksums with the manifest's, as it does with all it reads.)
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/status.h"
#include "server/transport/grant_table.h"
#include "server/transport/tcp_socket.h"
#include "server/transport/tcp_wire.h"

namespace cairn::transport {

// Thread-safe.
class TcpGrants {
 public:
  using StreamId = uint64_t;

  // As GrantTable::Add.
  Status Grant(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents,
               const std::function<Status(const ExtentRef&)>& look);
  // As Transport says.
  bool Revoke(const GrantToken& token);
  void RevokePeer(PeerId reader);
  StatusOr<MonotonicNanos> LastUsed(const GrantToken& token) const;
  // All that name the slab.
  void RevokeSlab(SlabId slab);

  // --- streams: the thread of each calls these. `socket` stays until Close, which resets it.
  StreamId Open(TcpSocket* socket);
  void Close(StreamId stream);
  // PERMISSION_DENIED unless the reader may read all of what it asks for. Check begins nothing: Revoke does not
  // wait for who only asked it.
  Status Check(PeerId reader, const Question& question);
  Status Begin(StreamId stream, PeerId reader, const Question& question);
  void End(StreamId stream);
  // Its thread finds it cut, and closes it. Nothing happens for one that is closed.
  void Cut(StreamId stream);
  void CutAll();

 private:
  struct Stream {
    TcpSocket* socket = nullptr;
    bool sending = false;
    GrantToken token = {};        // of the question that it answers, while `sending`
    std::set<GrantToken> queued;  // grants whose streams it is one of
  };

  // Null: the reader may not.
  GrantTable::Entry* Find(PeerId reader, const Question& question)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool RevokeLocked(const GrantToken& token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `stream` holds nothing in its queue.
  void Drained(StreamId id, Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  CondVar closed_;
  GrantTable grants_ ABSL_GUARDED_BY(mu_);
  std::map<GrantToken, std::set<StreamId>> streams_of_ ABSL_GUARDED_BY(mu_);
  std::map<StreamId, Stream> streams_ ABSL_GUARDED_BY(mu_);
  StreamId next_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace cairn::transport
