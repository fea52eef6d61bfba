#include "proto/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thrift/protocol/TProtocolException.h>

#include "Cairn.h"

namespace cairn {
namespace {

using apache::thrift::protocol::TMessageType;
using apache::thrift::protocol::TProtocol;
using apache::thrift::protocol::TProtocolException;
using apache::thrift::protocol::TType;

constexpr uint64_t kEnough = 1 << 20;

std::string Message(const std::function<void(TProtocol*)>& write) {
  FrameWriter writer;
  writer.protocol()->writeMessageBegin("call", TMessageType::T_CALL, 7);
  write(writer.protocol());
  writer.protocol()->writeMessageEnd();
  const std::string framed(writer.Finish());
  EXPECT_EQ(FrameLength(framed.data()), framed.size() - kFrameHeaderBytes);
  return framed.substr(kFrameHeaderBytes);
}

// What reading the arguments of a create throws; empty: nothing.
std::string ReadCreate(const std::string& message, uint64_t max_entry_bytes = kEnough) {
  MessageReader reader(max_entry_bytes);
  TProtocol* const in = reader.Read(message);
  try {
    std::string name;
    TMessageType type;
    int32_t sequence = 0;
    in->readMessageBegin(name, type, sequence);
    EXPECT_EQ(name, "call");
    EXPECT_EQ(sequence, 7);
    wire::Cairn_create_args args;
    args.read(in);
    in->readMessageEnd();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

std::string CreateOf(size_t objects) {
  wire::Cairn_create_args args;
  args.call = 1;
  args.request.objects.resize(objects);
  return Message([&](TProtocol* out) { args.write(out); });
}

TEST(Frame, WhatIsWrittenIsRead) { EXPECT_EQ(ReadCreate(CreateOf(1000)), ""); }

TEST(Frame, AMessageHasATypeThatThereIs) {
  std::string message = CreateOf(1);
  for (const int type : {0, 5, 9, 255}) {
    message[3] = static_cast<char>(type);
    EXPECT_THAT(ReadCreate(message), ::testing::HasSubstr("unknown type")) << type;
  }
  message[3] = TMessageType::T_ONEWAY;
  EXPECT_EQ(ReadCreate(message), "");
}

// 40 bytes cost 104 MiB: a list's entries were made before one of them had come.
TEST(Frame, AListHasNoMoreEntriesThanItsBytesCanHold) {
  const std::string message = Message([](TProtocol* out) {
    out->writeStructBegin("args");
    out->writeFieldBegin("request", TType::T_STRUCT, 2);
    out->writeStructBegin("request");
    out->writeFieldBegin("objects", TType::T_LIST, 6);
    out->writeListBegin(TType::T_STRUCT, 1 << 20);
  });
  EXPECT_LT(message.size(), 60u);
  EXPECT_THAT(ReadCreate(message), ::testing::HasSubstr("size limit"));
}

// One byte each, and a hundred in memory.
TEST(Frame, AListOfStructsWithoutAFieldIsRefused) {
  const std::string message = Message([](TProtocol* out) {
    out->writeStructBegin("args");
    out->writeFieldBegin("request", TType::T_STRUCT, 2);
    out->writeStructBegin("request");
    out->writeFieldBegin("objects", TType::T_LIST, 6);
    out->writeListBegin(TType::T_STRUCT, 1000);
    for (int i = 0; i < 1000 + 2; ++i) out->writeFieldStop();
  });
  EXPECT_THAT(ReadCreate(message), ::testing::HasSubstr("more entries than bytes"));
}

TEST(Frame, TheEntriesOfAllListsTogetherHaveALimit) {
  EXPECT_EQ(ReadCreate(CreateOf(100), 100 * 128), "");
  EXPECT_NE(ReadCreate(CreateOf(101), 100 * 128), "");
}

// Each of these structs is eight bytes in the message and a hundred in memory, well within the limit of all.
TEST(Frame, TheEntriesOfAllListsAreInProportionToTheMessage) {
  constexpr int kStructs = 32 << 10;
  const std::string message = Message([](TProtocol* out) {
    out->writeStructBegin("args");
    out->writeFieldBegin("request", TType::T_STRUCT, 2);
    out->writeStructBegin("request");
    out->writeFieldBegin("objects", TType::T_LIST, 6);
    out->writeListBegin(TType::T_STRUCT, kStructs);
    for (int i = 0; i < kStructs; ++i) {
      out->writeFieldBegin("unknown", TType::T_I32, 99);
      out->writeI32(0);
      out->writeFieldStop();
    }
    for (int i = 0; i < 2; ++i) out->writeFieldStop();
  });
  EXPECT_THAT(ReadCreate(message, 64 << 20), ::testing::HasSubstr("bytes of memory, the limit is"));
  EXPECT_EQ(ReadCreate(CreateOf(1000), 64 << 20), "");
}

// Two structs of a message, of which the first has lists that take `entries` entries.
std::string PairOfCreates(size_t entries) {
  return Message([entries](TProtocol* out) {
    wire::CreateRequest request;
    request.objects.resize(entries);
    request.write(out);
    request.objects.resize(100);
    request.write(out);
  });
}

TEST(Frame, AStructThatCannotBeReadIsPassedOver) {
  MessageReader reader(100 * 128);
  const std::string message = PairOfCreates(101);
  TProtocol* const in = reader.Read(message);
  std::string name;
  TMessageType type;
  int32_t sequence = 0;
  in->readMessageBegin(name, type, sequence);
  wire::CreateRequest request;
  EXPECT_THAT(reader.ReadOrPassOver(&request).message(), ::testing::HasSubstr("the limit is"));
  EXPECT_TRUE(request.objects.empty());
  EXPECT_TRUE(reader.ReadOrPassOver(&request).ok());  // it takes all that there is room for
  EXPECT_EQ(request.objects.size(), 100u);
}

TEST(Frame, AStructWhoseEndCannotBeToldIsNotPassedOver) {
  MessageReader reader(kEnough);
  std::string message = PairOfCreates(1);
  message.resize(40);
  TProtocol* const in = reader.Read(message);
  std::string name;
  TMessageType type;
  int32_t sequence = 0;
  in->readMessageBegin(name, type, sequence);
  wire::CreateRequest request;
  EXPECT_ANY_THROW((void)reader.ReadOrPassOver(&request));
}

TEST(Frame, AStringIsNotLongerThanItsMessage) {
  const std::string message = Message([](TProtocol* out) {
    out->writeStructBegin("args");
    out->writeFieldBegin("unknown", TType::T_STRING, 99);
    out->writeI32(1 << 30);
  });
  EXPECT_NE(ReadCreate(message), "");
  EXPECT_NE(ReadCreate(std::string("\x80\x01\x00\x01\x7f\xff\xff\xff", 8)), "");
  EXPECT_NE(ReadCreate(""), "");
}

}  // namespace
}  // namespace cairn
