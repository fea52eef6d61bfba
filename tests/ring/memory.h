// A node's slabs, which outlive its daemon. In place of bytes an object has a content: one number, which is
// the checksum of its first block; that of the i-th is the number + i. So a manifest says which content its
// objects have, and whoever holds a table can be compared with it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/manifest.h"
#include "server/facts/facts.h"
#include "server/facts/part_record.h"

namespace cairn::engine::ringsim {

struct Content {
  uint32_t number = 0;
  uint64_t length = 0;
};
std::vector<uint32_t> Checksums(const Content& content);

class Memory {
 public:
  void Make(SlabId slab, uint64_t bytes);
  void Destroy(SlabId slab);
  bool Has(SlabId slab) const { return slabs_.contains(slab); }
  // False: it does not fit, or there is no such slab.
  bool Write(SlabId slab, uint64_t offset, const Content& content);
  // What the object's place should hold, by its entry, and does not: in words; "" when it does.
  std::string Wrong(const ObjectEntry& entry, const ExtentRef& extent) const;
  uint64_t TotalBytes() const { return total_; }
  std::vector<std::pair<SlabId, uint64_t>> Held() const;

 private:
  struct Slab {
    uint64_t bytes = 0;
    std::map<uint64_t, Content> contents;  // by offset
  };
  std::map<SlabId, Slab> slabs_;
  uint64_t total_ = 0;  // bytes of the slabs
};

}  // namespace cairn::engine::ringsim
