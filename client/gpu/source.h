// Where a stream's bytes come from: the blocks of one object. From memory, from a file in storage or in chunks
// (object_source.h); later from other nodes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/cpp/standing.h"
#include "common/status.h"

namespace cairn::gpu {

// Thread-safe. Blocks are of kBlockBytes; the last one is shorter. `into` begins at a page and has room for whole pages.
class Source {
 public:
  virtual ~Source() = default;

  virtual const std::string& what() const = 0;  // "run7/12 object model.safetensors", for errors
  virtual uint64_t length() const = 0;
  // CRC32C of each block.
  virtual const std::vector<uint32_t>& block_crcs() const = 0;

  // The block in this process's memory, as it lies there, unchecked; stays while the source lives. Null: it is not
  // there, and is Read.
  virtual const char* Mapped(uint64_t block) = 0;
  // Names the memory that is mapped, and what lies in it: the blocks of two sources that have this in common are the
  // same. Empty where nothing is mapped.
  virtual const std::string& memory() const = 0;

  // Where it lies in a slab that may be mapped for good. Nowhere, unless said otherwise.
  virtual client::StandingPlace standing() { return {}; }

  // The block as it lies there, unchecked: whoever reads it compares it with its checksum. With `crc` the CRC32C of what
  // was read, taken while it passes.
  virtual Status Read(uint64_t block, void* into, uint32_t* crc) = 0;
  // The block, checked; from another copy where this one is bad. DATA_LOSS when no copy is good.
  virtual Status ReadChecked(uint64_t block, void* into) = 0;
};

}  // namespace cairn::gpu
