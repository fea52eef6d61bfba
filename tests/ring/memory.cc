#include "tests/ring/memory.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checksum.h"

namespace cairn::engine::ringsim {

std::vector<uint32_t> Checksums(const Content& content) {
  std::vector<uint32_t> crcs(BlockCount(content.length, kBlockBytes));
  for (size_t i = 0; i < crcs.size(); ++i) crcs[i] = content.number + static_cast<uint32_t>(i);
  return crcs;
}

void Memory::Make(SlabId slab, uint64_t bytes) {
  uint64_t& made = slabs_[slab].bytes;
  total_ += bytes - made;
  made = bytes;
}

void Memory::Destroy(SlabId slab) {
  const auto at = slabs_.find(slab);
  if (at == slabs_.end()) return;
  total_ -= at->second.bytes;
  slabs_.erase(at);
}

bool Memory::Write(SlabId slab, uint64_t offset, const Content& content) {
  const auto at = slabs_.find(slab);
  if (at == slabs_.end() || offset + content.length > at->second.bytes) return false;
  if (content.length == 0) return true;
  std::map<uint64_t, Content>& all = at->second.contents;
  auto next = all.upper_bound(offset);
  if (next != all.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.length > offset) all.erase(before);
  }
  while (next != all.end() && next->first < offset + content.length) next = all.erase(next);
  all[offset] = content;
  return true;
}

std::string Memory::Wrong(const ObjectEntry& entry, const ExtentRef& extent) const {
  const auto slab = slabs_.find(extent.slab);
  if (slab == slabs_.end()) return absl::StrCat(entry.name, ": slab ", extent.slab, " is gone");
  if (entry.length == 0) return "";
  const auto at = slab->second.contents.find(extent.offset);
  if (at == slab->second.contents.end()) {
    return absl::StrCat(entry.name, ": nothing lies at ", extent.offset, " of slab ", extent.slab);
  }
  if (at->second.length != entry.length || entry.block_crcs.empty() ||
      entry.block_crcs.front() != at->second.number) {
    return absl::StrCat(entry.name, ": other bytes lie at ", extent.offset, " of slab ",
                        extent.slab);
  }
  return "";
}

std::vector<std::pair<SlabId, uint64_t>> Memory::Held() const {
  std::vector<std::pair<SlabId, uint64_t>> held;
  held.reserve(slabs_.size());
  for (const auto& [id, slab] : slabs_) held.emplace_back(id, slab.bytes);
  return held;
}

}  // namespace cairn::engine::ringsim
