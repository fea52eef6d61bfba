// Which bytes of which blocks a consumer wants, and where they go. Pure: of the index and what is selected alone, so
// that members of a group can agree on a plan by its digest before a byte moves.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "client/cpp/weights_index.h"
#include "common/status.h"

namespace cairn::client {

// The elements [begin, end) along `dim`, which counts from the back where it is negative.
struct Slice {
  int dim = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};
// What `rank` of `of` has along `dim`, as torch.chunk and DTensor cut: all ranks get ceil(n / of) elements while there
// are any. A scalar is whole for every rank.
struct Shard {
  uint64_t rank = 0;
  uint64_t of = 1;
  int dim = 0;
};

struct Selection {
  // Names, or patterns as in a shell ("model.layers.*"); all tensors when there are none. What is a tensor's name is no
  // pattern.
  std::vector<std::string> names;
  // The first whose pattern matches cuts a tensor; others are wanted whole.
  struct Cut {
    std::string pattern;
    std::variant<Slice, Shard> what;
  };
  std::vector<Cut> cuts;
};

struct WantedTensor {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;  // of what is wanted
  uint64_t bytes = 0;
};

// `count` runs of `width` bytes of one wanted tensor, all within one block.
struct PlannedPiece {
  uint32_t tensor = 0;  // in Plan::tensors
  uint64_t from = 0;    // in the block
  uint64_t to = 0;      // in the tensor
  uint64_t width = 0;
  uint64_t count = 1;
  uint64_t from_pitch = 0;  // from where one run begins to where the next does
  uint64_t to_pitch = 0;

  bool operator==(const PlannedPiece&) const = default;
};

struct PlannedBlock {
  uint32_t object = 0;               // in WeightsIndex::objects
  uint64_t block = 0;                // of kBlockBytes
  std::vector<PlannedPiece> pieces;  // in the order of `from`
};

struct Plan {
  std::vector<WantedTensor> tensors;  // in the index's order
  // Every block that holds a wanted byte, once, by the first tensor that wants it.
  std::vector<PlannedBlock> blocks;
};

// The tensors that the names or patterns of a Selection select, in the index's order. INVALID_ARGUMENT, with the name, for
// one that matches nothing.
StatusOr<std::vector<const IndexedTensor*>> SelectTensors(const WeightsIndex& index,
                                                          const std::vector<std::string>& names);

// INVALID_ARGUMENT, with the name, for a name or pattern that matches nothing, a pattern of a cut that matches no
// selected tensor, a slice or dimension out of range, a rank beyond its size, elements that do not end at bytes, bytes in
// millions of runs, and as
// CheckWhole for each tensor selected.
StatusOr<Plan> MakePlan(const WeightsIndex& index, const Selection& selection);

// The first 16 bytes of SHA-256 over all it says, in hex.
std::string PlanDigest(const Plan& plan);

}  // namespace cairn::client
