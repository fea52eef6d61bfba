// Any bytes: a clean refusal, or a job record that encodes to the same bytes, and that merges with itself to
// itself. The checksum is made to fit, or the fuzzer would never come past it.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/checksum.h"
#include "common/codec.h"
#include "server/engine/job_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  (void)cairn::engine::DecodeJobRecord(bytes);
  cairn::AppendInteger<uint32_t>(&bytes, cairn::Crc32c(0, bytes.data(), bytes.size()));
  auto record = cairn::engine::DecodeJobRecord(bytes);
  if (!record.ok()) return 0;
  if (cairn::engine::EncodeJobRecord(*record) != bytes) std::abort();
  const cairn::engine::JobRecord same = *record;
  const auto learned = record->Merge(same);
  if (!learned.ok() || *learned) std::abort();
  return 0;
}
