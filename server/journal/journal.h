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
// or not at all; its magic is stored last. The first frame of a half holds a snapshot. To switch
// halves, the journal writes a snapshot into the other half, and then one 8-byte store of the state
// makes that half the current one. Nothing is ever synced: the journal guards against the death of
// the daemon, not of the machine.
//
// Not thread-safe: the node uses it under its lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/fd.h"
#include "common/status.h"
#include "server/facts/facts.h"

namespace cairn::journal {

struct Options {
  // Size of the memfd. Its pages are made as they are written. A generation fits one half.
  uint64_t bytes = 128 << 20;
  // Above this share of a half a snapshot is due.
  double snapshot_share = 0.5;
  // Above this share the journal is full: the node refuses `create`. Append still works,
  // so that facts which end or free things can be journaled.
  double refuse_share = 0.9;
  Status Validate() const;
};

struct Counters {  // of this process; values only grow
  uint64_t frames_appended = 0;
  uint64_t bytes_appended = 0;     // of those frames
  uint64_t snapshots_written = 0;  // by Switch
};

struct Contents {
  std::vector<Fact> facts;  // the snapshot, then what followed, in order
  bool torn_tail = false;   // an incomplete last frame was dropped
};

class Journal {
 public:
  // Makes a new memfd, for the keeper to hold.
  static StatusOr<UniqueFd> MakeFile(const Options& options);
  // Opens a file that MakeFile made, new or with the facts of a daemon that died, and puts these
  // into `contents`. The size of the file counts, not `options.bytes`. DATA_LOSS when the header,
  // the snapshot or a frame before the last does not verify; UNIMPLEMENTED when another build wrote
  // a version of the journal or of a fact that this one does not know.
  static StatusOr<std::unique_ptr<Journal>> Open(UniqueFd file, const Options& options,
                                                 Contents* contents);
  virtual ~Journal() = default;

  // Appends all of `facts` or none. RESOURCE_EXHAUSTED when they do not fit the rest of the half.
  virtual Status Append(absl::Span<const Fact> facts) = 0;
  // Starts the other half with `snapshot`; what was appended before is then out of use. On failure
  // the old half stays in use. RESOURCE_EXHAUSTED when the snapshot does not fit a half.
  virtual Status Switch(absl::Span<const Fact> snapshot) = 0;
  virtual bool WantsSnapshot() const = 0;   // above snapshot_share
  virtual bool Full() const = 0;            // above refuse_share
  virtual uint64_t used_bytes() const = 0;  // of the current half
  virtual Counters counters() const = 0;
};

}  // namespace cairn::journal
