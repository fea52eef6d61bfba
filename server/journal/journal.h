// The journal: facts that survive the daemon's death, in a memfd that the keeper holds.
//
// Layout, little-endian: a header page, then two halves of equal size.
//   header  0  8  magic "CAIRNJL\x01"
//           8  4  format version (1)
//          12  4  CRC32C of magic, version and size
//          16  8  size of the file
//          24  8  state: generation (low 32 bits), CRC32C of its four bytes (high 32)
//   half    a run of frames, each beginning at a multiple of 8 bytes:
//           0  4  magic "JFRM"
//           4  4  length of the payload
//           8  8  generation
//          16  4  CRC32C of bytes [4, 16) and the payload
//          20  .. payload: facts, each u32 length + EncodeFact; then zeros up to a multiple of 8
// Generation g stands in half g % 2. One frame holds the facts of one Append, so they are all there
// or not at all; its magic is stored last. A half begins with a frame that holds a snapshot:
// switching halves writes it whole into the other half, and then one 8-byte store of the state
// names it. No fsync anywhere: this guards against the daemon's death, not the node's.
//
// Not thread-safe: used under the node's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "server/facts/facts.h"
#include "common/fd.h"
#include "common/status.h"

namespace cairn::journal {

struct Options {
  uint64_t bytes = 128 << 20;  // of the memfd; faulted as used. Each half bounds one generation
  // Above this share of a half a snapshot is due; above `refuse_share` Append still takes what ends
  // or frees things, and the node refuses `create`.
  double snapshot_share = 0.5;
  double refuse_share = 0.9;
  Status Validate() const;
};

struct Contents {
  std::vector<Fact> facts;  // the snapshot, then what followed, in order
  bool torn_tail = false;   // an incomplete last frame was dropped
};

class Journal {
 public:
  // A new memfd, for the keeper to hold.
  static StatusOr<UniqueFd> MakeFile(const Options& options);
  // Opens one that MakeFile made, empty or with a dead daemon's facts; `contents` gets those. The
  // file's own size counts, whatever `options.bytes` says now. DATA_LOSS when the header, the
  // snapshot or a frame before the last does not verify.
  static StatusOr<std::unique_ptr<Journal>> Open(UniqueFd file, const Options& options,
                                                 Contents* contents);
  virtual ~Journal() = default;

  // All of `facts` or none. RESOURCE_EXHAUSTED when the half is full.
  virtual Status Append(absl::Span<const Fact> facts) = 0;
  // Starts the other half with `snapshot`.
  virtual Status Switch(absl::Span<const Fact> snapshot) = 0;
  virtual bool WantsSnapshot() const = 0;
  virtual bool Full() const = 0;  // beyond refuse_share
  virtual uint64_t used_bytes() const = 0;
};

}  // namespace cairn::journal
