// Any bytes: a clean refusal, or a manifest that encodes to the same bytes. The checksum is made to
// fit, or the fuzzer would never come past it.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/checksum.h"
#include "common/codec.h"
#include "common/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  (void)cairn::DecodeManifest(bytes);
  cairn::AppendInteger<uint32_t>(&bytes, cairn::Crc32c(0, bytes.data(), bytes.size()));
  const auto manifest = cairn::DecodeManifest(bytes);
  if (manifest.ok() && cairn::EncodeManifest(*manifest) != bytes) std::abort();
  return 0;
}
