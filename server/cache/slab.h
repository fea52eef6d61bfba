// One slab: a memfd, the daemon's one description of it, and the two questions about its users.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/types/span.h"
#include "common/fd.h"
#include "common/keys.h"
#include "common/mutex.h"
#include "common/status.h"

namespace cairn::cache {

// Thread-safe, apart from Free.
class Slab {
 public:
  // Makes a memfd, sealed, of the right mode and reopened; no page of it exists yet.
  static StatusOr<std::shared_ptr<Slab>> Make(const std::string& name, uint64_t bytes);
  // Takes over a memfd that a holder kept. Touches no page, so a restart costs microseconds per
  // slab.
  static StatusOr<std::shared_ptr<Slab>> Adopt(UniqueFd fd, uint64_t bytes);

  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

  // Makes the pages of [offset, offset+length) by writing zeros, so that they are charged to this
  // process. The kernel lets one thread at a time write to a file, so a second thread on the same
  // slab gains nothing.
  Status Populate(uint64_t offset, uint64_t length);
  // The range lies within bytes(). DATA_LOSS when a page is broken or the memfd was cut short.
  Status Read(uint64_t offset, absl::Span<char> into) const;
  Status Write(uint64_t offset, absl::string_view bytes);
  // Gives every page back to the kernel, also when other processes still hold a descriptor.
  Status Free();

  // As in Cache.
  const UniqueFd& description() const { return fd_; }
  StatusOr<UniqueFd> Lend(LeaseId lease, bool writable);
  StatusOr<bool> LeaseOpen(LeaseId lease) const;
  StatusOr<bool> Probe();

 private:
  Slab(UniqueFd fd, uint64_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  const UniqueFd fd_;  // read-write, from a reopen; a dup of it goes to the holder
  const uint64_t bytes_;
  // An open during a probe fails, and a probe during an open says "taken". So the daemon's own
  // opens and probes exclude each other.
  Mutex open_or_probe_;
};

}  // namespace cairn::cache
