// Zeroed memory of this process, on huge pages where the machine has them: a fault for each page of 4 KiB costs more than
// the copy that fills it, a device pins huge ones in half the time, and a disk fills one with a single request.
#pragma once

#include <cstdint>

#include "common/fd.h"
#include "common/status.h"

namespace cairn::client {

class HugeMemory {
 public:
  HugeMemory() = default;
  // Begins at a huge page where it has the size of one, else at a page. `bytes` > 0. Its pages come with their first
  // touch: threads that share the touching touch different blocks of kBlockBytes, which end where huge pages do. When
  // two threads fault one page at once, each clears one and the slower throws its own away.
  static StatusOr<HugeMemory> Make(uint64_t bytes);

  char* data() const { return data_; }
  uint64_t length() const { return length_; }

 private:
  Mapping mapping_;
  char* data_ = nullptr;
  uint64_t length_ = 0;
};

}  // namespace cairn::client
