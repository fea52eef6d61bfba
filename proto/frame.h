// Messages on the Thrift socket: four bytes of length, big-endian, then one strict binary message, as
// Thrift's framed transport has them. Both sides read a message only when all of it is there, from
// memory, and what it says of itself is bounded by the bytes that came.
#pragma once

#include <thrift/protocol/TBinaryProtocol.h>
#include <thrift/transport/TBufferTransports.h>
#include <thrift/transport/TVirtualTransport.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status.h"

namespace cairn {

inline constexpr uint32_t kFrameHeaderBytes = 4;
// Of a message after its header.
inline constexpr uint32_t kMaxFrameBytes = 64 << 20;

uint32_t FrameLength(const char* header);  // of kFrameHeaderBytes bytes
void PutFrameLength(uint32_t length, char* header);

// The least that an entry of this type takes on the wire, and what it takes in memory, about, beside the
// bytes of strings.
uint64_t LeastEntryBytes(apache::thrift::protocol::TType type);
uint64_t EntryMemory(apache::thrift::protocol::TType type);

// Throws TProtocolException unless what came is a message's type: to read another one as the enumeration would
// be undefined.
void CheckMessageType(const apache::thrift::protocol::TMessageType& came);

// Reads messages that are in memory. Throws TProtocolException, also for a list that has more entries
// than the bytes that are left can hold, and once the lists of one message take more than
// `max_entry_bytes` of memory. `Transport` has available_read(): how much of the message is left.
template <typename Transport>
class FrameReader : public apache::thrift::protocol::TBinaryProtocolT<Transport> {
  using Base = apache::thrift::protocol::TBinaryProtocolT<Transport>;
  using TType = apache::thrift::protocol::TType;

 public:
  FrameReader(std::shared_ptr<Transport> transport, uint64_t max_entry_bytes)
      : Base(std::move(transport), /*string_limit=*/1, /*container_limit=*/1,
             /*strict_read=*/true, /*strict_write=*/true),
        max_entry_bytes_(max_entry_bytes) {}

  uint32_t readMessageBegin_virt(std::string& name, apache::thrift::protocol::TMessageType& type,
                                 int32_t& sequence) override {
    entry_bytes_ = 0;
    const auto limit = std::max(1, static_cast<int32_t>(this->trans_->available_read()));
    this->setStringSizeLimit(limit);
    this->setContainerSizeLimit(limit);
    const uint32_t read = Base::readMessageBegin(name, type, sequence);
    CheckMessageType(type);
    return read;
  }
  void set_max_entry_bytes(uint64_t bytes) { max_entry_bytes_ = bytes; }
  // What the lists of the message that is being read take so far.
  uint64_t entry_bytes() const { return entry_bytes_; }
  void set_entry_bytes(uint64_t bytes) { entry_bytes_ = bytes; }
  uint32_t readListBegin_virt(TType& entry, uint32_t& size) override {
    const uint32_t read = Base::readListBegin(entry, size);
    Check(LeastEntryBytes(entry), EntryMemory(entry), size);
    return read;
  }
  uint32_t readSetBegin_virt(TType& entry, uint32_t& size) override {
    const uint32_t read = Base::readSetBegin(entry, size);
    Check(LeastEntryBytes(entry), EntryMemory(entry), size);
    return read;
  }
  uint32_t readMapBegin_virt(TType& key, TType& value, uint32_t& size) override {
    const uint32_t read = Base::readMapBegin(key, value, size);
    // A map's node in memory has links beside its entry.
    Check(LeastEntryBytes(key) + LeastEntryBytes(value), EntryMemory(key) + EntryMemory(value) + 48,
          size);
    return read;
  }

 private:
  void Check(uint64_t least_bytes, uint64_t memory, uint32_t size) {
    using apache::thrift::protocol::TProtocolException;
    if (size * least_bytes > this->trans_->available_read()) {
      throw TProtocolException(TProtocolException::SIZE_LIMIT,
                               "a list has more entries than bytes are left");
    }
    entry_bytes_ += size * memory;
    if (entry_bytes_ > max_entry_bytes_) {
      throw TProtocolException(TProtocolException::SIZE_LIMIT,
                               absl::StrCat("its lists take ", entry_bytes_,
                                            " bytes of memory, the limit is ", max_entry_bytes_));
    }
  }

  uint64_t max_entry_bytes_;
  uint64_t entry_bytes_ = 0;
};

// One message without its header, to be read. The bytes are the caller's.
class MessageBytes : public apache::thrift::transport::TVirtualTransport<MessageBytes> {
 public:
  MessageBytes();
  void Set(absl::string_view message) { left_ = message; }
  absl::string_view left() const { return left_; }
  uint32_t available_read() const { return static_cast<uint32_t>(left_.size()); }

  bool isOpen() const override { return true; }
  bool peek() override { return !left_.empty(); }
  void open() override {}
  void close() override {}
  uint32_t read(uint8_t* bytes, uint32_t length);
  const uint8_t* borrow(uint8_t*, uint32_t* length) {
    if (left_.size() < *length) return nullptr;
    *length = available_read();
    return reinterpret_cast<const uint8_t*>(left_.data());
  }
  void consume(uint32_t length) { left_.remove_prefix(length); }

 private:
  absl::string_view left_;
};

// Reads one message after the other.
class MessageReader {
 public:
  // What the lists of a message take in memory is at most so many times its length and kAlways, and
  // `max_entry_bytes`.
  static constexpr uint64_t kMostTimes = 4, kAlways = 1 << 20;
  // Of a message from a member of the ring, which means well. EntryMemory takes 128 bytes for each struct, and
  // the shortest that members say in lists has 19 bytes (WriterId in proto/peer.thrift), so none of their
  // messages is refused for what its lists take.
  static constexpr uint64_t kMostTimesOfMembers = 8;

  explicit MessageReader(uint64_t max_entry_bytes)
      : max_entry_bytes_(max_entry_bytes),
        bytes_(std::make_shared<MessageBytes>()),
        protocol_(bytes_, max_entry_bytes) {}
  // Of the next message, which outlives what is read from it.
  apache::thrift::protocol::TProtocol* Read(absl::string_view message,
                                            uint64_t most_times = kMostTimes) {
    bytes_->Set(message);
    limit_ = std::min<uint64_t>(max_entry_bytes_, most_times * message.size() + kAlways);
    protocol_.set_max_entry_bytes(limit_);
    return &protocol_;
  }
  // A struct of the message. One that cannot be read is passed over, and why is returned: what stands behind
  // it can be read. Throws where its end cannot be told.
  template <typename Struct>
  Status ReadOrPassOver(Struct* value) {
    const absl::string_view begin = bytes_->left();
    const uint64_t entry_bytes = protocol_.entry_bytes();
    std::string why;
    try {
      value->read(&protocol_);
      return absl::OkStatus();
    } catch (const std::exception& e) {
      why = e.what();
    }
    *value = Struct();
    bytes_->Set(begin);
    // Nothing of it is kept, so its lists take no memory.
    protocol_.set_max_entry_bytes(std::numeric_limits<uint64_t>::max());
    protocol_.skip(apache::thrift::protocol::T_STRUCT);
    protocol_.set_max_entry_bytes(limit_);
    protocol_.set_entry_bytes(entry_bytes);
    return absl::InvalidArgumentError(why);
  }

 private:
  const uint64_t max_entry_bytes_;
  uint64_t limit_ = 0;  // of the message that is being read
  const std::shared_ptr<MessageBytes> bytes_;
  FrameReader<MessageBytes> protocol_;
};

// Writes one message behind its header.
class FrameWriter {
 public:
  FrameWriter();
  apache::thrift::protocol::TProtocol* protocol() { return protocol_.get(); }
  // Header and message; valid until the next use of the writer.
  absl::string_view Finish();
  void Reset();  // for the next message

 private:
  const std::shared_ptr<apache::thrift::transport::TMemoryBuffer> bytes_;
  const std::unique_ptr<apache::thrift::protocol::TProtocol> protocol_;
};

}  // namespace cairn
