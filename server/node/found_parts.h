// Committed parts that a damaged journal no longer tells of, found again by their records
// (facts/part_record.h) in the slabs that the keeper holds. Pure, but for what reads slabs.
//
// A record tells what was committed once, not that it still counts: the part may have been dropped
// since, its memory written over or lent anew. So what is found joins the facts only when all of
// this holds:
//  - It was sealed for the very place where it lies, in a slab that the keeper holds for manifests:
//    the node wrote it, and no client ever had that memory.
//  - Nothing that is known contradicts it. Of the facts that verify behind the damage those count
//    that say that something is gone; of them none brings anything back.
//  - All its bytes are there and match their checksums.
//  - No later part claims a slab of its: a slab holds objects of one part, so the earlier one had
//    left it.
// What was dropped, and is neither known to be nor written over yet, comes back as it was committed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "server/facts/facts.h"
#include "server/facts/part_record.h"
#include "server/node/recovery.h"

namespace cairn::node {

// What the keeper holds, and how to read it.
struct HeldMemory {
  struct Slab {
    uint64_t bytes = 0;
    fact::SlabUse use = fact::SlabUse::kObjects;  // as the keeper says
  };
  std::map<SlabId, Slab> slabs;
  ReadExtent read;
  // The CRC32C of each block of the extent's first `length` bytes.
  std::function<StatusOr<std::vector<uint32_t>>(const ExtentRef& extent, uint64_t length,
                                                uint32_t block_bytes)>
      crcs;
};

struct FoundPart {
  SealedRecord record;
  ExtentRef extent;  // of the record
  const Manifest& head() const { return record.table->head; }
};

// What left memory or was removed behind the damage, as far as `behind` tells, is said at the end
// of `facts`: it stays so.
void JoinLosses(const std::vector<Fact>& behind, std::vector<Fact>* facts);

// All records that the node sealed with `secret`, in the slabs held for manifests. Slabs that cannot
// be read are named in `problems`.
std::vector<FoundPart> FindParts(const HeldMemory& memory, uint64_t secret,
                                 std::vector<std::string>* problems);

// Lets what was found join `facts`; `tables` are those of the parts that these know and whose
// records verify. Returns the parts that joined; why others did not is told in `problems`, but for
// those that the facts know.
std::vector<PartKey> JoinFoundParts(
    std::vector<FoundPart> found, const std::vector<Fact>& behind, const HeldMemory& memory,
    const std::map<PartKey, std::shared_ptr<const PartTable>>& tables, std::vector<Fact>* facts,
    std::vector<std::string>* problems);

}  // namespace cairn::node
