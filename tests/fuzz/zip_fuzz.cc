// Any bytes, as an archive and as the two ends of a longer one: a clean refusal, or records that lie inside it.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/zip.h"

namespace {

void Check(const cairn::StatusOr<std::vector<cairn::ZipEntry>>& entries, uint64_t length) {
  if (!entries.ok()) return;
  for (const cairn::ZipEntry& entry : *entries) {
    if (entry.offset > length || entry.length > length - entry.offset) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  Check(cairn::ReadZipDirectory(bytes), size);
  // Of different sizes, each in memory of its own, so that reading beyond either shows.
  const std::string head(bytes.substr(0, size / 3)), tail(bytes.substr(size / 3));
  for (const uint64_t between : {uint64_t{0}, uint64_t{1} << 20, uint64_t{1} << 40}) {
    const uint64_t length = size + between;
    Check(cairn::ReadZipDirectory(cairn::ZipEnds{head, tail, length}), length);
  }
  return 0;
}
