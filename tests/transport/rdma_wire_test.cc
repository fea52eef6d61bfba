// RDMA's words over the control wire: what is written is read, and nothing else is.
#include "server/transport/rdma_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/transport/two_nodes.h"

namespace cairn::transport {
namespace {

using ::testing::HasSubstr;

VerbsEndpoint AnEndpoint(uint32_t queue) {
  VerbsEndpoint endpoint = {.queue = queue,
                            .first_packet = 0xabcdef,
                            .ethernet = true,
                            .lid = 7,
                            .gid = {},
                            .mtu_bytes = 4096,
                            .reads_in = 16};
  endpoint.gid[15] = 9;
  return endpoint;
}

RdmaOpened AnAnswer() {
  return {.extents = {{3, 4096, 100}, {3, 8192, 5}, {9, 0, 1}},
          .slabs = {{3, {{0, 1 << 20, 77}, {1 << 20, 5, 78}}}, {9, {{0, 4096, 79}}}}};
}

TEST(RdmaWire, SaysWhatWasSaid) {
  const RdmaConnect connect = {.replaces = 5, .endpoints = {AnEndpoint(1), AnEndpoint(2)}};
  const auto asked = DecodeRdmaQuestion(Encode(RdmaQuestion(connect)));
  ASSERT_TRUE(asked.ok()) << asked.status();
  const auto& read = std::get<RdmaConnect>(*asked);
  EXPECT_EQ(read.replaces, 5U);
  ASSERT_EQ(read.endpoints.size(), 2U);
  EXPECT_EQ(read.endpoints[1].queue, 2U);
  EXPECT_EQ(read.endpoints[1].first_packet, 0xabcdefU);
  EXPECT_TRUE(read.endpoints[1].ethernet);
  EXPECT_EQ(read.endpoints[1].lid, 7);
  EXPECT_EQ(read.endpoints[1].gid, AnEndpoint(2).gid);
  EXPECT_EQ(read.endpoints[1].mtu_bytes, 4096);
  EXPECT_EQ(read.endpoints[1].reads_in, 16);

  const RdmaOpen open = {.connection = 12, .token = NewGrantToken(), .anew = true};
  const auto opened = DecodeRdmaQuestion(Encode(RdmaQuestion(open)));
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(std::get<RdmaOpen>(*opened).connection, 12U);
  EXPECT_EQ(std::get<RdmaOpen>(*opened).token, open.token);
  EXPECT_TRUE(std::get<RdmaOpen>(*opened).anew);

  RdmaOpen doubted = open;
  doubted.came = {.bytes = {3, 8192, 4096}, .crc = 0xdecade};
  const auto anew = DecodeRdmaQuestion(Encode(RdmaQuestion(doubted)));
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_TRUE(std::get<RdmaOpen>(*anew).anew);
  EXPECT_EQ(std::get<RdmaOpen>(*anew).came->bytes, doubted.came->bytes);
  EXPECT_EQ(std::get<RdmaOpen>(*anew).came->crc, 0xdecadeU);
  doubted.came->bytes.length = kMaxReadBytes + 1;  // the owner reads them at once
  EXPECT_FALSE(DecodeRdmaQuestion(Encode(RdmaQuestion(doubted))).ok());

  const auto connected = DecodeRdmaConnected(Encode(RdmaConnected{4, {AnEndpoint(3)}}));
  ASSERT_TRUE(connected.ok()) << connected.status();
  EXPECT_EQ(connected->connection, 4U);
  EXPECT_EQ(connected->endpoints[0].queue, 3U);

  const auto keys = DecodeRdmaOpened(Encode(AnAnswer()));
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(keys->extents, AnAnswer().extents);
  ASSERT_EQ(keys->slabs.size(), 2U);
  EXPECT_EQ(keys->slabs[0].pieces[1].key, 78U);
  EXPECT_EQ(keys->slabs[1].slab, 9U);
}

TEST(RdmaWire, WhatIsCutOrLongerIsRefused) {
  const std::string question = Encode(RdmaQuestion(RdmaConnect{1, {AnEndpoint(1)}})),
                    answer = Encode(AnAnswer()),
                    connected = Encode(RdmaConnected{4, {AnEndpoint(3)}});
  for (size_t length = 0; length < question.size(); ++length) {
    EXPECT_FALSE(DecodeRdmaQuestion(question.substr(0, length)).ok()) << length;
  }
  for (size_t length = 0; length < answer.size(); ++length) {
    EXPECT_FALSE(DecodeRdmaOpened(answer.substr(0, length)).ok()) << length;
  }
  for (size_t length = 0; length < connected.size(); ++length) {
    EXPECT_FALSE(DecodeRdmaConnected(connected.substr(0, length)).ok()) << length;
  }
  EXPECT_FALSE(DecodeRdmaQuestion(question + "x").ok());
  EXPECT_FALSE(DecodeRdmaOpened(answer + "x").ok());
  EXPECT_FALSE(DecodeRdmaConnected(connected + "x").ok());
}

TEST(RdmaWire, ExtentsOutOfOrderAreRefused) {
  RdmaOpened answer = AnAnswer();
  std::swap(answer.extents[0], answer.extents[2]);
  EXPECT_FALSE(DecodeRdmaOpened(Encode(answer)).ok());
}

class Recorded final : public ControlWire {
 public:
  StatusOr<std::string> Ask(int32_t rank, const std::string& question, MonotonicNanos) override {
    asked = rank;
    last = question;
    return answer;
  }
  int32_t asked = -1;
  std::string last;
  StatusOr<std::string> answer = Encode(AnAnswer());
};

TEST(RdmaWire, TheMemberOfTheAddressIsAsked) {
  Recorded wire;
  RdmaControlOverWire control(&wire);
  const RdmaOpen open = {.connection = 12, .token = NewGrantToken()};
  ASSERT_TRUE(control.Open(RdmaAddress(31), open, After(1)).ok());
  EXPECT_EQ(wire.asked, 31);
  EXPECT_EQ(wire.last, Encode(RdmaQuestion(open)));
  wire.answer = absl::UnavailableError("away");
  EXPECT_TRUE(absl::IsUnavailable(control.Open(RdmaAddress(31), open, After(1)).status()));
  const auto nobody = control.Connect("10.0.0.1:7", {}, After(1));
  EXPECT_TRUE(absl::IsUnavailable(nobody.status()));
  EXPECT_THAT(nobody.status().message(), HasSubstr("10.0.0.1:7"));
}

}  // namespace
}  // namespace cairn::transport
