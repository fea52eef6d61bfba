// The journal: facts that survive the daemon's death, in a memfd that the keeper holds.
//
// Layout, little-endian: a header page, then two halves of equal size.
//   header  0  8  magic "CAIRNJL\x01"
//           8  4  format version (2)
//          12  4  CRC32C of magic, version and size
//          16  8  size of the file
//          24  8  state: generation (low 32 bits), CRC32C of its four bytes (high 32)
//          32  8  nonce, random; again at 1024 and at 2048, so that damage to one of them costs nothing
//   half    a run of frames, each beginning at a multiple of 8 bytes:
//           0  4  magic "JFRM"
//           4  4  length of the payload
//           8  4  generation
//          12  4  high half of the nonce
//          16  4  CRC32C of the nonce, bytes [4, 16) and the payload
//          20  .. payload: facts, each u32 length + EncodeFact; then zeros up to a multiple of 8
// Generation g stands in half g % 2. One frame holds the facts of one Append, so they are all there
// or not at all; its magic is stored last. A half begins with a snapshot. To switch halves, the
// journal writes a snapshot into the other half, and then one 8-byte store of the state makes that
// half the current one. Nothing is ever synced: the journal guards against the death of the daemon,
// not of the machine.
//
// A snapshot is one frame (Switch), or many, between which facts are appended to both halves. Then
// the half's first frame is empty and gets its magic when the rest is complete: a half whose first
// frame verifies is whole, whatever the header says. A generation is written once: a snapshot that
// was given up leaves its number unused. The half that is out of use is cleared by Open or, behind
// damage, by the next snapshot.
//
// Facts hold bytes that clients chose, at offsets that they can guess, and the reader looks for frames
// wherever one may begin: it must not take a hole for the end. The nonce, which no client knows, keeps
// such bytes from being a frame.
//
// Not thread-safe: the node uses it under its lock.
#pragma once

#include <cstdint>
#include <map>
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
  // Of a new file, for tests. 0: random.
  uint64_t nonce = 0;
  Status Validate() const;
};

struct Counters {  // of this process; values only grow
  uint64_t frames_appended = 0;
  uint64_t bytes_appended = 0;     // of those frames
  uint64_t snapshots_written = 0;  // by Switch or FinishSnapshot
};

struct Contents {
  std::vector<Fact> facts;  // the snapshot, then what followed, in order
  bool torn_tail = false;   // an incomplete last frame was dropped
  // Facts that this build does not know and may skip: how many of which kind. The next snapshot
  // leaves them out.
  std::map<int, uint64_t> skipped;
  // Not OK: `facts` are an earlier state, and what followed is lost (DATA_LOSS), or another build
  // wrote it and this one cannot read it (UNIMPLEMENTED). Names the place.
  Status damage;
  // Facts that verify behind the damage. They are no state without what is missing between, but tell
  // which ids were given out.
  std::vector<Fact> behind;
};

class Journal {
 public:
  // Makes a new memfd, for the keeper to hold.
  static StatusOr<UniqueFd> MakeFile(const Options& options);
  // Opens a file that MakeFile made, new or with the facts of a daemon that died, and puts these
  // into `contents`. The size of the file counts, not `options.bytes`. DATA_LOSS when the file
  // has another size than it was made with; whatever else is wrong with it is told in `contents->damage`:
  //   DATA_LOSS      nothing may stand behind the damage, so Append is refused until Switch has
  //                  written what was found as a fresh snapshot
  //   UNIMPLEMENTED  the journal belongs to the build that wrote it: nothing is ever written
  // With a damaged header, or a half of which nothing can be read, the newest other one is read.
  static StatusOr<std::unique_ptr<Journal>> Open(UniqueFd file, const Options& options,
                                                 Contents* contents);
  virtual ~Journal() = default;

  // Appends all of `facts` or none. RESOURCE_EXHAUSTED when they do not fit the rest of the half.
  // FAILED_PRECONDITION behind damage (Open).
  // While a snapshot is being written they go into both halves: it is given up when they do not fit
  // its half, and when Append fails, for then they are in neither.
  virtual Status Append(absl::Span<const Fact> facts) = 0;
  // Starts the other half with `snapshot`; what was appended before is then out of use. On failure
  // the old half stays in use. RESOURCE_EXHAUSTED when the snapshot does not fit a half. A snapshot
  // in pieces that is being written is given up either way.
  virtual Status Switch(absl::Span<const Fact> snapshot) = 0;

  // The same in pieces: what is added and what is appended, replayed in the order of these calls,
  // must be the state. Until FinishSnapshot the old half counts, with all that was appended. Each of
  // these gives the snapshot up when it fails; the old half stays in use.
  virtual Status BeginSnapshot() = 0;  // gives up the one that is being written, if any
  // FAILED_PRECONDITION when none is being written: it may have been given up in an Append.
  virtual Status AddToSnapshot(absl::Span<const Fact> facts) = 0;
  virtual Status FinishSnapshot() = 0;
  virtual bool WritingSnapshot() const = 0;

  virtual bool WantsSnapshot() const = 0;   // above snapshot_share
  virtual bool Full() const = 0;            // above refuse_share
  virtual uint64_t used_bytes() const = 0;  // of the current half
  virtual uint64_t half_bytes() const = 0;  // that it has
  // A secret of the node's that lasts as long as the journal, damaged or not.
  virtual uint64_t nonce() const = 0;
  virtual Counters counters() const = 0;
};

}  // namespace cairn::journal
