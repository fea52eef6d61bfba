#include "tests/sim/memory.h"

#include <iterator>

#include "absl/strings/str_cat.h"

namespace cairn::engine::sim {

void SimSlab::Write(uint64_t offset, Region region) {
  const uint64_t length = region.bytes.length;
  for (auto at = regions.begin(); at != regions.end();) {
    const bool apart =
        at->first + at->second.bytes.length <= offset || offset + length <= at->first;
    at = apart ? std::next(at) : regions.erase(at);
  }
  if (length > 0) regions[offset] = std::move(region);
}

void SimSlab::DropGhosts() {
  std::erase_if(maps, [](Holder holder) { return holder < 0; });
  std::erase_if(locks, [](const auto& lock) { return lock.second < 0; });
  std::erase_if(by_path, [](Holder holder) { return holder < 0; });
}

uint64_t Memory::TotalBytes() const {
  uint64_t total = 0;
  for (const auto& [id, slab] : slabs) total += slab.bytes;
  return total;
}

Region* Memory::At(const ExtentRef& extent) {
  const auto slab = slabs.find(extent.slab);
  if (slab == slabs.end()) return nullptr;
  const auto region = slab->second.regions.find(extent.offset);
  return region == slab->second.regions.end() ? nullptr : &region->second;
}

const Region* Memory::At(const ExtentRef& extent) const {
  return const_cast<Memory*>(this)->At(extent);
}

bool Memory::Locked(SlabId slab, LeaseId lease) const {
  const auto at = slabs.find(slab);
  return at != slabs.end() && at->second.locks.contains(lease);
}

bool Memory::Unseen(SlabId slab) const {
  const auto at = slabs.find(slab);
  return at != slabs.end() && !at->second.Seen();
}

std::string Memory::WrongBytes(const ExtentRef& extent, const ObjectBytes& wanted) const {
  if (wanted.length == 0) return "";
  const Region* region = At(extent);
  if (region == nullptr) {
    return absl::StrCat("its bytes are gone from slab ", extent.slab, "+", extent.offset);
  }
  if (region->bytes != wanted) {
    return absl::StrCat("other bytes were written over slab ", extent.slab, "+", extent.offset);
  }
  return "";
}

std::shared_ptr<const PartTable> Memory::RecordOf(const fact::PartCommitted& committed) const {
  const Region* region = At(committed.extent);
  if (region == nullptr || region->record.size() < committed.bytes) return nullptr;
  const std::string manifest = region->record.substr(0, committed.bytes);
  if (ManifestDigest(manifest) != committed.digest) return nullptr;
  auto table = DecodePartRecord(region->record, committed.bytes);
  return table.ok() ? *std::move(table) : nullptr;
}

}  // namespace cairn::engine::sim
