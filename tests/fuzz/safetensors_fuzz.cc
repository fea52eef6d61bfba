// Any bytes: a clean refusal, or tensors that fill the file and encode to a header that says the same. The bytes are
// a whole file, and the JSON of one whose length fits.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/codec.h"
#include "common/safetensors.h"

namespace {

void Check(absl::string_view head, uint64_t file_bytes) {
  const auto header = cairn::ReadSafetensorsHeader(head, file_bytes);
  if (!header.ok()) return;
  uint64_t at = header->data_begin;
  for (const cairn::TensorEntry& tensor : header->tensors) {
    const auto bytes = cairn::TensorBytes(tensor.dtype, tensor.shape);
    if (tensor.begin != at || !bytes.ok() || tensor.end - tensor.begin != *bytes) std::abort();
    at = tensor.end;
  }
  if (at != file_bytes) std::abort();

  const auto encoded = cairn::EncodeSafetensorsHeader(header->tensors, header->metadata);
  if (!encoded.ok() || encoded->size() % 8 != 0) std::abort();
  const uint64_t data_bytes = file_bytes - header->data_begin;
  auto again = cairn::ReadSafetensorsHeader(*encoded, encoded->size() + data_bytes);
  if (!again.ok() || again->data_begin != encoded->size()) std::abort();
  for (cairn::TensorEntry& tensor : again->tensors) {
    tensor.begin = tensor.begin - again->data_begin + header->data_begin;
    tensor.end = tensor.end - again->data_begin + header->data_begin;
  }
  again->data_begin = header->data_begin;
  if (*again != *header) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  Check(bytes, size);
  // One byte of how much data follows; the length is made to fit, or the fuzzer would hardly come past it.
  if (bytes.empty()) return 0;
  std::string head;
  cairn::AppendInteger<uint64_t>(&head, size - 1);
  absl::StrAppend(&head, bytes.substr(1));
  Check(head, head.size() + data[0]);
  return 0;
}
