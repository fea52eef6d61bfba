// Reading another node's memory. All movement between nodes is a read by the node that wants the
// bytes: an owner attaches its slabs and grants a reader some extents of them; the reader, who got
// token and regions over the control wire, reads them into slabs of its own.
//
// A back end moves bytes and nothing else. It knows neither jobs nor manifests: the caller compares
// the checksum that a read returns with the block's, and decides whether to read again, and from
// whom. tests/transport holds the contract as one suite that every back end and every decorator
// passes.
//
// Thread-safe. What may wait says so.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/status.h"
#include "server/facts/extent.h"

namespace cairn::transport {

// Permission to read, and all that a reader shows for it: 16 bytes that nobody can guess.
using GrantToken = std::array<uint8_t, 16>;
GrantToken NewGrantToken();

// What is known of the reads of a grant that ends. A back end that cannot tell whether bytes are on their way cuts
// them off, and with them what else travels the same way.
enum class ItsReads : uint8_t { kMayBeUnderWay, kHaveEnded };

// A member of the ring, in one of its lives.
struct PeerId {
  int32_t rank = 0;
  int64_t incarnation = 0;
  bool operator==(const PeerId&) const = default;
};

// No read is longer: the unit of checksums is the unit of reading.
inline constexpr uint64_t kMaxReadBytes = kBlockBytes;

struct ReadRequest {
  std::string address;       // of the owner's transport, as its Address() says
  GrantToken token = {};     //
  std::string region;        // as the owner's Describe returned it …
  uint64_t offset = 0;       // … and where in it the bytes begin
  ExtentRef into;            // in a slab that is attached here …
  uint64_t into_offset = 0;  // … and where in that extent they go
  uint64_t length = 0;       // 1 … kMaxReadBytes
  MonotonicNanos deadline = 0;
  // The same bytes came otherwise than their checksum says, the last time: what a device has been told of either
  // slab's memory is not believed any more.
  bool again = false;
};

// The members' control wire, as a transport speaks over it to its like at another member. Thread-safe.
class ControlWire {
 public:
  virtual ~ControlWire() = default;
  // What the other transport's Answer says. Waits for it, to the deadline. UNAVAILABLE when the member cannot be
  // reached.
  virtual StatusOr<std::string> Ask(int32_t rank, const std::string& question,
                                    MonotonicNanos deadline) = 0;
};

// The CRC32C of the bytes that were read, as they were written into the slab; or why there are none.
// After an error the destination's bytes are undefined.
using ReadDone = std::function<void(StatusOr<uint32_t> crc)>;

// What has been read, since the start.
struct Traffic {
  uint64_t tcp_bytes = 0;
  uint64_t rdma_bytes = 0;
  uint64_t rdma_left_out = 0;        // how often a peer that RDMA did not reach went on over TCP
  uint64_t rdma_rails_left_out = 0;  // … and one of several devices, while the others went on
  uint64_t rdma_grants_left_out =
      0;  // … and a grant alone, whose pages were taken away again and again
};

class Transport {
 public:
  virtual ~Transport() = default;

  // Where peers reach this transport: what the control wire tells them.
  virtual std::string Address() const = 0;
  // Why they cannot, for now, for people; empty: they can.
  virtual std::string Problem() const = 0;

  // --- this node's memory

  // From now on the slab can be read into and, where granted, read from. `description` is
  // the daemon's own: a further open file description would make each probe for borrowers say "busy".
  // INVALID_ARGUMENT when it has fewer than `bytes` bytes, ALREADY_EXISTS when the slab is attached.
  virtual Status Attach(SlabId slab, SharedFd description, uint64_t bytes) = 0;
  // On return nothing reads or writes the slab any more. Reads into it that are under way end with
  // CANCELLED, reads from it by peers with an error at the peer. Nothing happens for a slab that is
  // not attached. Waits for what is at work on the slab at this moment, never for a peer.
  virtual void Detach(SlabId slab) = 0;
  // Whether Prepare does anything.
  virtual bool PreparesMemory() const { return false; }
  // Where a device has to be told of memory before it is read, tells it in the background, so that neither the first
  // grant of the slab nor the first read into it waits for that. For a slab whose pages are there: others are made by
  // it. Nothing happens for one that is not attached.
  virtual void Prepare(SlabId) {}

  // --- what peers may read

  // The extent in words for a reader's transport of the same kind. It permits nothing by itself.
  // NOT_FOUND when the slab is not attached, OUT_OF_RANGE when the extent reaches beyond it.
  virtual StatusOr<std::string> Describe(const ExtentRef& extent) const = 0;
  // Lets who shows the token read these extents, until Revoke. ALREADY_EXISTS for a token that is in
  // use; NOT_FOUND and OUT_OF_RANGE as Describe; RESOURCE_EXHAUSTED beyond the bound on grants; UNAVAILABLE
  // while there is a Problem.
  virtual Status Grant(const GrantToken& token, PeerId reader, std::vector<ExtentRef> extents) = 0;
  // On return no byte of the grant's extents leaves this node any more under it, not even one that was
  // sent and is waiting in a queue of the kernel or of a device. May cut other reads of the same peer,
  // which end with UNAVAILABLE there; not where its reader's Finish has said that its reads have ended. True when
  // there was such a grant.
  virtual bool Revoke(const GrantToken& token, ItsReads reads) = 0;
  // The same for all grants of the peer.
  virtual void RevokePeer(PeerId reader) = 0;
  // When a byte was last sent under the grant, or when it was given; NOT_FOUND when there is none.
  virtual StatusOr<MonotonicNanos> LastUsed(const GrantToken& token) const = 0;

  // What a peer's transport of the same kind asks of this one. INVALID_ARGUMENT for what is no question,
  // UNIMPLEMENTED from a transport that has none.
  virtual StatusOr<std::string> Answer(PeerId reader, absl::string_view question);

  // --- reading

  // Calls `done` once, from a thread of the transport or before Read returns; it must not block.
  //   INVALID_ARGUMENT   the request is wrong; the field is named
  //   NOT_FOUND          `into` is not attached
  //   PERMISSION_DENIED  the owner does not know the token, or the region is not in its grant
  //   DATA_LOSS          the owner could not read its own bytes
  //   ABORTED            pages at one of the ends are taken away again and again, and a device that has them cannot
  //                      be believed: other grants, and other back ends, are not concerned
  //   UNAVAILABLE        the peer cannot be reached, does not move, or the connection was cut
  //   DEADLINE_EXCEEDED  the deadline passed first
  //   CANCELLED          the destination was detached, or the transport is closing
  //   RESOURCE_EXHAUSTED more reads than the transport's bound are waiting for this peer
  virtual void Read(ReadRequest request, ReadDone done) = 0;

  // The reader wants nothing more under the token. kHaveEnded: none of its reads is under way, and what is read
  // under it from now on, the owner is asked about first.
  virtual ItsReads Finish(const std::string& address, const GrantToken& token);

  // Of a transport that counts it; else all 0.
  virtual Traffic traffic() const { return {}; }
};

}  // namespace cairn::transport
