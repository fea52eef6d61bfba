// One index of all tensors that a step's safetensors objects hold together.
//
// A tensor may lie in parts, each saved by its writer: an object's header then says, in its metadata under kPartsKey,
// of which tensor each entry is a part, as JSON: {"entry": {"shape": [whole], "start": [where the part begins]}}, with
// "name" where the tensor's name is not the entry's. What the entry itself says (dtype, shape) is of the part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/safetensors.h"
#include "common/status.h"

namespace cairn::client {

inline constexpr char kPartsKey[] = "cairn.parts";

// The box [start, start + shape) of a tensor: its elements, row by row, from byte `begin` of an object.
struct TensorPart {
  uint32_t object = 0;  // in WeightsIndex::objects
  uint64_t begin = 0;
  std::vector<uint64_t> start;
  std::vector<uint64_t> shape;

  bool operator==(const TensorPart&) const = default;
};

struct IndexedTensor {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;    // of the whole
  std::vector<TensorPart> parts;  // in the order of their starts

  bool operator==(const IndexedTensor&) const = default;
};

struct WeightsIndex {
  std::vector<std::string> objects;    // in layer order of their names
  std::vector<IndexedTensor> tensors;  // see BuildWeightsIndex

  const IndexedTensor* Find(absl::string_view name) const;  // nullptr when absent
};

struct WeightsObject {
  std::string name;
  SafetensorsHeader header;
};

// The order of layers: runs of digits compare as numbers ("layer.2" before "layer.10"), embeddings come first, what
// follows the layers (a final norm, the head) last. A strict weak order of all names.
bool InLayerOrder(absl::string_view a, absl::string_view b);

// The order in which a published object holds its tensors, as indexes of `tensors`: layer order, but last come those that
// do not fill multiples of 8 bytes, larger elements first. So each begins at a multiple of its elements, which stock
// loaders want.
std::vector<size_t> StorageOrder(absl::Span<const TensorEntry> tensors);

// INVALID_ARGUMENT, naming object and tensor, when an object has nonsense under kPartsKey, two parts of a tensor differ
// in dtype or in the whole's shape, a part reaches beyond the whole, or two objects have the same part. That the parts
// are a whole is checked when it is wanted: CheckWhole.
//
// The tensors come in layer order where every object has its own in StorageOrder, as published steps do; else as they
// come, object by object.
StatusOr<WeightsIndex> BuildWeightsIndex(std::vector<WeightsObject> objects);

// INVALID_ARGUMENT, naming the tensor and the range, when its parts leave a hole or overlap.
Status CheckWhole(const IndexedTensor& tensor);

}  // namespace cairn::client
