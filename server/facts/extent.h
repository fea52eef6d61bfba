// The values in which facts speak of memory. The rooms that hold and move bytes know these and no fact.
#pragma once

#include <cstdint>

#include "common/keys.h"

namespace cairn {

struct ExtentRef {
  SlabId slab = 0;
  uint64_t offset = 0;
  uint64_t length = 0;  // the extent's capacity, a multiple of the page size
  bool operator==(const ExtentRef&) const = default;
};

enum class LeaseMode : uint8_t {
  kWrite = 0,  // the writer's own slab, mapped read-write
  kMap = 1,    // a reader's private mapping
  kFile = 2,   // a reader that may open by path
  kRead = 3,   // bytes are copied out at once (pread or Thrift chunks)
  // A consumer's mapping, read-write, that it keeps from version to version and may have registered with a
  // device. It is not a reader's: the slab is written again while it exists.
  kStanding = 4,
};

// Why a node has a part.
enum class PartRole : uint8_t {
  kOwn = 0,      // one of its own writers committed it, or it got it back after it was lost here
  kReplica = 1,  // its owner asked for it
  kFetched = 2,  // a reader here loaded it
};

namespace fact {

enum class SlabUse : uint8_t { kObjects = 0, kManifests = 1 };

}  // namespace fact
}  // namespace cairn
