// What the two ends of an RDMA connection say to each other, over the members' control wire: the device itself
// knows nobody. The reader asks; who it is, the control wire has made sure of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "server/facts/extent.h"
#include "server/transport/rdma_slab.h"
#include "server/transport/transport.h"
#include "server/transport/verbs.h"

namespace cairn::transport {

using RdmaConnectionId = uint64_t;  // the owner's; 0: none

// "Connect these queue pairs, each to one of yours."
struct RdmaConnect {
  RdmaConnectionId replaces = 0;  // of this reader: the owner may forget it
  std::vector<VerbsEndpoint> endpoints;
};
struct RdmaConnected {
  RdmaConnectionId connection = 0;
  std::vector<VerbsEndpoint> endpoints;  // in the order of the reader's
};

// "What may I read under this token, over that connection?" Asked again, it also says that the reader is at it.
struct RdmaOpen {
  // The owner's bytes as they came: they have this checksum at the reader's.
  struct Came {
    ExtentRef bytes;  // at most kMaxReadBytes
    uint32_t crc = 0;
  };
  RdmaConnectionId connection = 0;
  GrantToken token = {};
  // Bytes came otherwise than they should: the device may have pages that are not the slab's any more.
  bool anew = false;
  // With `anew`, where the reader still knows it. Where the owner's own bytes have the same checksum the device has
  // read what is there, and to register its slab anew would change nothing.
  std::optional<Came> came;
};
struct RdmaOpened {
  struct Slab {
    SlabId slab = 0;
    std::vector<RdmaPiece> pieces;  // by offset
  };
  std::vector<ExtentRef> extents;  // by slab and offset
  std::vector<Slab> slabs;         // of the extents
};

// The reader's way to owners. Thread-safe; waits for the answer, to the deadline.
//   PERMISSION_DENIED    the token permits nothing to this reader
//   FAILED_PRECONDITION  the owner does not know the connection (any more)
//   ABORTED              pages of the grant's slabs are taken away again and again: not now
//   UNAVAILABLE          it cannot be reached, or has no device
class RdmaControl {
 public:
  virtual ~RdmaControl() = default;
  virtual StatusOr<RdmaConnected> Connect(const std::string& address, const RdmaConnect& request,
                                          MonotonicNanos deadline) = 0;
  virtual StatusOr<RdmaOpened> Open(const std::string& address, const RdmaOpen& request,
                                    MonotonicNanos deadline) = 0;
};

}  // namespace cairn::transport
