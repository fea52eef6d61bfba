// The layout of a safetensors file: 8 bytes with the length of a JSON header, the header, the tensors' bytes one after
// the other without a gap. The format is Hugging Face's (github.com/huggingface/safetensors, README, "Format").
//
// The header is a stranger's: everything it says is checked before it is believed, and what it costs is bounded by its
// own length. Offsets here count from the first byte of the file; in the header they count from the first tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/status.h"

namespace cairn {

struct TensorEntry {
  std::string name;
  std::string dtype;            // as the format writes it: "BF16"
  std::vector<uint64_t> shape;  // elements per dimension; empty: one element
  uint64_t begin = 0;           // its bytes are [begin, end) of the file
  uint64_t end = 0;

  bool operator==(const TensorEntry&) const = default;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;             // in the order of their bytes
  std::map<std::string, std::string> metadata;  // "__metadata__"
  uint64_t data_begin = 0;                      // where the header ends

  bool operator==(const SafetensorsHeader&) const = default;
};

// Bits of one element; 0 for what is no dtype of the format.
uint32_t DtypeBits(absl::string_view dtype);
// Frameworks have at most 64 dimensions. What a plan costs grows with their number, and a header could name millions.
inline constexpr size_t kMaxTensorDims = 64;
// Bytes of a tensor. INVALID_ARGUMENT for an unknown dtype, more dimensions than that, a size beyond 2^63, and elements
// that do not fill bytes.
StatusOr<uint64_t> TensorBytes(absl::string_view dtype, absl::Span<const uint64_t> shape);

// The format's own bound on the JSON.
inline constexpr uint64_t kMaxSafetensorsJson = 100'000'000;
inline constexpr uint64_t kSafetensorsLengthBytes = 8;

// How long the header of a file of `file_bytes` is, its 8 bytes of length included, from these 8 bytes.
// INVALID_ARGUMENT when the file is too short for it, or it is longer than the format allows.
StatusOr<uint64_t> SafetensorsHeaderBytes(absl::string_view first, uint64_t file_bytes);
// The header of a file of `file_bytes` that begins with `head`, which holds all of the header. INVALID_ARGUMENT names
// the tensor and the field that is wrong: no JSON, a duplicate name, an unknown dtype, a shape and offsets that differ,
// an overlap, a gap, bytes after the last tensor, or less of them than it says.
StatusOr<SafetensorsHeader> ReadSafetensorsHeader(absl::string_view head, uint64_t file_bytes);

// The header of a file that holds these tensors in this order; `begin` and `end` are not looked at. It is padded with
// spaces, so that the first tensor begins at a multiple of 8. INVALID_ARGUMENT for names that are empty, no UTF-8 or
// twice, "__metadata__", and as TensorBytes.
StatusOr<std::string> EncodeSafetensorsHeader(absl::Span<const TensorEntry> tensors,
                                              const std::map<std::string, std::string>& metadata);

}  // namespace cairn
