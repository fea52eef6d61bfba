#include "proto/frame.h"

#include <thrift/protocol/TProtocolException.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn {
namespace {

using apache::thrift::TConfiguration;
using apache::thrift::protocol::TBinaryProtocolT;
using apache::thrift::protocol::TType;
using apache::thrift::transport::TMemoryBuffer;
using apache::thrift::transport::TTransportException;

// libthrift counts what is read from a buffer against its own limit, which is one message's.
std::shared_ptr<TConfiguration> Limits() {
  static const auto limits =
      std::make_shared<TConfiguration>(static_cast<int>(kMaxFrameBytes + kFrameHeaderBytes));
  return limits;
}

}  // namespace

// Each of our structs has a field, and the shortest field that a struct of a list has is an i64 or a
// string.
uint64_t LeastEntryBytes(TType type) {
  switch (type) {
    case apache::thrift::protocol::T_STRUCT:
      return 8;
    case apache::thrift::protocol::T_I64:
    case apache::thrift::protocol::T_DOUBLE:
      return 8;
    case apache::thrift::protocol::T_I32:
    case apache::thrift::protocol::T_STRING:
      return 4;
    case apache::thrift::protocol::T_I16:
      return 2;
    default:
      return 1;
  }
}

uint64_t EntryMemory(TType type) {
  switch (type) {
    case apache::thrift::protocol::T_STRUCT:
      return 128;
    case apache::thrift::protocol::T_STRING:
      return sizeof(std::string);
    default:
      return 8;
  }
}

void CheckMessageType(const apache::thrift::protocol::TMessageType& came) {
  using apache::thrift::protocol::TProtocolException;
  int type = 0;
  static_assert(sizeof(type) == sizeof(came));
  std::memcpy(&type, &came, sizeof(type));
  if (type < apache::thrift::protocol::T_CALL || type > apache::thrift::protocol::T_ONEWAY) {
    throw TProtocolException(TProtocolException::INVALID_DATA, "a message of an unknown type");
  }
}

uint32_t FrameLength(const char* header) {
  uint32_t length = 0;
  for (uint32_t i = 0; i < kFrameHeaderBytes; ++i) {
    length = (length << 8) | static_cast<uint8_t>(header[i]);
  }
  return length;
}

void PutFrameLength(uint32_t length, char* header) {
  for (uint32_t i = 0; i < kFrameHeaderBytes; ++i) {
    header[i] = static_cast<char>(length >> (8 * (kFrameHeaderBytes - 1 - i)));
  }
}

MessageBytes::MessageBytes() : TVirtualTransport(Limits()) {}

uint32_t MessageBytes::read(uint8_t* bytes, uint32_t length) {
  const uint32_t n = std::min(length, available_read());
  if (n == 0) throw TTransportException(TTransportException::END_OF_FILE, "the message is short");
  std::memcpy(bytes, left_.data(), n);
  left_.remove_prefix(n);
  return n;
}

FrameWriter::FrameWriter()
    : bytes_(std::make_shared<TMemoryBuffer>(Limits())),
      protocol_(std::make_unique<TBinaryProtocolT<TMemoryBuffer>>(bytes_)) {
  Reset();
}

void FrameWriter::Reset() {
  bytes_->resetBuffer();
  const uint8_t header[kFrameHeaderBytes] = {};
  bytes_->write(header, sizeof(header));
}

absl::string_view FrameWriter::Finish() {
  uint8_t* begin = nullptr;
  uint32_t size = 0;
  bytes_->getBuffer(&begin, &size);
  auto* const bytes = reinterpret_cast<char*>(begin);
  PutFrameLength(size - kFrameHeaderBytes, bytes);
  return {bytes, size};
}

}  // namespace cairn
