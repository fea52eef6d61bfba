// Any bytes: a clean refusal, or a fact that encodes to the same bytes. Of an earlier version: to
// the same fact in this build's.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "server/facts/facts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto fact = cairn::DecodeFact(bytes);
  if (!fact.ok() || !fact->has_value()) return 0;
  std::string plain(bytes);
  plain[1] = static_cast<char>(plain[1] & 0x7F);  // the mark tells a reader that knows it nothing
  const std::string again = cairn::EncodeFact(**fact);
  if (plain[1] == again[1] && again != plain) std::abort();
  const auto twice = cairn::DecodeFact(again);
  if (!twice.ok() || **twice != **fact) std::abort();
  return 0;
}
