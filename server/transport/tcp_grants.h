// What peers may read over TCP, and which streams have sent of it. One lock guards both, so that a
// grant ends for all streams at one instant.
//
// Invariants:
//   1. A stream sends bytes of a slab only between Begin and End of a question under a grant.
//   2. A grant's `streams` are those that may hold bytes of it in their queues: it has each stream from
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
#include "server/transport/slabs.h"
#include "server/transport/tcp_socket.h"
#include "server/transport/tcp_wire.h"

namespace cairn::transport {

// A grant may name as many extents as a manifest has objects; all together this many.
inline constexpr size_t kMaxGrants = 4096;
inline constexpr size_t kMaxGrantedExtents = 4 << 20;

// Thread-safe.
class TcpGrants {
 public:
  using StreamId = uint64_t;

  // As Transport::Grant. `look` says of an extent whether it may be granted; it is asked once the grant
  // can be revoked, so that a slab that is detached meanwhile is in no grant.
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
  struct GrantState {
    PeerId reader;
    std::vector<ExtentRef> extents;  // by slab and offset; none overlaps the next
    MonotonicNanos last_used = 0;
    std::set<StreamId> streams;
  };
  struct Stream {
    TcpSocket* socket = nullptr;
    bool sending = false;
    GrantToken token = {};        // of the question that it answers, while `sending`
    std::set<GrantToken> queued;  // grants whose `streams` have it
  };

  // Null: the reader may not.
  GrantState* Find(PeerId reader, const Question& question) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool RevokeLocked(const GrantToken& token) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `stream` holds nothing in its queue.
  void Drained(StreamId id, Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  CondVar closed_;
  std::map<GrantToken, GrantState> grants_ ABSL_GUARDED_BY(mu_);
  std::map<SlabId, std::set<GrantToken>> by_slab_ ABSL_GUARDED_BY(mu_);
  size_t extents_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<StreamId, Stream> streams_ ABSL_GUARDED_BY(mu_);
  StreamId next_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace cairn::transport
