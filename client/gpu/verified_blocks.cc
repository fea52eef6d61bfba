#include "client/gpu/verified_blocks.h"

namespace cairn::gpu {

bool VerifiedBlocks::Has(const std::string& memory, uint64_t block) {
  if (memory.empty()) return false;
  MutexLock lock(&mutex_);
  const auto found = memories_.find(memory);
  if (found == memories_.end()) return false;
  by_use_.splice(by_use_.begin(), by_use_, found->second.used);
  return block < found->second.blocks.size() && found->second.blocks[block];
}

void VerifiedBlocks::Add(const std::string& memory, uint64_t block) {
  if (memory.empty()) return;
  MutexLock lock(&mutex_);
  auto found = memories_.find(memory);
  if (found == memories_.end()) {
    if (memories_.size() == kMostMemories) {
      memories_.erase(by_use_.back());
      by_use_.pop_back();
    }
    by_use_.push_front(memory);
    found = memories_.emplace(memory, Memory{{}, by_use_.begin()}).first;
  }
  std::vector<bool>& blocks = found->second.blocks;
  if (blocks.size() <= block) blocks.resize(block + 1);
  blocks[block] = true;
}

}  // namespace cairn::gpu
