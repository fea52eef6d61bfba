#include "common/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/codec.h"

namespace cairn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The length, the JSON as it is, and nothing behind it.
std::string Head(absl::string_view json) {
  std::string head;
  AppendInteger<uint64_t>(&head, json.size());
  absl::StrAppend(&head, json);
  return head;
}

// Why a file of this JSON and `data_bytes` is refused; "" when it is not.
std::string WhyNot(absl::string_view json, uint64_t data_bytes) {
  const std::string head = Head(json);
  const auto header = ReadSafetensorsHeader(head, head.size() + data_bytes);
  if (header.ok()) return "";
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument) << header.status();
  EXPECT_LT(header.status().message().size(), 1000u);
  return std::string(header.status().message());
}

// An entry of the header, `shape` and `offsets` as JSON.
std::string Entry(absl::string_view name, absl::string_view dtype, absl::string_view shape,
                  absl::string_view offsets) {
  return absl::StrCat("\"", name, R"(":{"dtype":")", dtype, R"(","shape":)", shape,
                      R"(,"data_offsets":)", offsets, "}");
}

std::string Object(std::initializer_list<std::string> entries) {
  std::string json;
  for (const std::string& entry : entries) absl::StrAppend(&json, json.empty() ? "{" : ",", entry);
  return json + "}";
}

SafetensorsHeader Read(absl::string_view json, uint64_t data_bytes) {
  const std::string head = Head(json);
  auto header = ReadSafetensorsHeader(head, head.size() + data_bytes);
  EXPECT_TRUE(header.ok()) << header.status();
  return header.ok() ? *std::move(header) : SafetensorsHeader();
}

TEST(Safetensors, WhatWasEncodedIsReadAgain) {
  const std::vector<TensorEntry> tensors = {
      {"model.layers.10.weight", "BF16", {3, 5}},
      {"scalar", "F64", {}},
      {"empty", "F32", {0, 7}},
      {"quotes \" and \\ and \n and \u00e9", "U8", {9}},
      {"four bits", "F4", {3, 2}},
      {"six bits", "F6_E2M3", {4}},
      {"last and empty", "I64", {0}},
  };
  const std::map<std::string, std::string> metadata = {
      {"format", "pt"}, {"", "\"{}\""}, {"\t", ""}};
  const auto head = EncodeSafetensorsHeader(tensors, metadata);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->size() % 8, 0u);
  EXPECT_THAT(*head, HasSubstr(R"({"__metadata__":{"":)"));
  const uint64_t data_bytes = 30 + 8 + 0 + 9 + 3 + 3;
  const auto header = ReadSafetensorsHeader(*head, head->size() + data_bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->data_begin, head->size());
  EXPECT_EQ(header->metadata, metadata);
  ASSERT_EQ(header->tensors.size(), tensors.size());
  uint64_t at = head->size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    TensorEntry expected = tensors[i];
    expected.begin = at;
    at += *TensorBytes(expected.dtype, expected.shape);
    expected.end = at;
    EXPECT_EQ(header->tensors[i], expected) << expected.name;
  }
}

// What safetensors 0.8.0 writes for {"b.weight": arange(3), "a.bias": …, "e": zeros((0, 4)), "s": True}.
constexpr char kStockJson[] =
    R"({"__metadata__":{"format":"pt"},"a.bias":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
    R"("b.weight":{"dtype":"F32","shape":[3],"data_offsets":[16,28]},)"
    R"("e":{"dtype":"F16","shape":[0,4],"data_offsets":[28,28]},)"
    R"("s":{"dtype":"BOOL","shape":[],"data_offsets":[28,29]}}       )";

TEST(Safetensors, TheStockLibrarysHeaderIsRead) {
  std::string head("\x10\x01\0\0\0\0\0\0", 8);
  head += kStockJson;
  const auto header = ReadSafetensorsHeader(head + "and its data", head.size() + 29);
  ASSERT_TRUE(header.ok()) << header.status();
  const uint64_t begin = 280;
  EXPECT_EQ(header->data_begin, begin);
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"format", "pt"}}));
  EXPECT_EQ(header->tensors,
            (std::vector<TensorEntry>{{"a.bias", "I64", {2}, begin, begin + 16},
                                      {"b.weight", "F32", {3}, begin + 16, begin + 28},
                                      {"e", "F16", {0, 4}, begin + 28, begin + 28},
                                      {"s", "BOOL", {}, begin + 28, begin + 29}}));
}

TEST(Safetensors, TheStockLibrarysHeaderIsWrittenByteForByte) {
  const auto head = EncodeSafetensorsHeader(
      {{{"a.bias", "I64", {2}}, {"b.weight", "F32", {3}}, {"e", "F16", {0, 4}}, {"s", "BOOL", {}}}},
      {{"format", "pt"}});
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(*head, Head(kStockJson));
  EXPECT_EQ(*EncodeSafetensorsHeader({}, {}), Head("{}      "));
}

TEST(Safetensors, TensorsComeInTheOrderOfTheirBytes) {
  const auto header =
      Read(Object({Entry("c", "U8", "[1]", "[4,5]"), Entry("e2", "U8", "[0]", "[4,4]"),
                   Entry("e1", "U8", "[0]", "[4,4]"), Entry("a", "I32", "[1]", "[0,4]")}),
           5);
  std::vector<std::string> names;
  for (const TensorEntry& tensor : header.tensors) names.push_back(tensor.name);
  EXPECT_THAT(names, ::testing::ElementsAre("a", "e2", "e1", "c"));
}

TEST(Safetensors, AFileWithoutTensorsIsLegal) {
  EXPECT_EQ(Read("{}", 0).data_begin, 10u);
  EXPECT_TRUE(Read(R"({"__metadata__":{}})", 0).metadata.empty());
}

TEST(Safetensors, DtypesHaveTheFormatsSizes) {
  for (const char* dtype :
       {"BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}) {
    EXPECT_EQ(DtypeBits(dtype), 8u) << dtype;
  }
  for (const char* dtype : {"I16", "U16", "F16", "BF16"}) EXPECT_EQ(DtypeBits(dtype), 16u) << dtype;
  for (const char* dtype : {"I32", "U32", "F32"}) EXPECT_EQ(DtypeBits(dtype), 32u) << dtype;
  for (const char* dtype : {"C64", "F64", "I64", "U64"}) EXPECT_EQ(DtypeBits(dtype), 64u) << dtype;
  EXPECT_EQ(DtypeBits("F4"), 4u);
  EXPECT_EQ(DtypeBits("F6_E2M3"), 6u);
  EXPECT_EQ(DtypeBits("F6_E3M2"), 6u);
  EXPECT_EQ(DtypeBits("f32"), 0u);
  EXPECT_EQ(DtypeBits(""), 0u);
}

TEST(Safetensors, TheBytesOfATensorDoNotOverflow) {
  const uint64_t max = INT64_MAX;
  EXPECT_EQ(*TensorBytes("U8", {}), 1u);
  EXPECT_EQ(*TensorBytes("F32", {3, 0, 5}), 0u);
  EXPECT_EQ(*TensorBytes("F4", {6}), 3u);
  EXPECT_EQ(*TensorBytes("F6_E3M2", {2, 2}), 3u);
  EXPECT_EQ(*TensorBytes("U8", {max}), max);
  EXPECT_EQ(*TensorBytes("F4", {max - 1, 2}), max - 1);
  EXPECT_EQ(*TensorBytes("F64", {uint64_t{1} << 59}), uint64_t{1} << 62);
  for (const auto& [dtype, shape, why] :
       std::vector<std::tuple<const char*, std::vector<uint64_t>, const char*>>{
           {"F4", {3}, "3 elements of 4 bits do not fill"},
           {"F6_E2M3", {3}, "3 elements of 6 bits do not fill"},
           {"U8", {max, 2}, "larger than 2^63"},
           {"F64", {uint64_t{1} << 60}, "larger than 2^63"},
           {"F4", {uint64_t{1} << 32, uint64_t{1} << 32}, "larger than 2^63"},
           {"U8", {UINT64_MAX}, "larger than 2^63"},
           {"U8", {0, max, 2}, "larger than 2^63"},
           {"U8", {max, 2, 0}, "larger than 2^63"},
           {"U9", {1}, "\"U9\" is unknown"}}) {
    const auto bytes = TensorBytes(dtype, shape);
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(bytes.status().message()), HasSubstr(why));
  }
}

// --- the length

std::string WhyNoLength(uint64_t length, uint64_t file_bytes) {
  std::string first;
  AppendInteger<uint64_t>(&first, length);
  return std::string(SafetensorsHeaderBytes(first, file_bytes).status().message());
}

TEST(SafetensorsLength, CountsItsOwnBytes) {
  std::string first;
  AppendInteger<uint64_t>(&first, 16);
  EXPECT_EQ(*SafetensorsHeaderBytes(first, 24), 24u);
  EXPECT_EQ(*SafetensorsHeaderBytes(first + "more", 1000), 24u);
}

TEST(SafetensorsLength, IsRefusedOutOfItsLimits) {
  EXPECT_THAT(WhyNoLength(0, 100), HasSubstr("length: 0 is below 2"));
  EXPECT_THAT(WhyNoLength(1, 100), HasSubstr("length: 1 is below 2"));
  EXPECT_THAT(WhyNoLength(93, 100), HasSubstr("length: 93 is beyond the file, which has 100"));
  EXPECT_EQ(WhyNoLength(92, 100), "");
  EXPECT_EQ(WhyNoLength(100'000'000, 100'000'008), "");
  EXPECT_THAT(WhyNoLength(100'000'001, 1u << 30), HasSubstr("above the limit 100000000"));
  EXPECT_THAT(WhyNoLength(UINT64_MAX, UINT64_MAX), HasSubstr("above the limit 100000000"));
  EXPECT_THAT(WhyNoLength(UINT64_MAX - 7, 100), HasSubstr("above the limit 100000000"));
}

TEST(SafetensorsLength, OfAShortFileIsRefused) {
  EXPECT_EQ(SafetensorsHeaderBytes("1234567", 100).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(WhyNoLength(2, 7), HasSubstr("the file has 7 bytes"));
  EXPECT_THAT(WhyNoLength(2, 0), HasSubstr("the file has 0 bytes"));
}

TEST(SafetensorsLength, IsThatOfTheHeaderGiven) {
  const std::string head = Head(kStockJson);
  const auto header = ReadSafetensorsHeader(head.substr(0, 100), head.size() + 29);
  EXPECT_THAT(std::string(header.status().message()), HasSubstr("of which only 100 are here"));
}

// --- the JSON

TEST(SafetensorsJson, CutShortIsRefused) {
  const std::string json = Object({Entry("a", "U8", "[4]", "[0,4]")});
  for (size_t n = 2; n < json.size(); ++n) {
    EXPECT_THAT(WhyNot(json.substr(0, n), 4), HasSubstr("is not JSON")) << n;
  }
  EXPECT_EQ(WhyNot(json, 4), "");
  EXPECT_THAT(WhyNot(R"({"a":{"dtype":"U8","shape":[4)", 4),
              AllOf(HasSubstr("\"a\": shape: "), HasSubstr("is not JSON")));
}

TEST(SafetensorsJson, ThatIsNoObjectIsRefused) {
  for (const char* json : {"[]", "12", "null", "\"a\"", "tr", "  []", "\xEF\xBB\xBF{}"}) {
    EXPECT_THAT(WhyNot(json, 0), HasSubstr("is not a JSON object")) << json;
  }
}

TEST(SafetensorsJson, WithMoreBehindItIsRefused) {
  EXPECT_EQ(WhyNot("{} \n\t ", 0), "");
  EXPECT_THAT(WhyNot("{}{}", 0), HasSubstr("byte 3 is not JSON"));
  EXPECT_THAT(WhyNot("{},", 0), HasSubstr("byte 3 is not JSON"));
  EXPECT_THAT(WhyNot(absl::string_view("{}\0{}", 5), 0), HasSubstr("byte 3 is not JSON"));
  EXPECT_THAT(WhyNot("{}// comment", 0), HasSubstr("byte 3 is not JSON"));
}

TEST(SafetensorsJson, WithoutUtf8IsRefused) {
  EXPECT_THAT(WhyNot("{\"\xff\":{}}", 0), HasSubstr("is not JSON"));
}

TEST(SafetensorsJson, OfAnyDepthCostsNothing) {
  const std::string deep(1'000'000, '[');
  EXPECT_THAT(WhyNot("{\"a\":" + deep, 0), HasSubstr("\"a\": is not an object"));
  EXPECT_THAT(WhyNot("{\"a\":{\"shape\":" + deep, 0), HasSubstr("\"a\": shape: is not a list"));
  std::string objects = "{";
  for (int i = 0; i < 100'000; ++i) objects += "\"a\":{";
  EXPECT_THAT(WhyNot(objects, 0), HasSubstr("is not JSON"));
}

TEST(SafetensorsJson, WithANameTwiceIsRefused) {
  EXPECT_THAT(
      WhyNot(Object({Entry("w", "U8", "[1]", "[0,1]"), Entry("w", "U8", "[1]", "[1,2]")}), 2),
      HasSubstr("\"w\" is there twice"));
  // Also when it is written in two ways.
  EXPECT_THAT(
      WhyNot(Object({Entry("w", "U8", "[1]", "[0,1]"), Entry("\\u0077", "U8", "[1]", "[1,2]")}), 2),
      HasSubstr("\"w\" is there twice"));
  EXPECT_THAT(WhyNot(R"({"__metadata__":{},"__metadata__":{}})", 0),
              HasSubstr("\"__metadata__\" is there twice"));
}

TEST(SafetensorsJson, WithAFieldTwiceIsRefused) {
  EXPECT_THAT(WhyNot(R"({"w":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("\"w\": \"shape\" is there twice"));
  EXPECT_THAT(WhyNot(R"({"__metadata__":{"a":"b","a":"b"}})", 0),
              HasSubstr("\"__metadata__\": \"a\" is there twice"));
}

TEST(SafetensorsJson, OfNegativeFloatOrHugeNumbersIsRefused) {
  const auto shape = [](absl::string_view n) {
    return WhyNot(Object({Entry("w", "U8", absl::StrCat("[1,", n, "]"), "[0,1]")}), 1);
  };
  EXPECT_EQ(shape("1"), "");
  EXPECT_THAT(shape("-1"), HasSubstr("\"w\": shape: -1 is negative"));
  EXPECT_THAT(shape("-0"), HasSubstr("\"w\": shape: -0 is negative"));
  EXPECT_THAT(shape("-99999999999999999999"), HasSubstr("is not a whole number below 2^63"));
  EXPECT_THAT(shape("1.0"), HasSubstr("\"w\": shape: 1.0 is not a whole number below 2^63"));
  EXPECT_THAT(shape("1e0"), HasSubstr("\"w\": shape: 1e0 is not a whole number"));
  EXPECT_THAT(shape("1e999"), HasSubstr("\"w\": shape: 1e999 is not a whole number"));
  EXPECT_THAT(shape("9223372036854775807"), HasSubstr("dtype and shape say"));
  EXPECT_THAT(shape("9223372036854775808"), HasSubstr("9223372036854775808 is above the limit"));
  EXPECT_THAT(shape("18446744073709551616"), HasSubstr("is not a whole number below 2^63"));
  EXPECT_THAT(shape("01"), HasSubstr("is not JSON"));
  EXPECT_THAT(shape(std::string(1'000'000, '7')),
              HasSubstr("\"w\": shape: 77777777777777777777777777777777… is not a whole number"));
  EXPECT_THAT(WhyNot(Object({Entry("w", "U8", "[1]", "[0,-1]")}), 1),
              HasSubstr("\"w\": data_offsets: -1 is negative"));
}

TEST(SafetensorsJson, OfOtherTypesIsRefused) {
  EXPECT_THAT(WhyNot(R"({"w":5})", 0), HasSubstr("\"w\": is not an object"));
  EXPECT_THAT(WhyNot(R"({"w":["U8",[1],[0,1]]})", 1), HasSubstr("\"w\": is not an object"));
  for (const char* value : {"5", "-5", "1e999", "null", "true", "{}"}) {
    EXPECT_THAT(WhyNot(absl::StrCat(R"({"w":{"dtype":)", value, "}}"), 0),
                HasSubstr("\"w\": dtype: is neither text nor a list"))
        << value;
  }
  for (const char* value : {"\"1\"", "null", "[1]", "{}", "false"}) {
    EXPECT_THAT(WhyNot(absl::StrCat(R"({"w":{"shape":[1,)", value, "]}}"), 0),
                HasSubstr("\"w\": shape: is not a list of whole numbers"))
        << value;
  }
}

// --- what the entries say

TEST(SafetensorsEntries, OfTheWrongTypeAreRefused) {
  EXPECT_THAT(WhyNot(R"({"w":{"dtype":[8],"shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr("\"w\": dtype: is not text"));
  EXPECT_THAT(WhyNot(R"({"w":{"dtype":"U8","shape":"1","data_offsets":[0,1]}})", 1),
              HasSubstr("\"w\": shape: is not a list of numbers"));
  EXPECT_THAT(WhyNot(Object({Entry("w", "U8", "[1]", "\"0\"")}), 1),
              HasSubstr("\"w\": data_offsets: is not a list of numbers"));
}

TEST(SafetensorsEntries, LackNoField) {
  EXPECT_THAT(WhyNot(R"({"w":{}})", 0), HasSubstr("\"w\": has no dtype"));
  EXPECT_THAT(WhyNot(R"({"w":{"dtype":"U8","data_offsets":[0,1]}})", 1),
              HasSubstr("\"w\": has no shape"));
  EXPECT_THAT(WhyNot(R"({"w":{"dtype":"U8","shape":[0]}})", 0),
              HasSubstr("\"w\": has no data_offsets"));
}

TEST(SafetensorsEntries, MayHaveOtherFieldsOfAnyKind) {
  for (const char* value :
       {"\"y\"", "1", "-1.5e3", "null", "true", "[]", "{}", R"([1,[2,{"dtype":"F32"}],{"a":[[]]}])",
        R"({"shape":[7],"more":{"shape":[8]}})"}) {
    const std::string before =
        absl::StrCat(R"({"w":{"x":)", value, R"(,"dtype":"U8","shape":[1],"data_offsets":[0,1]}})");
    const std::string behind =
        absl::StrCat(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":)", value, "}}");
    EXPECT_EQ(WhyNot(before, 1), "") << value;
    EXPECT_EQ(WhyNot(behind, 1), "") << value;
  }
  EXPECT_THAT(WhyNot(R"({"w":{"x":[1,]}})", 1), HasSubstr("is not JSON"));
  EXPECT_THAT(WhyNot(R"({"w":{"x":1,"x":2}})", 1), HasSubstr("\"x\" is there twice"));
}

TEST(SafetensorsEntries, OfUnknownDtypesAreRefused) {
  EXPECT_THAT(WhyNot(Object({Entry("w", "F9", "[1]", "[0,1]")}), 1),
              HasSubstr("\"w\": dtype: \"F9\" is unknown"));
}

TEST(SafetensorsEntries, WhoseShapeAndOffsetsDifferAreRefused) {
  EXPECT_THAT(WhyNot(Object({Entry("w", "F32", "[2,3]", "[0,23]")}), 23),
              HasSubstr("\"w\": data_offsets: [0, 23) is 23 bytes, but dtype and shape say 24"));
  EXPECT_THAT(WhyNot(Object({Entry("w", "F4", "[3]", "[0,2]")}), 2),
              HasSubstr("\"w\": shape: 3 elements of 4 bits"));
  EXPECT_THAT(WhyNot(Object({Entry("w", "F32", "[4294967296,4294967296]", "[0,0]")}), 0),
              HasSubstr("\"w\": shape: the tensor is larger than 2^63 bytes"));
}

TEST(SafetensorsEntries, WithOffsetsThatAreNotARangeAreRefused) {
  EXPECT_THAT(WhyNot(Object({Entry("w", "U8", "[4]", "[4,0]")}), 4),
              HasSubstr("\"w\": data_offsets: 4 is above 0"));
  for (const auto& [offsets, n] :
       std::vector<std::pair<const char*, int>>{{"[]", 0}, {"[4]", 1}, {"[0,4,8]", 3}}) {
    EXPECT_THAT(WhyNot(Object({Entry("w", "U8", "[4]", offsets)}), 4),
                HasSubstr(absl::StrCat("\"w\": data_offsets: has ", n, " numbers, not 2")));
  }
}

TEST(SafetensorsEntries, ThatOverlapAreRefused) {
  EXPECT_THAT(
      WhyNot(Object({Entry("a", "U8", "[4]", "[0,4]"), Entry("b", "U8", "[4]", "[3,7]")}), 7),
      HasSubstr("\"b\": data_offsets: [3, 7) overlaps [0, 4) of \"a\""));
  EXPECT_THAT(
      WhyNot(Object({Entry("a", "U8", "[4]", "[0,4]"), Entry("b", "U8", "[4]", "[0,4]")}), 4),
      HasSubstr("\"b\": data_offsets: [0, 4) overlaps [0, 4) of \"a\""));
  EXPECT_THAT(
      WhyNot(Object({Entry("a", "U8", "[4]", "[0,4]"), Entry("b", "U8", "[0]", "[2,2]")}), 4),
      HasSubstr("\"b\": data_offsets: [2, 2) overlaps [0, 4) of \"a\""));
}

TEST(SafetensorsEntries, WithAGapAreRefused) {
  EXPECT_THAT(
      WhyNot(Object({Entry("a", "U8", "[4]", "[0,4]"), Entry("b", "U8", "[4]", "[5,9]")}), 9),
      HasSubstr("\"b\": data_offsets: the bytes [4, 5) before it are no tensor's"));
  EXPECT_THAT(WhyNot(Object({Entry("a", "U8", "[1]", "[1,2]")}), 2),
              HasSubstr("\"a\": data_offsets: the bytes [0, 1) before it"));
  EXPECT_THAT(WhyNot(Object({Entry("a", "U8", "[0]", "[1,1]")}), 1),
              HasSubstr("\"a\": data_offsets: the bytes [0, 1) before it"));
}

TEST(SafetensorsEntries, ThatLeaveBytesOverAreRefused) {
  EXPECT_THAT(WhyNot(Object({Entry("a", "U8", "[4]", "[0,4]")}), 5),
              HasSubstr("the bytes [4, 5) after \"a\" are no tensor's"));
  EXPECT_THAT(WhyNot("{}", 1), HasSubstr("the bytes [0, 1) after the header are no tensor's"));
}

TEST(SafetensorsEntries, BeyondTheFileAreRefused) {
  EXPECT_THAT(WhyNot(Object({Entry("a", "U8", "[4]", "[0,4]")}), 3),
              HasSubstr("\"a\": data_offsets: [0, 4) is beyond the file, which has 3 bytes"));
  EXPECT_THAT(
      WhyNot(Object({Entry("a", "U8", "[9223372036854775807]", "[0,9223372036854775807]")}), 3),
      HasSubstr("\"a\": data_offsets: [0, 9223372036854775807) is beyond the file"));
}

TEST(SafetensorsEntries, WithALongNameAreNamedShortly) {
  EXPECT_THAT(WhyNot(Object({Entry(std::string(100'000, 'n'), "F9", "[1]", "[0,1]")}), 1),
              HasSubstr("nnn…\": dtype: \"F9\" is unknown"));
}

TEST(SafetensorsMetadata, HoldsTextOnly) {
  EXPECT_THAT(WhyNot(R"({"__metadata__":{"a":"b","c":5}})", 0),
              HasSubstr("\"__metadata__\": c: is neither text nor"));
  EXPECT_THAT(WhyNot(R"({"__metadata__":{"c":[5]}})", 0),
              HasSubstr("\"__metadata__\": \"c\" is not text"));
  EXPECT_THAT(WhyNot(R"({"__metadata__":"text"})", 0),
              HasSubstr("\"__metadata__\": is not an object"));
  EXPECT_EQ(WhyNot(R"({"__metadata__":null})", 0), "");
  EXPECT_THAT(WhyNot(R"({"w":null})", 0), HasSubstr("\"w\": is not an object"));
}

// --- encoding

std::string WhyNotEncoded(const std::vector<TensorEntry>& tensors,
                          const std::map<std::string, std::string>& metadata = {}) {
  const auto head = EncodeSafetensorsHeader(tensors, metadata);
  EXPECT_EQ(head.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(head.status().message());
}

TEST(SafetensorsEncoder, RefusesWhatNoHeaderCanSay) {
  EXPECT_THAT(WhyNotEncoded({{"", "U8", {1}}}), HasSubstr("name is empty"));
  EXPECT_THAT(WhyNotEncoded({{"\xff", "U8", {1}}}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(WhyNotEncoded({{"w", "U8", {1}}, {"v", "U8", {}}, {"w", "F32", {}}}),
              HasSubstr("\"w\": is there twice"));
  EXPECT_THAT(WhyNotEncoded({{"__metadata__", "U8", {1}}}), HasSubstr("is the metadata's name"));
  EXPECT_THAT(WhyNotEncoded({{"w", "F9", {1}}}), HasSubstr("\"w\": dtype: \"F9\" is unknown"));
  EXPECT_THAT(WhyNotEncoded({{"w", "F4", {1}}}), HasSubstr("\"w\": shape: 1 elements of 4 bits"));
  EXPECT_THAT(WhyNotEncoded({{"v", "U8", {1}}, {"w", "U8", {INT64_MAX}}}),
              HasSubstr("\"w\": ends beyond 2^63 bytes"));
  EXPECT_THAT(WhyNotEncoded({}, {{"\xff", ""}}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(WhyNotEncoded({}, {{"a", "\xff"}}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(WhyNotEncoded({}, {{"a", std::string(kMaxSafetensorsJson, 'a')}}),
              HasSubstr("above the limit 100000000"));
}

}  // namespace
}  // namespace cairn
