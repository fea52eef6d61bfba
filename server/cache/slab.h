// One slab: a memfd, our one description of it, and the two questions about its users.
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
  // A new memfd: sealed, of the right mode, reopened; no page of it exists yet.
  static StatusOr<std::shared_ptr<Slab>> Make(const std::string& name, uint64_t bytes);
  // One that a holder kept. Touches no page, so that a restart costs microseconds per slab.
  static StatusOr<std::shared_ptr<Slab>> Adopt(UniqueFd fd, uint64_t bytes);

  uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

  // Gives [offset, offset+length) its pages, in this process's name: writes zeros. The kernel lets
  // one thread at a time write to a file, so two threads are no faster on one slab.
  Status Populate(uint64_t offset, uint64_t length);
  // Within bytes(). DATA_LOSS when a page is broken or the memfd was cut short.
  Status Read(uint64_t offset, absl::Span<char> into) const;
  Status Write(uint64_t offset, absl::string_view bytes);
  // Gives every page back to the kernel, whoever else still holds the descriptor.
  Status Free();

  StatusOr<UniqueFd> Lend(LeaseId lease, bool writable);
  StatusOr<bool> LeaseOpen(LeaseId lease) const;
  StatusOr<bool> Probe();

 private:
  Slab(UniqueFd fd, uint64_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  const UniqueFd fd_;  // read-write, from a reopen; only ever dup'd towards the holder
  const uint64_t bytes_;
  // An open that meets a probe fails, and a probe that meets an open says "taken": ours exclude
  // each other.
  Mutex open_or_probe_;
};

}  // namespace cairn::cache
