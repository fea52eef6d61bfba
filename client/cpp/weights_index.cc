#include "client/cpp/weights_index.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/json_entries.h"

namespace cairn::client {
namespace {

// --- the order of layers

enum class Class { kEmbedding, kLayer, kNorm, kHead };

bool IsOneOf(absl::string_view component, std::initializer_list<absl::string_view> names) {
  return std::find(names.begin(), names.end(), component) != names.end();
}

bool IsNumber(absl::string_view component) {
  return !component.empty() && std::all_of(component.begin(), component.end(), absl::ascii_isdigit);
}

// A layer may have an embedding, a norm or a head of its own ("model.layers.61.embed_tokens.weight"): what stands
// behind a number belongs to that layer.
Class ClassOf(absl::string_view name) {
  Class found = Class::kLayer;
  for (absl::string_view component : absl::StrSplit(name, absl::ByAnyChar("./"))) {
    if (IsNumber(component)) return Class::kLayer;
    if (IsOneOf(component, {"lm_head", "head", "score", "classifier", "embed_out"})) {
      found = Class::kHead;
    } else if (IsOneOf(component, {"norm", "ln_f", "norm_f", "final_norm", "final_layernorm",
                                   "final_layer_norm"})) {
      found = std::max(found, Class::kNorm);
    } else if (absl::StrContains(component, "embed") || IsOneOf(component, {"wte", "wpe"})) {
      return Class::kEmbedding;
    }
  }
  return found;
}

// One step of a comparison: the end of a component comes before all characters, so that components compare one by
// one. A run of digits is a single token, which stands where its first digit would.
struct Token {
  int rank = 0;
  absl::string_view digits;  // of a number
};

Token TakeToken(absl::string_view* rest) {
  constexpr int kEnd = 0, kSlash = 1, kDot = 2, kFirstCharacter = 3;
  if (rest->empty()) return {kEnd, {}};
  const auto first = static_cast<unsigned char>(rest->front());
  size_t n = 1;
  Token token;
  if (absl::ascii_isdigit(first)) {
    while (n < rest->size() && absl::ascii_isdigit(static_cast<unsigned char>((*rest)[n]))) ++n;
    token = {kFirstCharacter + '0', rest->substr(0, n)};
  } else {
    token.rank = first == '/' ? kSlash : first == '.' ? kDot : kFirstCharacter + first;
  }
  rest->remove_prefix(n);
  return token;
}

int CompareNumbers(absl::string_view a, absl::string_view b) {
  const auto value = [](absl::string_view digits) {
    digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
    return digits;
  };
  const absl::string_view x = value(a), y = value(b);
  if (x.size() != y.size()) return x.size() < y.size() ? -1 : 1;
  if (const int order = x.compare(y); order != 0) return order;
  return a.size() == b.size() ? 0 : a.size() < b.size() ? -1 : 1;  // fewer leading zeros first
}

// --- what an object says of its parts

struct PartOf {
  std::string name;
  std::vector<uint64_t> shape;  // of the whole
  std::vector<uint64_t> start;
};

StatusOr<PartOf> TakePartOf(JsonEntry entry) {
  PartOf part;
  part.name = entry.name;
  bool has_shape = false, has_start = false;
  for (JsonField& field : entry.fields) {
    const auto bad = [&](absl::string_view why) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(entry.name), ": ", Quoted(field.name), " ", why));
    };
    if (field.name == "name") {
      if (field.text() == nullptr) return bad("is not text");
      if (field.text()->empty()) return bad("is empty");
      part.name = *field.text();
    } else if (field.name == "shape" || field.name == "start") {
      if (field.numbers() == nullptr) return bad("is not a list of numbers");
      (field.name == "shape" ? has_shape : has_start) = true;
      (field.name == "shape" ? part.shape : part.start) = *field.numbers();
    } else {
      return bad("is not a field of a part");
    }
  }
  if (!has_shape)
    return absl::InvalidArgumentError(absl::StrCat(Quoted(entry.name), " has no shape"));
  if (!has_start)
    return absl::InvalidArgumentError(absl::StrCat(Quoted(entry.name), " has no start"));
  return part;
}

// By the entry's name.
using PartsOfEntries = std::map<std::string, PartOf>;

StatusOr<PartsOfEntries> ReadParts(const SafetensorsHeader& header) {
  PartsOfEntries parts;
  const auto found = header.metadata.find(kPartsKey);
  if (found == header.metadata.end()) return parts;
  CAIRN_RETURN_IF_ERROR(ReadJsonEntries(found->second, [&](JsonEntry entry) -> Status {
    std::string name = entry.name;
    CAIRN_ASSIGN_OR_RETURN(PartOf part, TakePartOf(std::move(entry)));
    parts.emplace(std::move(name), std::move(part));
    return absl::OkStatus();
  }));
  return parts;
}

// --- boxes

bool IsEmpty(const std::vector<uint64_t>& shape) {
  return std::find(shape.begin(), shape.end(), 0) != shape.end();
}

std::string Shape(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

struct IndexBox {
  std::vector<uint64_t> begin, end;  // by dimension

  std::string DebugString() const {
    std::vector<std::string> ranges;
    for (size_t d = 0; d < begin.size(); ++d) ranges.push_back(absl::StrCat(begin[d], ":", end[d]));
    return absl::StrCat("[", absl::StrJoin(ranges, ", "), "]");
  }
};

uint64_t End(const TensorPart& part, size_t d) { return part.start[d] + part.shape[d]; }

IndexBox IndexBoxOf(const TensorPart& part) {
  IndexBox box{part.start, part.start};
  for (size_t d = 0; d < box.end.size(); ++d) box.end[d] = End(part, d);
  return box;
}

// Makes `box` what it has in common with the part; false when that is nothing.
bool Clip(const TensorPart& part, IndexBox* box) {
  for (size_t d = 0; d < box->begin.size(); ++d) {
    box->begin[d] = std::max(box->begin[d], part.start[d]);
    box->end[d] = std::min(box->end[d], End(part, d));
    if (box->begin[d] >= box->end[d]) return false;
  }
  return true;
}

bool Overlap(const TensorPart& a, const TensorPart& b) {
  for (size_t d = 0; d < a.start.size(); ++d) {
    if (a.start[d] >= End(b, d) || b.start[d] >= End(a, d)) return false;
  }
  return true;
}

// INVALID_ARGUMENT unless the part lies within the whole, dimension by dimension.
Status CheckWithin(const TensorPart& part, const std::vector<uint64_t>& whole) {
  if (part.shape.size() != whole.size() || part.start.size() != whole.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a part of shape ", Shape(part.shape), " at ",
                                                   Shape(part.start), " of a tensor of shape ",
                                                   Shape(whole), ": their dimensions differ"));
  }
  for (size_t d = 0; d < whole.size(); ++d) {
    if (part.start[d] > whole[d] || part.shape[d] > whole[d] - part.start[d]) {
      return absl::InvalidArgumentError(
          absl::StrCat("a part of shape ", Shape(part.shape), " at ", Shape(part.start),
                       " reaches beyond the shape ", Shape(whole), " in dimension ", d));
    }
  }
  return absl::OkStatus();
}

// --- whether parts are a whole
//
// They are when no two overlap and together they have as many elements as the whole. Both are cheap. Where the hole is
// matters only once there is one.

using Parts = std::vector<const TensorPart*>;
using Group = std::pair<size_t, size_t>;  // [begin, end) of Parts

// Cuts a group where no part lies on both sides, along the first of `dims` that allows it.
bool Separate(const std::vector<size_t>& dims, Group group, Parts* parts,
              std::vector<Group>* groups) {
  const auto begin = parts->begin() + group.first, end = parts->begin() + group.second;
  for (size_t d : dims) {
    std::sort(begin, end,
              [d](const TensorPart* a, const TensorPart* b) { return a->start[d] < b->start[d]; });
    size_t from = group.first;
    uint64_t reach = End(**begin, d);
    for (size_t i = group.first + 1; i < group.second; ++i) {
      const TensorPart& part = *(*parts)[i];
      if (part.start[d] >= reach) {
        groups->emplace_back(from, i);
        from = i;
      }
      reach = std::max(reach, End(part, d));
    }
    if (from == group.first) continue;
    groups->emplace_back(from, group.second);
    return true;
  }
  return false;
}

// A second's work; no known way of sharding needs any.
constexpr uint64_t kMostPairs = uint64_t{1} << 25;

// What two of the parts both hold. Parts that were cut one dimension after the other, as all known ways of sharding
// do, cost n log n; only those that interlock are compared pair by pair.
StatusOr<std::optional<IndexBox>> FindOverlap(const std::vector<uint64_t>& whole, Parts parts) {
  std::vector<size_t> dims;
  for (size_t d = 0; d < whole.size(); ++d) {
    if (whole[d] > 1) dims.push_back(d);
  }
  std::vector<Group> groups = {{0, parts.size()}};
  uint64_t pairs = 0;
  while (!groups.empty()) {
    const Group group = groups.back();
    groups.pop_back();
    if (group.second - group.first < 2 || Separate(dims, group, &parts, &groups)) continue;
    const uint64_t count = group.second - group.first;
    pairs += count * (count - 1) / 2;
    if (pairs > kMostPairs) {
      return absl::InvalidArgumentError(
          absl::StrCat("its parts interlock in more ways than are looked at: ", kMostPairs));
    }
    for (size_t i = group.first; i < group.second; ++i) {
      for (size_t j = i + 1; j < group.second; ++j) {
        if (!Overlap(*parts[i], *parts[j])) continue;
        IndexBox box = IndexBoxOf(*parts[i]);
        (void)Clip(*parts[j], &box);
        return std::optional<IndexBox>(box);
      }
    }
  }
  return std::optional<IndexBox>();
}

// Neither overflows for what lies within a whole that TensorBytes accepts, and for parts without an overlap.
uint64_t Elements(const IndexBox& box) {
  uint64_t elements = 1;
  for (size_t d = 0; d < box.begin.size(); ++d) elements *= box.end[d] - box.begin[d];
  return elements;
}
uint64_t ElementsHeld(const IndexBox& box, const Parts& parts) {
  uint64_t elements = 0;
  for (const TensorPart* part : parts) {
    IndexBox common = box;
    if (Clip(*part, &common)) elements += Elements(common);
  }
  return elements;
}

// A box that no part holds anything of, within one that the parts, which do not overlap, do not fill. Takes the parts
// away one by one: what is left around one is cut into boxes, of which one is not full.
IndexBox FindHole(IndexBox box, Parts parts) {
  for (;;) {
    parts.erase(std::remove_if(parts.begin(), parts.end(),
                               [&](const TensorPart* part) {
                                 IndexBox common = box;
                                 return !Clip(*part, &common);
                               }),
                parts.end());
    if (parts.empty()) return box;
    const TensorPart& part = *parts[parts.size() / 2];
    IndexBox rest = box;  // what of it is not yet cut off, the part's own included
    std::optional<IndexBox> next;
    for (size_t d = 0; d < box.begin.size() && !next.has_value(); ++d) {
      const uint64_t begin = std::max(rest.begin[d], part.start[d]);
      const uint64_t end = std::min(rest.end[d], End(part, d));
      for (const auto& [from, to] :
           {std::pair(rest.begin[d], begin), std::pair(end, rest.end[d])}) {
        IndexBox side = rest;
        side.begin[d] = from;
        side.end[d] = to;
        if (from < to && ElementsHeld(side, parts) < Elements(side)) {
          next = side;
          break;
        }
      }
      rest.begin[d] = begin;
      rest.end[d] = end;
    }
    if (!next.has_value()) return box;  // not for parts that do not overlap
    box = *std::move(next);
  }
}

// --- the index

class Builder {
 public:
  explicit Builder(std::vector<WeightsObject> objects) : objects_(std::move(objects)) {
    std::stable_sort(objects_.begin(), objects_.end(),
                     [](const WeightsObject& a, const WeightsObject& b) {
                       return InLayerOrder(a.name, b.name);
                     });
  }

  StatusOr<WeightsIndex> Build() {
    for (size_t i = 0; i < objects_.size(); ++i) {
      index_.objects.push_back(objects_[i].name);
      CAIRN_RETURN_IF_ERROR(
          Annotate(AddObject(static_cast<uint32_t>(i), objects_[i].header), InObject(i)));
    }
    for (IndexedTensor& tensor : index_.tensors) CAIRN_RETURN_IF_ERROR(Settle(&tensor));
    if (all_in_order_) {
      std::sort(index_.tensors.begin(), index_.tensors.end(),
                [](const IndexedTensor& a, const IndexedTensor& b) {
                  return InLayerOrder(a.name, b.name);
                });
    }
    return std::move(index_);
  }

 private:
  std::string InObject(size_t i) const { return absl::StrCat("object ", Quoted(objects_[i].name)); }

  Status AddObject(uint32_t object, const SafetensorsHeader& header) {
    auto read = ReadParts(header);
    if (!read.ok()) return Annotate(read.status(), kPartsKey);
    PartsOfEntries& parts = *read;
    std::vector<TensorEntry> tensors;  // by the names of the wholes
    for (const TensorEntry& entry : header.tensors) {
      PartOf whole{entry.name, entry.shape, std::vector<uint64_t>(entry.shape.size(), 0)};
      if (const auto part = parts.find(entry.name); part != parts.end()) {
        whole = std::move(part->second);
        parts.erase(part);
      }
      tensors.push_back({whole.name, entry.dtype, entry.shape});
      CAIRN_RETURN_IF_ERROR(Annotate(AddPart(object, entry, whole), Quoted(whole.name)));
    }
    const std::vector<size_t> order = StorageOrder(tensors);
    all_in_order_ &= std::is_sorted(order.begin(), order.end());
    if (parts.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(kPartsKey, ": ", Quoted(parts.begin()->first),
                                                   " is not a tensor of the object"));
  }

  Status AddPart(uint32_t object, const TensorEntry& entry, const PartOf& whole) {
    TensorPart part{object, entry.begin, whole.start, entry.shape};
    CAIRN_RETURN_IF_ERROR(TensorBytes(entry.dtype, whole.shape).status());
    CAIRN_RETURN_IF_ERROR(CheckWithin(part, whole.shape));
    const auto [known, is_new] = by_name_.emplace(whole.name, index_.tensors.size());
    if (is_new) {
      index_.tensors.push_back({whole.name, entry.dtype, whole.shape, {std::move(part)}});
      return absl::OkStatus();
    }
    IndexedTensor& tensor = index_.tensors[known->second];
    const size_t other = tensor.parts.front().object;
    if (tensor.dtype != entry.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dtype: ", Quoted(entry.dtype), ", but ", Quoted(tensor.dtype), " in ", InObject(other)));
    }
    if (tensor.shape != whole.shape) {
      return absl::InvalidArgumentError(absl::StrCat("shape: ", Shape(whole.shape), ", but ",
                                                     Shape(tensor.shape), " in ", InObject(other)));
    }
    tensor.parts.push_back(std::move(part));
    return absl::OkStatus();
  }

  // Puts the parts in order; INVALID_ARGUMENT when two are the same.
  Status Settle(IndexedTensor* tensor) const {
    std::vector<TensorPart>& parts = tensor->parts;
    std::sort(parts.begin(), parts.end(), [](const TensorPart& a, const TensorPart& b) {
      return std::tie(a.start, a.shape, a.object, a.begin) <
             std::tie(b.start, b.shape, b.object, b.begin);
    });
    for (size_t i = 1; i < parts.size(); ++i) {
      const TensorPart &a = parts[i - 1], &b = parts[i];
      if (a.start != b.start || a.shape != b.shape || IsEmpty(a.shape)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(InObject(a.object), " and ", InObject(b.object), " both hold ",
                       IndexBoxOf(a).DebugString(), " of ", Quoted(tensor->name)));
    }
    return absl::OkStatus();
  }

  std::vector<WeightsObject> objects_;  // in layer order
  WeightsIndex index_;
  absl::flat_hash_map<std::string, size_t> by_name_;  // in index_.tensors
  bool all_in_order_ = true;                          // each object's own tensors
};

}  // namespace

bool InLayerOrder(absl::string_view a, absl::string_view b) {
  const Class class_a = ClassOf(a), class_b = ClassOf(b);
  if (class_a != class_b) return class_a < class_b;
  while (!a.empty() || !b.empty()) {
    const Token x = TakeToken(&a), y = TakeToken(&b);
    if (x.rank != y.rank) return x.rank < y.rank;
    if (const int order = CompareNumbers(x.digits, y.digits); order != 0) return order < 0;
  }
  return false;
}

const IndexedTensor* WeightsIndex::Find(absl::string_view name) const {
  for (const IndexedTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

StatusOr<WeightsIndex> BuildWeightsIndex(std::vector<WeightsObject> objects) {
  return Builder(std::move(objects)).Build();
}

Status CheckWhole(const IndexedTensor& tensor) {
  const std::string name = Quoted(tensor.name);
  if (const auto bytes = TensorBytes(tensor.dtype, tensor.shape); !bytes.ok()) {
    return Annotate(bytes.status(), name);
  }
  Parts parts;
  for (const TensorPart& part : tensor.parts) {
    CAIRN_RETURN_IF_ERROR(Annotate(CheckWithin(part, tensor.shape), name));
    if (!IsEmpty(part.shape)) parts.push_back(&part);
  }
  const StatusOr<std::optional<IndexBox>> overlap = FindOverlap(tensor.shape, parts);
  if (!overlap.ok()) return Annotate(overlap.status(), name);
  if (overlap->has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": two parts hold ", (*overlap)->DebugString()));
  }
  const IndexBox whole{std::vector<uint64_t>(tensor.shape.size(), 0), tensor.shape};
  if (ElementsHeld(whole, parts) == Elements(whole)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " lacks ", FindHole(whole, std::move(parts)).DebugString()));
}

std::vector<size_t> StorageOrder(absl::Span<const TensorEntry> tensors) {
  const auto bits_at_end = [&](size_t i) -> uint32_t {
    const TensorEntry& tensor = tensors[i];
    return TensorBytes(tensor.dtype, tensor.shape).value_or(0) % 8 == 0 ? 0
                                                                        : DtypeBits(tensor.dtype);
  };
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const uint32_t at_end_a = bits_at_end(a), at_end_b = bits_at_end(b);
    if ((at_end_a != 0) != (at_end_b != 0)) return at_end_b != 0;
    if (at_end_a != at_end_b) return at_end_a > at_end_b;
    return InLayerOrder(tensors[a].name, tensors[b].name);
  });
  return order;
}

}  // namespace cairn::client
