// Which blocks of mapped memory this process has compared with their checksums. Of a block of which only slices are
// wanted, all is read to check it: once, not with every stream.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "common/mutex.h"

namespace cairn::gpu {

// Thread-safe. Remembers the blocks of the kMostMemories memories (Source::memory) that were asked about last.
class VerifiedBlocks {
 public:
  static constexpr size_t kMostMemories = 256;

  bool Has(const std::string& memory, uint64_t block);
  void Add(const std::string& memory, uint64_t block);

 private:
  struct Memory {
    std::vector<bool> blocks;
    std::list<std::string>::iterator used;
  };

  Mutex mutex_;
  std::map<std::string, Memory> memories_ ABSL_GUARDED_BY(mutex_);
  std::list<std::string> by_use_ ABSL_GUARDED_BY(mutex_);  // the last used first
};

}  // namespace cairn::gpu
