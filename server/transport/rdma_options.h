// The bounds of RDMA's two ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/clock.h"
#include "common/status.h"
#include "server/transport/verbs.h"

namespace cairn::transport {

// Devices of a node that reads are striped over, at most.
inline constexpr int kMostRails = 8;

struct RdmaOwnerOptions {
  int max_connections = 128;  // beyond it the least recently used goes; 1 … 4,096
  int max_queue_pairs = 8;    // of one connection, 1 … 64
  // Of one reader: the least recently used goes. One, and one more while it is replaced; where a reader may have more
  // devices than this owner, as many for each of them.
  int connections_of_reader = 2;
  Status Validate() const;
};

struct RdmaReaderOptions {
  int queue_pairs = 2;                       // per peer, 1 … 8
  uint32_t chunk_bytes = 1 << 20;            // 4 KiB … 4 MiB
  int chunks = 32;                           // under way at once per peer, 1 … 1,024
  int max_peers = 64;                        // 1 … 1,024
  size_t max_waiting = 4096;                 // reads per peer, 1 … 65,536
  MonotonicNanos ask = 2 * kNanosPerSecond;  // the owner answers within it
  MonotonicNanos stall =
      2 * kNanosPerSecond;  // a connection that moves nothing for so long is broken
  MonotonicNanos idle = 20 * kNanosPerSecond;  // and one without reads is closed after it
  bool read_back =
      true;  // false, for benches: what arrived is not looked at, and its checksum is 0
  Status Validate() const;
};

// A slab whose pages are taken away, or whose bytes are doubted, is registered anew; each time costs as much as the
// first, so that a client could keep the device busy by it.
struct RdmaSlabOptions {
  MonotonicNanos believed = kNanosPerSecond;  // nobody doubts one that was registered so lately
  int most_anew = 4;                          // 1 … 1,024 times …
  MonotonicNanos anew_within = 30 * kNanosPerSecond;  // … within this time; then it stays as it is
  Status Validate() const;
};

struct RdmaOptions {
  RdmaOwnerOptions owner;
  RdmaReaderOptions reader;
  RdmaSlabOptions slabs;
  Status Validate() const;
};

// How many chunks one queue pair may have posted: what the options ask for, shared out; what the queue pair's
// queue takes; and what its share of the completion queue takes.
int SlotsOf(const RdmaReaderOptions& options, const VerbsLimits& limits);

}  // namespace cairn::transport
