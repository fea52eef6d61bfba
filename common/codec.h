// Little-endian integers, of which all our formats are made. A Cursor reads them from untrusted
// bytes and never goes beyond their end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace cairn {

template <typename T>
void AppendInteger(std::string* out, T value) {
  static_assert(std::is_integral_v<T>);
  const auto bits = static_cast<uint64_t>(value);
  for (size_t i = 0; i < sizeof(T); ++i) out->push_back(static_cast<char>(bits >> (8 * i)));
}

template <typename T>
T ReadInteger(const char* at) {
  static_assert(std::is_integral_v<T>);
  uint64_t bits = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    bits |= uint64_t{static_cast<uint8_t>(at[i])} << (8 * i);
  }
  return static_cast<T>(bits);
}

// Each Take… returns false, and takes nothing, when fewer bytes are left than it needs.
class Cursor {
 public:
  explicit Cursor(absl::string_view bytes) : rest_(bytes) {}

  size_t left() const { return rest_.size(); }
  absl::string_view rest() const { return rest_; }

  template <typename T>
  bool Take(T* value) {
    if (rest_.size() < sizeof(T)) return false;
    *value = ReadInteger<T>(rest_.data());
    rest_.remove_prefix(sizeof(T));
    return true;
  }
  bool TakeBytes(size_t n, absl::string_view* bytes) {
    if (rest_.size() < n) return false;
    *bytes = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return true;
  }

 private:
  absl::string_view rest_;
};

}  // namespace cairn
