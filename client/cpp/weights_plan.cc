#include "client/cpp/weights_plan.h"

#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/keys.h"
#include "common/manifest.h"

namespace cairn::client {
namespace {

// Of one plan: a quarter of a gigabyte. A slice along one dimension takes one or three in each block.
constexpr uint64_t kMostPieces = uint64_t{1} << 22;

// A box of a tensor's elements.
struct Box {
  std::vector<uint64_t> start;
  std::vector<uint64_t> shape;
};

// Patterns and names, of which each name finds those that match it: the names of tensors by themselves, and only what is
// no tensor's name as a pattern.
class Patterns {
 public:
  Patterns(const std::vector<std::string>& patterns, const WeightsIndex& index)
      : matched_(patterns.size(), false) {
    absl::flat_hash_set<absl::string_view> tensors;
    for (const IndexedTensor& tensor : index.tensors) tensors.insert(tensor.name);
    for (size_t i = 0; i < patterns.size(); ++i) {
      if (tensors.contains(patterns[i])) {
        names_[patterns[i]].push_back(i);
      } else {
        patterns_.emplace_back(patterns[i], i);
      }
    }
  }

  // The first that matches.
  std::optional<size_t> Match(const std::string& name) {
    std::optional<size_t> first;
    const auto matches = [&](size_t i) {
      matched_[i] = true;
      first = std::min(first.value_or(i), i);
    };
    if (const auto found = names_.find(name); found != names_.end()) {
      for (size_t i : found->second) matches(i);
    }
    for (const auto& [pattern, i] : patterns_) {
      if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) matches(i);
    }
    return first;
  }

  std::optional<size_t> Unmatched() const {
    const auto found = std::find(matched_.begin(), matched_.end(), false);
    if (found == matched_.end()) return std::nullopt;
    return found - matched_.begin();
  }

 private:
  absl::flat_hash_map<std::string, std::vector<size_t>> names_;
  std::vector<std::pair<std::string, size_t>> patterns_;
  std::vector<bool> matched_;
};

std::string InQuotes(const std::string& name) { return absl::StrCat("\"", name, "\""); }

Status NothingMatches(absl::string_view what, const std::string& pattern,
                      const std::vector<const IndexedTensor*>& tensors) {
  constexpr size_t kMostShown = 4;
  std::vector<std::string> some;
  for (size_t i = 0; i < std::min(kMostShown, tensors.size()); ++i) {
    some.push_back(InQuotes(tensors[i]->name));
  }
  if (tensors.size() > kMostShown) some.push_back("…");
  return absl::InvalidArgumentError(absl::StrCat(what, " ", InQuotes(pattern),
                                                 " matches none of the ", tensors.size(),
                                                 " tensors: ", absl::StrJoin(some, ", ")));
}

StatusOr<size_t> Dimension(const IndexedTensor& tensor, int dim) {
  const int rank = static_cast<int>(tensor.shape.size());
  if (dim < -rank || dim >= rank) {
    return absl::InvalidArgumentError(absl::StrCat("dim ", dim, " of ", InQuotes(tensor.name),
                                                   ", which has ", rank, " dimensions"));
  }
  return static_cast<size_t>(dim < 0 ? dim + rank : dim);
}

StatusOr<Box> CutOut(const IndexedTensor& tensor, const Slice& slice) {
  CAIRN_ASSIGN_OR_RETURN(const size_t dim, Dimension(tensor, slice.dim));
  if (slice.begin > slice.end || slice.end > tensor.shape[dim]) {
    return absl::InvalidArgumentError(
        absl::StrCat("slice ", slice.begin, ":", slice.end, " along dim ", slice.dim, " of ",
                     InQuotes(tensor.name), ", which has ", tensor.shape[dim], " there"));
  }
  Box box{std::vector<uint64_t>(tensor.shape.size(), 0), tensor.shape};
  box.start[dim] = slice.begin;
  box.shape[dim] = slice.end - slice.begin;
  return box;
}

StatusOr<Box> CutOut(const IndexedTensor& tensor, const Shard& shard) {
  if (shard.rank >= shard.of) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard: rank ", shard.rank, " of ", shard.of, "; ranks begin at 0"));
  }
  if (tensor.shape.empty()) return Box{};
  CAIRN_ASSIGN_OR_RETURN(const size_t dim, Dimension(tensor, shard.dim));
  const uint64_t n = tensor.shape[dim];
  const uint64_t each = n / shard.of + (n % shard.of != 0 ? 1 : 0);
  // rank · each ≤ n + of, but for ranks that have nothing: no product that could be too large is taken.
  const uint64_t begin = each == 0 || shard.rank > n / each ? n : std::min(n, shard.rank * each);
  return CutOut(tensor, Slice{shard.dim, begin, std::min(n, begin + each)});
}

// Bytes between neighbours along each dimension of a box that is stored row by row, in units of one element.
std::vector<uint64_t> Strides(const std::vector<uint64_t>& shape) {
  std::vector<uint64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// Rows of one object, not yet cut at its blocks.
struct Rows {
  uint64_t from = 0;  // in the object
  uint64_t to = 0;    // in the wanted tensor
  uint64_t width = 0, count = 1, from_pitch = 0, to_pitch = 0;
};

class Planner {
 public:
  // What `part` holds of `wanted` becomes pieces of tensor number `number`.
  Status Add(uint32_t number, const IndexedTensor& tensor, const Box& wanted,
             const TensorPart& part) {
    const size_t rank = tensor.shape.size();
    Box both{std::vector<uint64_t>(rank), std::vector<uint64_t>(rank)};
    for (size_t d = 0; d < rank; ++d) {
      const uint64_t begin = std::max(wanted.start[d], part.start[d]);
      const uint64_t end =
          std::min(wanted.start[d] + wanted.shape[d], part.start[d] + part.shape[d]);
      if (begin >= end) return absl::OkStatus();
      both.start[d] = begin;
      both.shape[d] = end - begin;
    }
    // Dimensions from `inner` on lie in one run in both: all but the first of them are whole in both.
    const auto whole = [&](size_t d) {
      return both.shape[d] == part.shape[d] && both.shape[d] == wanted.shape[d];
    };
    size_t inner = rank;
    uint64_t run = 1;
    while (inner > 0) {
      --inner;
      run *= both.shape[inner];
      if (!whole(inner)) break;
    }
    // And those from `middle` on have one distance from run to run.
    size_t middle = inner;
    uint64_t count = 1;
    while (middle > 0) {
      --middle;
      count *= both.shape[middle];
      if (!whole(middle)) break;
    }
    const std::vector<uint64_t> from_strides = Strides(part.shape);
    const std::vector<uint64_t> to_strides = Strides(wanted.shape);
    std::vector<uint64_t> at(middle, 0);  // of the dimensions before
    const uint32_t bits = DtypeBits(tensor.dtype);
    for (;;) {
      uint64_t from = 0, to = 0;  // in elements
      for (size_t d = 0; d < rank; ++d) {
        const uint64_t here = both.start[d] + (d < middle ? at[d] : 0);
        from += (here - part.start[d]) * from_strides[d];
        to += (here - wanted.start[d]) * to_strides[d];
      }
      Rows rows;
      rows.count = count;
      const uint64_t from_pitch = inner > 0 ? from_strides[inner - 1] : run;
      const uint64_t to_pitch = inner > 0 ? to_strides[inner - 1] : run;
      for (const auto& [elements, bytes] :
           {std::pair{from, &rows.from}, std::pair{to, &rows.to}, std::pair{run, &rows.width},
            std::pair{from_pitch, &rows.from_pitch}, std::pair{to_pitch, &rows.to_pitch}}) {
        if (bits % 8 != 0 && elements * bits % 8 != 0) {
          return absl::InvalidArgumentError(
              absl::StrCat("the slice of ", InQuotes(tensor.name),
                           " does not end at whole bytes: ", tensor.dtype, " has ", bits, " bits"));
        }
        *bytes = bits % 8 == 0 ? elements * (bits / 8) : elements * bits / 8;
      }
      rows.from += part.begin;
      AddRows(number, part.object, rows);
      if (pieces_ > kMostPieces) {
        return absl::InvalidArgumentError(
            absl::StrCat("what is wanted lies in more than ", kMostPieces, " runs of bytes; ",
                         InQuotes(tensor.name), " is the tensor that goes beyond"));
      }
      size_t d = middle;
      while (d > 0 && ++at[d - 1] == both.shape[d - 1]) at[--d] = 0;
      if (d == 0) return absl::OkStatus();
    }
  }

  std::vector<PlannedBlock> Finish() && {
    for (PlannedBlock& block : blocks_) {
      std::sort(block.pieces.begin(), block.pieces.end(),
                [](const PlannedPiece& a, const PlannedPiece& b) {
                  return std::pair{a.from, a.to} < std::pair{b.from, b.to};
                });
    }
    return std::move(blocks_);
  }

 private:
  void AddRows(uint32_t number, uint32_t object, Rows rows) {
    if (rows.from_pitch == rows.width && rows.to_pitch == rows.width) {
      rows.width *= rows.count;
      rows.count = 1;
    }
    for (uint64_t row = 0; row < rows.count;) {
      const uint64_t from = rows.from + row * rows.from_pitch;
      const uint64_t to = rows.to + row * rows.to_pitch;
      const uint64_t left = kBlockBytes - from % kBlockBytes;  // of its first block
      if (rows.width <= left) {
        // With rows.count 1 the pitch is not used.
        const uint64_t fit = rows.count == 1 ? 1 : (left - rows.width) / rows.from_pitch + 1;
        const uint64_t here = std::min(fit, rows.count - row);
        AddPiece(object, from,
                 {number, 0, to, rows.width, here, here == 1 ? 0 : rows.from_pitch,
                  here == 1 ? 0 : rows.to_pitch});
        row += here;
        continue;
      }
      for (uint64_t done = 0; done < rows.width;) {
        const uint64_t n = std::min(kBlockBytes - (from + done) % kBlockBytes, rows.width - done);
        AddPiece(object, from + done, {number, 0, to + done, n, 1, 0, 0});
        done += n;
      }
      ++row;
    }
  }

  void AddPiece(uint32_t object, uint64_t from, PlannedPiece piece) {
    const uint64_t block = from / kBlockBytes;
    piece.from = from % kBlockBytes;
    const auto [found, is_new] = by_place_.try_emplace({object, block}, blocks_.size());
    if (is_new) blocks_.push_back({object, block, {}});
    blocks_[found->second].pieces.push_back(piece);
    ++pieces_;
  }

  std::vector<PlannedBlock> blocks_;
  absl::flat_hash_map<std::pair<uint32_t, uint64_t>, size_t> by_place_;
  uint64_t pieces_ = 0;
};

}  // namespace

StatusOr<std::vector<const IndexedTensor*>> SelectTensors(const WeightsIndex& index,
                                                          const std::vector<std::string>& names) {
  std::vector<const IndexedTensor*> all;
  for (const IndexedTensor& tensor : index.tensors) all.push_back(&tensor);
  if (names.empty()) return all;
  Patterns patterns(names, index);
  std::vector<const IndexedTensor*> selected;
  for (const IndexedTensor* tensor : all) {
    if (patterns.Match(tensor->name).has_value()) selected.push_back(tensor);
  }
  if (const auto unmatched = patterns.Unmatched()) {
    return NothingMatches("select", names[*unmatched], all);
  }
  return selected;
}

StatusOr<Plan> MakePlan(const WeightsIndex& index, const Selection& selection) {
  CAIRN_ASSIGN_OR_RETURN(const std::vector<const IndexedTensor*> selected,
                         SelectTensors(index, selection.names));
  std::vector<std::string> rules;
  for (const Selection::Cut& cut : selection.cuts) rules.push_back(cut.pattern);
  Patterns patterns(rules, index);
  Plan plan;
  Planner planner;
  for (const IndexedTensor* tensor : selected) {
    CAIRN_RETURN_IF_ERROR(CheckWhole(*tensor));
    Box wanted{std::vector<uint64_t>(tensor->shape.size(), 0), tensor->shape};
    if (const auto rule = patterns.Match(tensor->name)) {
      CAIRN_ASSIGN_OR_RETURN(wanted,
                             std::visit([&](const auto& what) { return CutOut(*tensor, what); },
                                        selection.cuts[*rule].what));
    }
    const auto number = static_cast<uint32_t>(plan.tensors.size());
    CAIRN_ASSIGN_OR_RETURN(const uint64_t bytes, TensorBytes(tensor->dtype, wanted.shape));
    plan.tensors.push_back({tensor->name, tensor->dtype, wanted.shape, bytes});
    for (const TensorPart& part : tensor->parts) {
      CAIRN_RETURN_IF_ERROR(planner.Add(number, *tensor, wanted, part));
    }
  }
  if (const auto unmatched = patterns.Unmatched()) {
    return NothingMatches("slices", rules[*unmatched], selected);
  }
  plan.blocks = std::move(planner).Finish();
  return plan;
}

std::string PlanDigest(const Plan& plan) {
  ManifestDigester digest;
  const auto number = [&](uint64_t value) {
    char bytes[sizeof value];
    for (size_t i = 0; i < sizeof value; ++i) bytes[i] = static_cast<char>(value >> (8 * i));
    digest.Add({bytes, sizeof bytes});
  };
  const auto text = [&](const std::string& value) {
    number(value.size());
    digest.Add(value);
  };
  number(plan.tensors.size());
  for (const WantedTensor& tensor : plan.tensors) {
    text(tensor.name);
    text(tensor.dtype);
    number(tensor.shape.size());
    for (uint64_t n : tensor.shape) number(n);
  }
  number(plan.blocks.size());
  for (const PlannedBlock& block : plan.blocks) {
    number(block.object);
    number(block.block);
    number(block.pieces.size());
    for (const PlannedPiece& piece : block.pieces) {
      for (uint64_t n : {uint64_t{piece.tensor}, piece.from, piece.to, piece.width, piece.count,
                         piece.from_pitch, piece.to_pitch}) {
        number(n);
      }
    }
  }
  return digest.Finish();
}

}  // namespace cairn::client
