// Slabs: the memory of the node, and every descriptor of it.
//
// A slab is one memfd, sealed SHRINK|GROW|SEAL at birth, mode 0644, owned by the daemon. The
// description from memfd_create is reopened read-write through /proc/self/fd and closed; the daemon
// and the keeper share that one description by dup, and everyone who is lent the slab gets a
// further one. That is what makes the two questions answerable:
//   Probe      nobody but us has the slab open or mapped  (F_SETLEASE F_WRLCK, undone at once)
//   LeaseOpen  the description lent under a lease, or a mapping of it, still lives somewhere
//              (a shared OFD lock at byte `lease` of that description)
// A self-test at start shows that both answer right on this kernel.
//
// The cache decides nothing: the engine says which slab to make, lend, probe, destroy. Thread-safe.
//
// The daemon maps no slab. It reads and writes them by pread and pwrite, which answer a page that a
// client took away or that the hardware lost with an error where a mapping raises SIGBUS. It also
// keeps the daemon's page tables empty: those of 8 GiB cost 0.8 s to tear down when it is killed,
// and faulting memory in by pwrite costs two thirds of what faulting in a mapping does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "server/facts/facts.h"
#include "common/fd.h"
#include "common/keys.h"
#include "common/status.h"

namespace cairn::cache {

// Holds slabs beyond the life of this process (the keeper), called before a slab is faulted or
// lent. Hold takes its own reference to `fd`; Drop forgets it. Thread-safe.
class SlabHolder {
 public:
  virtual ~SlabHolder() = default;
  virtual Status Hold(SlabId slab, uint64_t bytes, int fd) = 0;
  virtual void Drop(SlabId slab) = 0;
};

struct Options {
  int prefault_threads = 2;  // ≥ 1; faulting scales with cores until memory bandwidth ends
  uint64_t prefault_piece_bytes =
      32 << 20;  // of one slab at a stretch; an urgent slab overtakes between pieces
  Status Validate() const;
};

struct Counters {  // a snapshot; values only grow
  uint64_t slabs_made = 0, slabs_destroyed = 0, bytes_faulted = 0, lends = 0, probes = 0,
           bad_reads = 0;  // pages that were gone or broken
};

class Cache {
 public:
  // `holder` outlives the cache. Makes the process ignore SIGIO.
  static StatusOr<std::unique_ptr<Cache>> Start(const Options& options, SlabHolder* holder);
  virtual ~Cache() = default;  // joins its threads; slabs stay with the holder

  // Makes and faults in a slab, in parallel, in the background; urgent ones first, else in order.
  // `done` runs on a cache thread: OK, or RESOURCE_EXHAUSTED / INTERNAL with nothing left behind.
  virtual void Make(SlabId slab, uint64_t bytes, bool urgent, std::function<void(Status)> done) = 0;
  // Moves a Make that is still queued or under way to the front.
  virtual void Hurry(SlabId slab) = 0;
  // Frees the pages on a reaper thread; `done` runs there when the memory is back. The caller has
  // probed: nobody else maps it.
  virtual void Destroy(SlabId slab, std::function<void()> done) = 0;
  // Takes over a slab from the holder after a restart; undoes a lease that a dead daemon left on
  // it.
  virtual Status Adopt(SlabId slab, uint64_t bytes, UniqueFd fd) = 0;

  // A new open file description for one borrower, with a shared OFD lock at byte `lease`:
  // read-write for kWrite, else read-only. RESOURCE_EXHAUSTED when descriptors run out.
  virtual StatusOr<UniqueFd> Lend(SlabId slab, LeaseId lease, LeaseMode mode) = 0;
  virtual StatusOr<bool> LeaseOpen(SlabId slab, LeaseId lease) = 0;
  virtual StatusOr<bool> Probe(SlabId slab) = 0;  // true: free
  // Of its memfd: what /proc shows of those who map it.
  virtual StatusOr<uint64_t> Inode(SlabId slab) = 0;

  // NOT_FOUND for an unknown slab, OUT_OF_RANGE beyond it, DATA_LOSS when pages of it are gone.
  virtual Status Read(SlabId slab, uint64_t offset, absl::Span<char> into) = 0;
  virtual Status Write(SlabId slab, uint64_t offset, absl::string_view bytes) = 0;
  virtual StatusOr<std::vector<uint32_t>> Crcs(const ExtentRef& extent, uint64_t length,
                                               uint32_t block_bytes) = 0;

  virtual Counters counters() const = 0;
};

// Shows on scratch slabs that Probe and LeaseOpen give both of their answers; FAILED_PRECONDITION
// naming the one that lied.
Status SelfTest();

}  // namespace cairn::cache
