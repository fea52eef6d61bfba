#include "client/cpp/weights_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/keys.h"

namespace cairn::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Shape = std::vector<uint64_t>;

uint64_t Elements(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

IndexedTensor Whole(std::string name, std::string dtype, Shape shape, uint64_t begin,
                    uint32_t object = 0) {
  return {
      std::move(name), std::move(dtype), shape, {{object, begin, Shape(shape.size(), 0), shape}}};
}

Selection Cut(std::string pattern, std::variant<Slice, Shard> what) {
  return {{}, {{std::move(pattern), what}}};
}

// Every index of a box, in the order in which its elements are stored.
void ForEach(const Shape& shape, const std::function<void(const Shape&)>& visit) {
  Shape at(shape.size(), 0);
  for (uint64_t n = Elements(shape); n > 0; --n) {
    visit(at);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < shape[d]) break;
      at[d] = 0;
    }
  }
}

// Where the plan brings each wanted byte from, as (object, byte), by tensor and byte. A byte that comes twice, and a
// piece that leaves its block, fail the test.
using Place = std::pair<uint32_t, uint64_t>;
std::vector<std::map<uint64_t, Place>> Carry(const Plan& plan) {
  std::vector<std::map<uint64_t, Place>> came(plan.tensors.size());
  std::set<Place> blocks;
  for (const PlannedBlock& block : plan.blocks) {
    EXPECT_TRUE(blocks.emplace(block.object, block.block).second) << "a block comes twice";
    for (const PlannedPiece& piece : block.pieces) {
      for (uint64_t row = 0; row < piece.count; ++row) {
        const uint64_t from = piece.from + row * piece.from_pitch;
        EXPECT_LE(from + piece.width, kBlockBytes);
        for (uint64_t i = 0; i < piece.width; ++i) {
          const uint64_t to = piece.to + row * piece.to_pitch + i;
          const Place place{block.object, block.block * kBlockBytes + from + i};
          EXPECT_TRUE(came[piece.tensor].emplace(to, place).second) << "a byte comes twice";
        }
      }
    }
  }
  return came;
}

// The same, by looking for each element by itself. `wanted` is a box of `tensor`.
std::map<uint64_t, Place> Expected(const IndexedTensor& tensor, const Shape& start,
                                   const Shape& shape) {
  std::map<uint64_t, Place> places;
  const uint64_t bytes = DtypeBits(tensor.dtype) / 8;
  uint64_t to = 0;
  ForEach(shape, [&](const Shape& at) {
    for (const TensorPart& part : tensor.parts) {
      uint64_t element = 0;
      bool inside = true;
      for (size_t d = 0; d < shape.size(); ++d) {
        const uint64_t here = start[d] + at[d];
        inside &= here >= part.start[d] && here - part.start[d] < part.shape[d];
        element = element * part.shape[d] + (here - part.start[d]);
      }
      if (!inside) continue;
      for (uint64_t i = 0; i < bytes; ++i) {
        places[to + i] = {part.object, part.begin + element * bytes + i};
      }
    }
    to += bytes;
  });
  return places;
}

TEST(WeightsPlan, AWholeTensorIsOneRunPerBlock) {
  const WeightsIndex index{{"a"}, {Whole("w", "F32", {1024, 2048}, 100)}};
  const Plan plan = *MakePlan(index, {});
  ASSERT_EQ(plan.blocks.size(), 3u);
  EXPECT_THAT(plan.blocks[0].pieces,
              ElementsAre(PlannedPiece{0, 100, 0, kBlockBytes - 100, 1, 0, 0}));
  EXPECT_THAT(plan.blocks[1].pieces,
              ElementsAre(PlannedPiece{0, 0, kBlockBytes - 100, kBlockBytes, 1, 0, 0}));
  EXPECT_THAT(plan.blocks[2].pieces,
              ElementsAre(PlannedPiece{0, 0, 2 * kBlockBytes - 100, 100, 1, 0, 0}));
  EXPECT_EQ(plan.tensors[0].bytes, 2 * kBlockBytes);
}

TEST(WeightsPlan, ASliceOfALaterDimensionIsRowsWithAPitch) {
  const WeightsIndex index{{"a"}, {Whole("w", "BF16", {16, 64}, 0)}};
  const Plan plan = *MakePlan(index, Cut("w", Shard{1, 4, 1}));
  EXPECT_THAT(plan.tensors[0].shape, ElementsAre(16, 16));
  ASSERT_EQ(plan.blocks.size(), 1u);
  EXPECT_THAT(plan.blocks[0].pieces, ElementsAre(PlannedPiece{0, 32, 0, 32, 16, 128, 32}));
}

TEST(WeightsPlan, APatternSelectsAndCuts) {
  const WeightsIndex index{{"a"},
                           {Whole("model.0.w", "U8", {8, 2}, 0), Whole("model.0.b", "U8", {8}, 16),
                            Whole("head", "U8", {4}, 24)}};
  Selection selection{{"model.*"}, {{"*.w", Slice{-1, 1, 2}}}};
  const Plan plan = *MakePlan(index, selection);
  ASSERT_EQ(plan.tensors.size(), 2u);
  EXPECT_THAT(plan.tensors[0].shape, ElementsAre(8, 1));
  EXPECT_THAT(plan.tensors[1].shape, ElementsAre(8));
}

TEST(WeightsPlan, TheFirstCutThatMatchesCounts) {
  const WeightsIndex index{{"a"}, {Whole("x", "U8", {8}, 0), Whole("y", "U8", {8}, 8)}};
  Selection selection{{}, {{"x", Slice{0, 0, 1}}, {"*", Slice{0, 0, 2}}}};
  const Plan plan = *MakePlan(index, selection);
  EXPECT_THAT(plan.tensors[0].shape, ElementsAre(1));
  EXPECT_THAT(plan.tensors[1].shape, ElementsAre(2));
}

TEST(WeightsPlan, ShardsAreCutAsTorchChunks) {
  const WeightsIndex index{{"a"}, {Whole("w", "U8", {10}, 0)}};
  std::vector<uint64_t> sizes;
  for (uint64_t rank = 0; rank < 6; ++rank) {
    sizes.push_back(MakePlan(index, Cut("w", Shard{rank, 6}))->tensors[0].bytes);
  }
  EXPECT_THAT(sizes, ElementsAre(2, 2, 2, 2, 2, 0));
  EXPECT_EQ(MakePlan(index, Cut("w", Shard{~uint64_t{0} - 1, ~uint64_t{0}}))->tensors[0].bytes, 0u);
}

TEST(WeightsPlan, AScalarIsWholeForEveryRank) {
  const WeightsIndex index{{"a"}, {Whole("s", "F64", {}, 0), Whole("w", "F64", {4}, 8)}};
  const Plan plan = *MakePlan(index, Cut("*", Shard{1, 2}));
  EXPECT_EQ(plan.tensors[0].bytes, 8u);
  EXPECT_EQ(plan.tensors[1].bytes, 16u);
}

TEST(WeightsPlan, AScalarAndAnEmptyTensorAreTensors) {
  const WeightsIndex index{{"a"}, {Whole("s", "F64", {}, 0), Whole("e", "F64", {0, 4}, 8)}};
  const Plan plan = *MakePlan(index, {});
  EXPECT_EQ(plan.tensors[0].bytes, 8u);
  EXPECT_EQ(plan.tensors[1].bytes, 0u);
  EXPECT_EQ(plan.blocks.size(), 1u);
}

struct Refused {
  Selection selection;
  std::string says;
};

TEST(WeightsPlan, WhatCannotBePlannedIsRefusedByName) {
  WeightsIndex index{{"a"}, {Whole("w", "U8", {8, 4}, 0), Whole("f4", "F4", {8, 6}, 32)}};
  index.tensors.push_back({"holed", "U8", {8}, {{0, 100, {0}, {3}}, {0, 103, {4}, {4}}}});
  const std::vector<Refused> refused = {
      {{{"v"}, {}}, R"(select "v" matches none of the 3 tensors: "w", "f4", "holed")"},
      {{{"x*"}, {}}, R"("x*" matches none)"},
      {{{"w"}, {{"y", Slice{}}}}, R"(slices "y" matches none of the 1 tensors)"},
      {{{"w"}, {{"w", Slice{2, 0, 1}}}}, R"(dim 2 of "w", which has 2 dimensions)"},
      {{{"w"}, {{"w", Slice{-3, 0, 1}}}}, "dim -3"},
      {{{"w"}, {{"w", Slice{0, 3, 2}}}}, "slice 3:2 along dim 0"},
      {{{"w"}, {{"w", Slice{1, 0, 5}}}}, R"(slice 0:5 along dim 1 of "w", which has 4 there)"},
      {{{"w"}, {{"w", Shard{8, 8}}}}, "rank 8 of 8"},
      {{{"w"}, {{"w", Shard{0, 0}}}}, "rank 0 of 0"},
      {{{"f4"}, {{"f4", Slice{1, 1, 3}}}}, "does not end at whole bytes"},
      {{{"holed"}, {}}, "holed"},
  };
  for (const Refused& one : refused) {
    const StatusOr<Plan> plan = MakePlan(index, one.selection);
    EXPECT_TRUE(absl::IsInvalidArgument(plan.status())) << one.says << ": " << plan.status();
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(one.says));
  }
}

TEST(WeightsPlan, ATensorsNameIsNoPattern) {
  const WeightsIndex index{{"a"}, {Whole("w[0]", "U8", {4}, 0), Whole("w0", "U8", {4}, 4)}};
  EXPECT_EQ(MakePlan(index, {{"w[0]"}, {}})->tensors.size(), 1u);
  const Plan cut = *MakePlan(index, Cut("w[0]", Slice{0, 0, 1}));
  EXPECT_EQ(cut.tensors[0].bytes, 1u);
  EXPECT_EQ(cut.tensors[1].bytes, 4u);
}

TEST(WeightsPlan, ManyNamesAreFoundByThemselves) {
  WeightsIndex index{{"a"}, {}};
  Selection selection;
  for (uint64_t i = 0; i < 30'000; ++i) {
    index.tensors.push_back(Whole("w" + std::to_string(i), "U8", {1}, i));
    selection.names.push_back("w" + std::to_string(i));
    selection.cuts.push_back({"w" + std::to_string(i), Slice{0, 0, 1}});
  }
  EXPECT_EQ(MakePlan(index, selection)->tensors.size(), 30'000u);  // not 900 million looks
}

TEST(WeightsPlan, BytesInMillionsOfRunsAreRefused) {
  WeightsIndex index{{"a", "b"}, {}};
  const uint64_t rows = 1 << 20;
  IndexedTensor tensor{"w", "U8", {rows, 2, 2, 2}, {}};
  for (uint64_t i = 0; i < 8; ++i) {
    tensor.parts.push_back({0, i * rows, {0, i / 4, i / 2 % 2, i % 2}, {rows, 1, 1, 1}});
  }
  index.tensors.push_back(tensor);
  const Status status = MakePlan(index, {}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("runs of bytes; \"w\""));
}

TEST(WeightsPlan, EqualPlansHaveEqualDigests) {
  const WeightsIndex index{{"a"}, {Whole("w", "U8", {8, 4}, 0)}};
  const std::string one = PlanDigest(*MakePlan(index, Cut("w", Shard{0, 2})));
  EXPECT_EQ(PlanDigest(*MakePlan(index, Cut("w", Slice{0, 0, 4}))), one);
  EXPECT_NE(PlanDigest(*MakePlan(index, Cut("w", Shard{1, 2}))), one);
  EXPECT_NE(PlanDigest(*MakePlan(index, Cut("w", Shard{0, 2, 1}))), one);
}

// Tensors of up to four dimensions, cut into parts along one of them and then along another, lying anywhere; any slice.
TEST(WeightsPlan, EveryByteComesOnceFromWhereItLies) {
  std::mt19937_64 random(7);
  const auto below = [&](uint64_t n) { return random() % n; };
  for (int round = 0; round < 300; ++round) {
    WeightsIndex index{{"a", "b", "c"}, {}};
    uint64_t at[3] = {below(100), kBlockBytes - below(500), below(9)};
    Selection selection;
    std::vector<std::pair<Shape, Shape>> wanted;
    for (int t = 0; t < 4; ++t) {
      IndexedTensor tensor;
      tensor.name = std::string(1, static_cast<char>('s' + t));
      tensor.dtype = std::vector<std::string>{"U8", "BF16", "F64"}[below(3)];
      for (uint64_t d = below(5); d > 0; --d) tensor.shape.push_back(1 + below(9));
      const size_t rank = tensor.shape.size();
      // A grid of parts.
      std::vector<std::vector<uint64_t>> cuts(rank);
      for (size_t d = 0; d < rank; ++d) {
        cuts[d] = {0, tensor.shape[d]};
        if (below(3) == 0) cuts[d].insert(cuts[d].begin() + 1, below(tensor.shape[d] + 1));
      }
      Shape cells;
      for (size_t d = 0; d < rank; ++d) cells.push_back(cuts[d].size() - 1);
      ForEach(cells, [&](const Shape& cell) {
        TensorPart part;
        part.object = static_cast<uint32_t>(below(3));
        for (size_t d = 0; d < rank; ++d) {
          part.start.push_back(cuts[d][cell[d]]);
          part.shape.push_back(cuts[d][cell[d] + 1] - cuts[d][cell[d]]);
        }
        part.begin = at[part.object];
        at[part.object] += Elements(part.shape) * DtypeBits(tensor.dtype) / 8;
        tensor.parts.push_back(part);
      });
      Shape start(rank, 0), shape = tensor.shape;
      if (rank > 0 && below(4) != 0) {
        const size_t d = below(rank);
        const uint64_t begin = below(tensor.shape[d] + 1);
        const uint64_t end = begin + below(tensor.shape[d] - begin + 1);
        selection.cuts.push_back({tensor.name, Slice{static_cast<int>(d), begin, end}});
        start[d] = begin;
        shape[d] = end - begin;
      }
      wanted.emplace_back(start, shape);
      index.tensors.push_back(std::move(tensor));
    }
    const StatusOr<Plan> plan = MakePlan(index, selection);
    ASSERT_TRUE(plan.ok()) << round << ": " << plan.status();
    const auto came = Carry(*plan);
    for (size_t t = 0; t < wanted.size(); ++t) {
      EXPECT_THAT(plan->tensors[t].shape, wanted[t].second);
      EXPECT_EQ(came[t], Expected(index.tensors[t], wanted[t].first, wanted[t].second))
          << "round " << round << " tensor " << t;
    }
  }
}

}  // namespace
}  // namespace cairn::client
