// One input of a fuzzer, read as numbers and strings. What is missing reads as zeros and empty strings, so that
// every input means something and every prefix of it, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace cairn::testing {

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }

  template <typename T>
  T Number() {  // little-endian
    T value = 0;
    const size_t bytes = std::min(sizeof(T), left_);
    if (bytes > 0) std::memcpy(&value, data_, bytes);
    Skip(bytes);
    return value;
  }
  uint8_t Byte() { return Number<uint8_t>(); }

  // Two bytes of length, then as many of them as there are.
  std::string Bytes() {
    const size_t length = std::min<size_t>(Number<uint16_t>(), left_);
    std::string bytes(reinterpret_cast<const char*>(data_), length);
    Skip(length);
    return bytes;
  }

 private:
  void Skip(size_t bytes) {
    data_ += bytes;
    left_ -= bytes;
  }

  const uint8_t* data_;
  size_t left_;
};

}  // namespace cairn::testing
