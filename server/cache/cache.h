// Slabs: the memory of the node, and every descriptor of it.
//
// A slab is one memfd, sealed SHRINK|GROW|SEAL when it is made, mode 0644, owned by the daemon. The
// open file description from memfd_create is reopened read-write through /proc/self/fd and closed.
// The daemon, its transport and the keeper share the reopened description by dup; each borrower gets a
// description of its own. That makes two questions answerable:
//   Probe      nobody but us has the slab open or mapped  (F_SETLEASE F_WRLCK, undone at once)
//   LeaseOpen  the description lent under a lease, or a mapping of it, still lives somewhere
//              (a shared OFD lock at byte `lease` of that description)
// A self-test at start shows that the kernel answers both correctly.
//
// The cache decides nothing: the engine says which slab to make, lend, probe, destroy. Thread-safe.
//
// The daemon maps no slab. It reads and writes them by pread and pwrite: where a client has taken a
// page away or the hardware has lost it, these return an error, and a mapping would raise SIGBUS.
// It also keeps the daemon's page tables empty: tearing down those of 8 GiB takes 0.8 s when the
// daemon is killed. And faulting memory in by pwrite costs two thirds of what faulting in a mapping
// does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/fd.h"
#include "common/keys.h"
#include "common/status.h"
#include "server/facts/extent.h"

namespace cairn::cache {

// Holds slabs beyond the life of this process; the real one is the keeper. The cache calls Hold
// before a slab is faulted or lent. Hold takes a reference of its own to `fd`; Drop gives it up. What
// the slab is for is fixed from then on, and told to whoever inherits it. Thread-safe.
class SlabHolder {
 public:
  virtual ~SlabHolder() = default;
  virtual Status Hold(SlabId slab, uint64_t bytes, fact::SlabUse use, int fd) = 0;
  virtual void Drop(SlabId slab) = 0;
};

struct Options {
  // 1 to 256. Faulting scales with the number of processors until memory bandwidth is used up.
  int prefault_threads = 2;
  // A slab is faulted in pieces of this size; an urgent slab overtakes others between pieces.
  uint64_t prefault_piece_bytes = 32 << 20;
  Status Validate() const;
};

struct Counters {  // of this process; values only grow
  uint64_t slabs_made = 0;
  uint64_t slabs_destroyed = 0;
  uint64_t bytes_faulted = 0;
  uint64_t lends = 0;
  uint64_t probes = 0;
  uint64_t bad_reads = 0;  // of pages that were gone or broken
};

// When the pages of a slab are made.
enum class Pages : uint8_t {
  kInTurn,
  kUrgently,
  kByWriting,  // not with the slab: whoever fills it makes them. The slab itself is urgent.
};

class Cache {
 public:
  // `holder` outlives the cache. Makes the process ignore SIGIO.
  static StatusOr<std::unique_ptr<Cache>> Start(const Options& options, SlabHolder* holder);
  // Joins the cache's threads. Finished slabs stay with the holder; unfinished ones are dropped,
  // and their `done` is not called.
  virtual ~Cache() = default;

  // Makes a slab and its pages, in the background. Urgent slabs come first, the others in the
  // order of the calls. `done` runs on a cache thread. Its status is OK, or RESOURCE_EXHAUSTED,
  // INVALID_ARGUMENT (the size) or INTERNAL; then nothing is left of the slab.
  virtual void Make(SlabId slab, uint64_t bytes, fact::SlabUse use, Pages pages,
                    std::function<void(Status)> done) = 0;
  // Makes a slab urgent that is still queued or being faulted, and moves it to the front.
  virtual void Hurry(SlabId slab) = 0;
  // Frees the pages on a reaper thread; `done` runs there when the memory is back. The caller has
  // probed the slab: no other process has it open or mapped.
  virtual void Destroy(SlabId slab, std::function<void()> done) = 0;
  // Takes over a slab from the holder after a restart, and undoes the file lease that the previous
  // daemon may have left on it. DATA_LOSS when the memfd is not of `bytes`; ALREADY_EXISTS for a
  // second slab of this number.
  virtual Status Adopt(SlabId slab, uint64_t bytes, UniqueFd fd) = 0;

  // A new open file description for one borrower, with a shared OFD lock at byte `lease`:
  // read-write for kWrite and kStanding, else read-only. RESOURCE_EXHAUSTED when descriptors run out; UNAVAILABLE
  // while another process holds a file lease on the slab.
  virtual StatusOr<UniqueFd> Lend(SlabId slab, LeaseId lease, LeaseMode mode) = 0;
  // True while the description lent under `lease`, or a mapping of it, exists in any process.
  virtual StatusOr<bool> LeaseOpen(SlabId slab, LeaseId lease) = 0;
  // True when only the daemon and the holder have the slab open, and nobody maps it.
  virtual StatusOr<bool> Probe(SlabId slab) = 0;
  // The daemon's own descriptor, shared with those that move bytes within this process. Never reopened: Probe would take
  // a further description for a borrower's. It keeps the slab's pages only until Destroy.
  virtual StatusOr<SharedFd> Description(SlabId slab) = 0;
  // The inode of the slab's memfd, by which /proc shows the processes that map it.
  virtual StatusOr<uint64_t> Inode(SlabId slab) = 0;

  // NOT_FOUND for an unknown slab, OUT_OF_RANGE beyond its end, DATA_LOSS when pages of it are
  // gone.
  virtual Status Read(SlabId slab, uint64_t offset, absl::Span<char> into) = 0;
  virtual Status Write(SlabId slab, uint64_t offset, absl::string_view bytes) = 0;
  // CRC32C of each block of the extent's first `length` bytes. Errors as for Read.
  virtual StatusOr<std::vector<uint32_t>> Crcs(const ExtentRef& extent, uint64_t length,
                                               uint32_t block_bytes) = 0;

  virtual Counters counters() const = 0;
};

// Shows on a scratch slab that Probe and LeaseOpen give both of their answers correctly;
// FAILED_PRECONDITION naming the one that did not.
Status SelfTest();

}  // namespace cairn::cache
