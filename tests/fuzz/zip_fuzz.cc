// Any bytes: a clean refusal, or records that lie inside them.
#include <cstdint>
#include <cstdlib>

#include "common/zip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto entries =
      cairn::ReadZipDirectory(absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!entries.ok()) return 0;
  for (const cairn::ZipEntry& entry : *entries) {
    if (entry.offset > size || entry.length > size - entry.offset) std::abort();
  }
  return 0;
}
