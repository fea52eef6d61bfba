// JSON of one form: {"entry": {"field": "text", "field": [numbers], ...}, ...}. The header of a safetensors file has
// it, and so has what Cairn itself keeps there.
//
// Its writer is a stranger. The reader takes one entry at a time, descends no deeper than the form does, and keeps no
// more than a small multiple of the text's own length.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace cairn {

struct JsonField {
  std::string name;
  std::variant<std::string, std::vector<uint64_t>> value;

  const std::string* text() const { return std::get_if<std::string>(&value); }
  const std::vector<uint64_t>* numbers() const {
    return std::get_if<std::vector<uint64_t>>(&value);
  }
};

struct JsonEntry {
  std::string name;
  std::vector<JsonField> fields;
  bool null = false;  // null stands there instead of an object
};

// Whether a field is passed over, whatever its value is.
using JsonPassesOver = std::function<bool(absl::string_view entry, absl::string_view field)>;

// Calls `take` with each entry in turn, and ends with the first error that it returns. INVALID_ARGUMENT, naming entry
// and field, for what is not JSON or not of this form, a name that is twice in its object, and a number that is
// negative, not whole, or not below 2^63.
Status ReadJsonEntries(absl::string_view json, const std::function<Status(JsonEntry)>& take,
                       const JsonPassesOver& passes_over = nullptr);

// `text` as a JSON string, quotes included. INVALID_ARGUMENT when it is not UTF-8.
StatusOr<std::string> JsonText(absl::string_view text);

// A name for a message: escaped, and cut short when it is long.
std::string Quoted(absl::string_view name);

}  // namespace cairn
