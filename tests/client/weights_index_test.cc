// One file: the index and its wholes are told in one vocabulary of objects and cuts.
#include "client/cpp/weights_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace cairn::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// --- layer order

std::vector<std::string> Shuffled(std::vector<std::string> names, int seed) {
  std::shuffle(names.begin(), names.end(), std::mt19937(seed));
  return names;
}

void ExpectOrder(const std::vector<std::string>& names) {
  for (int seed = 0; seed < 20; ++seed) {
    std::vector<std::string> sorted = Shuffled(names, seed);
    std::sort(sorted.begin(), sorted.end(), InLayerOrder);
    ASSERT_EQ(sorted, names);
  }
}

TEST(LayerOrder, IsThatOfALlama) {
  ExpectOrder({"model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
               "model.layers.0.mlp.down_proj.weight", "model.layers.2.self_attn.q_proj.weight",
               "model.layers.10.self_attn.q_proj.weight", "model.layers.100.mlp.up_proj.weight",
               "model.norm.weight", "lm_head.weight"});
}

TEST(LayerOrder, IsThatOfAGpt2) {
  ExpectOrder({"transformer.wpe.weight", "transformer.wte.weight", "transformer.h.1.ln_1.bias",
               "transformer.h.11.ln_1.bias", "transformer.ln_f.weight", "score.weight"});
}

TEST(LayerOrder, IsThatOfANeoX) {
  ExpectOrder({"gpt_neox.embed_in.weight", "gpt_neox.layers.3.attention.bias",
               "gpt_neox.final_layer_norm.bias", "embed_out.weight"});
}

TEST(LayerOrder, LeavesALayersOwnNormAndEmbeddingInIt) {
  ExpectOrder({"model.embed_tokens.weight", "model.layers.5.norm.weight",
               "model.layers.60.mlp.gate.weight", "model.layers.61.embed_tokens.weight",
               "model.layers.61.shared_head.norm.weight", "model.norm.weight"});
}

TEST(LayerOrder, ComparesDigitsAsNumbersWhereverTheyStand) {
  ExpectOrder({"model-2-of-10.safetensors", "model-10-of-10.safetensors"});
  ExpectOrder({"block2a.w", "block2b.w", "block10.w"});
  ExpectOrder({"a.99999999999999999999999999", "a.100000000000000000000000000"});
}

TEST(LayerOrder, BreaksLeadingZerosByLength) {
  ExpectOrder({"a.0", "a.00", "a.1", "a.01", "a.001", "a.2"});
}

TEST(LayerOrder, ComparesComponentByComponent) {
  ExpectOrder({"a", "a/b", "a.b", "a.b.c", "a-b", "a-b.c"});
  EXPECT_FALSE(InLayerOrder("", ""));
  EXPECT_TRUE(InLayerOrder("", "a"));
}

std::string RandomName(std::mt19937* random) {
  static const char* const kPieces[] = {"0",
                                        "00",
                                        "1",
                                        "01",
                                        "10",
                                        "9",
                                        "layers",
                                        "a",
                                        "b",
                                        ".",
                                        "/",
                                        "embed",
                                        "norm",
                                        "head",
                                        "\xff",
                                        "-",
                                        "~",
                                        "wte",
                                        "..",
                                        "",
                                        "2",
                                        "ln_f",
                                        "99999999999999999999999999"};
  std::string name;
  for (uint32_t n = (*random)() % 6; n > 0; --n) {
    name += kPieces[(*random)() % std::size(kPieces)];
    if ((*random)() % 2 == 0) name += '.';
  }
  return name;
}

TEST(LayerOrder, IsAStrictOrderOfAllNames) {
  std::mt19937 random(7);
  std::vector<std::string> names;
  for (int i = 0; i < 120; ++i) names.push_back(RandomName(&random));
  for (const std::string& a : names) {
    EXPECT_FALSE(InLayerOrder(a, a)) << a;
    for (const std::string& b : names) {
      const bool before = InLayerOrder(a, b), after = InLayerOrder(b, a);
      EXPECT_EQ(before + after, a == b ? 0 : 1) << a << " and " << b;
      if (!before) continue;
      for (const std::string& c : names) {
        if (InLayerOrder(b, c) && !InLayerOrder(a, c)) ADD_FAILURE() << a << ", " << b << ", " << c;
      }
    }
  }
}

// --- building

// An object whose tensors lie one after the other, as a file of it would say.
WeightsObject Object(absl::string_view name, std::vector<TensorEntry> tensors,
                     absl::string_view parts = "") {
  std::map<std::string, std::string> metadata;
  if (!parts.empty()) metadata[kPartsKey] = std::string(parts);
  uint64_t data_bytes = 0;
  for (const TensorEntry& tensor : tensors) data_bytes += *TensorBytes(tensor.dtype, tensor.shape);
  const auto head = EncodeSafetensorsHeader(tensors, metadata);
  EXPECT_TRUE(head.ok()) << head.status();
  auto header = ReadSafetensorsHeader(*head, head->size() + data_bytes);
  EXPECT_TRUE(header.ok()) << header.status();
  return {std::string(name), *std::move(header)};
}

WeightsIndex Build(std::vector<WeightsObject> objects) {
  auto index = BuildWeightsIndex(std::move(objects));
  EXPECT_TRUE(index.ok()) << index.status();
  return index.ok() ? *std::move(index) : WeightsIndex();
}

std::string WhyNot(std::vector<WeightsObject> objects) {
  const auto index = BuildWeightsIndex(std::move(objects));
  EXPECT_EQ(index.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(index.status().message());
}

std::vector<std::string> Names(const WeightsIndex& index) {
  std::vector<std::string> names;
  for (const IndexedTensor& tensor : index.tensors) names.push_back(tensor.name);
  return names;
}

TEST(WeightsIndexes, OfNothingAreEmpty) {
  const WeightsIndex index = Build({});
  EXPECT_TRUE(index.objects.empty());
  EXPECT_TRUE(index.tensors.empty());
  EXPECT_EQ(index.Find("w"), nullptr);
}

TEST(WeightsIndexes, HaveATensorWithoutPartsAsOnePart) {
  const WeightsObject object = Object("a", {{"v", "U8", {3}}, {"w", "F32", {2, 3}}});
  const WeightsIndex index = Build({object});
  const IndexedTensor* w = index.Find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(
      *w, (IndexedTensor{"w", "F32", {2, 3}, {{0, object.header.data_begin + 3, {0, 0}, {2, 3}}}}));
  EXPECT_TRUE(CheckWhole(*w).ok());
}

TEST(WeightsIndexes, JoinTheParts) {
  const WeightsObject low =
      Object("rank0", {{"w", "F32", {2, 3}}}, R"({"w":{"shape":[4,3],"start":[0,0]}})");
  const WeightsObject high = Object("rank1", {{"bias", "F32", {1}}, {"w.1", "F32", {2, 3}}},
                                    R"({"w.1":{"name":"w","shape":[4,3],"start":[2,0]}})");
  const WeightsIndex index = Build({high, low});
  EXPECT_THAT(index.objects, ElementsAre("rank0", "rank1"));
  const IndexedTensor* w = index.Find("w");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(*w, (IndexedTensor{"w",
                               "F32",
                               {4, 3},
                               {{0, low.header.data_begin, {0, 0}, {2, 3}},
                                {1, high.header.data_begin + 4, {2, 0}, {2, 3}}}}));
  EXPECT_TRUE(CheckWhole(*w).ok());
  EXPECT_EQ(index.Find("w.1"), nullptr);
}

TEST(WeightsIndexes, SortPartsByTheirStarts) {
  const WeightsIndex index =
      Build({Object("a", {{"w2", "U8", {1}}, {"w0", "U8", {1}}, {"w1", "U8", {1}}},
                    R"({"w0":{"name":"w","shape":[3],"start":[0]},)"
                    R"("w2":{"name":"w","shape":[3],"start":[2]},)"
                    R"("w1":{"name":"w","shape":[3],"start":[1]}})")});
  ASSERT_EQ(index.tensors.size(), 1u);
  std::vector<uint64_t> starts;
  for (const TensorPart& part : index.tensors[0].parts) starts.push_back(part.start[0]);
  EXPECT_THAT(starts, ElementsAre(0, 1, 2));
  EXPECT_TRUE(CheckWhole(index.tensors[0]).ok());
}

TEST(WeightsIndexes, SortObjectsByLayer) {
  const WeightsIndex index = Build({Object("lm_head", {}), Object("layers.10", {}),
                                    Object("layers.9", {}), Object("embeddings", {})});
  EXPECT_THAT(index.objects, ElementsAre("embeddings", "layers.9", "layers.10", "lm_head"));
}

TEST(WeightsIndexes, AreInLayerOrderWhereEachObjectIs) {
  const WeightsIndex index =
      Build({Object("rank0", {{"embed", "U8", {1}}, {"layers.2", "U8", {1}}, {"norm", "U8", {1}}}),
             Object("rank1", {{"layers.1", "U8", {1}}, {"layers.10", "U8", {1}}})});
  EXPECT_THAT(Names(index), ElementsAre("embed", "layers.1", "layers.2", "layers.10", "norm"));
}

TEST(WeightsIndexes, StoredTensorsAreAlignedAndInLayerOrder) {
  const std::vector<TensorEntry> tensors = {
      {"layers.10.w", "BF16", {4}}, {"norm", "F32", {3}},       {"layers.2.mask", "BOOL", {3}},
      {"layers.2.w", "BF16", {4}},  {"layers.2.s", "F16", {1}}, {"embed", "F64", {5}},
  };
  std::vector<std::string> names;
  for (size_t i : StorageOrder(tensors)) names.push_back(tensors[i].name);
  EXPECT_THAT(names, ElementsAre("embed", "layers.2.w", "layers.10.w", "norm", "layers.2.s",
                                 "layers.2.mask"));
}

TEST(WeightsIndexes, AreInLayerOrderThoughOddTensorsLieAtTheEnd) {
  const WeightsIndex index = Build(
      {Object("a", {{"embed", "F64", {1}}, {"layers.1", "F64", {1}}, {"layers.0", "BOOL", {3}}})});
  EXPECT_THAT(Names(index), ElementsAre("embed", "layers.0", "layers.1"));
}

TEST(WeightsIndexes, AreAsTheyComeWhereAnObjectIsNotInLayerOrder) {
  const WeightsIndex index =
      Build({Object("rank0", {{"norm", "U8", {1}}, {"layers.2", "U8", {1}}}),
             Object("rank1", {{"layers.1", "U8", {1}}, {"layers.10", "U8", {1}}})});
  EXPECT_THAT(Names(index), ElementsAre("norm", "layers.2", "layers.1", "layers.10"));
}

TEST(WeightsIndexes, OrderByTheNamesOfTensorsNotOfEntries) {
  const WeightsIndex index = Build({Object("a", {{"2", "U8", {1}}, {"1", "U8", {1}}},
                                           R"({"2":{"name":"v","shape":[1],"start":[0]},)"
                                           R"("1":{"name":"w","shape":[1],"start":[0]}})")});
  EXPECT_THAT(Names(index), ElementsAre("v", "w"));
}

TEST(WeightsIndexes, RefuseTheSamePartTwice) {
  EXPECT_THAT(WhyNot({Object("x", {{"w", "U8", {2, 2}}}), Object("y", {{"w", "U8", {2, 2}}})}),
              HasSubstr("object \"x\" and object \"y\" both hold [0:2, 0:2] of \"w\""));
  EXPECT_THAT(WhyNot({Object("x", {{"s", "U8", {}}}), Object("y", {{"s", "U8", {}}})}),
              HasSubstr("object \"x\" and object \"y\" both hold [] of \"s\""));
  const char part[] = R"({"w":{"shape":[4],"start":[1]}})";
  EXPECT_THAT(
      WhyNot({Object("x", {{"w", "U8", {2}}}, part), Object("y", {{"w", "U8", {2}}}, part)}),
      HasSubstr("object \"x\" and object \"y\" both hold [1:3] of \"w\""));
}

TEST(WeightsIndexes, AllowTheSameEmptyPartTwice) {
  const WeightsIndex index =
      Build({Object("x", {{"w", "U8", {0, 2}}}), Object("y", {{"w", "U8", {0, 2}}})});
  ASSERT_EQ(index.tensors.size(), 1u);
  EXPECT_EQ(index.tensors[0].parts.size(), 2u);
  EXPECT_TRUE(CheckWhole(index.tensors[0]).ok());
}

TEST(WeightsIndexes, RefusePartsOfDifferentTensors) {
  EXPECT_THAT(WhyNot({Object("x", {{"w", "F32", {1}}}), Object("y", {{"w", "I32", {1}}})}),
              HasSubstr("object \"y\": \"w\": dtype: \"I32\", but \"F32\" in object \"x\""));
  EXPECT_THAT(WhyNot({Object("x", {{"w", "U8", {1}}}, R"({"w":{"shape":[2],"start":[0]}})"),
                      Object("y", {{"w", "U8", {1}}}, R"({"w":{"shape":[3],"start":[1]}})")}),
              HasSubstr("object \"y\": \"w\": shape: [3], but [2] in object \"x\""));
}

TEST(WeightsIndexes, RefusePartsBeyondTheWhole) {
  const auto why = [](absl::string_view parts) {
    return WhyNot({Object("x", {{"w", "U8", {2, 2}}}, parts)});
  };
  EXPECT_THAT(why(R"({"w":{"shape":[4,4],"start":[0,3]}})"),
              AllOf(HasSubstr("object \"x\": \"w\": a part of shape [2, 2] at [0, 3]"),
                    HasSubstr("beyond the shape [4, 4] in dimension 1")));
  EXPECT_THAT(why(R"({"w":{"shape":[4,4],"start":[9223372036854775807,0]}})"),
              HasSubstr("in dimension 0"));
  EXPECT_THAT(why(R"({"w":{"shape":[4],"start":[0]}})"), HasSubstr("dimensions differ"));
  EXPECT_THAT(why(R"({"w":{"shape":[4,4],"start":[]}})"), HasSubstr("dimensions differ"));
  EXPECT_THAT(why(R"({"w":{"shape":[4294967296,4294967296],"start":[0,0]}})"),
              HasSubstr("object \"x\": \"w\": shape: the tensor is larger than 2^63 bytes"));
}

TEST(WeightsIndexes, RefuseNonsenseAboutParts) {
  const auto why = [](absl::string_view parts) {
    const std::string message = WhyNot({Object("x", {{"w", "U8", {1}}}, parts)});
    EXPECT_THAT(message, HasSubstr("object \"x\": cairn.parts: "));
    EXPECT_LT(message.size(), 1000u);
    return message;
  };
  EXPECT_THAT(why("[]"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(why("{"), HasSubstr("is not JSON"));
  EXPECT_THAT(why(R"({"w":[]})"), HasSubstr("\"w\": is not an object"));
  EXPECT_THAT(why(R"({"w":{}})"), HasSubstr("\"w\" has no shape"));
  EXPECT_THAT(why(R"({"w":{"shape":[1]}})"), HasSubstr("\"w\" has no start"));
  EXPECT_THAT(why(R"({"w":{"shape":"1"}})"), HasSubstr("\"w\": \"shape\" is not a list"));
  EXPECT_THAT(why(R"({"w":{"start":"1"}})"), HasSubstr("\"w\": \"start\" is not a list"));
  EXPECT_THAT(why(R"({"w":{"name":[1]}})"), HasSubstr("\"w\": \"name\" is not text"));
  EXPECT_THAT(why(R"({"w":{"name":""}})"), HasSubstr("\"w\": \"name\" is empty"));
  EXPECT_THAT(why(R"({"w":{"name":null}})"), HasSubstr("\"w\": name: is neither"));
  EXPECT_THAT(why(R"({"w":{"stride":[1]}})"), HasSubstr("\"w\": \"stride\" is not a field"));
  EXPECT_THAT(why(R"({"w":{"shape":[-1]}})"), HasSubstr("\"w\": shape: -1 is negative"));
  EXPECT_THAT(why(R"({"w":{"shape":[1],"shape":[1]}})"), HasSubstr("\"shape\" is there twice"));
  EXPECT_THAT(why(R"({"v":{"shape":[1],"start":[0]}})"),
              HasSubstr("\"v\" is not a tensor of the object"));
  EXPECT_THAT(why("{\"w\":" + std::string(100'000, '[')), HasSubstr("\"w\": is not an object"));
}

// --- whole tensors

struct Cut {
  std::vector<uint64_t> start, shape;
};

IndexedTensor Tensor(std::vector<uint64_t> shape, const std::vector<Cut>& cuts) {
  IndexedTensor tensor{"w", "U8", std::move(shape), {}};
  for (const Cut& cut : cuts) tensor.parts.push_back({0, 0, cut.start, cut.shape});
  return tensor;
}

std::string WhyNotWhole(const std::vector<uint64_t>& shape, const std::vector<Cut>& cuts) {
  const Status status = CheckWhole(Tensor(shape, cuts));
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(WholeTensors, HaveNoHole) {
  EXPECT_EQ(WhyNotWhole({12, 16}, {{{0, 0}, {4, 16}}, {{8, 0}, {4, 16}}}),
            "\"w\" lacks [4:8, 0:16]");
  EXPECT_EQ(WhyNotWhole({12, 16}, {}), "\"w\" lacks [0:12, 0:16]");
  EXPECT_EQ(WhyNotWhole({12, 16}, {{{0, 0}, {12, 15}}}), "\"w\" lacks [0:12, 15:16]");
  EXPECT_EQ(WhyNotWhole({12, 16}, {{{1, 0}, {11, 16}}}), "\"w\" lacks [0:1, 0:16]");
  EXPECT_EQ(WhyNotWhole({}, {}), "\"w\" lacks []");
  EXPECT_EQ(WhyNotWhole({1}, {{{1}, {0}}}), "\"w\" lacks [0:1]");
}

TEST(WholeTensors, HaveNoOverlap) {
  EXPECT_EQ(WhyNotWhole({4, 16}, {{{0, 0}, {4, 16}}, {{0, 0}, {4, 16}}}),
            "\"w\": two parts hold [0:4, 0:16]");
  EXPECT_EQ(WhyNotWhole({4, 16}, {{{0, 0}, {3, 10}}, {{2, 8}, {2, 8}}}),
            "\"w\": two parts hold [2:3, 8:10]");
  // As many elements as the whole has.
  EXPECT_EQ(WhyNotWhole({4}, {{{0}, {2}}, {{1}, {2}}}), "\"w\": two parts hold [1:2]");
  EXPECT_EQ(WhyNotWhole({}, {{{}, {}}, {{}, {}}}), "\"w\": two parts hold []");
  EXPECT_EQ(WhyNotWhole({1, 1}, {{{0, 0}, {1, 1}}, {{0, 0}, {1, 1}}}),
            "\"w\": two parts hold [0:1, 0:1]");
}

TEST(WholeTensors, MayBeCutInAnyWay) {
  EXPECT_EQ(WhyNotWhole({}, {{{}, {}}}), "");
  EXPECT_EQ(WhyNotWhole({4, 16}, {{{0, 0}, {4, 16}}}), "");
  EXPECT_EQ(WhyNotWhole({4, 16}, {{{0, 8}, {4, 8}}, {{0, 0}, {4, 8}}}), "");
  EXPECT_EQ(
      WhyNotWhole({4, 4}, {{{2, 2}, {2, 2}}, {{0, 2}, {2, 2}}, {{2, 0}, {2, 2}}, {{0, 0}, {2, 2}}}),
      "");
  // Around a middle, so that no line goes through.
  const std::vector<Cut> pinwheel = {
      {{0, 0}, {1, 2}}, {{0, 2}, {2, 1}}, {{2, 1}, {1, 2}}, {{1, 0}, {2, 1}}, {{1, 1}, {1, 1}}};
  EXPECT_EQ(WhyNotWhole({3, 3}, pinwheel), "");
  EXPECT_EQ(WhyNotWhole({3, 3}, {pinwheel.begin(), pinwheel.end() - 1}), "\"w\" lacks [1:2, 1:2]");
}

TEST(WholeTensors, MayHaveEmptyParts) {
  EXPECT_EQ(WhyNotWhole({4}, {{{0}, {0}}, {{0}, {4}}, {{2}, {0}}, {{4}, {0}}, {{4}, {0}}}), "");
  EXPECT_EQ(WhyNotWhole({4, 0, 3}, {}), "");
  EXPECT_EQ(WhyNotWhole({4, 0, 3}, {{{0, 0, 0}, {4, 0, 3}}, {{1, 0, 0}, {1, 0, 3}}}), "");
}

TEST(WholeTensors, MayBeHuge) {
  const uint64_t half = uint64_t{1} << 31;
  EXPECT_EQ(WhyNotWhole({half, half}, {{{0, 0}, {half, half}}}), "");
  EXPECT_EQ(WhyNotWhole({half, half}, {{{0, 0}, {half, half - 1}}}),
            "\"w\" lacks [0:2147483648, 2147483647:2147483648]");
  EXPECT_EQ(WhyNotWhole({INT64_MAX}, {{{0}, {1}}, {{1}, {INT64_MAX - 1}}}), "");
  EXPECT_THAT(WhyNotWhole({4 * half, half}, {}), HasSubstr("\"w\": shape: the tensor is larger"));
}

TEST(WholeTensors, HavePartsOfTheirOwnDimensions) {
  EXPECT_THAT(WhyNotWhole({4}, {{{0, 0}, {4, 1}}}), HasSubstr("dimensions differ"));
  EXPECT_THAT(WhyNotWhole({4}, {{{0}, {4, 1}}}), HasSubstr("dimensions differ"));
  EXPECT_THAT(WhyNotWhole({4}, {{{UINT64_MAX}, {2}}}), HasSubstr("reaches beyond"));
  EXPECT_THAT(WhyNotWhole({4}, {{{2}, {UINT64_MAX}}}), HasSubstr("reaches beyond"));
}

TEST(WholeTensors, OfManyPartsAreCheckedQuickly) {
  const uint64_t n = 100'000;
  for (size_t dim : {0, 1}) {
    std::vector<uint64_t> shape = {7, 7};
    shape[dim] = 3 * n;
    std::vector<Cut> cuts;
    for (uint64_t i = 0; i < n; ++i) {
      Cut cut{{0, 0}, {7, 7}};
      cut.start[dim] = 3 * i;
      cut.shape[dim] = 3;
      cuts.push_back(cut);
    }
    std::shuffle(cuts.begin(), cuts.end(), std::mt19937(1));
    EXPECT_EQ(WhyNotWhole(shape, cuts), "");
    cuts.pop_back();
    EXPECT_THAT(WhyNotWhole(shape, cuts), HasSubstr("lacks"));
  }
}

// Going through the dimensions in their order would try all of 2^40 ways: the last dimension alone says which of the
// others a part was cut along.
TEST(WholeTensors, OfManyDimensionsAreCheckedQuickly) {
  const size_t n = 40;
  std::vector<uint64_t> shape(n, 2);
  shape.push_back(n);
  std::vector<Cut> cuts;
  for (size_t d = 0; d < n; ++d) {
    for (uint64_t half : {0, 1}) {
      Cut cut{std::vector<uint64_t>(n + 1, 0), shape};
      cut.start[d] = half;
      cut.shape[d] = 1;
      cut.start[n] = d;
      cut.shape[n] = 1;
      cuts.push_back(cut);
    }
  }
  EXPECT_EQ(WhyNotWhole(shape, cuts), "");
  cuts.pop_back();
  EXPECT_THAT(WhyNotWhole(shape, cuts), HasSubstr(", 1:2, 39:40]"));
  cuts.push_back(cuts.back());
  EXPECT_THAT(WhyNotWhole(shape, cuts), HasSubstr("two parts hold"));
}

TEST(WholeTensors, OfMoreDimensionsThanFrameworksHaveAreRefused) {
  const std::vector<uint64_t> most(kMaxTensorDims, 1), more(kMaxTensorDims + 1, 1);
  EXPECT_EQ(WhyNotWhole(most, {{std::vector<uint64_t>(kMaxTensorDims, 0), most}}), "");
  EXPECT_THAT(WhyNotWhole(more, {{std::vector<uint64_t>(kMaxTensorDims + 1, 0), more}}),
              HasSubstr("65 dimensions, more than 64"));
}

// Four bars in a windmill, and so many cells in their midst that each would be compared with each.
TEST(WholeTensors, WhosePartsInterlockAreGivenUpAfterABound) {
  const uint64_t n = 100;  // cells along each side of the midst
  std::vector<Cut> cuts = {{{0, 0}, {1, n + 1}},
                           {{0, n + 1}, {n + 1, 1}},
                           {{n + 1, 1}, {1, n + 1}},
                           {{1, 0}, {n + 1, 1}}};
  for (uint64_t i = 0; i < n; ++i) {
    for (uint64_t j = 0; j < n; ++j) cuts.push_back({{1 + i, 1 + j}, {1, 1}});
  }
  EXPECT_THAT(WhyNotWhole({n + 2, n + 2}, cuts), HasSubstr("interlock"));
}

// Against counting each element.
TEST(WholeTensors, AreThoseWithEachElementOnce) {
  std::mt19937 random(5);
  int whole = 0;
  for (int round = 0; round < 20'000; ++round) {
    // Cuts a random box of the list in two, again and again, and then perhaps does some damage.
    const std::vector<uint64_t> shape = {1 + random() % 4, 1 + random() % 4, 1 + random() % 3};
    std::vector<Cut> cuts = {{{0, 0, 0}, shape}};
    for (uint32_t n = random() % 6; n > 0; --n) {
      Cut& cut = cuts[random() % cuts.size()];
      const size_t d = random() % 3;
      const uint64_t at = random() % (cut.shape[d] + 1);
      Cut rest = cut;
      cut.shape[d] = at;
      rest.start[d] += at;
      rest.shape[d] -= at;
      cuts.push_back(rest);
    }
    std::shuffle(cuts.begin(), cuts.end(), random);
    if (random() % 3 == 0) cuts.pop_back();
    if (random() % 3 == 0 && !cuts.empty()) {
      Cut& cut = cuts[random() % cuts.size()];
      const size_t d = random() % 3;
      cut.start[d] = random() % (shape[d] + 1);
      cut.shape[d] = random() % (shape[d] + 1 - cut.start[d]);
    }
    int least = 1000, most = 0;
    for (uint64_t x = 0; x < shape[0]; ++x) {
      for (uint64_t y = 0; y < shape[1]; ++y) {
        for (uint64_t z = 0; z < shape[2]; ++z) {
          const uint64_t at[] = {x, y, z};
          int holders = 0;
          for (const Cut& cut : cuts) {
            bool inside = true;
            for (size_t d = 0; d < 3; ++d) {
              inside &= at[d] >= cut.start[d] && at[d] < cut.start[d] + cut.shape[d];
            }
            holders += inside;
          }
          least = std::min(least, holders);
          most = std::max(most, holders);
        }
      }
    }
    const std::string why = WhyNotWhole(shape, cuts);
    ASSERT_THAT(why, most > 1     ? HasSubstr("two parts hold")
                     : least == 0 ? HasSubstr("lacks")
                                  : HasSubstr(""));
    ASSERT_EQ(why.empty(), most == 1 && least == 1) << why;
    whole += why.empty();
  }
  EXPECT_GT(whole, 5000);
  EXPECT_LT(whole, 15000);
}

}  // namespace
}  // namespace cairn::client
