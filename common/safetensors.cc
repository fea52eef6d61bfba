#include "common/safetensors.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_join.h"
#include "common/codec.h"
#include "common/json_entries.h"

namespace cairn {
namespace {

constexpr char kMetadata[] = "__metadata__";
constexpr uint64_t kLeastJson = 2;  // {}
constexpr uint64_t kAlignment = 8;
constexpr uint64_t kMaxBytes = INT64_MAX;

struct Dtype {
  absl::string_view name;
  uint32_t bits;
};
// Those of the stock library, 0.8.0.
constexpr Dtype kDtypes[] = {
    {"BOOL", 8}, {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},   {"F8_E5M2", 8},     {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"I16", 16}, {"F8_E5M2FNUZ", 8}, {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32}, {"U32", 32},        {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64}, {"U64", 64},
};

Status BadSafetensors(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("safetensors: ", what));
}

Status BadSafetensors(absl::string_view tensor, absl::string_view what) {
  return BadSafetensors(absl::StrCat(Quoted(tensor), ": ", what));
}

std::string Range(uint64_t begin, uint64_t end) { return absl::StrCat("[", begin, ", ", end, ")"); }

Status TakeMetadata(JsonEntry entry, SafetensorsHeader* header) {
  for (JsonField& field : entry.fields) {
    if (field.text() == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(entry.name), ": ", Quoted(field.name), " is not text"));
    }
    header->metadata[std::move(field.name)] = *field.text();
  }
  return absl::OkStatus();
}

// Sets the entry's dtype, shape, begin and end from a field; these count from the first tensor here. The error says
// only what is wrong with the field.
Status TakeField(const JsonField& field, TensorEntry* tensor) {
  if (field.name == "dtype") {
    if (field.text() == nullptr) return absl::InvalidArgumentError("is not text");
    tensor->dtype = *field.text();
    return absl::OkStatus();
  }
  if (field.numbers() == nullptr) return absl::InvalidArgumentError("is not a list of numbers");
  const std::vector<uint64_t>& numbers = *field.numbers();
  if (field.name == "shape") {
    tensor->shape = numbers;
    return absl::OkStatus();
  }
  if (numbers.size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat("has ", numbers.size(), " numbers, not 2"));
  }
  tensor->begin = numbers[0];
  tensor->end = numbers[1];
  return absl::OkStatus();
}

StatusOr<TensorEntry> TakeTensor(JsonEntry entry) {
  if (entry.null) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(entry.name), ": is not an object"));
  }
  TensorEntry tensor;
  tensor.name = std::move(entry.name);
  for (const JsonField& field : entry.fields) {
    CAIRN_RETURN_IF_ERROR(Annotate(Annotate(TakeField(field, &tensor), field.name.substr(0, 64)),
                                   Quoted(tensor.name)));
  }
  for (absl::string_view name : {"dtype", "shape", "data_offsets"}) {
    const bool there = std::any_of(entry.fields.begin(), entry.fields.end(),
                                   [&](const JsonField& field) { return field.name == name; });
    if (!there) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(tensor.name), ": has no ", name));
    }
  }
  const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
  if (!bytes.ok()) return Annotate(bytes.status(), Quoted(tensor.name));
  if (tensor.begin > tensor.end) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(tensor.name), ": data_offsets: ", tensor.begin, " is above ", tensor.end));
  }
  if (tensor.end - tensor.begin != *bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(tensor.name), ": data_offsets: ", Range(tensor.begin, tensor.end), " is ",
        tensor.end - tensor.begin, " bytes, but dtype and shape say ", *bytes));
  }
  return tensor;
}

// Fields that the format does not have: the stock library passes over them, too.
bool IsForeign(absl::string_view entry, absl::string_view field) {
  return entry != kMetadata && field != "dtype" && field != "shape" && field != "data_offsets";
}

// Tensors in the order of their bytes fill all of `data_bytes`, one after the other.
Status CheckTiling(absl::Span<const TensorEntry> tensors, uint64_t data_bytes) {
  uint64_t at = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& tensor = tensors[i];
    if (tensor.begin < at) {
      return BadSafetensors(
          tensor.name,
          absl::StrCat("data_offsets: ", Range(tensor.begin, tensor.end), " overlaps ",
                       Range(tensors[i - 1].begin, at), " of ", Quoted(tensors[i - 1].name)));
    }
    if (tensor.begin > at) {
      return BadSafetensors(tensor.name,
                            absl::StrCat("data_offsets: the bytes ", Range(at, tensor.begin),
                                         " before it are no tensor's"));
    }
    if (tensor.end > data_bytes) {
      return BadSafetensors(
          tensor.name,
          absl::StrCat("data_offsets: ", Range(tensor.begin, tensor.end),
                       " is beyond the file, which has ", data_bytes, " bytes of tensors"));
    }
    at = tensor.end;
  }
  if (at < data_bytes) {
    return BadSafetensors(absl::StrCat("the bytes ", Range(at, data_bytes), " after ",
                                       tensors.empty() ? "the header" : Quoted(tensors.back().name),
                                       " are no tensor's"));
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t DtypeBits(absl::string_view dtype) {
  for (const Dtype& known : kDtypes) {
    if (known.name == dtype) return known.bits;
  }
  return 0;
}

StatusOr<uint64_t> TensorBytes(absl::string_view dtype, absl::Span<const uint64_t> shape) {
  const uint64_t bits = DtypeBits(dtype);
  if (bits == 0) {
    return absl::InvalidArgumentError(absl::StrCat("dtype: ", Quoted(dtype), " is unknown"));
  }
  // kMaxBytes * 8 / bits without the overflow. For 4 bits it is still below 2^64.
  const uint64_t most = kMaxBytes / bits * 8 + kMaxBytes % bits * 8 / bits;
  // A dimension of 0 makes the tensor empty, but does not excuse the others: strides multiply them too.
  uint64_t elements = 1;
  bool empty = false;
  if (shape.size() > kMaxTensorDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape: ", shape.size(), " dimensions, more than ", kMaxTensorDims));
  }
  for (uint64_t n : shape) {
    if (n == 0) {
      empty = true;
    } else if (n > kMaxBytes || n > most / elements) {
      return absl::InvalidArgumentError("shape: the tensor is larger than 2^63 bytes");
    } else {
      elements *= n;
    }
  }
  if (empty) return 0;
  if (elements % 8 * bits % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", elements, " elements of ", bits,
                                                   " bits do not fill their last byte"));
  }
  return elements / 8 * bits + elements % 8 * bits / 8;
}

StatusOr<uint64_t> SafetensorsHeaderBytes(absl::string_view first, uint64_t file_bytes) {
  if (first.size() < kSafetensorsLengthBytes || file_bytes < kSafetensorsLengthBytes) {
    return BadSafetensors(absl::StrCat("the file has ",
                                       std::min<uint64_t>(first.size(), file_bytes),
                                       " bytes, and the header's length alone takes 8"));
  }
  const auto length = ReadInteger<uint64_t>(first.data());
  if (length < kLeastJson) {
    return BadSafetensors(absl::StrCat("the header's length: ", length, " is below 2"));
  }
  if (length > kMaxSafetensorsJson) {
    return BadSafetensors(
        absl::StrCat("the header's length: ", length, " is above the limit ", kMaxSafetensorsJson));
  }
  if (length > file_bytes - kSafetensorsLengthBytes) {
    return BadSafetensors(absl::StrCat("the header's length: ", length,
                                       " is beyond the file, which has ", file_bytes, " bytes"));
  }
  return kSafetensorsLengthBytes + length;
}

StatusOr<SafetensorsHeader> ReadSafetensorsHeader(absl::string_view head, uint64_t file_bytes) {
  SafetensorsHeader header;
  CAIRN_ASSIGN_OR_RETURN(header.data_begin, SafetensorsHeaderBytes(head, file_bytes));
  if (head.size() < header.data_begin) {
    return BadSafetensors(absl::StrCat("the header has ", header.data_begin,
                                       " bytes, of which only ", head.size(), " are here"));
  }
  const auto json =
      head.substr(kSafetensorsLengthBytes, header.data_begin - kSafetensorsLengthBytes);
  const auto take = [&](JsonEntry entry) -> Status {
    if (entry.name == kMetadata) return TakeMetadata(std::move(entry), &header);
    CAIRN_ASSIGN_OR_RETURN(TensorEntry tensor, TakeTensor(std::move(entry)));
    header.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  };
  const Status read = ReadJsonEntries(json, take, IsForeign);
  CAIRN_RETURN_IF_ERROR(Annotate(read, "safetensors"));
  // Stable, so that several empty tensors at one place stay as the header has them.
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorEntry& a, const TensorEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  CAIRN_RETURN_IF_ERROR(CheckTiling(header.tensors, file_bytes - header.data_begin));
  for (TensorEntry& tensor : header.tensors) {
    tensor.begin += header.data_begin;
    tensor.end += header.data_begin;
  }
  return header;
}

StatusOr<std::string> EncodeSafetensorsHeader(absl::Span<const TensorEntry> tensors,
                                              const std::map<std::string, std::string>& metadata) {
  std::string json = "{";
  const auto begin_entry = [&](absl::string_view name) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const std::string text, JsonText(name));
    absl::StrAppend(&json, json.size() > 1 ? "," : "", text, ":{");
    return absl::OkStatus();
  };
  if (!metadata.empty()) {
    CAIRN_RETURN_IF_ERROR(begin_entry(kMetadata));
    for (const auto& [key, value] : metadata) {
      const auto key_text = JsonText(key), value_text = JsonText(value);
      for (const auto* text : {&key_text, &value_text}) {
        if (!text->ok()) return BadSafetensors(kMetadata, text->status().message());
      }
      absl::StrAppend(&json, json.back() == '{' ? "" : ",", *key_text, ":", *value_text);
    }
    json += "}";
  }
  absl::flat_hash_set<absl::string_view> names;
  uint64_t at = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.name.empty()) return BadSafetensors("a tensor's name is empty");
    if (tensor.name == kMetadata) return BadSafetensors(tensor.name, "is the metadata's name");
    if (!names.insert(tensor.name).second) return BadSafetensors(tensor.name, "is there twice");
    CAIRN_RETURN_IF_ERROR(Annotate(begin_entry(tensor.name), "safetensors: a tensor's name"));
    const auto bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) return BadSafetensors(tensor.name, bytes.status().message());
    if (*bytes > kMaxBytes - at) return BadSafetensors(tensor.name, "ends beyond 2^63 bytes");
    absl::StrAppend(&json, R"("dtype":")", tensor.dtype, R"(","shape":[)",
                    absl::StrJoin(tensor.shape, ","), R"(],"data_offsets":[)", at, ",", at + *bytes,
                    "]}");
    at += *bytes;
  }
  json += "}";
  json.append((kAlignment - json.size() % kAlignment) % kAlignment, ' ');
  if (json.size() > kMaxSafetensorsJson) {
    return BadSafetensors(absl::StrCat("the header's length: ", json.size(), " is above the limit ",
                                       kMaxSafetensorsJson));
  }
  std::string header;
  header.reserve(kSafetensorsLengthBytes + json.size());
  AppendInteger<uint64_t>(&header, json.size());
  header += json;
  return header;
}

}  // namespace cairn
