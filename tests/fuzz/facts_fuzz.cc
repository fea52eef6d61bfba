// Any bytes: a clean refusal, or a fact that encodes to the same bytes.
#include <cstdint>
#include <cstdlib>

#include "server/facts/facts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto fact = cairn::DecodeFact(bytes);
  if (fact.ok() && cairn::EncodeFact(*fact) != bytes) std::abort();
  return 0;
}
